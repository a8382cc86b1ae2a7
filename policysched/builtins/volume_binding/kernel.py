"""Claims and volumes over label codes: whom bound volumes can follow, and where unbound claims find one or get one made.

The volumes to choose from stand arranged for each kind of claim; each node's choice for each claim is then the smallest
place in that arrangement, so that a pod costs vectors over nodes.
"""

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from policysched.builtins.volume_terms import (
    requirements_match,
    selector_matches,
    terms_match,
    volume_fits,
)
from policysched.cluster.volumes.availability import AvailableVolumes
from policysched.cluster.volumes.binder import (
    NO_SPACE,
    NO_VOLUME,
    NODE_CONFLICT,
    VOLUME_NOT_FOUND,
    PodVolumeClaims,
    choose_volumes,
    matches_claim_spec,
    pod_volume_claims,
)
from policysched.cluster.volumes.reservations import VolumeChoice
from policysched.evaluate.columns.column_kinds import NODE_NAME, NodeMapEntry
from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.free_volume_index import NO_FREE_VOLUME, FreeVolumeIndex
from policysched.evaluate.columns.interner import Interner
from policysched.evaluate.columns.storage_capacity import NO_CAPACITY
from policysched.evaluate.columns.view import View
from policysched.evaluate.kernel import (
    ClusterContext,
    Dependency,
    FilterKernel,
    FilterKernelBase,
    KernelParams,
)
from policysched.model.nodes import Node
from policysched.model.pods import Pod
from policysched.model.storage import (
    NO_PROVISIONER,
    NodeSelectorTerms,
    PersistentVolume,
    PersistentVolumeClaim,
)


def specialize_filter(pod: Pod, params: KernelParams, around: ClusterContext) -> FilterKernel | None:
    if not pod.claims:
        return None
    timeout_s = params["bind_timeout_seconds"]
    assert isinstance(timeout_s, int), f"a time-out of {timeout_s!r}"
    return VolumeBindingFilter(pod, timeout_s)


class VolumeBindingFilter(FilterKernelBase):
    depends_on = Dependency.NODE | Dependency.VOLUMES

    def __init__(self, pod: Pod, timeout_s: int) -> None:
        self._pod = pod
        self.timeout_s = timeout_s

    def refused(self, view: View) -> Array:
        masks = [mask for _, mask in self.reasons(view)]
        return np.asarray(np.logical_or.reduce(masks))

    def reasons(self, view: View) -> Sequence[tuple[str, Array]]:
        claims = pod_volume_claims(self._pod, view.available_volumes)
        if isinstance(claims, str):
            return ((claims, np.ones(view.count, np.bool_)),)
        conflict, missing = _check_bound_claims(claims, view)
        no_volume, no_space = _check_unbound_claims(claims, view)
        return (
            (NODE_CONFLICT, conflict),
            (NO_VOLUME, no_volume),
            (NO_SPACE, no_space),
            (VOLUME_NOT_FOUND, missing),
        )

    def prefilter(self, view: View) -> str | None:
        claims = pod_volume_claims(self._pod, view.available_volumes)
        return claims if isinstance(claims, str) else None

    def fingerprint(self, view: View) -> Hashable:
        return view.available_volumes.stamps_of(self._pod)

    def choice(self, node: Node, view: View) -> VolumeChoice:
        """What has to happen to the pod's claims on a node that this filter lets pass."""

        def free(
            claim: PersistentVolumeClaim, node: Node, excluded: Sequence[str]
        ) -> PersistentVolume | None:
            volumes, absent = view.free_volumes(claim)
            promised = [volumes.volumes[place].name for place in absent]
            return volumes.best_for_labels(node.labels, {*excluded, *promised})

        claims = pod_volume_claims(self._pod, view.available_volumes)
        assert not isinstance(claims, str), f"{self._pod.full_name} was let pass, and now: {claims}"
        found = choose_volumes(claims, node, view.available_volumes, free)
        assert isinstance(found, VolumeChoice), (
            f"{self._pod.full_name} on {node.name}, that it may have: {found}"
        )
        return found


def _check_bound_claims(claims: PodVolumeClaims, view: View) -> tuple[Array, Array]:
    """Where the first claim that does not hold conflicts with the node, and where its volume is not there."""
    conflict, missing = np.zeros(view.count, np.bool_), np.zeros(view.count, np.bool_)
    for claim in claims.bound:
        volume = view.available_volumes.volume(claim.volume_name)
        if volume is None:
            missing = ~conflict
            break
        conflict |= ~volume_fits(volume, view)
    return conflict, missing


def _check_unbound_claims(claims: PodVolumeClaims, view: View) -> tuple[Array, Array]:
    """Where no volume is found or can be made, and where there is no room for it."""
    stock = view.available_volumes
    no_volume, no_space = np.zeros(view.count, np.bool_), np.zeros(view.count, np.bool_)
    to_match: list[PersistentVolumeClaim] = []
    to_make: list[tuple[PersistentVolumeClaim, Array]] = []
    for claim in claims.delayed:
        selected = stock.selected_node(claim)
        if selected is None:
            to_match.append(claim)
        else:
            no_volume |= view.column(NODE_NAME) != view.codes.strings.find(selected)
            to_make.append((claim, np.ones(view.count, np.bool_)))
    settled = no_volume.copy()
    to_match.sort(key=lambda claim: claim.request_bytes or 0)
    to_make += _find_matching_volumes(to_match, view)
    for claim, where in to_make:
        left = where & ~settled
        if left.any():
            unfit, full = _cannot_provision(claim, stock, view)
            no_volume |= left & unfit
            no_space |= left & full
            settled |= left & (unfit | full)
    return no_volume, no_space


class _FreeVolumeRows:
    """A view as `FreeVolumeIndex` asks it."""

    def __init__(self, view: View) -> None:
        self._view = view

    @property
    def count(self) -> int:
        return self._view.count

    @property
    def strings(self) -> Interner[str]:
        return self._view.codes.strings

    def label_codes(self, label: str) -> NDArray[np.int32]:
        return self._view.column(NodeMapEntry("labels", label))

    def matching_rows(self, terms: NodeSelectorTerms | None) -> NDArray[np.bool_]:
        return terms_match(terms, self._view)


def _find_matching_volumes(
    claims: Sequence[PersistentVolumeClaim], view: View
) -> list[tuple[PersistentVolumeClaim, Array]]:
    """The claims, smallest first, that find no volume, and where."""
    meant: list[tuple[str, Array]] = []  # volumes that are meant for a claim, and where one has it
    taken: list[tuple[FreeVolumeIndex, Array]] = []
    found = []
    for claim in claims:
        matched, looking = np.zeros(view.count, np.bool_), np.ones(view.count, np.bool_)
        for volume in view.available_volumes.volumes_for_claim(claim):
            if matches_claim_spec(volume, claim):
                here = looking.copy()
                for name, where in meant:
                    if name == volume.name:
                        here &= ~where
                fits = here & terms_match(volume.node_affinity_terms, view)
                meant.append((volume.name, fits))
                matched |= fits
                looking &= ~here
        if looking.any():
            free, absent = view.free_volumes(claim)
            best = free.best(
                _FreeVolumeRows(view), [_translate_volume_indexes(free, *one) for one in taken], absent
            )
            picked = np.where(looking, best, NO_FREE_VOLUME)
            taken.append((free, picked))
            matched |= picked != NO_FREE_VOLUME
        found.append((claim, ~matched))
    return found


def _translate_volume_indexes(free: FreeVolumeIndex, other: FreeVolumeIndex, taken: Array) -> Array:
    """What was taken from one arrangement, as places in another; what is not in it is taken from nobody."""
    if other is free:
        return taken
    places = [free.position_of.get(volume.name, NO_FREE_VOLUME) for volume in other.volumes]
    return np.array([*places, NO_FREE_VOLUME])[taken]


def _cannot_provision(
    claim: PersistentVolumeClaim, stock: AvailableVolumes, view: View
) -> tuple[Array, Array]:
    """Where no volume can be made for the claim, and where there is no room for it."""
    nowhere, everywhere = np.zeros(view.count, np.bool_), np.ones(view.count, np.bool_)
    found = stock.storage_class(claim.class_name)
    assert found is not None, f"{claim.key} waits without a class"
    if found.provisioner in ("", NO_PROVISIONER):
        return everywhere, nowhere
    unfit = nowhere
    if found.allowed_topologies:
        allowed = np.zeros(view.count, np.bool_)
        for term in found.allowed_topologies:
            if term:
                allowed |= requirements_match(term, view)
        unfit = ~allowed
    if claim.request_bytes is None or not stock.tracks_capacity(found.provisioner):
        return unfit, nowhere
    return unfit, ~unfit & (_provisionable_bytes_max(found.name, view) < claim.request_bytes)


def _provisionable_bytes_max(class_name: str, view: View) -> Array:
    """int64[view.count]: the largest volume of the class that can be made for each node, or NO_ROOM."""
    columns = {
        label: view.column(NodeMapEntry("labels", label))
        for label in view.storage_capacity(class_name).by_label
    }
    found, room = (
        view.storage_capacity(class_name),
        np.full(view.count, NO_CAPACITY),
    )  # every value has its code now
    for label, table in found.by_label.items():
        codes = columns[label]
        last = len(table) - 1
        np.maximum(room, table[np.where((codes >= 0) & (codes < last), codes, last)], out=room)
    for selector, limit_bytes in found.by_selector.items():
        np.maximum(room, limit_bytes, out=room, where=selector_matches(selector, view))
    return room

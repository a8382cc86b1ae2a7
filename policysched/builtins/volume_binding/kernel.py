"""Volume binding over label codes: node affinity of bound volumes, and volumes for unbound claims.

Free volumes are indexed by what a claim requires. The choice for a claim on each node is then the
smallest position in the index, so that a pod costs vector operations over nodes.
"""

from collections.abc import Hashable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from policysched.builtins.node_affinity.kernel import requirement_matches
from policysched.cluster.devices.reservations import DeviceChoice
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
from policysched.evaluate.columns.column_kinds import NODE_NAME, NodeMapEntryColumn, PluginMigratedColumn
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
from policysched.evaluate.verdict import PrebindRequirements, VolumesToBind
from policysched.model.nodes import Node
from policysched.model.pods import Pod
from policysched.model.selectors import LabelSelector, SelectorRequirement
from policysched.model.storage import (
    NO_PROVISIONER,
    NodeSelectorTerms,
    PersistentVolume,
    PersistentVolumeClaim,
)


def specialize_filter(pod: Pod, params: KernelParams, cluster_context: ClusterContext) -> FilterKernel | None:
    if not pod.claims:
        return None
    timeout_s = params["bind_timeout_seconds"]
    assert isinstance(timeout_s, int), f"bind_timeout_seconds is {timeout_s!r}"
    return VolumeBindingFilter(pod, timeout_s)


class VolumeBindingFilter(FilterKernelBase):
    depends_on = Dependency.NODE | Dependency.VOLUMES

    def __init__(self, pod: Pod, timeout_s: int) -> None:
        self._pod = pod
        self.timeout_s = timeout_s

    def rejected(self, view: View) -> Array:
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

    def prebind_requirements(self, pod: Pod, node: Node, view: View) -> PrebindRequirements | None:
        choice = self.choice(node, view)
        return PrebindRequirements(VolumesToBind(choice, self.timeout_s), DeviceChoice()) if choice else None

    def choice(self, node: Node, view: View) -> VolumeChoice:
        """The bindings and provisioning for the pod's claims on a node that this filter accepts."""

        def free(
            claim: PersistentVolumeClaim, node: Node, excluded: Sequence[str]
        ) -> PersistentVolume | None:
            volumes, absent = view.free_volumes(claim)
            reserved = [volumes.volumes[index].name for index in absent]
            return volumes.best_for_labels(node.labels, {*excluded, *reserved})

        claims = pod_volume_claims(self._pod, view.available_volumes)
        assert not isinstance(claims, str), f"{self._pod.full_name} passed the filter, but now: {claims}"
        choice = choose_volumes(claims, node, view.available_volumes, free)
        assert isinstance(choice, VolumeChoice), (
            f"{self._pod.full_name} passed on {node.name}, but now: {choice}"
        )
        return choice


def _check_bound_claims(claims: PodVolumeClaims, view: View) -> tuple[Array, Array]:
    """Where the volume of the first failing claim conflicts with the node, and where that volume
    does not exist.
    """
    conflict, missing = np.zeros(view.count, np.bool_), np.zeros(view.count, np.bool_)
    for claim in claims.bound:
        volume = view.available_volumes.volume(claim.volume_name)
        if volume is None:
            missing = ~conflict
            break
        conflict |= ~_volume_fits(volume, view)
    return conflict, missing


def _check_unbound_claims(claims: PodVolumeClaims, view: View) -> tuple[Array, Array]:
    """Where no volume is available or can be provisioned, and where there is not enough storage."""
    volumes = view.available_volumes
    no_volume, no_space = np.zeros(view.count, np.bool_), np.zeros(view.count, np.bool_)
    to_match: list[PersistentVolumeClaim] = []
    to_make: list[tuple[PersistentVolumeClaim, Array]] = []
    for claim in claims.delayed:
        selected = volumes.selected_node(claim)
        if selected is None:
            to_match.append(claim)
        else:
            no_volume |= view.column(NODE_NAME) != view.codes.strings.find(selected)
            to_make.append((claim, np.ones(view.count, np.bool_)))
    decided = no_volume.copy()
    to_match.sort(key=lambda claim: claim.request_bytes or 0)
    to_make += _find_matching_volumes(to_match, view)
    for claim, where in to_make:
        undecided = where & ~decided
        if undecided.any():
            unfit, full = _cannot_provision(claim, volumes, view)
            no_volume |= undecided & unfit
            no_space |= undecided & full
            decided |= undecided & (unfit | full)
    return no_volume, no_space


class _FreeVolumeRows:
    """A view as `FreeVolumeIndex` reads it."""

    def __init__(self, view: View) -> None:
        self._view = view

    @property
    def count(self) -> int:
        return self._view.count

    @property
    def strings(self) -> Interner[str]:
        return self._view.codes.strings

    def label_codes(self, label: str) -> NDArray[np.int32]:
        return self._view.column(NodeMapEntryColumn("labels", label))

    def matching_rows(self, terms: NodeSelectorTerms | None) -> NDArray[np.bool_]:
        return _terms_match(terms, self._view)


def _find_matching_volumes(
    claims: Sequence[PersistentVolumeClaim], view: View
) -> list[tuple[PersistentVolumeClaim, Array]]:
    """The claims, smallest first, each with the rows where no volume matches it."""
    matched_volumes: list[tuple[str, Array]] = []  # by volume the rows where a claim matches it
    taken: list[tuple[FreeVolumeIndex, Array]] = []
    unmatched_claims = []
    for claim in claims:
        matched, looking = np.zeros(view.count, np.bool_), np.ones(view.count, np.bool_)
        for volume in view.available_volumes.volumes_for_claim(claim):
            if matches_claim_spec(volume, claim):
                candidates = looking.copy()
                for name, where in matched_volumes:
                    if name == volume.name:
                        candidates &= ~where
                matching = candidates & _terms_match(volume.node_affinity_terms, view)
                matched_volumes.append((volume.name, matching))
                matched |= matching
                looking &= ~candidates
        if looking.any():
            free, absent = view.free_volumes(claim)
            best = free.best(
                _FreeVolumeRows(view), [_translate_volume_indexes(free, *choice) for choice in taken], absent
            )
            picked = np.where(looking, best, NO_FREE_VOLUME)
            taken.append((free, picked))
            matched |= picked != NO_FREE_VOLUME
        unmatched_claims.append((claim, ~matched))
    return unmatched_claims


def _translate_volume_indexes(free: FreeVolumeIndex, other: FreeVolumeIndex, taken: Array) -> Array:
    """Chosen positions of one index as positions of another; a volume that the other lacks becomes
    NO_FREE_VOLUME.
    """
    if other is free:
        return taken
    places = [free.position_of.get(volume.name, NO_FREE_VOLUME) for volume in other.volumes]
    return np.array([*places, NO_FREE_VOLUME])[taken]


def _cannot_provision(
    claim: PersistentVolumeClaim, volumes: AvailableVolumes, view: View
) -> tuple[Array, Array]:
    """Where no volume can be provisioned for the claim, and where there is not enough storage."""
    nowhere, everywhere = np.zeros(view.count, np.bool_), np.ones(view.count, np.bool_)
    storage_class = volumes.storage_class(claim.class_name)
    assert storage_class is not None, f"{claim.key} is delayed and has no class"
    if storage_class.provisioner in ("", NO_PROVISIONER):
        return everywhere, nowhere
    unfit = nowhere
    if storage_class.allowed_topologies:
        allowed = np.zeros(view.count, np.bool_)
        for term in storage_class.allowed_topologies:
            if term:
                allowed |= _requirements_match(term, view)
        unfit = ~allowed
    if claim.request_bytes is None or not volumes.tracks_capacity(storage_class.provisioner):
        return unfit, nowhere
    return unfit, ~unfit & (_provisionable_bytes_max(storage_class.name, view) < claim.request_bytes)


def _provisionable_bytes_max(class_name: str, view: View) -> Array:
    """int64[view.count]: the largest volume of the class that can be provisioned for each node, or
    NO_CAPACITY.
    """
    columns = {
        label: view.column(NodeMapEntryColumn("labels", label))
        for label in view.storage_capacity(class_name).by_label
    }
    capacities, bytes_max = (
        view.storage_capacity(class_name),
        np.full(view.count, NO_CAPACITY),
    )  # after the columns: every label value has a code
    for label, table in capacities.by_label.items():
        codes = columns[label]
        last = len(table) - 1
        np.maximum(bytes_max, table[np.where((codes >= 0) & (codes < last), codes, last)], out=bytes_max)
    for selector, limit_bytes in capacities.by_selector.items():
        np.maximum(bytes_max, limit_bytes, out=bytes_max, where=_selector_matches(selector, view))
    return bytes_max


# ── node affinity of volumes and node selectors, over label codes ───────────────────────────────────────────────
#
# kube-scheduler matches a volume's terms against node labels alone: matchFields are ignored, and a
# term without requirements matches nothing. Source: `CheckNodeAffinity` in
# k8s.io/component-helpers/storage/volume.


def _volume_fits(volume: PersistentVolume, view: View) -> Array:
    """bool[view.count]: by node affinity, with the migrated terms on nodes whose kubelet migrates
    the plugin.
    """
    matches = _terms_match(volume.node_affinity_terms, view)
    if volume.migration is None:
        return matches
    is_migrated = view.column(PluginMigratedColumn(volume.migration.plugin))
    return np.where(is_migrated, _terms_match(volume.migration.node_affinity_terms, view), matches)


def _terms_match(terms: NodeSelectorTerms | None, view: View) -> Array:
    """bool[view.count]; None matches everywhere."""
    if terms is None:
        return np.ones(view.count, np.bool_)
    matched = np.zeros(view.count, np.bool_)
    for term in terms:
        if term.expressions or term.fields:
            matched |= _requirements_match(term.expressions, view)
    return matched


def _requirements_match(requirements: Iterable[SelectorRequirement], view: View) -> Array:
    matched = np.ones(view.count, np.bool_)
    for requirement in requirements:
        matched &= requirement_matches(requirement, NodeMapEntryColumn("labels", requirement.key), view)
    return matched


def _selector_matches(selector: LabelSelector, view: View) -> Array:
    """bool[view.count]"""
    return _requirements_match(selector.requirements, view)

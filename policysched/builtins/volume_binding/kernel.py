"""Volume binding over label codes: node affinity of bound volumes, and volumes for unbound claims.

Free volumes are indexed by what a claim requires. The choice for a claim on each node is then the
smallest position in the index, so that a pod costs vector operations over nodes.
"""

from collections.abc import Hashable, Sequence
from itertools import chain

import numpy as np

from policysched.builtins.node_resources_fit.kernel import shape_table
from policysched.builtins.volume_binding.capacity_score import StorageCapacityScore
from policysched.builtins.volume_binding.matching import (
    can_provision,
    find_matching_volumes,
    provisionable_bytes,
    requirements_match,
    split_delayed,
    volume_fits,
)
from policysched.cluster.devices.reservations import DeviceChoice
from policysched.cluster.volumes.availability import AvailableVolumes
from policysched.cluster.volumes.binder import (
    NO_SPACE,
    NO_VOLUME,
    NODE_CONFLICT,
    VOLUME_NOT_FOUND,
    PodVolumeClaims,
    choose_volumes,
    pod_volume_claims,
)
from policysched.cluster.volumes.reservations import VolumeChoice
from policysched.evaluate.columns.column_kinds import NODE_NAME
from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.free_volume_index import FreeVolumeIndex
from policysched.evaluate.columns.view import View
from policysched.evaluate.kernel import (
    ClusterContext,
    Dependency,
    FilterKernel,
    FilterKernelBase,
    KernelParams,
    ScoreKernel,
)
from policysched.evaluate.verdict import PrebindRequirements, VolumesToBind
from policysched.model.nodes import Node
from policysched.model.pods import Pod
from policysched.model.storage import PersistentVolume, PersistentVolumeClaim


def specialize_filter(pod: Pod, params: KernelParams, cluster_context: ClusterContext) -> FilterKernel | None:
    if not pod.claims:
        return None
    timeout_s = params["bind_timeout_seconds"]
    assert isinstance(timeout_s, int), f"bind_timeout_seconds is {timeout_s!r}"
    return VolumeBindingFilter(pod, timeout_s)


def specialize_score(pod: Pod, params: KernelParams, cluster_context: ClusterContext) -> ScoreKernel | None:
    return StorageCapacityScore(pod, shape_table(params["shape"])) if pod.claims else None


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

        reachable: dict[FreeVolumeIndex, Array] = {}

        def free(
            claim: PersistentVolumeClaim, node: Node, excluded: Sequence[str]
        ) -> PersistentVolume | None:
            volumes = view.free_volumes(claim)
            if volumes.index not in reachable:
                reachable[volumes.index] = volumes.index.reachable(node.labels)
            return volumes.best_of(reachable[volumes.index], excluded)

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
    compared = set[object]()  # a pod can use a claim, or volumes with equal affinities, a thousand times
    for claim in claims.bound:
        volume = view.available_volumes.volume(claim.volume_name)
        if volume is None:
            missing = ~conflict
            break
        affinity = volume.node_affinity_terms, volume.migration
        if affinity not in compared:
            compared.add(affinity)
            conflict |= ~volume_fits(volume, view)
    return conflict, missing


def _check_unbound_claims(claims: PodVolumeClaims, view: View) -> tuple[Array, Array]:
    """Where no volume is available or can be provisioned, and where there is not enough storage."""
    volumes = view.available_volumes
    no_volume, no_space = np.zeros(view.count, np.bool_), np.zeros(view.count, np.bool_)
    to_match, selected_nodes = split_delayed(claims.delayed, volumes)
    to_make: list[tuple[PersistentVolumeClaim, Array]] = []
    for claim, selected in selected_nodes:
        no_volume |= view.column(NODE_NAME) != view.codes.strings.find(selected)
        to_make.append((claim, np.ones(view.count, np.bool_)))
    decided = no_volume.copy()
    to_match_later = (
        (match.claim, match.unmatched) for match in find_matching_volumes(to_match, view, decided)
    )
    for claim, where in chain(to_make, to_match_later):
        undecided = where & ~decided
        if undecided.any():
            unfit, full = _cannot_provision(claim, volumes, view)
            no_volume |= undecided & unfit
            no_space |= undecided & full
            decided |= undecided & (unfit | full)
        if decided.all():
            break
    return no_volume, no_space


def _cannot_provision(
    claim: PersistentVolumeClaim, volumes: AvailableVolumes, view: View
) -> tuple[Array, Array]:
    """Where no volume can be provisioned for the claim, and where there is not enough storage."""
    nowhere, everywhere = np.zeros(view.count, np.bool_), np.ones(view.count, np.bool_)
    storage_class = volumes.storage_class(claim.class_name)
    assert storage_class is not None, f"{claim.key} is delayed and has no class"
    if not can_provision(claim, volumes):
        return everywhere, nowhere
    unfit = nowhere
    if storage_class.allowed_topologies:
        allowed = np.zeros(view.count, np.bool_)
        for term in storage_class.allowed_topologies:
            if term:
                allowed |= requirements_match(term, view)
        unfit = ~allowed
    if claim.request_bytes is None or not volumes.tracks_capacity(storage_class.provisioner):
        return unfit, nowhere
    return unfit, ~unfit & (provisionable_bytes(storage_class.name, view)[:, 0] < claim.request_bytes)

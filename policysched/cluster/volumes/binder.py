"""Chooses volumes for a pod's claims on a node, or says why it cannot: kube-scheduler's
VolumeBinding for one node.

A claim is bound already, or is bound when the pod gets its node (its class has the mode
WaitForFirstConsumer), or rejects the pod until another controller binds it. Source:
`pkg/scheduler/framework/plugins/volumebinding/binder.go` of kubernetes v1.36.3, and
`FindMatchingVolume` in k8s.io/component-helpers/storage/volume.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from policysched.cluster.volumes.availability import AvailableVolumes
from policysched.cluster.volumes.reservations import VolumeChoice
from policysched.model.nodes import Node
from policysched.model.pods import Pod
from policysched.model.selectors import SelectorByKey, requirement_holds, volume_fits_labels
from policysched.model.storage import (
    NO_PROVISIONER,
    NodeSelectorTerms,
    PersistentVolume,
    PersistentVolumeClaim,
)

NODE_CONFLICT = "node(s) didn't match PersistentVolume's node affinity"
NO_VOLUME = "node(s) didn't find available persistent volumes to bind"
NO_SPACE = "node(s) did not have enough free storage"
VOLUME_NOT_FOUND = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
UNBOUND_IMMEDIATE = "pod has unbound immediate PersistentVolumeClaims"
DELAYED_CLAIMS_MAX = 64
"""Of a pod, also if they are uses of one claim: each is compared with what the others would take."""


FindFreeVolume = Callable[[PersistentVolumeClaim, Node, Sequence[str]], PersistentVolume | None]
"""Finds the smallest available volume that fits a claim on a node, without the excluded names."""


@dataclass(frozen=True, slots=True)
class PodVolumeClaims:
    """A claim that the pod uses twice is listed twice, as in kube-scheduler."""

    bound: tuple[PersistentVolumeClaim, ...]
    delayed: tuple[PersistentVolumeClaim, ...]


def pod_volume_claims(pod: Pod, available: AvailableVolumes) -> PodVolumeClaims | str:
    """The pod's claims, bound and delayed, or the reason why the pod fits no node."""
    rejection = _claims_rejection(pod, available)
    if rejection is not None:
        return rejection
    bound, delayed = [], []
    for use in pod.claims:
        claim = available.claim(use.claim)
        assert claim is not None, f"{use.claim} is missing"
        if claim.fully_bound:
            bound.append(claim)
        elif _waits_for_first_consumer(claim, available) and not claim.volume_name:
            delayed.append(claim)
        else:
            return UNBOUND_IMMEDIATE
    if len(delayed) > DELAYED_CLAIMS_MAX:
        return f"pod uses more than {DELAYED_CLAIMS_MAX} unbound PersistentVolumeClaims"
    return PodVolumeClaims(tuple(bound), tuple(delayed))


def not_found_message(kind: str, name: str) -> str:
    """The message of the API: `persistentvolumeclaim "data" not found`."""
    return f'{kind} "{name}" not found'


def _claims_rejection(pod: Pod, available: AvailableVolumes) -> str | None:
    for use in pod.claims:
        name, claim = use.claim.name, available.claim(use.claim)
        if claim is None:
            if use.owner_pod is not None:
                return f'waiting for ephemeral volume controller to create the persistentvolumeclaim "{name}"'
            return not_found_message("persistentvolumeclaim", name)
        if claim.phase == "Lost":
            return (
                f'persistentvolumeclaim "{name}" bound to non-existent persistentvolume "{claim.volume_name}"'
            )
        if claim.deleting:
            return f'persistentvolumeclaim "{name}" is being deleted'
        if use.owner_pod not in (None, claim.controller_uid):
            return (
                f"PVC {use.claim.namespace}/{name} was not created for pod {pod.full_name} (pod is not owner)"
            )
    return None


def _waits_for_first_consumer(claim: PersistentVolumeClaim, available: AvailableVolumes) -> bool:
    storage_class = available.storage_class(claim.class_name) if claim.class_name else None
    return storage_class is not None and storage_class.waits_for_first_consumer


def choose_volumes(
    claims: PodVolumeClaims, node: Node, available: AvailableVolumes, free: FindFreeVolume | None = None
) -> VolumeChoice | tuple[str, ...]:
    """The volumes for the claims on the node, or the reasons why the node is infeasible. `free` is
    a faster equivalent of `find_free_volume`."""
    reasons = _RejectionReasons()
    _check_bound(claims.bound, node, available, reasons)
    choice = _choose_delayed(
        claims.delayed, node, available, free or partial(find_free_volume, available=available), reasons
    )
    return reasons.in_order() or choice


@dataclass(slots=True)
class _RejectionReasons:
    texts: set[str] = field(default_factory=set)

    def in_order(self) -> tuple[str, ...]:
        return tuple(
            reason
            for reason in (NODE_CONFLICT, NO_VOLUME, NO_SPACE, VOLUME_NOT_FOUND)
            if reason in self.texts
        )


def _check_bound(
    bound: Iterable[PersistentVolumeClaim],
    node: Node,
    available: AvailableVolumes,
    reasons: _RejectionReasons,
) -> None:
    """Stops at the first claim that does not fit."""
    for claim in bound:
        volume = available.volume(claim.volume_name)
        if volume is None:
            reasons.texts.add(VOLUME_NOT_FOUND)
            return
        if not volume_fits_labels(node_affinity_on(volume, node), node.labels):
            reasons.texts.add(NODE_CONFLICT)
            return


def node_affinity_on(volume: PersistentVolume, node: Node) -> NodeSelectorTerms | None:
    """The volume's node affinity, after the CSI migration of the node."""
    migration = volume.migration
    if migration is not None and node.csi is not None and migration.plugin in node.csi.migrated_plugins:
        return migration.node_affinity_terms
    return volume.node_affinity_terms


def _choose_delayed(
    delayed: Sequence[PersistentVolumeClaim],
    node: Node,
    available: AvailableVolumes,
    free: FindFreeVolume,
    reasons: _RejectionReasons,
) -> VolumeChoice:
    to_match, to_provision = [], []
    for claim in delayed:
        selected = available.selected_node(claim)
        if selected is None:
            to_match.append(claim)
        elif selected == node.name:
            to_provision.append(claim)
        else:
            reasons.texts.add(NO_VOLUME)
            return VolumeChoice()
    static: list[tuple[PersistentVolumeClaim, PersistentVolume]] = []
    for claim in sorted(
        to_match, key=lambda claim: claim.request_bytes or 0
    ):  # smallest first, for the tightest fit
        volume = _matching_volume(claim, node, available, free, [chosen.name for _, chosen in static])
        if volume is None:
            to_provision.append(claim)
        else:
            static.append((claim, volume))
    for claim in to_provision:
        reason = provisioning_rejection(claim, node, available)
        if reason is not None:
            reasons.texts.add(reason)
            break
    return VolumeChoice(tuple(static), tuple(to_provision))


def _matching_volume(
    claim: PersistentVolumeClaim,
    node: Node,
    available: AvailableVolumes,
    free: FindFreeVolume,
    excluded: Sequence[str],
) -> PersistentVolume | None:
    """The volume that is bound or reserved for the claim, or else the smallest that fits; None if
    there is none."""
    for volume in available.volumes_for_claim(claim):
        if volume.name not in excluded and matches_claim_spec(volume, claim):
            return volume if volume_fits_labels(volume.node_affinity_terms, node.labels) else None
    return free(claim, node, excluded)


def find_free_volume(
    claim: PersistentVolumeClaim, node: Node, excluded: Sequence[str], available: AvailableVolumes
) -> PersistentVolume | None:
    for volume in available.free_volumes(claim.class_name):
        if (
            volume.name not in excluded
            and matches_claim_spec(volume, claim)
            and is_available(volume, claim)
            and volume_fits_labels(volume.node_affinity_terms, node.labels)
        ):
            return volume
    return None


def matches_claim_spec(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    """Conditions that also hold for a volume that is reserved for the claim."""
    return (
        volume.capacity_bytes >= (claim.request_bytes or 0)
        and volume.is_block == claim.is_block
        and volume.attributes_class == claim.attributes_class
        and not volume.deleting
    )


def is_available(
    volume: PersistentVolume, claim: PersistentVolumeClaim, selector: SelectorByKey | None = None
) -> bool:
    """Further conditions for a volume that is not reserved for the claim. `selector` is that of the claim, for many
    volumes."""
    selects = selector or claim.selector
    return (
        volume.phase == "Available"
        and (selects is None or selects.selects(volume.labels))
        and claim.access_modes <= volume.access_modes
    )


def provisioning_rejection(
    claim: PersistentVolumeClaim, node: Node, available: AvailableVolumes
) -> str | None:
    """Why no volume can be provisioned for the claim on the node; None if one can."""
    storage_class = available.storage_class(claim.class_name)
    assert storage_class is not None, f"{claim.key} is delayed without a class"
    if storage_class.provisioner in ("", NO_PROVISIONER):
        return NO_VOLUME
    if storage_class.allowed_topologies and not any(
        term and all(requirement_holds(requirement, node.labels) for requirement in term)
        for term in storage_class.allowed_topologies
    ):
        return NO_VOLUME
    size = claim.request_bytes
    if size is None or not available.tracks_capacity(storage_class.provisioner):
        return None
    for capacity in available.capacities(storage_class.name):
        enough = capacity.limit_bytes is not None and capacity.limit_bytes >= size
        if enough and capacity.topology is not None and capacity.topology.selects(node.labels):
            return None
    return NO_SPACE

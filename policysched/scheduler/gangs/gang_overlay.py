"""The hypothetical cluster on which members of a gang are placed. In steps, as members and victims are thousands."""

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from policysched.evaluate import Overlay
from policysched.model.identifiers import NodeName, PodUid
from policysched.model.pods import Pod
from policysched.scheduler.attempt_result import AttemptSuccess
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.gangs.gang_search_result import GangSearchResult
from policysched.scheduler.preemption.gang_placement import MemberPlacement
from policysched.scheduler.preemption.nominations import competing_nominations, nominated_overlay
from policysched.scheduler.queue.entries import PendingPod
from policysched.scheduler.queue.gang_registry import QueuedGang
from policysched.scheduler.quotas.quota_usage import QuotaUsage
from policysched.scheduler.steps import Steps, visit_in_pieces


def gang_overlay(core: SchedulerCore, gang: QueuedGang, *, first_holds: bool = True) -> Overlay:
    """The cluster with all nominated pods added, except the members of this gang, and with the capacity holds."""
    members = gang.pending_members.keys()
    return (
        nominated_overlay(core, gang.representative_pod, excluding=members, first_holds=first_holds)
        or core.evaluator.overlay()
    )


def present_overlay(core: SchedulerCore, gang: QueuedGang, search: GangSearchResult) -> Steps[Overlay]:
    """The present cluster with what a search has found: without the victims that are left, and with the members that have a
    node."""
    if search.overlay is not None:
        return search.overlay
    overlay = gang_overlay(core, gang)
    yield from remove_victims(core, overlay, search)
    yield from visit_in_pieces(search.fits, lambda fit: add_member(overlay, *fit), 1)
    return overlay


def add_member(overlay: Overlay, pod: PendingPod, success: AttemptSuccess) -> None:
    """With the volumes and devices that it has reserved."""
    overlay.add_pod(pod.pod, success.node)
    if (work := success.prebind_work) is not None:
        overlay.reserve_devices(work.devices)
        if work.volumes is not None:
            overlay.reserve_volumes(pod.uid, work.volumes.choice, success.node)


def present_quotas(core: SchedulerCore, gang: QueuedGang, search: GangSearchResult) -> QuotaUsage | None:
    """The quotas with what the members use that have a node. None: there are none."""
    usage = core.quotas.trial(gang.representative_pod, excluding=gang.pending_members)
    if usage is not None:
        for pod, _ in search.fits:
            usage.add(core.quotas.charge_of(pod.pod))
    return usage


def remove_victims(core: SchedulerCore, overlay: Overlay, search: GangSearchResult) -> Steps[None]:
    yield from visit_in_pieces(list(present_victims(core, search)), overlay.remove_pod, 1)


@contextmanager
def with_nominations_of(
    core: SchedulerCore,
    gang: QueuedGang,
    search: GangSearchResult,
    pod: Pod,
    overlay: Overlay,
    beside: Collection[PodUid] = (),
) -> Iterator[Overlay]:
    """The overlay of a search, for a pod of another priority than the gang: with what is nominated as the pod sees it, and with those
    `beside`, which were added to it. Only the difference is added and removed, as members and victims are thousands."""
    members = {*(member.uid for member, _ in search.fits), *beside}
    before = {each.uid: (each, node) for each, node in overlay.added_pods if each.uid not in members}
    seen = competing_nominations(core, pod, excluding={*gang.pending_members, *beside})
    removed = before.keys() - {each.uid for each, _ in seen}
    added = [(each, node) for each, node in seen if each.uid not in before]
    for uid in sorted(removed):
        overlay.remove_pod(uid)
    for each, node in added:
        overlay.add_pod(each, node)
    try:
        yield overlay
    finally:
        for each, _ in added:
            overlay.remove_pod(each.uid)
        for uid in sorted(removed):
            overlay.add_pod(*before[uid])


def nodes_changed_by(core: SchedulerCore, placement: MemberPlacement) -> set[NodeName]:
    """The node, those of its victims, and those where gangs of victims run that have less to spare now."""
    groups = core.cache.pod_groups
    victims = {victim.uid for victim in placement.candidate.victims}
    gangs = {gang for gang in map(core.gangs.gang_of, victims) if gang is not None}
    keys = {key for uid in victims for key in groups.keys_of(uid)}
    victims.update(*(gang.placed_members for gang in gangs))
    # Those of a PodGroup of another scheduler are in no gang of ours.
    victims.update(observed.pod.uid for key in keys for observed in groups.members(key))
    placements = (core.cache.ledger.placement(uid) for uid in victims)
    return {placement.node, *(member.node for member in placements if member is not None)}


def nodes_of(core: SchedulerCore, victims: Iterable[Pod]) -> dict[PodUid, NodeName]:
    """The nodes of the victims that have not gone."""
    placements = [core.cache.ledger.placement(victim.uid) for victim in victims]
    return {on.pod.uid: on.node for on in placements if on is not None}


def present_victims(core: SchedulerCore, search: GangSearchResult) -> dict[PodUid, NodeName]:
    """The victims of a search that are still on their nodes."""
    placement_of = core.cache.ledger.placement
    return {
        uid: node
        for uid, node in search.victims.items()
        if (placement := placement_of(uid)) is not None and placement.node == node
    }


def without_gone_victims(
    core: SchedulerCore, placement: MemberPlacement, search: GangSearchResult
) -> MemberPlacement:
    """With the present state of the others."""
    candidate, placement_of = placement.candidate, core.cache.ledger.placement
    on = [placement_of(victim.uid) for victim in candidate.victims if victim.uid in search.victims]
    victims = tuple([each.pod for each in on if each is not None])
    return MemberPlacement(placement.pod, replace(candidate, victims=victims))

"""The hypothetical cluster on which members of a gang are placed."""

from dataclasses import replace

from policysched.evaluate import Overlay
from policysched.model.identifiers import NodeName, PodUid
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.gangs.gang_search_result import GangSearchResult
from policysched.scheduler.preemption.gang_placement import MemberPlacement
from policysched.scheduler.preemption.nominations import nominated_overlay
from policysched.scheduler.queue.gang_registry import QueuedGang
from policysched.scheduler.quotas.quota_usage import QuotaUsage


def gang_overlay(core: SchedulerCore, gang: QueuedGang, *, first_holds: bool = True) -> Overlay:
    """The cluster with all nominated pods added, except the members of this gang, and with the capacity holds."""
    members = gang.pending_members.keys()
    return (
        nominated_overlay(core, gang.representative_pod, excluding=members, first_holds=first_holds)
        or core.evaluator.overlay()
    )


def present_overlay(core: SchedulerCore, gang: QueuedGang, search: GangSearchResult) -> Overlay:
    """The present cluster with what a search has found."""
    return search.overlay or place_search(core, gang_overlay(core, gang), search)


def present_quotas(core: SchedulerCore, gang: QueuedGang, search: GangSearchResult) -> QuotaUsage | None:
    """The quotas with what the members use that have a node. None: there are none."""
    usage = core.quotas.trial(gang.representative_pod, excluding=gang.pending_members)
    if usage is not None:
        for pod, _ in search.fits:
            usage.add(core.quotas.charge_of(pod.pod))
    return usage


def place_search(core: SchedulerCore, overlay: Overlay, search: GangSearchResult) -> Overlay:
    """Remove the victims of a search that are left, and add the members that have a node."""
    remove_victims(core, overlay, search)
    for pod, success in search.fits:
        overlay.add_pod(pod.pod, success.node)
    return overlay


def remove_victims(core: SchedulerCore, overlay: Overlay, search: GangSearchResult) -> None:
    for uid in present_victims(core, search):
        overlay.remove_pod(uid)


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

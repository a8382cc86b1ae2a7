"""Placements that a search with evictions keeps for the next attempt, as it may end before it has one for each member.

A placement holds while the member, the node and its pods are the same objects as when it was found, and its victims may be
evicted, and violate no more disruption budgets. So whoever changes nodes all the time takes only the members there from a gang, not all that was found.
"""

from collections.abc import Callable, Sequence

from policysched.cluster.devices.pod_claims import uses_devices
from policysched.evaluate import OneNode, Overlay
from policysched.model.identifiers import NodeName
from policysched.model.pods import Pod
from policysched.scheduler.attempt_result import AttemptSuccess
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.limits import SECOND_NS
from policysched.scheduler.preemption.gang_placement import GangSearchContext, MemberPlacement
from policysched.scheduler.preemption.victim_selection import Candidate, change_in_steps
from policysched.scheduler.queue.gang_registry import QueuedGang
from policysched.scheduler.queue.search_progress import KeptPlacement
from policysched.scheduler.steps import Steps

_KEPT_MAX_NS = 300 * SECOND_NS
"""Rules may read samples and times, too."""


def kept_placement(
    core: SchedulerCore, placement: MemberPlacement, violations: int, now_ns: int, is_local: bool
) -> KeptPlacement:
    candidate, pod = placement.candidate, placement.pod
    return KeptPlacement(
        pod,
        pod.pod,
        core.cache.nodes[placement.node],
        dict(core.cache.ledger.usage(placement.node).pods),
        candidate.victims,
        (candidate.violations, candidate.started_ns, candidate.last_in_order),
        violations,
        is_local and not (pod.pod.pod_affinity or pod.pod.spread or pod.claims or uses_devices(pod.pod)),
        now_ns,
    )


def place_kept(
    core: SchedulerCore,
    gang: QueuedGang,
    kept: Sequence[KeptPlacement],
    pause: Callable[[KeptPlacement], Steps[int]],
    may_evict: Callable[[MemberPlacement, Pod], bool],
    fits: Callable[[MemberPlacement], Steps[bool]],
    place: Callable[[KeptPlacement, MemberPlacement], Steps[bool]],
) -> Steps[None]:
    """Those that hold. Where one does not, or its member has left, none of those that were found after it for its node does, or
    for a node of its victims: they may have the room of its victims, or need fewer now. `pause` returns the time after it."""
    stale = set[NodeName]()
    for each in kept:
        now_ns = yield from pause(each)
        name = each.node.name
        placement = MemberPlacement(each.pod, Candidate(name, each.victims, *each.disruption))
        holds = (
            name not in stale
            and now_ns - each.found_ns < _KEPT_MAX_NS
            and _is_unchanged(core, gang, each)
            and all(may_evict(placement, victim) for victim in each.victims)
            and (is_by_itself(core, gang, each) or (yield from fits(placement)))
        )
        if not holds or not (yield from place(each, placement)):
            on = [core.cache.ledger.placement(victim.uid) for victim in each.victims]
            stale |= {name, *(victim.node for victim in on if victim is not None)}


def fits_without_victims(
    context: GangSearchContext, overlay: Overlay, placement: MemberPlacement
) -> Steps[bool]:
    victims = [victim.uid for victim in placement.candidate.victims]
    yield from change_in_steps(overlay.remove_pod, victims)
    result = context.evaluate(placement.pod, overlay, OneNode(placement.node))
    yield from change_in_steps(overlay.restore_pod, victims)
    return isinstance(result, AttemptSuccess)


def is_by_itself(core: SchedulerCore, gang: QueuedGang, kept: KeptPlacement) -> bool:
    """Whether nothing but the node and its pods decides whether the member fits there."""
    if not kept.is_local or kept.node.name in core.capacity_holds:
        return False
    return not any(
        each.nominated_node == kept.node.name and uid not in gang.pending_members
        for uid, each in core.cache.nominated.items()
    )


def _is_unchanged(core: SchedulerCore, gang: QueuedGang, kept: KeptPlacement) -> bool:
    pod, node, ledger = kept.pod, kept.node, core.cache.ledger
    if gang.pending_members.get(pod.uid) is not pod or pod.pod is not kept.spec:
        return False
    if core.cache.nodes.get(node.name) != node:
        return False
    pods = ledger.usage(node.name).pods
    if len(pods) != len(kept.pods) or any(kept.pods.get(uid) is not each for uid, each in pods.items()):
        return False
    placements = [ledger.placement(victim.uid) for victim in kept.victims]
    return all(
        on is not None and on.pod is victim for on, victim in zip(placements, kept.victims, strict=True)
    )

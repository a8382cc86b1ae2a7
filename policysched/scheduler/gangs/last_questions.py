"""What is asked once more before the evictions for a gang begin, as its search may have paused, or taken several attempts. If an
answer changed, nothing is evicted, and the gang is attempted again."""

from collections.abc import Callable, Sequence

from policysched.evaluate import OneNode, Overlay
from policysched.model.identifiers import NodeName, PodUid
from policysched.model.pods import Pod
from policysched.scheduler.attempt_result import AttemptSuccess
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.preemption.eviction_rights import EvictionRights
from policysched.scheduler.preemption.gang_placement import GangSearchContext, MemberPlacement
from policysched.scheduler.preemption.running_gangs import keeps_too_few
from policysched.scheduler.queue.entries import PendingPod
from policysched.scheduler.steps import Steps


def doubtful_victims(
    core: SchedulerCore,
    context: GangSearchContext,
    placements: Sequence[MemberPlacement],
    may_evict: Callable[[Pod, EvictionRights], bool],
    is_leaving: Callable[[PodUid], bool],
) -> Steps[set[PodUid]]:
    """Victims that may not be evicted any more, or belong to a gang that would keep too few members. In steps: the condition of
    the policy can be long, and a member has any number of victims."""
    victims, doubtful = list[Pod](), set[PodUid]()
    context.forget_rights()
    for placement in placements:
        if not placement.candidate.victims:
            continue
        allowed = context.eviction_rights(placement.pod)
        for victim in placement.candidate.victims:
            yield 1
            if not may_evict(victim, allowed):
                doubtful.add(victim.uid)
            elif not context.is_terminating(victim.uid):
                victims.append(victim)
    of_gangs = [each for each in victims if each.group or core.gangs.gang_of(each.uid) is not None]
    if keeps_too_few(core, of_gangs, is_leaving):
        doubtful.update(victim.uid for victim in of_gangs)
    return doubtful


def still_fits(context: GangSearchContext, overlay: Overlay, pod: PendingPod, node: NodeName) -> bool:
    """Whether the member, which is on the overlay, fits there beside the other members."""
    overlay.remove_pod(pod.uid)
    result = context.evaluate(pod, overlay, OneNode(node))
    overlay.add_pod(pod.pod, node)
    return isinstance(result, AttemptSuccess)

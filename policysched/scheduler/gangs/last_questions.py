"""What is asked once more before the evictions for a gang begin, as its search may have paused, or taken several attempts. If an
answer changed, nothing is evicted, and the gang is attempted again; but victims that are not needed any more are spared at once."""

from collections.abc import Callable, Sequence

from policysched.cluster.disruption_budgets import split_by_budget
from policysched.evaluate import OneNode, Overlay
from policysched.model.identifiers import NodeName, PodUid
from policysched.model.pods import Pod
from policysched.scheduler.attempt_result import AttemptSuccess
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.preemption.eviction_rights import EvictionRights
from policysched.scheduler.preemption.gang_placement import GangSearchContext, MemberPlacement
from policysched.scheduler.preemption.running_gangs import keeps_too_few
from policysched.scheduler.queue.entries import PendingPod
from policysched.scheduler.queue.search_progress import KeptPlacement
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


def has_more_room(core: SchedulerCore, kept: KeptPlacement, placement: MemberPlacement) -> bool:
    """Whether a node with victims has changed since they were chosen, or pods have ended on it that are none."""
    if not placement.candidate.victims:
        return False
    victims, pods = {victim.uid for victim in kept.victims}, core.cache.ledger.usage(kept.node.name).pods
    is_changed = core.cache.nodes[kept.node.name] != kept.node
    return is_changed or any(uid not in pods and uid not in victims for uid in kept.pods)


def spared_victims(
    core: SchedulerCore,
    context: GangSearchContext,
    overlay: Overlay,
    placement: MemberPlacement,
    on_node: Sequence[PendingPod],
    cost: int,
) -> Steps[list[Pod]]:
    """The victims beside which all members on the node fit by now. They return to the overlay, those that violate a budget and the
    important ones first. Members of gangs do not: they go together. `cost`: of evaluating one member."""
    spared, node = list[Pod](), placement.node
    for victim in (
        each for some in split_by_budget(placement.candidate.victims, core.cache.budgets) for each in some
    ):
        on = core.cache.ledger.placement(victim.uid)
        in_gang = victim.group is not None or core.gangs.gang_of(victim.uid) is not None
        if in_gang or on is None or on.node != node:
            continue
        overlay.restore_pod(victim.uid)
        yield cost * len(on_node)
        if all(still_fits(context, overlay, pod, node) for pod in on_node):
            spared.append(victim)
        else:
            overlay.remove_pod(victim.uid)
    return spared

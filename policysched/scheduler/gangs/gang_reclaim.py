"""Taking back quota for a gang: a node for each member on a cluster without the victims that the quotas need.

victims by the quotas ──► nodes for the members (pauses) ── found ──► the same victims still? ──► evicted
                               └── none ──► victims where the members fit (pauses) ── found ──► may they still go? ──► evicted
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial

from policysched.cluster.devices.pod_claims import uses_devices
from policysched.evaluate import OneNode
from policysched.model.identifiers import NodeName
from policysched.model.pods import Pod
from policysched.scheduler.attempt import PodAttempts
from policysched.scheduler.attempt_result import AttemptSuccess
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.gangs.gang_overlay import add_member, gang_overlay, nodes_of
from policysched.scheduler.gangs.gang_preemption import find_gang_placement
from policysched.scheduler.gangs.gang_search_result import (
    NEXT_ROUND_NS,
    GangSearchResult,
    SearchPauses,
)
from policysched.scheduler.gangs.member_classes import MemberKeys
from policysched.scheduler.gangs.member_order import members_in_attempt_order
from policysched.scheduler.layer_rules import lower_rules
from policysched.scheduler.preemption.default_preemption import DefaultPreemption
from policysched.scheduler.preemption.eviction_rights import EvictionRights
from policysched.scheduler.preemption.gang_placement import GangPlacement, NoGangPlacement
from policysched.scheduler.preemption.preemption_result import NoPreemption, PreemptionStarted
from policysched.scheduler.preemption.quota_preemption import FoundNodes, FoundVictims, QuotaPreemption
from policysched.scheduler.queue.entries import PendingPod
from policysched.scheduler.queue.gang_registry import QueuedGang
from policysched.scheduler.queue.search_progress import SearchProgress
from policysched.scheduler.quotas.quota_accounts import QuotaRefusal
from policysched.scheduler.quotas.quota_usage import QuotaUsage
from policysched.scheduler.steps import Steps, evaluation_cost, visit_in_pieces

_COST_WITHOUT_PAUSE_MAX = 20_000
"""0.2 s, for which others wait."""
_COST_BEFORE_LAST_SEARCH_MAX = 500_000
"""5 s, after which no search follows for others in the place of victims that are more than is borrowed."""

SearchNodes = Callable[[QueuedGang, Sequence[Pod], QuotaUsage], Steps[GangSearchResult]]
EquivalenceKeys = Callable[[QueuedGang], Steps[MemberKeys]]


class GangReclaim:
    def __init__(self, core: SchedulerCore, attempts: PodAttempts, preemption: DefaultPreemption) -> None:
        self._core, self._attempts, self._preemption = core, attempts, preemption
        self._quota_preemption = QuotaPreemption(core, preemption)

    def run(
        self,
        gang: QueuedGang,
        refusal: QuotaRefusal,
        pauses: SearchPauses,
        search_nodes: SearchNodes,
        equivalence_keys: EquivalenceKeys,
    ) -> Steps[PreemptionStarted | NoPreemption]:
        """Take back quota that others borrow from the gang."""
        core = self._core

        def find_nodes(victims: Sequence[Pod], usage: QuotaUsage) -> Steps[FoundNodes]:
            count_before = pauses.count
            result = yield from search_nodes(gang, victims, usage)
            failures = [*result.failures.values(), *result.other_domain_failures]
            return FoundNodes(result.fits, failures, was_paused=pauses.count > count_before)

        members = members_in_attempt_order(core, gang)[: gang.evicting_count]
        by_node = partial(
            _reclaim_by_node, core, self._preemption, self._attempts, gang, pauses, equivalence_keys
        )
        lacking_room = partial(_nodes_lacking_room, core, self._attempts, gang)
        reclaim = self._quota_preemption.reclaim_for_gang
        clock = partial(getattr, pauses, "now_ns")
        preemption = yield from reclaim(gang, refusal, members, find_nodes, lacking_room, by_node, clock)
        gang.search_progress.inside_ended &= gang.search_progress.goes_on
        return preemption


def _nodes_lacking_room(
    core: SchedulerCore,
    attempts: PodAttempts,
    gang: QueuedGang,
    fits: Sequence[tuple[PendingPod, AttemptSuccess]],
    victims: Sequence[Pod],
    spared: Collection[Pod],
    now_ns: int,
) -> Steps[set[NodeName]]:
    """The nodes where members do not fit any more if these of the victims stay."""
    lacking, staying = set[NodeName](), nodes_of(core, spared)
    if not staying:
        return lacking
    nodes, overlay = set(staying.values()), gang_overlay(core, gang)
    leaving = [uid for uid in nodes_of(core, victims) if uid not in staying]
    yield from visit_in_pieces(leaving, overlay.remove_pod, 1)
    reaches_far = any(pod.pod_affinity for pod in spared)
    for pod, success in fits:
        is_far = reaches_far or pod.pod.pod_affinity or pod.pod.spread
        if success.node in nodes or is_far:
            yield evaluation_cost(len(core.cache.nodes), core.evaluator.decision_cost(pod.pod))
            yield from lower_rules(core, pod, now_ns)
            if uses_devices(pod.pod):
                yield from attempts.warm_up(pod, now_ns, overlay)
            result = attempts.evaluate(pod, overlay, now_ns, OneNode(success.node))
            if not isinstance(result, AttemptSuccess):
                lacking.add(success.node)
        add_member(overlay, pod, success)
        yield 1
    return lacking


def _reclaim_by_node(
    core: SchedulerCore,
    preemption: DefaultPreemption,
    attempts: PodAttempts,
    gang: QueuedGang,
    pauses: SearchPauses,
    equivalence_keys: Callable[[QueuedGang], Steps[MemberKeys]],
    rights: EvictionRights,
    may_evict: Callable[[Pod], bool],
    beyond: Callable[[Collection[Pod]], Collection[Pod]],
) -> Steps[FoundVictims]:
    """Nodes where the members fit without pods that borrow and `may_evict`, as in preemption; again without those that are `beyond`
    what is borrowed. Where it does not pause (members with volumes or devices, backtracking), it has a limit."""
    count_before, was_beyond, cost = pauses.count, gang.search_progress.beyond, 0
    context = preemption.gang_context(
        gang,
        (yield from equivalence_keys(gang)),
        lambda pod, overlay, nodes: attempts.evaluate(pod, overlay, pauses.now_ns, nodes, diagnosed=False),
        lambda pod, node, overlay: attempts.add_to_overlay(pod, node, overlay, pauses.now_ns),
        lambda _: rights,
        lambda victim: victim.uid in gang.search_progress.beyond or not may_evict(victim),
    )
    context = replace(context, reclaims=True)

    def search() -> Steps[GangPlacement | NoGangPlacement | None]:
        nonlocal cost
        while cost <= _COST_BEFORE_LAST_SEARCH_MAX:
            beyond_before = gang.search_progress.beyond
            outcome = yield from find_gang_placement(core, gang, context, pauses.now_ns, pauses=pauses)
            excess = beyond(outcome.victims) if isinstance(outcome, GangPlacement) else ()
            if isinstance(outcome, NoGangPlacement) and was_beyond and not outcome.waits:
                return replace(outcome, retry_ns=pauses.now_ns + NEXT_ROUND_NS)  # more may be borrowed since
            if not excess:
                return outcome
            gang.search_progress.beyond = beyond_before.union(victim.uid for victim in excess)
        return None

    steps, cost_without_pause = search(), 0
    while True:
        try:
            step_cost = next(steps)
        except StopIteration as end:
            return FoundVictims(end.value, was_paused=pauses.count > count_before)
        cost += step_cost
        cost_without_pause = 0 if pauses.search is not None else cost_without_pause + step_cost
        if cost_without_pause > _COST_WITHOUT_PAUSE_MAX:
            steps.close()
            gang.search_progress = SearchProgress()
            return FoundVictims(None, was_paused=True)
        yield step_cost

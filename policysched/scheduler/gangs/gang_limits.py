"""Limits on the attempt of a gang as a whole, in steps: the decision budget of its members together, and quotas."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from policysched.cluster.devices.pod_selectors import too_many_selectors_message
from policysched.evaluate import TopologyDomain
from policysched.evaluate.plan.quotas import QuotaCharge
from policysched.scheduler.attempt_result import (
    AttemptFailure,
    AttemptSuccess,
    continue_device_search,
    reject_device_search,
    reject_for_quota,
)
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.gangs.gang_search_result import GangSearchResult
from policysched.scheduler.gangs.member_order import members_in_attempt_order
from policysched.scheduler.preemption.gang_placement import GangSearchContext
from policysched.scheduler.preemption.post_filter_messages import preemption_message
from policysched.scheduler.preemption.preemption_result import NoPreemption, PreemptionStarted
from policysched.scheduler.queue.entries import PendingPod
from policysched.scheduler.queue.gang_registry import QueuedGang
from policysched.scheduler.quotas.quota_accounts import QuotaRefusal
from policysched.scheduler.quotas.quota_limits import QuotaNode
from policysched.scheduler.steps import VISITS_PER_PIECE, Steps, visit_in_pieces

GANG_EVALUATIONS_MAX = 50_000
"""Once the search for a topology domain has evaluated this many members, no more domains are tried in this attempt."""


def has_evictable_pods(core: SchedulerCore, gang: QueuedGang, context: GangSearchContext) -> bool:
    """Whether any pod has a lower priority than a member. Otherwise the searches before have found all there is."""
    if context.reclaims:
        return True
    lowest = core.cache.ledger.lowest_priority
    return lowest is not None and lowest < max(pod.pod.priority for pod in gang.pending_members.values())


def over_budget_message(core: SchedulerCore, gang: QueuedGang) -> Steps[str | None]:
    """Why the members together are too expensive to decide about. None: they are not."""
    pods = [pod.pod for pod in gang.pending_members.values()]
    too_many = too_many_selectors_message(pods, core.cache.devices)
    if too_many is not None:
        return too_many
    costs: list[int] = []
    yield from visit_in_pieces(pods, lambda pod: costs.append(core.evaluator.decision_cost(pod)), 1)
    budget = core.evaluator.gang_budget(len(pods))
    if sum(costs) <= budget:
        return None
    return (
        f"placing this gang takes up to {sum(costs)} operations, {max(costs)} for one member; "
        f"the budget of a gang with {len(pods)} members is {budget} (settings: scheduling.decision_budget)"
    )


def too_expensive(core: SchedulerCore, gang: QueuedGang, failure: AttemptFailure) -> GangSearchResult:
    core.records.counters.count_over_budget(gang.policy)
    return GangSearchResult(failures={"over budget": failure})


def unless_refused(core: SchedulerCore, gang: QueuedGang, search: GangSearchResult) -> GangSearchResult:
    """The result of the search, unless it ended as its results for devices are too many: a later one would, too."""
    too_many = core.cache.devices.allocation_cache.refused
    if too_many is None or (search.fits and len(search.fits) >= gang.needed_count):
        return search
    return too_expensive(core, gang, reject_device_search(too_many))


def unless_cut_off(
    core: SchedulerCore, gang: QueuedGang, preemption: PreemptionStarted | NoPreemption | None, now_ns: int
) -> PreemptionStarted | NoPreemption | None:
    """The result of the search with evictions, unless that ended because its search for devices did. Its message is that of another
    domain, or order of the members, then."""
    devices = core.cache.devices.allocation_cache
    if not devices.is_cut_off or not isinstance(preemption, NoPreemption):
        return preemption
    if devices.refused is not None:
        core.records.counters.count_over_budget(gang.policy)
    failure = continue_device_search(core, now_ns)
    message = preemption_message(core.policies.running[gang.policy].program, failure.message)
    return NoPreemption(message, failure.valid_until_ns, failure.requeue_events)


@dataclass(slots=True)
class DomainBudget:
    """Of one search: domains of preferred levels and required ones share it. Members that cost no more than the allowance of
    any gang count only by their number."""

    core: SchedulerCore
    gang: QueuedGang
    operations: int = 0
    evaluations: int = 0

    def spend(self, operations: int, evaluations: int = 1) -> None:
        self.operations += operations
        self.evaluations += evaluations

    @property
    def is_exceeded(self) -> bool:
        """Whether to stop trying domains, because those tried so far took too long."""
        gang_budget = self.core.evaluator.gang_budget
        beyond_allowance = self.operations - self.evaluations * (gang_budget(1) - gang_budget(0))
        budget = gang_budget(len(self.gang.pending_members))
        return beyond_allowance > budget or self.evaluations > GANG_EVALUATIONS_MAX

    def limited(
        self, candidates: Iterator[TopologyDomain | PendingPod]
    ) -> Iterator[TopologyDomain | PendingPod]:
        """`candidate_domains` until it is exceeded. The members that are evaluated for them count, too."""
        for candidate in candidates:
            if self.is_exceeded:
                return
            if isinstance(candidate, PendingPod):
                self.spend(self.core.evaluator.decision_cost(candidate.pod))
            yield candidate


def refused_by_quotas(core: SchedulerCore, gang: QueuedGang) -> Steps[GangSearchResult | None]:
    """The result if the quotas admit too few members together; None: enough. No member is evaluated for it."""
    trial = core.quotas.trial(gang.representative_pod, excluding=gang.pending_members)
    if trial is None:
        return None
    if core.cache.nominated:
        yield from core.quotas.charge_together(
            gang.policy, [pod.pod for pod in gang.pending_members.values()]
        )
    first, refused_at, admitted, charges = None, set[QuotaNode](), 0, list[QuotaCharge]()
    refusal: QuotaRefusal | None = None
    needed = max(1, gang.needed_count)
    for pod in members_in_attempt_order(core, gang):
        if charges and len(charges) % VISITS_PER_PIECE == 0:
            yield VISITS_PER_PIECE
        charge = core.quotas.charge_of(pod.pod)
        if refusal is None or charge != charges[-1]:  # otherwise as for the member before
            refusal = core.quotas.refusal(pod.pod, trial, charge)
        charges.append(charge)
        if refusal is None:
            trial.add(charge)
            admitted += 1
        else:
            first = first or refusal
            refused_at.add(refusal.block.node)
        if admitted >= needed:
            return None
    if first is None:
        return None
    failure = reject_for_quota(first.message)
    return GangSearchResult(
        failures={"quota": failure},
        refusal=first,
        refused_at=refused_at,
        charges=charges,
        admitted_count=admitted,
    )


def refused_by_interrupted(
    core: SchedulerCore, gang: QueuedGang, placed: Sequence[tuple[PendingPod, AttemptSuccess]], now_ns: int
) -> Steps[bool]:
    """Whether gangs whose attempts are interrupted keep it from its nodes, or from evictions. It was put back then."""
    kept = core.kept_nodes
    if kept is None:
        return False
    if not placed:
        return kept.put_off_evictions(gang, now_ns)
    return (yield from kept.refuse(gang, [(pod, success.node) for pod, success in placed], now_ns))

"""Gang preemption search: a node for each member, and the victims to evict for it.

    each domain: members in queue order (`evicting_search`) ── enough? ── yes ──► GangPlacement
                    └── no ──► the most demanding first ── enough? ── yes ──► GangPlacement
                                  └── no ──► with backtracking ──► GangPlacement or NoGangPlacement

For a gang with a topology key the domains are tried one by one, and the least disruptive placement is taken.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from policysched.evaluate import NodeSelection, TopologyDomain
from policysched.model.identifiers import NodeName, PodUid
from policysched.scheduler.attempt import PodAttempts
from policysched.scheduler.attempt_result import AttemptFailure, AttemptSuccess
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.gangs.backtracking import BacktrackingSearch, BacktrackLimit
from policysched.scheduler.gangs.evicting_search import EvictingSearch
from policysched.scheduler.gangs.gang_domains import preemption_domains
from policysched.scheduler.gangs.gang_limits import has_evictable_pods
from policysched.scheduler.gangs.gang_search_result import NEXT_ROUND_NS, GangSearchResult, SearchPauses
from policysched.scheduler.gangs.member_classes import MemberKeys
from policysched.scheduler.gangs.member_order import members_in_attempt_order, most_demanding_first
from policysched.scheduler.preemption.default_preemption import DefaultPreemption
from policysched.scheduler.preemption.gang_placement import (
    BUDGETS_CHANGED,
    NODES_CHANGED,
    VICTIMS_CHANGED,
    WAITS_FOR_HELD_CAPACITY,
    GangPlacement,
    GangSearchContext,
    MemberPlacement,
    NoGangPlacement,
)
from policysched.scheduler.preemption.nominations import has_first_holds
from policysched.scheduler.preemption.preemption_result import NoPreemption, PreemptionStarted
from policysched.scheduler.queue.entries import PendingPod
from policysched.scheduler.queue.gang_registry import QueuedGang
from policysched.scheduler.queue.search_progress import SearchProgress
from policysched.scheduler.steps import NEW_CLASS_COST, Steps, evaluation_cost

SEARCH_ENDED = "(not all placements were tried; settings: scheduling.gang_backtracks_max)"

_DOMAINS_MAX, _DOMAINS_SUFFICIENT = 16, 4
"""Limits of the search over domains: how many are tried at most, and how many placements suffice."""


def preempt_for_gang(
    preemption: DefaultPreemption,
    attempts: PodAttempts,
    gang: QueuedGang,
    search: GangSearchResult,
    equivalence_keys: MemberKeys,
    clock: Callable[[], int],
    pauses: SearchPauses | None,
) -> Steps[PreemptionStarted | NoPreemption | None]:
    """Try preemption, which pauses with `pauses`. None: preemption does not apply, and no message is added."""
    if not any(failure.node_count for failure in search.failures.values()):
        return None
    return (
        yield from preemption.preempt_for_gang(
            gang,
            equivalence_keys,
            lambda pod, overlay, nodes: attempts.evaluate(pod, overlay, clock(), nodes, diagnosed=False),
            lambda pod, node, overlay: attempts.add_to_overlay(pod, node, overlay, clock()),
            partial(find_gang_placement, pauses=pauses),
            clock,
        )
    )


def find_gang_placement(
    core: SchedulerCore,
    gang: QueuedGang,
    context: GangSearchContext,
    now_ns: int,
    *,
    pauses: SearchPauses | None = None,
) -> Steps[GangPlacement | NoGangPlacement]:
    """Search with preemption, for as many members as are needed. The gang does not fit as it is. With `pauses`, the first
    placement that is found in or after one is taken: those of other domains would age while these are searched."""
    if (yield from _fits_after_first_holds(core, gang, context, now_ns)):
        return NoGangPlacement(WAITS_FOR_HELD_CAPACITY, victims_terminating=True)
    outcome = yield from _search_domains(core, gang, context, now_ns, pauses)
    if isinstance(outcome, NoGangPlacement) and outcome.waits:
        return outcome
    progress, gang.search_progress = gang.search_progress, SearchProgress()
    ended_ns = now_ns if pauses is None else pauses.now_ns
    if isinstance(outcome, NoGangPlacement) and progress.spared_victims:
        return replace(outcome, retry_ns=ended_ns + core.limits.backoff_ns(gang.attempts))
    if isinstance(outcome, NoGangPlacement) and progress.failed_domains:  # they may have changed since
        return replace(outcome, retry_ns=ended_ns + NEXT_ROUND_NS)
    return outcome


def _search_domains(
    core: SchedulerCore,
    gang: QueuedGang,
    context: GangSearchContext,
    now_ns: int,
    pauses: SearchPauses | None,
) -> Steps[GangPlacement | NoGangPlacement]:
    keys, limit = gang.required_keys, BacktrackLimit(core.limits.gang_backtracks_max)
    progress, failed = gang.search_progress, set[TopologyDomain]()
    outcomes: list[NoGangPlacement] = []
    placements: list[GangPlacement] = []
    domains: list[TopologyDomain | None] = [None]
    pauses_before = 0 if pauses is None else pauses.count
    if keys:
        domains = [*preemption_domains(core, gang, keys, now_ns)[:_DOMAINS_MAX]]
        domains = [domain for domain in domains if domain not in progress.failed_domains]
        domains.sort(key=lambda domain: progress.scope[:1] != (domain,))  # it has placements that are kept
    for domain in domains or [TopologyDomain(keys[-1], None)]:
        if (outcomes or placements) and not limit.spend(_domain_cost(core, gang, context)):
            break
        now_ns = now_ns if pauses is None else pauses.now_ns
        pausable = None if placements else pauses
        steps = _search_domain(core, gang, domain, context, limit, now_ns, pausable)
        is_limited = placements and pauses is not None
        outcome = yield from limit.at_most(core.limits.gang_piece_cost_max, steps) if is_limited else steps
        if outcome is None:
            break
        if isinstance(outcome, GangPlacement):
            placements.append(outcome)
        elif outcome.waits:
            progress.failed_domains |= failed
            return outcome
        else:
            outcomes.append(outcome)
            failed.update(() if domain is None else (domain,))
        if len(placements) == _DOMAINS_SUFFICIENT or not has_evictable_pods(core, gang, context):
            break
        if placements and pauses is not None and pauses.count > pauses_before:
            break
    if placements:
        return min(placements, key=lambda placement: placement.disruption)
    if limit.exceeded:
        return replace(outcomes[0], message=f"{outcomes[0].message} {SEARCH_ENDED}")
    return outcomes[0]


def _domain_cost(core: SchedulerCore, gang: QueuedGang, context: GangSearchContext) -> int:
    """Of trying one more domain: members of one class share most of their evaluations."""
    operations = core.evaluator.decision_cost(gang.representative_pod)
    cost = NEW_CLASS_COST + evaluation_cost(len(core.cache.nodes), operations)
    return cost * len(set(context.equivalence_keys.values()))


def _fits_after_first_holds(
    core: SchedulerCore, gang: QueuedGang, context: GangSearchContext, now_ns: int
) -> Steps[bool]:
    """Whether only capacity holds that were not repeated keep the gang from starting. Nothing is evicted for that."""
    if not has_first_holds(core, gang.representative_pod):
        return False
    members, keys = members_in_attempt_order(core, gang), gang.required_keys
    domains = preemption_domains(core, gang, keys, now_ns)[:_DOMAINS_MAX] if keys else [None]
    limit = BacktrackLimit(core.limits.gang_backtracks_max)
    for domain in domains:
        if not limit.spend():
            break
        search = EvictingSearch(core, gang, members, domain, context, now_ns, first_holds=False)
        yield from limit.count(search.place_fitting_members(gang.evicting_count))
        if len(search.placements) >= gang.evicting_count:
            return True
    return False


def _search_domain(
    core: SchedulerCore,
    gang: QueuedGang,
    domain: TopologyDomain | None,
    context: GangSearchContext,
    limit: BacktrackLimit,
    now_ns: int,
    pauses: SearchPauses | None,
) -> Steps[GangPlacement | NoGangPlacement]:
    """Members in queue order; without a placement, the most demanding first, and then with backtracking, as in a search without
    evictions. Only that has no pauses."""
    known, scope = context.equivalence_keys, gang.search_progress.scope
    goes_on = pauses is not None and scope[:1] == (domain,) and scope[2:] == (True,)  # by demand
    by_demand = (yield from _by_demand(core, gang, known)) if goes_on else []
    outcome: GangPlacement | NoGangPlacement | None = None
    if not by_demand:
        # Without members that joined in a pause: they are attempted later.
        members = [pod for pod in members_in_attempt_order(core, gang) if pod.uid in known]
        outcome = yield from _run(EvictingSearch(core, gang, members, domain, context, now_ns, pauses), limit)
        if isinstance(outcome, GangPlacement) or outcome.waits or not has_evictable_pods(core, gang, context):
            return outcome
        by_demand = yield from _by_demand(core, gang, known)
        if not by_demand:
            return outcome
    if pauses is not None:
        now_ns = pauses.now_ns
        search = EvictingSearch(core, gang, by_demand, domain, context, now_ns, pauses, by_demand=True)
        second = yield from _run(search, limit)
        if isinstance(second, GangPlacement) or second.waits:
            return second
        outcome, now_ns = outcome or second, pauses.now_ns
    assert outcome is not None, f"{gang} was not searched"
    members, needed = [pod for pod in by_demand if pod.uid in gang.pending_members], gang.evicting_count
    if len(members) < needed:
        return outcome
    trial = _EvictingTrial(core, gang, members, domain, context, now_ns)
    again = BacktrackingSearch(members, known, needed, needed, domain, limit, trial).run()
    fits = yield from limit.at_most(limit.placing_cost_max, again)
    if trial.stopped is not None:
        return trial.stopped
    if fits is not None:
        return GangPlacement(tuple(trial.search.placements))
    return outcome


def _by_demand(core: SchedulerCore, gang: QueuedGang, known: MemberKeys) -> Steps[list[PendingPod]]:
    """The most demanding member first. Empty: they are equal, or too few."""
    in_order = yield from most_demanding_first(core, gang, known)
    members = [pod for pod in in_order or () if pod.uid in known]
    return members if len(members) >= gang.evicting_count else []


def _run(search: EvictingSearch, limit: BacktrackLimit) -> Steps[GangPlacement | NoGangPlacement]:
    """A search that may pause, and the questions after the last pause."""
    outcome = yield from search.run(limit)
    if isinstance(outcome, NoGangPlacement):
        return outcome
    message = ""
    yield from search.spare_victims()
    if (yield from search.is_outdated()):
        message = NODES_CHANGED
    elif (yield from search.is_doubtful()):
        message = VICTIMS_CHANGED
    elif (yield from search.violates_more()):
        message = BUDGETS_CHANGED
    if message:  # a search without pauses holds up everybody
        backoff_ns = search.core.limits.backoff_ns(search.gang.attempts)
        return NoGangPlacement(message, retry_ns=search.now_ns + backoff_ns)
    return GangPlacement(tuple(search.placements))  # it may have paused


@dataclass(slots=True)
class _EvictingTrial:
    """A hypothetical cluster for `BacktrackingSearch`, on which a member that fits nowhere evicts pods. `stopped`: the
    search has to wait for victims of an earlier attempt."""

    core: SchedulerCore
    gang: QueuedGang
    members: Sequence[PendingPod]
    domain: TopologyDomain | None
    context: GangSearchContext
    now_ns: int
    search: EvictingSearch = field(init=False)
    stopped: NoGangPlacement | None = field(init=False, default=None)
    placement_of: dict[tuple[PodUid, NodeName], MemberPlacement] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.search = EvictingSearch(
            self.core, self.gang, self.members, self.domain, self.context, self.now_ns
        )

    def pause(self, pod: PendingPod) -> Steps[bool]:
        """Never: what is known of victims would have to follow the cluster for members that are taken back, too."""
        del pod
        yield from ()
        return False

    def take_lost(self) -> Collection[PodUid]:
        return ()

    def is_pending(self, pod: PendingPod) -> bool:
        del pod
        return True

    def evaluate_in_steps(
        self, pod: PendingPod, nodes: NodeSelection | None
    ) -> Steps[AttemptSuccess | AttemptFailure]:
        search = self.search
        search.domain = nodes
        search.candidates.forget()  # it may have candidates on nodes that were tried
        outcome = NoGangPlacement("") if self.stopped is not None else (yield from search.place_member(pod))
        if isinstance(outcome, MemberPlacement):
            self.placement_of[pod.uid, outcome.node] = outcome
            return AttemptSuccess(outcome.node, 0, 0, 0)
        if outcome.victims_terminating:
            self.stopped = outcome
        return AttemptFailure("Unschedulable", outcome.message, 0, {}, frozenset(), None)

    def place(self, pod: PendingPod, success: AttemptSuccess) -> Steps[AttemptSuccess]:
        yield from self.search.apply_placement(self.placement_of[pod.uid, success.node])
        return success

    def take_back(self, pod: PendingPod, success: AttemptSuccess) -> bool:
        """Never alone: victims do not return to an overlay."""
        del pod, success
        return False

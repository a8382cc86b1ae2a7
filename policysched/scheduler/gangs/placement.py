"""Room for a gang that is placed whole: where each member would stand, and who would have to go for it.

    members that fit as it is ──► laid on an overlay
    the others, one after the other: fits now? ── yes ──► laid
                                       └── no: DefaultPreemption on the overlay ── victims lifted, laid ──► next
                                                   └── nobody may go for it, or it would not help ──► no room for its kin
    as many laid as are needed ──► all of it may be carried out; fewer ──► nothing is

Each member is thought through as a single pod is, on a cluster where those before it stand and their victims have left. Nothing of
this leaves the overlay. Members beyond the minimum evict nobody. Where the gang keeps together, domains are tried one by one
and the one that is hurt least is taken.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace

from policysched.cluster.budgets import budgets_after_evicting
from policysched.evaluate import DryRun, Overlay, TopologyDomain, VictimPredicate
from policysched.model.identifiers import NodeName, PodUid
from policysched.model.messages import unavailable_message
from policysched.model.pods import Pod
from policysched.model.workloads import DisruptionBudget
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.gangs.registry import QueuedGang
from policysched.scheduler.gangs.topology import preemption_domains
from policysched.scheduler.outcome import AttemptFailure, AttemptSuccess
from policysched.scheduler.preemption.candidates import (
    CANDIDATES_MIN,
    Candidate,
    CandidateSearchResult,
    PreemptionInputs,
    find_candidates,
    least_disruptive,
    no_evictable_pods,
)
from policysched.scheduler.preemption.lazy_candidates import (
    LazyCandidates,
    find_best_candidate,
    rejection_reasons,
)
from policysched.scheduler.preemption.nominations import nominated_overlay
from policysched.scheduler.queue.entries import PendingPod
from policysched.scheduler.steps import Steps, evaluation_cost

PREEMPTION_NEVER = "not eligible due to preemptionPolicy=Never."
VICTIMS_TERMINATING = "not eligible due to a terminating pod on the nominated node."
_DOMAINS_MAX, _DOMAINS_SUFFICIENT = 16, 4
"""So many domains are thought through at most, those first with the most nodes that could take a member, and so many that
would do are enough."""


@dataclass(frozen=True, slots=True)
class MemberPlacement:
    """Where a member is to stand, and who goes for it; nobody where there is room."""

    pod: PendingPod
    candidate: Candidate

    @property
    def node(self) -> NodeName:
        return self.candidate.node


@dataclass(frozen=True, slots=True)
class GangPlacement:
    """One for each member that is needed, in the order in which they were laid."""

    members: tuple[MemberPlacement, ...]

    @property
    def disruption(self) -> tuple[int, int, int]:
        """The less, the better: broken budgets, the highest priority that goes, how many go."""
        victims = [one for seat in self.members for one in seat.candidate.victims]
        return (
            sum(seat.candidate.violations for seat in self.members),
            max((one.priority for one in victims), default=0),
            len(victims),
        )


@dataclass(frozen=True, slots=True)
class NoGangPlacement:
    """Why not, as kube-scheduler says it of the first member for which there is none. `victims_terminating`: nothing is to be decided
    before those have gone who were told to go for an earlier try."""

    message: str
    victims_terminating: bool = False


@dataclass(frozen=True, slots=True)
class GangSearchContext:
    """Whom a member may evict, which placed pods are ending for an eviction, and how the rest of a trial is asked. `equivalence_keys`:
    members that agree on it find a node together, or none."""

    equivalence_keys: Mapping[PodUid, Hashable]
    may_evict_for: Callable[[PendingPod], VictimPredicate]
    eviction_blocked: Callable[[Pod], bool]
    is_terminating: Callable[[PodUid], bool]
    started_ns: Callable[[PodUid], int | None]
    evaluate: Callable[[PendingPod, Overlay, TopologyDomain | None], AttemptSuccess | AttemptFailure]
    add_to_overlay: Callable[[PendingPod, NodeName, Overlay], object]


def members_in_attempt_order(core: SchedulerCore, gang: QueuedGang) -> list[PendingPod]:
    """Those first who have a node in prospect, then as the queue has it."""
    return sorted(gang.members_in_order(), key=lambda pod: pod.uid not in core.cache.nominated)


def gang_overlay(core: SchedulerCore, gang: QueuedGang) -> Overlay:
    """The cluster with all on it that are nominated, but for the gang itself."""
    return (
        nominated_overlay(core, gang.representative_pod, excluding=gang.pending_members.keys())
        or core.evaluator.overlay()
    )


def find_gang_placement(
    core: SchedulerCore, gang: QueuedGang, context: GangSearchContext, now_ns: int
) -> Steps[GangPlacement | NoGangPlacement]:
    """For as many members as are needed. The gang has been tried, and did not fit."""
    if gang.topology is None:
        return (yield from _GangSearch(core, gang, None, context, now_ns).run())
    found: list[GangPlacement | NoGangPlacement] = []
    whole: list[GangPlacement] = []
    for within in preemption_domains(core, gang, gang.topology, now_ns)[:_DOMAINS_MAX]:
        outcome = yield from _GangSearch(core, gang, within, context, now_ns).run()
        if isinstance(outcome, GangPlacement):
            whole.append(outcome)
        elif outcome.victims_terminating:
            return outcome
        found.append(outcome)
        if len(whole) == _DOMAINS_SUFFICIENT:
            break
    if not found:
        found.append(
            (yield from _GangSearch(core, gang, TopologyDomain(gang.topology, None), context, now_ns).run())
        )
    return min(whole, key=lambda one: one.disruption) if whole else found[0]


@dataclass(slots=True)
class _CachedCandidates:
    """What was found for members of one kind, and how many seats there were then. `LazyCandidates` where what goes from one node changes
    nothing for another."""

    candidates: CandidateSearchResult | LazyCandidates
    placed_count: int


@dataclass(slots=True)
class _GangSearch:
    core: SchedulerCore
    gang: QueuedGang
    domain: TopologyDomain | None
    context: GangSearchContext
    now_ns: int
    overlay: Overlay = field(init=False)
    placements: list[MemberPlacement] = field(init=False, default_factory=list)
    budgets: list[DisruptionBudget] = field(init=False)
    removed_uids: set[PodUid] = field(init=False, default_factory=set)
    first_message: str | None = field(init=False, default=None)
    candidate_cache: dict[Hashable, _CachedCandidates] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.overlay = gang_overlay(self.core, self.gang)
        self.budgets = list(self.core.cache.budgets.values())

    def run(self) -> Steps[GangPlacement | NoGangPlacement]:
        needed = self.gang.needed_count
        left = yield from self._place_fitting_members(needed)
        possible = Counter(self.context.equivalence_keys[pod.uid] for pod in left)
        hopeless: set[Hashable] = set()
        for pod in left:
            if len(self.placements) >= needed:
                break
            if len(self.placements) + possible.total() < needed:
                break
            if self.context.equivalence_keys[pod.uid] in hopeless:
                continue
            yield evaluation_cost(len(self.core.cache.nodes))
            outcome = yield from self._place_member(pod)
            if isinstance(outcome, MemberPlacement):
                self._apply_placement(outcome)
                possible[self.context.equivalence_keys[pod.uid]] -= 1
            elif outcome.victims_terminating:
                return outcome
            else:
                self.first_message = self.first_message or outcome.message
                hopeless.add(self.context.equivalence_keys[pod.uid])
                del possible[self.context.equivalence_keys[pod.uid]]
        if len(self.placements) >= needed:
            return GangPlacement(tuple(self.placements))
        return NoGangPlacement(self.first_message or "")

    def _place_fitting_members(self, needed: int) -> Steps[list[PendingPod]]:
        """The others, in order."""
        left, failed = [], set[Hashable]()
        for pod in members_in_attempt_order(self.core, self.gang):
            if len(self.placements) >= needed or self.context.equivalence_keys[pod.uid] in failed:
                left.append(pod)
                continue
            yield evaluation_cost(len(self.core.cache.nodes))
            result = self.context.evaluate(pod, self.overlay, self.domain)
            if isinstance(result, AttemptSuccess):
                self._apply_placement(MemberPlacement(pod, _without_victims(result.node)))
            else:
                failed.add(self.context.equivalence_keys[pod.uid])
                left.append(pod)
        return left

    def _apply_placement(self, seat: MemberPlacement) -> None:
        for victim in seat.candidate.victims:
            self.overlay.remove_pod(victim.uid)
            self.removed_uids.add(victim.uid)
        after = budgets_after_evicting(seat.candidate.victims, self.budgets)
        if after != self.budgets:
            self.budgets = after
            self.candidate_cache.clear()  # what breaks a budget now may not have before
        self.context.add_to_overlay(seat.pod, seat.node, self.overlay)
        self.placements.append(seat)

    # ── one member ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _place_member(self, pod: PendingPod) -> Steps[MemberPlacement | NoGangPlacement]:
        result = self.context.evaluate(
            pod, self.overlay, self.domain
        )  # those before it may have left room for two
        if isinstance(result, AttemptSuccess):
            return MemberPlacement(pod, _without_victims(result.node))
        if not result.node_count:
            return NoGangPlacement(result.message)
        if pod.pod.preemption_policy == "Never":
            return NoGangPlacement(PREEMPTION_NEVER)
        core = self.core
        dry_run = core.evaluator.dry_run(
            core.plan(pod.policy),
            pod.pod,
            **core.evaluation_inputs(pod, self.now_ns),
            overlay=self.overlay,
            domain=self.domain,
        )
        allowed = self.context.may_evict_for(pod)
        if self._victims_terminating(pod, dry_run, allowed):
            return NoGangPlacement(VICTIMS_TERMINATING, victims_terminating=True)
        node_count, lowest = len(core.cache.nodes), core.cache.ledger.lowest_priority
        if lowest is None or lowest >= pod.pod.priority:
            return NoGangPlacement(
                unavailable_message(node_count, no_evictable_pods(dry_run, node_count).reasons)
            )
        found = yield from self._least_disruptive(pod, dry_run, allowed)
        return found if isinstance(found, NoGangPlacement) else MemberPlacement(pod, found)

    def _victims_terminating(self, pod: PendingPod, dry_run: DryRun, allowed: VictimPredicate) -> bool:
        """As for a single pod: victims of an earlier try are still on its nominated node, which could yet take it."""
        seen = self.core.cache.nominated.get(pod.uid)
        node = None if seen is None else seen.nominated_node
        if node is None or node not in dry_run.potential_nodes:
            return False
        return any(allowed(one) and self.context.is_terminating(one.uid) for one in self._pods_on(node))

    def _least_disruptive(
        self, pod: PendingPod, dry_run: DryRun, allowed: VictimPredicate
    ) -> Steps[Candidate | NoGangPlacement]:
        """Of members that agree the first pays: for the others only what the seats since then changed is thought through again,
        and where a rule looks across nodes, only what may have changed."""
        members = self.gang.terms.keys()

        def may_evict(victim: Pod) -> bool:
            return victim.uid not in members and allowed(victim) and not self.context.eviction_blocked(victim)

        node_count = len(self.core.cache.nodes)
        cluster = PreemptionInputs(self._pods_on, self.context.started_ns, self.budgets, node_count)
        kin, seats = self.context.equivalence_keys[pod.uid], len(self.placements)
        known = self.candidate_cache.get(kin)
        changed = set() if known is None else {seat.node for seat in self.placements[known.placed_count :]}
        before = None if known is None else known.candidates
        if dry_run.node_local:
            if isinstance(before, LazyCandidates):
                yield from before.refresh(dry_run, cluster, changed)
                best = yield from before.best(dry_run, cluster)
                self.candidate_cache[kin] = _CachedCandidates(before, seats)
                if best is not None:
                    return best
            prospects, best = yield from find_best_candidate(dry_run, may_evict, cluster)
            if best is None:
                return NoGangPlacement(
                    unavailable_message(node_count, rejection_reasons(prospects, dry_run, cluster))
                )
            self.candidate_cache[kin] = _CachedCandidates(prospects, seats)
            return best
        if isinstance(before, CandidateSearchResult):
            refused = {node: why for node, why in before.node_rejections.items() if node not in changed}
            before = replace(before, node_rejections=refused)
        else:
            before = None
        least = max(1, CANDIDATES_MIN // self.gang.needed_count)
        found = yield from find_candidates(dry_run, may_evict, cluster, candidates_min=least, previous=before)
        if not found.candidates:
            return NoGangPlacement(unavailable_message(node_count, found.reasons))
        if before is not None:
            found = replace(found, failed_nodes=before.failed_nodes | found.failed_nodes)
        self.candidate_cache[kin] = _CachedCandidates(found, seats)
        return least_disruptive(found.candidates)

    def _pods_on(self, node: NodeName) -> list[Pod]:
        usage = self.core.cache.ledger.usage(node)
        return [one for one in usage.pods.values() if one.uid not in self.removed_uids]


def _without_victims(node: NodeName) -> Candidate:
    return Candidate(node, (), 0, 0)

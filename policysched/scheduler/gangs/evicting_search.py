"""One search of nodes for a gang that may evict pods: a node for each member, and the victims to evict for it.

    members that fit now ──► added to an overlay
    each other member: fits now? ── yes ──► added
                          └── no: dry-run preemption on the overlay ──► victims removed, member added
                                     └── no candidate ──► its equivalence class fails

Each member is evaluated like a single pod, on a cluster with the earlier members added and their
victims removed. Only the overlay changes. Members beyond a minimum of 2 or more evict no pods.

Before each member the attempt may pause. Afterwards the members keep their nodes (`pause` tells whether they still fit), and
victims that are gone are forgotten. Whether the others may still be evicted is asked once, at the end.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from policysched.cluster.disruption_budgets import BudgetsAfterEvictions, split_by_budget
from policysched.evaluate import DryRun, NodeSelection, Overlay, TopologyDomain
from policysched.model.identifiers import NodeName, PodUid
from policysched.model.pods import Pod
from policysched.scheduler.attempt_result import AttemptSuccess
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.gangs import kept_placements
from policysched.scheduler.gangs.backtracking import BacktrackLimit
from policysched.scheduler.gangs.gang_limits import has_evictable_pods
from policysched.scheduler.gangs.gang_overlay import (
    gang_overlay,
    nodes_changed_by,
    present_overlay,
    present_quotas,
    present_victims,
    without_gone_victims,
)
from policysched.scheduler.gangs.gang_search_result import GangSearchResult, SearchPauses, wanted
from policysched.scheduler.gangs.last_questions import (
    doubtful_victims,
    has_more_room,
    spared_victims,
    still_fits,
)
from policysched.scheduler.gangs.member_candidates import MemberCandidates
from policysched.scheduler.gangs.member_classes import EvaluatedClasses
from policysched.scheduler.preemption.candidate_search import (
    no_evictable_pods,
)
from policysched.scheduler.preemption.eviction_rights import EvictionRights
from policysched.scheduler.preemption.gang_placement import (
    GOES_ON_LATER,
    PREEMPTION_NEVER,
    PREEMPTION_TOO_EXPENSIVE,
    VICTIMS_TERMINATING,
    GangPlacement,
    GangSearchContext,
    MemberPlacement,
    NoGangPlacement,
)
from policysched.scheduler.preemption.running_gangs import RunningGangs
from policysched.scheduler.preemption.victim_selection import Candidate, PreemptionInputs
from policysched.scheduler.queue.entries import PendingPod
from policysched.scheduler.queue.gang_registry import QueuedGang
from policysched.scheduler.queue.search_progress import KeptPlacement
from policysched.scheduler.quotas.quota_accounts import QuotaRefusal
from policysched.scheduler.quotas.quota_usage import QuotaUsage
from policysched.scheduler.steps import NEW_CLASS_COST, Steps, evaluation_cost, visit_in_pieces
from policysched.scheduler.unschedulable_message import unavailable_message

_DRY_RUN_COST = 25
"""Of looking for victims for a member, before the first candidate."""
_UNFIT_CLASSES_MAX = 300
"""After so many classes that fit nowhere, 0.15 s, the others are evaluated once, as those that may evict pods."""


@dataclass(slots=True)
class EvictingSearch:
    core: SchedulerCore
    gang: QueuedGang
    members: Sequence[PendingPod]
    domain: NodeSelection | None
    context: GangSearchContext
    now_ns: int
    pauses: SearchPauses | None = None
    first_holds: bool = True
    by_demand: bool = False  # the order of the members: those that fit without evictions do not come first
    result: GangSearchResult = field(init=False)  # for pauses
    was_paused: bool = field(init=False, default=False)
    overlay: Overlay = field(init=False)
    # Of the quotas, with the placements; None: there are none, or they are judged later.
    usage: QuotaUsage | None = field(init=False)
    placements: list[MemberPlacement] = field(init=False, default_factory=list)
    budgets: BudgetsAfterEvictions = field(init=False)
    first_message: str | None = field(init=False, default=None)
    candidates: MemberCandidates = field(init=False)
    is_local: bool = field(init=False, default=True)  # no rule so far depends on other nodes
    new_cost: int = field(init=False, default=0)  # without what is done again
    kept: list[KeptPlacement] = field(init=False, default_factory=list)
    kept_count: int = field(init=False, default=0)  # of placements of earlier attempts

    def __post_init__(self) -> None:
        self.overlay = gang_overlay(self.core, self.gang, first_holds=self.first_holds)
        domain = self.domain if isinstance(self.domain, TopologyDomain) else None
        self.result = GangSearchResult(
            domain=domain,
            wanted=wanted(self.gang),
            overlay=self.overlay,
            evicts=True,
            reclaims=self.context.reclaims,
        )
        self.usage = self._present_usage()
        self.budgets = BudgetsAfterEvictions(self.core.cache.budgets)
        self.candidates = MemberCandidates(self.core, self.gang, self.context)

    def run(self, limit: BacktrackLimit) -> Steps[GangPlacement | NoGangPlacement]:
        """Members that are placed cost nothing of the limit."""
        needed, evicts = self.gang.evicting_count, has_evictable_pods(self.core, self.gang, self.context)
        yield from self._place_kept()
        remaining = self.members
        fits_first = self.pauses is None or not self.gang.search_progress.has_fitting
        if evicts and fits_first and not self.by_demand:
            remaining = yield from self.place_fitting_members(needed)
            self.gang.search_progress.has_fitting = not self._ends_for_others
        left_by_class = Counter(self.context.equivalence_keys[pod.uid] for pod in remaining)
        possible, failed = len(remaining), set[Hashable]()
        for pod in remaining:
            key, cost_left = self.context.equivalence_keys[pod.uid], limit.cost_left
            if len(self.placements) >= needed or len(self.placements) + possible < needed:
                break
            if key in failed:
                continue
            if self._ends_for_others:
                self.gang.search_progress.goes_on = True
                return NoGangPlacement(GOES_ON_LATER, retry_ns=self.now_ns)
            if (failed and not evicts) or not limit.spend():
                break
            outcome = yield from limit.count(self.place_member(pod))
            self.new_cost += cost_left - limit.cost_left
            if isinstance(outcome, MemberPlacement):
                limit.cost_left = cost_left
                yield from self.apply_placement(outcome)
                left_by_class[key] -= 1
                possible -= 1
            elif not self._is_pending(pod):
                left_by_class[key] -= 1
                possible -= 1
            elif outcome.victims_terminating:
                return outcome
            else:
                self.first_message = self.first_message or outcome.message
                failed.add(key)
                possible -= left_by_class[key]
        if len(self.placements) >= needed:
            return GangPlacement(tuple(self.placements))
        return NoGangPlacement(self.first_message or "")

    def place_fitting_members(self, needed: int) -> Steps[list[PendingPod]]:
        """Add the members that fit without evictions; return the others, in order."""
        remaining, failed, evaluated = [], set[Hashable](), EvaluatedClasses()
        for pod in self.members:
            key = self.context.equivalence_keys[pod.uid]
            is_left = len(self.placements) >= needed or key in failed or len(failed) == _UNFIT_CLASSES_MAX
            if is_left or self._ends_for_others or self._refusal(pod) is not None:
                remaining.append(pod)
                continue
            cost = evaluated.cost(key, len(self.placements)) + self._evaluation_cost(pod)
            yield from self._pause(cost)
            self.new_cost += cost
            if not self._is_pending(pod):
                continue
            if self._refusal(pod) is not None:
                remaining.append(pod)
                continue
            result = self.context.evaluate(pod, self.overlay, self.domain)
            if isinstance(result, AttemptSuccess):
                yield from self.apply_placement(MemberPlacement(pod, _without_victims(result.node)))
            else:
                failed.add(key)
                remaining.append(pod)
        return remaining

    def _present_usage(self) -> QuotaUsage | None:
        return None if self.context.reclaims else present_quotas(self.core, self.gang, self.result)

    def _refusal(self, pod: PendingPod) -> QuotaRefusal | None:
        """Why the quotas do not admit the member beside the placements. No pod is evicted for such a member."""
        return None if self.usage is None else self.core.quotas.refusal(pod.pod, self.usage)

    def _evaluation_cost(self, pod: PendingPod) -> int:
        return evaluation_cost(len(self.core.cache.nodes), self.core.evaluator.decision_cost(pod.pod))

    def apply_placement(self, placement: MemberPlacement, kept: KeptPlacement | None = None) -> Steps[None]:
        """In pieces, as a victim may bring a gang of thousands with it. The cluster does not change between them."""
        if self.pauses is not None:
            violations = self._violations(placement)
            self.kept.append(
                kept
                or kept_placements.kept_placement(
                    self.core, placement, violations, self.now_ns, self.is_local
                )
            )
        self.candidates.note_changes(nodes_changed_by(self.core, placement))
        yield from visit_in_pieces(placement.candidate.victims, self._remove_victim, 1)
        if self.budgets.evict(placement.candidate.victims):
            self.candidates.forget()  # evictions may violate budgets now that had room before
        prebind_work = self.context.add_to_overlay(placement.pod, placement.node, self.overlay)
        self.result.has_reservations |= prebind_work is not None
        if self.usage is not None:
            self.usage.add(self.core.quotas.charge_of(placement.pod.pod))
        self.placements.append(placement)
        self.result.fits.append((placement.pod, AttemptSuccess(placement.node, 0, 0, 0)))

    def _remove_victim(self, victim: Pod) -> None:
        on = self.core.cache.ledger.placement(victim.uid)
        assert on is not None, f"{victim.full_name} is a victim and not placed"
        self.overlay.remove_pod(victim.uid)
        self.result.victims[victim.uid] = on.node

    def _is_leaving(self, uid: PodUid) -> bool:
        return uid in self.result.victims or self.context.is_terminating(uid)

    # ── what earlier attempts have found ───────────────────────────────────────────────────────────────────────────────

    def _place_kept(self) -> Steps[None]:
        """So that each attempt gets further than the one before, although it may end for others that wait, or be given up."""
        core, gang, progress = self.core, self.gang, self.gang.search_progress
        if self.pauses is None:
            return
        scope = self.domain, core.cache.namespaces.get(gang.namespace), self.by_demand
        kept = progress.kept if progress.scope == scope else []
        rights, needed = self.context.eviction_rights, gang.evicting_count

        def pause(each: KeptPlacement) -> Steps[int]:
            is_short = kept_placements.is_by_itself(core, gang, each)
            cost = 0 if is_short else NEW_CLASS_COST + self._evaluation_cost(each.pod)
            yield from self._pause(cost + 2 + len(each.victims))
            return self.now_ns

        def may_evict(placement: MemberPlacement, victim: Pod) -> bool:
            return victim.uid not in self.result.victims and self._may_evict(victim, rights(placement.pod))

        def fits(placement: MemberPlacement) -> Steps[bool]:
            return kept_placements.fits_without_victims(self.context, self.overlay, placement)

        def place(each: KeptPlacement, placement: MemberPlacement) -> Steps[bool]:
            is_left = len(self.placements) >= needed or each.pod.uid not in self.context.equivalence_keys
            if is_left or self._refusal(placement.pod) is not None or self._violates_more(each, placement):
                return False
            yield from self.apply_placement(placement, each)
            return True

        yield from kept_placements.place_kept(core, gang, kept, pause, may_evict, fits, place)
        progress.scope, progress.kept = scope, self.kept
        progress.has_fitting &= bool(self.kept)
        self.kept_count, self.was_paused = len(self.placements), self.was_paused or bool(self.placements)
        placed = {placement.pod.uid for placement in self.placements}
        self.members = [pod for pod in self.members if pod.uid not in placed]

    @property
    def _ends_for_others(self) -> bool:
        """Whether to leave the rest to the next attempt, as entries wait that no pause decides. Without pauses they may wait unseen."""
        pauses, core = self.pauses, self.core
        if pauses is None or not pauses.is_limited or len(self.placements) == self.kept_count:
            return False
        may_wait = pauses.others_wait or self.result.has_reservations or core.queue.yielded is not None
        return may_wait and self.new_cost >= core.limits.gang_head_start_cost // 2

    # ── pauses ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _pause(self, cost: int) -> Steps[None]:
        """A step in which the attempt may pause. With reservations it may not: the overlay could not follow."""
        pauses = self.pauses
        if pauses is None or self.result.has_reservations:
            yield cost
            return
        pauses.search, pauses_before = self.result, pauses.count
        yield cost
        pauses.search, self.now_ns = None, pauses.now_ns
        if pauses.count > pauses_before:
            yield from self._follow(cluster_changed=pauses.cluster_changed)
            pauses.cluster_changed = False

    def _follow(self, *, cluster_changed: bool) -> Steps[None]:
        """After a pause. What was known of victims on nodes that did not change stays as it is, as to ask for all again takes
        long."""
        core, self.was_paused = self.core, True
        if cluster_changed:
            yield from self._follow_cluster()
        budgets = self.budgets = BudgetsAfterEvictions(core.cache.budgets)
        yield from visit_in_pieces(self.placements, lambda each: budgets.evict(each.candidate.victims), 5)
        self.usage = self._present_usage()
        self.candidates.forget()
        yield 1 + (len(self.placements) + len(self.result.victims)) // 10

    def _follow_cluster(self) -> Steps[None]:
        core, result, changed = self.core, self.result, self.overlay.changed_nodes()
        result.victims = present_victims(core, result)
        self.overlay = result.overlay = yield from present_overlay(core, self.gang, result)
        present = list[MemberPlacement]()

        def follow(placement: MemberPlacement) -> None:
            present.append(without_gone_victims(core, placement, result))

        yield from visit_in_pieces(self.placements, follow, 5)
        self.placements = present
        self.candidates.follow(changed)

    def _is_pending(self, pod: PendingPod) -> bool:
        return self.gang.pending_members.get(pod.uid) is pod

    def is_outdated(self) -> Steps[bool]:
        """Whether a member that keeps its node from an earlier attempt, and was not evaluated in this one, does not fit there any
        more: samples and the terms of pods on other nodes count as well. The next attempt looks for another node."""
        is_outdated = False
        for index, each in enumerate(self.kept[: self.kept_count]):
            if each.is_local:  # the others were evaluated
                yield from self._pause(NEW_CLASS_COST + self._evaluation_cost(each.pod))
                if not still_fits(self.context, self.overlay, each.pod, each.node.name):
                    self.kept[index], is_outdated = replace(each, found_ns=0), True
        return is_outdated

    def spare_victims(self) -> Steps[None]:
        """Keep victims that are not needed any more: room has come free in pauses, or by gangs that go whole for later members."""
        freed = set[NodeName]()
        for index in reversed(range(len(self.kept))):
            kept, placement = self.kept[index], self.placements[index]
            is_freed = placement.node in freed
            freed |= {self.result.victims[victim.uid] for victim in placement.candidate.victims} - {
                placement.node
            }
            yield 1 + len(placement.candidate.victims) // 8
            if not kept.is_local or not (is_freed or has_more_room(self.core, kept, placement)):
                continue
            cost = NEW_CLASS_COST + self._evaluation_cost(kept.pod)
            yield from self._pause(cost)
            placement = self.placements[index]
            on_node = [each.pod for each in self.placements if each.node == placement.node]
            spared = yield from spared_victims(
                self.core, self.context, self.overlay, placement, on_node, cost
            )
            for victim in spared:
                del self.result.victims[victim.uid]
            victims = tuple([victim for victim in placement.candidate.victims if victim not in spared])
            self.placements[index] = replace(
                placement, candidate=replace(placement.candidate, victims=victims)
            )

    def violates_more(self) -> Steps[bool]:
        """Whether evictions violate more budgets than when they were chosen, as budgets changed in pauses or between attempts. The next
        attempt looks for others."""
        found = False
        if self.was_paused:
            self.budgets = BudgetsAfterEvictions(self.core.cache.budgets)
            for index, (each, placement) in enumerate(zip(self.kept, self.placements, strict=False)):
                if self._violates_more(each, placement):
                    self.kept[index], found = replace(each, found_ns=0), True
                self.budgets.evict(placement.candidate.victims)
                yield 1 + len(placement.candidate.victims) // 4
        return found

    def _violates_more(self, kept: KeptPlacement, placement: MemberPlacement) -> bool:
        """True once for a member: an owner whose budgets change all the time would keep the gang from its nodes."""
        placed_anew = self.gang.search_progress.placed_anew
        if kept.pod.uid in placed_anew or self._violations(placement) <= kept.violations:
            return False
        placed_anew.add(kept.pod.uid)
        return True

    def _violations(self, placement: MemberPlacement) -> int:
        return len(split_by_budget(placement.candidate.victims, self.budgets)[0])

    def is_doubtful(self) -> Steps[bool]:
        """Whether victims of before a pause are in doubt. The next attempts spare them, as their owner could have each end like
        this."""
        if not self.was_paused:
            return False
        doubtful = yield from doubtful_victims(
            self.core, self.context, self.placements, self._may_evict, self._is_leaving
        )
        self.gang.search_progress.spared_victims |= doubtful
        return bool(doubtful)

    def _may_evict(self, victim: Pod, allowed: EvictionRights) -> bool:
        is_spared = victim.uid in self.gang.terms or victim.uid in self.gang.search_progress.spared_victims
        return not is_spared and allowed(victim) and not self.context.eviction_blocked(victim)

    # ── one member ─────────────────────────────────────────────────────────────────────────────────────────────────

    def place_member(self, pod: PendingPod) -> Steps[MemberPlacement | NoGangPlacement]:
        refusal = self._refusal(pod)
        if refusal is not None:
            return NoGangPlacement(refusal.message)
        yield from self._pause(NEW_CLASS_COST + self._evaluation_cost(pod))
        if not self._is_pending(pod):
            return NoGangPlacement("")
        if (refusal := self._refusal(pod)) is not None:
            return NoGangPlacement(refusal.message)
        # The victims of an earlier member may have freed enough capacity for this one too.
        result = self.context.evaluate(pod, self.overlay, self.domain)
        if isinstance(result, AttemptSuccess):
            return MemberPlacement(pod, _without_victims(result.node))
        if not result.node_count:
            return NoGangPlacement(result.message)
        if pod.pod.preemption_policy == "Never":
            return NoGangPlacement(PREEMPTION_NEVER)
        core = self.core
        if core.evaluator.long_decision_cost(pod.pod):
            return NoGangPlacement(PREEMPTION_TOO_EXPENSIVE)
        yield _DRY_RUN_COST
        plan, inputs = core.plan(pod.policy), core.evaluation_inputs(pod, self.now_ns)
        dry_run = core.evaluator.dry_run(plan, pod.pod, **inputs, overlay=self.overlay, domain=self.domain)
        self.is_local &= dry_run.node_local
        allowed = self.context.eviction_rights(pod)
        if self._victims_terminating(pod, dry_run, allowed):
            return NoGangPlacement(VICTIMS_TERMINATING, victims_terminating=True)
        node_count, lowest = len(core.cache.nodes), core.cache.ledger.lowest_priority
        if not self.context.reclaims and (lowest is None or lowest >= pod.pod.priority):
            return NoGangPlacement(
                unavailable_message(node_count, no_evictable_pods(dry_run, node_count).reasons)
            )
        cluster = PreemptionInputs(
            self._pods_on,
            self.context.started_ns,
            self.budgets,
            node_count,
            RunningGangs(core, self._is_leaving, self.context.may_leave),
            allowed.order,
            self.gang.attempts,
        )
        may_evict = partial(self._may_evict, allowed=allowed)
        outcome = yield from self.candidates.least_disruptive(pod, dry_run, allowed, may_evict, cluster)
        return outcome if isinstance(outcome, NoGangPlacement) else MemberPlacement(pod, outcome)

    def _victims_terminating(self, pod: PendingPod, dry_run: DryRun, allowed: EvictionRights) -> bool:
        """Whether victims of an earlier attempt are still on the pod's nominated node."""
        nominated = self.core.cache.nominated.get(pod.uid)
        node = None if nominated is None else nominated.nominated_node
        if node is None or node not in dry_run.potential_nodes:
            return False
        return any(
            self.context.is_terminating(victim.uid) and allowed(victim) for victim in self._pods_on(node)
        )

    def _pods_on(self, node: NodeName) -> list[Pod]:
        usage = self.core.cache.ledger.usage(node)
        return [pod for pod in usage.pods.values() if pod.uid not in self.result.victims]


def _without_victims(node: NodeName) -> Candidate:
    return Candidate(node, (), 0, 0)

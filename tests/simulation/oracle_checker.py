"""Compares every decision with the reference implementation, on the cluster as the core sees it at that moment.

The verdict of a single pod is compared completely: node, score, feasible count and reason counts. A
gang member is evaluated on an overlay; the comparison happens when it is assumed, because the cache
then equals that overlay. The same holds with nominated pods. Where the attempt of the gang pauses, pods that were
decided beside it after a member had its node are left out: the member came first. A preemption for a gang must place
all of its members.

The head of the queue is compared with the reference order. After an eviction the pod must fit without the victims, each
victim must be needed, and no budget may be violated where another node avoids it.
"""

from collections.abc import Callable, Collection, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

from policysched.cluster.cache import ClusterCache
from policysched.cluster.ledger import PlacementState
from policysched.evaluate import OneNode, Overlay, Plan, Verdict
from policysched.lang.ir.program import GangMode
from policysched.lang.ir.verdict import PlacementExplanation
from policysched.model.identifiers import NodeName, PodUid
from policysched.model.pods import Placement, Pod
from policysched.scheduler.commands import Evict
from policysched.scheduler.gangs.gang_search_result import GangSearchResult
from policysched.scheduler.preemption.gang_placement import GangPlacement
from policysched.scheduler.preemption.nominations import competing_nominations
from policysched.scheduler.queue.entries import PendingPod, QueueEntry
from policysched.scheduler.queue.gang_registry import QueuedGang
from policysched.scheduler.scheduler import Scheduler
from policysched.scheduler.steps import Steps
from tests.reference import evaluate, gang_terms, order_key, select_node
from tests.reference.quota import quotas_admit_in
from tests.simulation.churn import PROTECTED_LABEL
from tests.simulation.decided_beside import DecidedBeside
from tests.simulation.hypothetical import has_samples, without_listeners


class OracleChecker:
    """Wraps one scheduler. `fail` gets a message for each difference."""

    def __init__(
        self,
        scheduler: Scheduler,
        fail: Callable[[str], None],
        *,
        gangs_pause: bool,
        is_overdrawn: Callable[[str], bool],
    ) -> None:
        core = self._core = scheduler._core
        self._beside = DecidedBeside(scheduler)
        self._fail = fail
        self.gangs_pause = gangs_pause
        self._is_overdrawn = is_overdrawn
        self._now_ns = 0
        self._last_agreed: tuple[str, str] | None = None
        self._evaluate = core.evaluator.evaluate
        self._assume = core.cache.assume
        core.evaluator.evaluate = self._check_evaluate  # type: ignore[method-assign]
        core.cache.assume = self._check_assume  # type: ignore[method-assign]
        preemption = scheduler._preemption
        self._evict_for_gang = preemption.evict_for_gang
        preemption.evict_for_gang = self._check_gang_preemption  # type: ignore[method-assign]
        self._advance, self._pop = core.queue.advance, core.queue.pop
        core.queue.advance = self._on_advance  # type: ignore[method-assign]
        core.queue.pop = self._check_pop  # type: ignore[method-assign]
        self._nominated_placements: dict[PodUid, list[tuple[Pod, NodeName]]] = {}
        gang_attempts = scheduler._attempts._gang_attempts
        self._begin, self._backtrack = gang_attempts.begin, gang_attempts._with_backtracking
        gang_attempts.begin = self._note_attempt  # type: ignore[method-assign]
        gang_attempts._with_backtracking = self._note_backtracking  # type: ignore[method-assign]
        self._backtracked: QueuedGang | None = None  # the gang of the attempt, if members gave back nodes
        self._victims: set[PodUid] = set()
        self.comparisons = 0

    def _check_evaluate(
        self, plan: Plan, pod: Pod, *, overlay: Overlay | None = None, diagnosed: bool = True, **inputs: Any
    ) -> Verdict:
        verdict = self._evaluate(plan, pod, overlay=overlay, diagnosed=diagnosed, **inputs)
        self._now_ns = inputs["now_ns"]
        nominated = {*self._core.cache.nominated, *self._capacity_holds()}
        self._nominated_placements[pod.uid] = [
            (other, node) for other, node in (overlay.placements if overlay else ()) if other.uid in nominated
        ]
        searches = self._core.cache.devices.allocation_cache
        if overlay is None and isinstance(inputs["domain"], OneNode):
            self._check_alone(plan, pod, verdict, inputs)
        elif overlay is None and not (searches.is_cut_off or searches.accepted):
            self.comparisons += 1
            inputs.pop("nominated_node")
            assert inputs.pop("domain") is None, f"{pod.full_name} is attempted alone, within a domain"
            explanation = self._prefer_nominated_node(
                pod, evaluate(plan.program, pod, self._core.cache, **inputs)
            )
            self._compare(pod, verdict, explanation)
            if explanation.selected is not None:
                self._last_agreed = (pod.uid, explanation.selected)
        return verdict

    def _check_alone(self, plan: Plan, pod: Pod, verdict: Verdict, inputs: dict[str, Any]) -> None:
        """A pod that got a node beside the members of a paused gang: it must fit there without them, too."""
        self.comparisons += 1
        others = {key: value for key, value in inputs.items() if key not in ("nominated_node", "domain")}
        explanation = evaluate(plan.program, pod, self._core.cache, **others)
        node = inputs["domain"].name
        if (verdict.selected is None) != (node not in explanation.feasible):
            self._fail(
                f"{pod.full_name}: the plan selects {verdict.selected}, the reference {explanation.feasible}"
            )
        elif verdict.selected is not None:
            self._last_agreed = (pod.uid, node)

    def _capacity_holds(self) -> set[PodUid]:
        return {hold.pod.uid for holds in self._core.capacity_holds.values() for hold in holds}

    def _compare(self, pod: Pod, verdict: Verdict, explanation: PlacementExplanation) -> None:
        if (verdict.pod_rejection is None) != (explanation.pod_rejection is None):
            self._fail(
                f"{pod.full_name}: the plan refuses it with {verdict.pod_rejection!r}, the reference {explanation.pod_rejection!r}"
            )
        elif verdict.selected != explanation.selected:
            self._fail(
                f"{pod.full_name}: the plan selects {verdict.selected}, the reference {explanation.selected}"
            )
        elif explanation.selected is not None and verdict.score != explanation.totals[explanation.selected]:
            self._fail(
                f"{pod.full_name}: the plan's score is {verdict.score}, the reference's {explanation.totals[explanation.selected]}"
            )
        elif explanation.pod_rejection is None and verdict.feasible_count != len(explanation.feasible):
            self._fail(
                f"{pod.full_name}: the plan finds {verdict.feasible_count} nodes, the reference {explanation.feasible}"
            )
        elif (
            explanation.pod_rejection is None
            and explanation.selected is None
            and dict(verdict.reason_counts()) != rejection_counts(explanation)
        ):
            self._fail(
                f"{pod.full_name}: the plan counts {dict(verdict.reason_counts())}, the reference {rejection_counts(explanation)}"
            )

    def _check_assume(self, pod: Pod, node: NodeName) -> Any:
        self._beside.note(pod)
        if self._last_agreed != (pod.uid, node):
            self._check_gang_member(pod, node)
        self._last_agreed = None
        return self._assume(pod, node)

    def _prefer_nominated_node(self, pod: Pod, explanation: PlacementExplanation) -> PlacementExplanation:
        """The nominated node of a pod precedes all others."""
        nominated = self._core.cache.nominated.get(pod.uid)
        node = None if nominated is None else nominated.nominated_node
        return replace(explanation, selected=node) if node in explanation.feasible else explanation

    def _restrict_to_domain(
        self, pod: Pod, node: NodeName, explanation: PlacementExplanation
    ) -> PlacementExplanation:
        """A gang with a topology selects among the nodes of one domain, even for a member nominated
        elsewhere.
        """
        core = self._core
        program = core.policies.running[pod.scheduler].program
        terms = gang_terms(program, pod, core.cache.namespaces.get(pod.namespace))
        if terms is None or not terms.levels:
            return explanation
        nodes, key = core.cache.nodes, terms.levels[0].key
        inside = {
            NodeName(name): total
            for name, total in explanation.totals.items()
            if nodes[NodeName(name)].labels.get(key) == nodes[node].labels[key]
        }
        feasible = tuple(name for name in explanation.feasible if NodeName(name) in inside)
        return replace(explanation, feasible=feasible, selected=select_node(inside, pod))

    def _check_gang_member(self, pod: Pod, node: NodeName) -> None:
        """Capacity reserved for other nominated pods counts as used."""
        core = self._core
        # Members of its own gang that were nominated have been assumed before it.
        kept = [
            (other, place)
            for other, place in self._nominated_placements.pop(pod.uid, [])
            if core.cache.ledger.placement(other.uid) is None
        ]
        with without_listeners(core.cache.ledger):
            for other, place in kept:
                core.cache.ledger.assume(other, place)
                core.samples.assumed_load.pod_placed(other, core.namespace_of(other), place, self._now_ns)
            with self._beside.left_out_for(pod, node):
                explanation = evaluate(
                    core.policies.running[pod.scheduler].program,
                    pod,
                    core.cache,
                    now_ns=self._now_ns,
                    facts=core.pods[pod.uid].facts,
                    samples=core.samples.of_policy(pod.scheduler),
                )
            for other, _ in kept:
                core.cache.ledger.withdraw(other.uid)
                core.samples.assumed_load.pod_removed(other.uid)
        self.comparisons += 1
        if core.policies.running[pod.scheduler].program.extenders and node in explanation.feasible:
            return  # extenders take part in the selection
        backtracked = core.gangs.gang_of(pod.uid) is self._backtracked
        if (backtracked or self.gangs_pause) and node in explanation.feasible:
            return  # backtracking may take a worse node, and before a pause the scores were others
        if self._prefers_neighbours(pod) and node in explanation.feasible:
            return  # see the topology checker
        explanation = self._prefer_nominated_node(pod, self._restrict_to_domain(pod, node, explanation))
        if explanation.selected != node:
            reason = (
                explanation.pod_rejection
                or explanation.rejections.get(node)
                or f"its total is {explanation.totals.get(node)}"
            )
            self._fail(
                f"{pod.full_name} is assumed on {node}, the reference selects {explanation.selected} ({node}: {reason})"
            )

    def _prefers_neighbours(self, pod: Pod) -> bool:
        core = self._core
        terms = gang_terms(core.policies.running[pod.scheduler].program, pod, core.namespace_of(pod))
        return terms is not None and any(not level.required for level in terms.levels)

    def _note_attempt(self, now_ns: int, *, is_limited: bool) -> None:
        self._backtracked = None
        self._begin(now_ns, is_limited=is_limited)

    def _note_backtracking(self, gang: QueuedGang, *search: Any) -> Steps[GangSearchResult | None]:
        placement = yield from self._backtrack(gang, *search)
        if placement is not None:
            self._backtracked = gang
        return placement

    # ── preemption for gangs ────────────────────────────────────────────────────────────────────────────────────────────

    def _check_gang_preemption(self, gang: QueuedGang, placement: GangPlacement, now_ns: int) -> Steps[None]:
        self._now_ns = now_ns
        self.comparisons += 1
        if len(placement.members) < gang.needed_count:
            self._fail(
                f"gang {gang.name} needs {gang.needed_count} members placed, and preemption places {len(placement.members)}"
            )
        domains = {
            tuple(self._core.cache.nodes[member.node].labels.get(key) for key in gang.required_keys)
            for member in placement.members
        }
        if len(domains) > 1:
            self._fail(f"gang {gang.name} has topology {gang.required_keys} and gets {domains}")
        with without_listeners(self._core.cache.ledger):
            self._check_gang_placements(gang, placement)
        return self._evict_for_gang(gang, placement, now_ns)

    def _check_gang_placements(self, gang: QueuedGang, gang_placement: GangPlacement) -> None:
        """Remove all victims, as members may need those of later ones, place the members in order, evaluate each, and restore
        the ledger."""
        ledger = self._core.cache.ledger
        assumed: list[PodUid] = []
        removed: list[tuple[Placement, PlacementState]] = []
        for other, node in competing_nominations(
            self._core, gang.representative_pod, excluding=gang.pending_members.keys()
        ):
            ledger.assume(other, node)
            assumed.append(other.uid)
        for member in gang_placement.members:
            pod = member.pod.pod
            for victim in member.candidate.victims:
                placement = ledger.placement(victim.uid)
                important = victim.priority >= pod.priority and not self._has_quotas(gang.policy)
                if placement is None or important or victim.uid in gang.terms:
                    self._fail(f"{victim.full_name} is a victim of {pod.full_name} and must not be one")
                    continue
                removed.append((placement, ledger.state(victim.uid)))
                ledger.remove(victim.uid)
        for member in gang_placement.members:
            pod = member.pod.pod
            with self._beside.left_out_for(pod, member.node):
                explanation = evaluate(
                    self._core.policies.running[gang.policy].program,
                    pod,
                    self._core.cache,
                    now_ns=self._now_ns,
                    facts=member.pod.facts,
                    samples=self._core.samples.of_policy(gang.policy),
                )
            if member.node not in explanation.feasible:
                reason = explanation.pod_rejection or explanation.rejections.get(member.node)
                self._fail(
                    f"preemption places {pod.full_name} on {member.node}, the reference rejects it: {reason}"
                )
            ledger.assume(pod, member.node)
            assumed.append(pod.uid)
        for uid in assumed:
            ledger.withdraw(uid)
        for placement, state in removed:
            ledger._put_placement(placement, state)

    def _has_quotas(self, policy: str) -> bool:
        """Whether the policy takes back quota, from pods of any priority; see the quota checker."""
        return bool(self._core.policies.running[policy].program.quotas)

    # ── queue order ────────────────────────────────────────────────────────────────────────────────────────────

    def _on_advance(self, now_ns: int) -> None:
        self._now_ns = now_ns
        self._advance(now_ns)

    def _check_pop(self) -> QueueEntry | None:
        queues = self._core.queue._active
        active = {policy: list(queues.of_policy(policy)) for policy in queues.policies}
        unit = self._pop()
        if unit is None or unit not in active.get(unit.policy, ()):
            return unit
        first = self._order_key(unit)
        for other in active[unit.policy]:
            if (
                other is not unit
                and other.ordered_last == unit.ordered_last
                and not self._stands_behind(other, unit)
                and self._order_key(other) < first
            ):
                self._fail(f"{unit} goes before {other}, the reference has the reverse order")
        return unit

    def _stands_behind(self, other: QueueEntry, unit: QueueEntry) -> bool:
        """Whether the other namespace took more than its share of the time. The rest is `OrderChecker`'s."""
        return other.namespace != unit.namespace and self._is_overdrawn(other.namespace)

    def _order_key(self, unit: QueueEntry) -> Any:
        core, pod = self._core, unit.representative_pod
        known = unit if isinstance(unit, PendingPod) else core.pods[pod.uid]
        program = core.policies.running[unit.policy].program
        return order_key(program, pod, core.namespace_of(pod), known.facts, self._now_ns, core.cache)

    # ── evictions ──────────────────────────────────────────────────────────────────────────────────────────────

    def check_eviction(self, evict: Evict, nominated_before: Collection[PodUid]) -> None:
        """Called right after the decision. Necessity is judged where no other preemption overlaps: no victim of an earlier
        one is still there, and no other pod was nominated when the decision was made. A nominated pod keeps room and, as
        far as it is entitled to it, quota; the decision itself may end its nomination.
        """
        victims = {victim.uid for victim in evict.victims}
        if evict.node is None:  # the rest of a gang, after a refused bind
            self._victims |= victims
            return
        core, pod = self._core, self._core.pods[evict.uid].pod
        gang = core.gangs.gang_of(pod.uid)
        if not victims or (gang is not None and gang.mode is GangMode.WHOLE):
            self._victims |= victims
            return  # whole gangs: see `_check_gang_preemption`
        ending = {observed.pod.uid for observed in core.cache.pods.values() if observed.deleting}
        ending |= self._victims & core.cache.pods.keys()
        self._victims |= victims
        prefix = f"{pod.full_name} evicts {sorted(victim.name for victim in evict.victims)} on {evict.node}"
        # A pod that ends elsewhere is still there, as for the decision: without it, its node may be one more candidate,
        # for whose metric the pod would wait.
        placement = core.cache.ledger.placement
        ending_there = {
            uid for uid in ending if (placed := placement(uid)) is not None and placed.node == evict.node
        }
        if evict.node not in self._feasible(pod, self._cache_without(victims | ending_there)):
            self._fail(f"{prefix}, and does not fit there without its victims")
        if ending or {*nominated_before, *core.cache.nominated} - {pod.uid}:
            return
        program = core.policies.running[pod.scheduler].program
        unheld = competing_nominations(core, pod, first_holds=False)
        if evict.node in self._feasible(pod, core.cache, unheld) and quotas_admit_in(
            program, pod, core.cache
        ):
            self._fail(f"{prefix}, of which none is needed")
        held = competing_nominations(core, pod)
        for group in self._evicted_together(victims):
            rest = self._cache_without(victims - group)
            if evict.node in self._feasible(pod, rest, held) and quotas_admit_in(program, pod, rest):
                names = ", ".join(core.cache.pods[uid].pod.full_name for uid in sorted(group))
                self._fail(f"{prefix}, of which {names} is not needed")
        if any(self._is_counted_by_budget(core.cache.pods[uid].pod, allowed=0) for uid in victims):
            harmless = [node for node in core.cache.nodes if self._is_feasible_within_budgets(pod, node)]
            if harmless:
                self._fail(f"{prefix}, which violates a budget, and {harmless} would violate none")

    def _evicted_together(self, victims: set[PodUid]) -> list[set[PodUid]]:
        """The victims, those of each gang together: a gang goes whole or keeps its minimum."""
        groups: dict[Any, set[PodUid]] = {}
        for uid in sorted(victims):
            gang = self._core.gangs.gang_of(uid)
            groups.setdefault(uid if gang is None else gang.id, set()).add(uid)
        return list(groups.values())

    def _is_feasible_within_budgets(self, pod: Pod, node: NodeName) -> bool:
        """Whether the pod fits without the possible victims that no budget covers and that are in no gang. Unlike a dry run, the
        reference judges outages anew, where a node without a sample may be the only candidate: such a node does not count."""
        core = self._core
        if not has_samples(core, pod.scheduler, node, self._now_ns):
            return False
        may_go = {
            other.uid
            for other in core.cache.ledger.usage(node).pods.values()
            if other.scheduler == pod.scheduler and other.priority < pod.priority
            if PROTECTED_LABEL not in other.labels and not self._is_counted_by_budget(other)
            if core.gangs.gang_of(other.uid) is None
        }
        return bool(may_go) and node in self._feasible(pod, self._cache_without(may_go))

    def _is_counted_by_budget(self, pod: Pod, *, allowed: int = 2**31) -> bool:
        """Whether a budget that allows at most `allowed` disruptions covers the pod."""
        return any(
            budget.namespace == pod.namespace
            and budget.selector is not None
            and budget.selector.selects(pod.labels)
            and budget.disruptions_allowed <= allowed
            for budget in self._core.cache.budgets
        )

    def _cache_without(self, uids: set[PodUid]) -> ClusterCache:
        known = self._core.cache
        del known.assume  # the wrapper is not copied
        selectors = known.devices.allocation_cache.selector_results.selectors  # in C++, cannot be copied
        values = [
            *(pod.pod for pod in known.pods.values()),
            *(pod for node in known.ledger.nodes for pod in known.ledger.usage(node).pods.values()),
            *known.nodes.values(),
            *known.namespaces.values(),
        ]  # immutable, and most of the cache
        cache = deepcopy(known, {id(value): value for value in (selectors, *values)})
        known.assume = self._check_assume  # type: ignore[method-assign]
        for uid in sorted(uids):
            cache.drop_pod(uid)
        return cache

    def _feasible(
        self, pod: Pod, cache: ClusterCache, nominated: Sequence[tuple[Pod, NodeName]] = ()
    ) -> list[NodeName]:
        core = self._core
        explanation = evaluate(
            core.policies.running[pod.scheduler].program,
            pod,
            cache,
            now_ns=self._now_ns,
            facts=core.pods[pod.uid].facts,
            samples=core.samples.of_policy(pod.scheduler),
            nominated_pods=nominated,
        )
        return [NodeName(node) for node in explanation.feasible]


def rejection_counts(explanation: PlacementExplanation) -> dict[str, int]:
    """The number of nodes for each reason; a node counts under the first rule that rejects it."""
    counts: dict[str, int] = {}
    for refusals in explanation.rejections.values():
        for group in refusals[0].event_reasons:
            counts[group] = counts.get(group, 0) + 1
    return counts

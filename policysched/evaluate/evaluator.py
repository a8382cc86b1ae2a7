"""Evaluator: one pod against every node, under one plan.

`snapshots` keeps the columns (one set for all policies), `evaluation_cache` the recent evaluations.
"""

from collections.abc import Collection, Generator, Hashable, Iterator, Mapping, Sequence

from policysched.cluster.cache import ClusterCache
from policysched.cluster.devices.pod_claims import uses_devices
from policysched.cluster.devices.pod_selectors import too_many_selectors_message
from policysched.cluster.metric_samples import Samples
from policysched.evaluate.columns.columns import text_hash
from policysched.evaluate.columns.overlay import Overlay
from policysched.evaluate.columns.pod_counter import ScopedSpec
from policysched.evaluate.decision_cost import (
    DECISION_BUDGET_DEFAULT,
    LONG_DECISION,
    SLICED_DECISION,
    DecisionCost,
    member_allowance,
)
from policysched.evaluate.decision_detail import decision_detail
from policysched.evaluate.diagnosis import PrefilterRejection, diagnose, prefilter_rejection
from policysched.evaluate.dry_run import DryRun
from policysched.evaluate.evaluation import Evaluation
from policysched.evaluate.evaluation_cache import EvaluationCache
from policysched.evaluate.node_subset import node_subset_result, row_mask
from policysched.evaluate.nominated_overlays import NominatedOverlays
from policysched.evaluate.nominated_rows import NO_NOMINATED_ROWS, NominatedPods, nominated_rows
from policysched.evaluate.placement_explanation import explanation_in_steps, whole
from policysched.evaluate.plan.plan import Plan
from policysched.evaluate.plan.specialize import specialize_claim_rules
from policysched.evaluate.plan_columns import PlanColumns
from policysched.evaluate.shadow_effects import MadeDecision, shadow_effects
from policysched.evaluate.snapshots import SnapshotBuilder
from policysched.evaluate.topology_domains import NodeSelection, candidate_domains, pod_capacity
from policysched.evaluate.validity import valid_until_ns
from policysched.evaluate.verdict import PrebindRequirements, UnschedulableDiagnosis, Verdict
from policysched.lang.ir.verdict import NodeSubsetVerdict, PlacementExplanation
from policysched.model.cluster_events import ClusterEvent
from policysched.model.identifiers import NodeName
from policysched.model.pods import Pod, QueuedPodInfo

_POD_EVENTS = frozenset({ClusterEvent.UNSCHEDULED_POD_UPDATE, ClusterEvent.NAMESPACE})


class Evaluator:
    """Evaluates plans on one cluster cache. The cache may change between calls, but not while an overlay is in use."""

    def __init__(self, cache: ClusterCache, decision_budget: int = DECISION_BUDGET_DEFAULT) -> None:
        """`decision_budget`: pods whose decision would take more operations are rejected (see `decision_cost`)."""
        self._cache = cache
        self._decision_budget = decision_budget
        self._snapshots = SnapshotBuilder(cache)
        self._evaluations = EvaluationCache(self._snapshots)
        self._nominated_overlays = NominatedOverlays(self.overlay)
        self.forget = self._evaluations.forget
        self._columns = self._snapshots.columns
        self._plan_columns = PlanColumns(self._columns)
        self.build_columns = self._plan_columns.build_at_start
        self.build_columns_in_steps = self._plan_columns.build_in_steps
        self._last_cost: DecisionCost | None = None
        self._last_short: tuple[Pod | None, int, bool] = (None, 0, False)

    # ── columns ──────────────────────────────────────────────────────────────────────────────────────────────

    def build_totals_in_steps(self, plan: Plan) -> Iterator[None]:
        """Build the totals over pods that the plan reads, in steps of about a hundred pods. A decision before the end
        builds those that it reads."""
        self._columns.refresh()
        for spec, scope in plan.pod_totals:
            yield from self._snapshots.pod_counter.build_in_steps(spec, scope)

    def retain_only(self, plans: Collection[Plan]) -> None:
        """Drop what is cached for other plans."""
        self._plan_columns.retain_only(plans)
        self._snapshots.pod_counter.keep_only({total for plan in plans for total in plan.pod_totals})
        plans = {*plans, *(plan.shadow for plan in plans if plan.shadow is not None)}
        self._snapshots.retain_only(plans)
        self._evaluations.retain_only(plans)

    def refresh_slice(self, nodes_max: int | None = None) -> bool:
        """Apply a part of the changes between decisions; without `nodes_max` only if they are many. Returns whether something is
        left, which the next decision does at once."""
        return self._columns.refresh_slice(nodes_max)

    @property
    def has_slices(self) -> bool:
        """Whether the start has left something to `refresh_slice`, or many nodes have changed since the last decision."""
        return self._columns.counted_pods.are_missing or self._columns.has_many_changes

    def catch_up_slice(self, plan: Plan) -> bool:
        """As `refresh_slice`, for the changed pods that the plan's totals follow; nothing is applied if they are few."""
        return self._snapshots.pod_counter.catch_up_slice(plan.pod_totals)

    def index_volumes_slice(self, pod: Pod) -> bool:
        """As `refresh_slice`, for the volumes that the claims of the pod may match; nothing is indexed if they are few."""
        return self._columns.index_volumes_slice(pod)

    @property
    def version(self) -> Hashable:
        """Changes with what an overlay depends on."""
        self._columns.refresh()
        return self._columns.log_end, self._cache.namespaces_version

    def overlay(self) -> Overlay:
        """A hypothetical cluster, equal to the real one until it is changed."""
        self._columns.refresh()
        return Overlay(self._columns, self._cache.ledger.placement, self._cache.shares)

    # ── queries ──────────────────────────────────────────────────────────────────────────────────────────────────

    def evaluate(
        self,
        plan: Plan,
        pod: Pod,
        *,
        now_ns: int,
        facts: QueuedPodInfo,
        samples: Samples,
        overlay: Overlay | None = None,
        nominated_node: NodeName | None = None,
        domain: NodeSelection | None = None,
        nominated_pods: NominatedPods = (),
        diagnosed: bool = True,
    ) -> Verdict:
        """Select a node for the pod under the plan, or diagnose why none fits (if not `diagnosed`, on demand). The
        `nominated_node` is selected before all others if it passes the filters. With a `domain` only its nodes can be selected.
        A node must pass the filters with its `nominated_pods` as well.
        """
        self._columns.refresh()
        context = self._snapshots.eval_context(pod, facts, now_ns, samples, overlay)
        if (over_budget := self.over_budget_message(pod)) is not None:
            return self._rejected_verdict(over_budget, over_budget=True)
        rejection = self._admission_rejection(plan, pod)
        if rejection is not None:
            return self._rejected_verdict(rejection)
        variant = plan.variant(plan.active_layers(context))
        kept = self._nominated_overlays.find(pod, nominated_node, nominated_pods, overlay)
        evaluation, snapshot = self._evaluations.get(plan, variant, context, overlay, kept and kept[1])
        prefilter = prefilter_rejection(evaluation, snapshot)
        if prefilter is not None:
            until_ns = (
                valid_until_ns(plan, variant, evaluation, snapshot, context)
                if prefilter.awaits_metrics or prefilter.is_error
                else None
            )
            return self._rejected_verdict(prefilter.message, prefilter, until_ns)
        base_evaluation = evaluation
        if kept is not None:
            # The other rows are rejected anyway; the diagnosis computes them on demand.
            nominated_rejections = nominated_rows(
                evaluation, snapshot, nominated_pods, *kept, row_mask=evaluation.feasible
            )
            evaluation = evaluation.excluding(nominated_rejections) if nominated_rejections else evaluation

        def diagnosis() -> UnschedulableDiagnosis:
            rejections = NO_NOMINATED_ROWS
            if kept is not None:
                rejections = nominated_rows(base_evaluation, snapshot, nominated_pods, *kept)
            return diagnose(base_evaluation, snapshot, plan.layer_requeue_events, rejections)

        nominated = None if nominated_node is None else self._columns.row(nominated_node)
        row_mask = None if domain is None else domain.rows(snapshot.view())
        row = nominated
        if row is None or not evaluation.feasible[row] or (row_mask is not None and not row_mask[row]):
            row, nominated = evaluation.best_row(text_hash(pod.uid), self._columns.name_hash, row_mask), None
        decision = MadeDecision(evaluation, snapshot, row, nominated, row_mask)
        everywhere = evaluation.feasible_count
        feasible_count = everywhere if row_mask is None else evaluation.feasible_count_in(row_mask)
        return Verdict(
            pod_rejection=None,
            feasible_count=feasible_count,
            feasible_outside_domain=everywhere - feasible_count,
            node_count=self._columns.node_count,
            selected=None if row is None else self._columns.names[row],
            score=0 if row is None else int(evaluation.total[row]),
            valid_until_ns=valid_until_ns(plan, variant, evaluation, snapshot, context),
            diagnose=diagnosis,
            detail=lambda: decision_detail(evaluation, self._columns),
            shadows=shadow_effects(plan, self._evaluations, context, overlay, decision),
            diagnosed=diagnosed,
        )

    def candidate_domains(
        self,
        plan: Plan,
        pod: Pod,
        keys: Sequence[str],
        *,
        now_ns: int,
        facts: QueuedPodInfo,
        samples: Samples,
        overlay: Overlay,
        pods_needed: int,
        same_requests: bool,
    ) -> Mapping[tuple[str, ...], int]:
        """The values of the labels `keys` of feasible nodes, in the order of the scores, with how many pods they may take.

        With `same_requests` all `pods_needed` pods request the same, and domains that are known to
        be too small for them are left out.
        """
        self._columns.refresh()
        if self.over_budget_message(pod) is not None or self._admission_rejection(plan, pod) is not None:
            return {}
        context = self._snapshots.eval_context(pod, facts, now_ns, samples, overlay)
        variant = plan.variant(plan.active_layers(context))
        evaluation, snapshot = self._evaluations.get(plan, variant, context, overlay)
        view = snapshot.view()
        order = evaluation.rows_by_preference(text_hash(pod.uid), self._columns.name_hash)
        capacities = pod_capacity(pod.requests, variant, view) if same_requests else None
        return candidate_domains(evaluation, view, keys, order, capacities, pods_needed)

    def dry_run(
        self,
        plan: Plan,
        pod: Pod,
        *,
        now_ns: int,
        facts: QueuedPodInfo,
        samples: Samples,
        overlay: Overlay | None = None,
        domain: NodeSelection | None = None,
        nominated_pods: NominatedPods = (),
        nominated_node: NodeName | None = None,
    ) -> DryRun:
        """For a pod without a feasible node (in `domain`, where one is given): test where it fits when pods are
        removed from the overlay (a new one by default). `nominated_pods` and `nominated_node` as in `evaluate`."""
        self._columns.refresh()
        context = self._snapshots.eval_context(pod, facts, now_ns, samples, overlay)
        variant = plan.variant(plan.active_layers(context))
        kept = self._nominated_overlays.find(pod, nominated_node, nominated_pods, overlay)
        evaluation, snapshot = self._evaluations.get(plan, variant, context, overlay, kept and kept[1])
        overlays = kept or (overlay or self.overlay(), None, None)
        return DryRun(evaluation, snapshot, *overlays, domain, nominated_pods)

    def prebind_requirements(
        self,
        plan: Plan,
        pod: Pod,
        node: NodeName,
        *,
        now_ns: int,
        facts: QueuedPodInfo,
        samples: Samples,
        overlay: Overlay | None = None,
    ) -> PrebindRequirements | None:
        """What to do about the pod's volumes and devices before it is bound to the node that
        `evaluate` selected; None: nothing.
        """
        claims = [self._columns.available_volumes.claim(use.claim) for use in pod.claims]
        if not uses_devices(pod) and all(claim is not None and claim.fully_bound for claim in claims):
            return None
        self._columns.refresh()
        context = self._snapshots.eval_context(pod, facts, now_ns, samples, overlay)
        variant = plan.variant(plan.active_layers(context))
        evaluation, snapshot = self._evaluations.get_without_claims(plan, variant, context, overlay)
        rules, _ = specialize_claim_rules(
            evaluation.rules, self._snapshots.cluster_context(plan, variant, pod)
        )
        row = self._columns.row(node)
        assert row is not None, f"unknown node {node}"
        view = snapshot.view([row])
        requirements: PrebindRequirements | None = None
        for rule in rules.filters:
            required = rule.kernel.prebind_requirements(pod, self._cache.nodes[node], view)
            if required is not None:
                requirements = required if requirements is None else requirements | required
        return requirements

    def explain_in_steps(
        self,
        plan: Plan,
        pod: Pod,
        *,
        now_ns: int,
        facts: QueuedPodInfo,
        samples: Samples,
        overlay: Overlay | None = None,
        nodes: Collection[NodeName] | None = None,
        reasons_max: int | None = None,
    ) -> Generator[None, None, PlacementExplanation]:
        """Every verdict, every score and the selection; written for people, not for speed. With `nodes` the other nodes are
        neither feasible nor scored, as in `evaluate_nodes`. See `explanation_in_steps`."""
        self._columns.refresh()
        rejection = self.over_budget_message(pod) or self._admission_rejection(plan, pod)
        if rejection is not None:
            return PlacementExplanation(rejection, (), {}, {}, {}, None)
        context = self._snapshots.eval_context(pod, facts, now_ns, samples, overlay)
        rows = None if nodes is None else row_mask(self._columns, nodes)
        evaluation, snapshot = self._evaluations.evaluate_uncached(plan, context, overlay, row_mask=rows)
        prefilter = prefilter_rejection(evaluation, snapshot)
        if prefilter is not None:
            return prefilter.explanation()
        row = evaluation.best_row(text_hash(pod.uid), self._columns.name_hash)
        made = MadeDecision(evaluation, snapshot, row)
        shadows = shadow_effects(plan, self._evaluations, context, overlay, made)
        return (yield from explanation_in_steps(evaluation, snapshot, context, row, shadows, reasons_max))

    explain = whole(explain_in_steps)

    def evaluate_nodes(
        self,
        plan: Plan,
        pod: Pod,
        nodes: Collection[NodeName],
        *,
        now_ns: int,
        facts: QueuedPodInfo,
        samples: Samples,
        overlay: Overlay | None = None,
        nominated_pods: NominatedPods = (),
    ) -> NodeSubsetVerdict:
        """The verdict on only these nodes. Unknown names are skipped. `nominated_pods` as in `evaluate`."""
        self._columns.refresh()
        rejection = self.over_budget_message(pod) or self._admission_rejection(plan, pod)
        if rejection is not None:
            return NodeSubsetVerdict(rejection, {}, {}, 0)
        context = self._snapshots.eval_context(pod, facts, now_ns, samples, overlay)
        rows = row_mask(self._columns, nodes)
        evaluation, snapshot = self._evaluations.evaluate_uncached(plan, context, overlay, row_mask=rows)
        prefilter = prefilter_rejection(evaluation, snapshot)
        if prefilter is not None:
            return NodeSubsetVerdict(prefilter.message, {}, {}, 0)
        nominated_rejections = nominated_rows(
            evaluation, snapshot, nominated_pods, overlay or self.overlay(), row_mask=rows
        )
        evaluation = evaluation.excluding(nominated_rejections) if nominated_rejections else evaluation
        return node_subset_result(evaluation, snapshot, context, rows, nominated_rejections)

    def rule_steps(
        self, plan: Plan, pod: Pod, *, now_ns: int, facts: QueuedPodInfo, samples: Samples
    ) -> Iterator[str]:
        """Evaluate the pod again on every node, and yield the name of each filter and score after it is evaluated, so that
        the caller can measure the time. Scores over the candidates are not evaluated. Nothing is kept. The cluster must not
        change before the end."""
        self._columns.refresh()
        context = self._snapshots.eval_context(pod, facts, now_ns, samples, None)
        rules, snapshot = self._evaluations.rules_and_snapshot(plan, context, None)
        names = [*(rule.name for rule in rules.filters), *(rule.name for rule in rules.scores)]
        steps = Evaluation.build_in_steps(rules, plan.program.outage, snapshot)
        return (name for name, _ in zip(names, steps, strict=False))

    def active_layers(self, plan: Plan, pod: Pod, *, now_ns: int, facts: QueuedPodInfo) -> tuple[int, ...]:
        """Indexes of the layers that apply to the pod on the present cluster."""
        self._columns.refresh()
        return plan.active_layers(self._snapshots.eval_context(pod, facts, now_ns, {}, None))

    def cluster_read_key(self, plan: Plan, pod: Pod) -> Hashable:
        """The part of the equivalence key that depends on the cluster: the pod's labels that terms of placed pods select by
        and, where a filter spreads by default, its selector group. Used together with `Plan.read_key`."""
        labels = self._columns.selected_label_values(pod)
        if pod.spread or not plan.filters_by_selector_group:
            return labels
        return labels, self._cache.selector_owners.default_selector(pod)

    def is_short_decision(self, pod: Pod) -> bool:
        """Whether the decision is within every limit, as nearly all are. Cached: it is read several times for each attempt."""
        node_count = len(self._cache.nodes)
        if pod is not self._last_short[0] or node_count != self._last_short[1]:
            limit = min(SLICED_DECISION, self._decision_budget)
            self._last_short = pod, node_count, self._operations(pod, limit) <= limit
        return self._last_short[2]

    def over_budget_message(self, pod: Pod) -> str | None:
        """Why a decision about the pod is too expensive, so that the pod is not evaluated; None: it is not."""
        too_many = too_many_selectors_message([pod], self._cache.devices) if pod.device_claims else None
        if too_many is not None or self.is_short_decision(pod):
            return too_many
        return self._cost_of(pod).over_budget_message(len(self._cache.nodes), self._decision_budget)

    def decision_cost(self, pod: Pod) -> int:
        """The cost in operations; counting stops once it is over the budget."""
        return self._operations(pod, self._decision_budget)

    def gang_budget(self, member_count: int) -> int:
        """The operations that placing a gang may take: the budget of a decision, and an allowance for each member."""
        return self._decision_budget + member_count * member_allowance(len(self._cache.nodes))

    def long_decision_cost(self, pod: Pod) -> int:
        """The cost in operations; 0 for a decision that is not long."""
        if self.is_short_decision(pod):
            return 0
        cost = self._operations(pod, LONG_DECISION)
        return cost if cost > LONG_DECISION else 0

    def reads_few_pods(self, totals: Sequence[ScopedSpec]) -> bool:
        """Whether these totals of a plan visit few pods in a decision."""
        return self._snapshots.pod_counter.is_short(totals)

    def warm_up(
        self, plan: Plan, pod: Pod, *, now_ns: int, facts: QueuedPodInfo, samples: Samples
    ) -> Iterator[None]:
        """Do the first part of `evaluate` in steps of one rule: for the first pod with these layers, and if a decision takes
        more than a few milliseconds, because of the pod or the policy. Other pods take no step."""
        self._columns.refresh()
        context = self._snapshots.eval_context(pod, facts, now_ns, samples, None)
        if not self.reads_few_pods(plan.pod_totals):
            yield from self._snapshots.prepare_totals(plan, context)
        yield from plan.lower_in_steps(plan.active_layers(context))
        is_sliced = (
            plan.is_long(len(self._cache.nodes)) or self._operations(pod, SLICED_DECISION) > SLICED_DECISION
        )
        rejection = self.over_budget_message(pod) or self._admission_rejection(plan, pod)
        if not is_sliced or rejection is not None:
            return
        yield from self._evaluations.warm_up(plan, plan.variant(plan.active_layers(context)), context)

    # ── helpers ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _operations(self, pod: Pod, limit: int) -> int:
        return self._cost_of(pod).operations(len(self._cache.nodes), limit)

    def _cost_of(self, pod: Pod) -> DecisionCost:
        """The same for all of an attempt, which reads it ten times."""
        if self._last_cost is None or self._last_cost.pod is not pod:
            self._last_cost = DecisionCost(pod)
        return self._last_cost

    def _admission_rejection(self, plan: Plan, pod: Pod) -> str | None:
        return plan.pre_enqueue_message(pod, self._cache.namespaces.get(pod.namespace))

    def _rejected_verdict(
        self,
        rejection: str,
        by: PrefilterRejection | None = None,
        valid_until_ns: int | None = None,
        *,
        over_budget: bool = False,
    ) -> Verdict:
        requeue_events = _POD_EVENTS if by is None else _POD_EVENTS | by.requeue_events
        waits = by is not None and by.awaits_metrics
        return Verdict(
            pod_rejection=rejection,
            feasible_count=0,
            node_count=self._columns.node_count,
            selected=None,
            score=0,
            valid_until_ns=valid_until_ns,
            diagnose=lambda: UnschedulableDiagnosis(
                {}, scaleup_would_not_help=waits, requeue_events=requeue_events
            ),
            rejected_by=None if by is None else by.rule,
            over_budget=over_budget,
            is_error=by is not None and by.is_error,
        )

"""One pod against every node.

The columns (one set for all policies) are kept in `worlds`, what recent evaluations found in `kept_states`.
"""

from collections.abc import Collection, Hashable, Iterator

import numpy as np

from policysched.builtins.dynamic_resources.kernel import DynamicResourcesFilter
from policysched.builtins.kernels import KERNEL_COLUMNS
from policysched.builtins.volume_binding.kernel import VolumeBindingFilter
from policysched.cluster.cache import ClusterCache
from policysched.cluster.devices.binding_conditions import BINDING_TIMEOUT_S
from policysched.cluster.devices.pod_claims import uses_devices
from policysched.cluster.devices.reservations import DeviceChoice
from policysched.cluster.samples import Samples
from policysched.evaluate.columns.column_kinds import ColumnKind
from policysched.evaluate.columns.columns import text_hash
from policysched.evaluate.columns.overlay import Overlay
from policysched.evaluate.columns.snapshot import Snapshot
from policysched.evaluate.compile.lower import AnyRule, Variant, rule_expressions
from policysched.evaluate.compile.plan import Plan
from policysched.evaluate.compile.specialize import specialize_claim_filters
from policysched.evaluate.diagnosis import PrefilterRefusal, diagnose, prefilter_refusal
from policysched.evaluate.dry_run import DryRun
from policysched.evaluate.evaluation import Evaluation
from policysched.evaluate.evaluation_cache import EvaluationCache
from policysched.evaluate.explain import explanation
from policysched.evaluate.node_subset import node_subset_result, row_mask
from policysched.evaluate.nominated_rows import NO_NOMINATED_ROWS, NominatedPods, nominated_rows
from policysched.evaluate.rules.specialized_rules import ConditionalFilter
from policysched.evaluate.scalar.eval_context import EvalContext
from policysched.evaluate.scalar.next_change import crossing_ns, next_change_ns
from policysched.evaluate.snapshots import SnapshotBuilder
from policysched.evaluate.topology_domains import TopologyDomain, candidate_domains, pod_capacity
from policysched.evaluate.vector.node_values import columns_read_by
from policysched.evaluate.verdict import PrebindRequirements, UnschedulableDiagnosis, Verdict, VolumesToBind
from policysched.lang.ir.rules import BuiltinFilter, BuiltinScore
from policysched.lang.ir.verdict import NodeSubsetVerdict, PlacementExplanation
from policysched.model.cluster_events import ClusterEvent
from policysched.model.identifiers import NodeName
from policysched.model.pods import Pod, QueuedPodInfo
from policysched.model.quantity import INT64_MAX

_SECOND_NS = 10**9

_POD_EVENTS = frozenset({ClusterEvent.UNSCHEDULED_POD_UPDATE, ClusterEvent.NAMESPACE})


class Evaluator:
    """Answers for one cache. Between two answers the cache may change in any way; within an overlay's life it may not."""

    def __init__(self, cache: ClusterCache) -> None:
        self._cache = cache
        self._snapshots = SnapshotBuilder(cache)
        self._evaluations = EvaluationCache(self._snapshots)
        self._columns = self._snapshots.columns

    # ── getting ready ──────────────────────────────────────────────────────────────────────────────────────────────

    def build_columns(self, plan: Plan) -> None:
        """Make the columns that the plan needs and that are not there yet."""
        for _ in self.build_columns_in_steps(plan):
            pass

    def build_columns_in_steps(self, plan: Plan) -> Iterator[None]:
        """The same in slices of a thousand rows of a column, so that deciding and changes can go on in between."""
        self._columns.refresh()
        for kind in _columns_needed(plan):
            yield from self._columns.materialize_steps(kind)

    def retain_only(self, plans: Collection[Plan]) -> None:
        """Give back what was kept for plans that decide no more. Without it each edit of a policy would leave its columns
        behind, to be refreshed for ever."""
        self._columns.keep_only({kind for plan in plans for kind in _columns_needed(plan)})
        self._snapshots.retain_only(plans)
        self._evaluations.retain_only(plans)

    def overlay(self) -> Overlay:
        """A hypothetical cluster, equal to the real one so far."""
        self._columns.refresh()
        return Overlay(self._columns, self._cache.ledger.placement, self._cache.shares)

    # ── answering ──────────────────────────────────────────────────────────────────────────────────────────────────

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
        domain: TopologyDomain | None = None,
        nominated_pods: NominatedPods = (),
    ) -> Verdict:
        """Where the pod goes under the plan, or why it waits. A node that it is `nominated_node` to is taken before all
        others if it passes the filters. `domain` a domain it goes to a node of that, whatever is better elsewhere. Nodes are
        `nominated_pods` for pods that are nominated to them: they must do with those as well."""
        self._columns.refresh()
        seen = self._snapshots.eval_context(pod, facts, now_ns, samples, overlay)
        refusal = self._admission_refusal(plan, pod)
        if refusal is not None:
            return self._refused_verdict(refusal)
        variant = plan.variant(plan.active_layers(seen))
        state, world = self._evaluations.get(plan, variant, seen, overlay)
        beforehand = prefilter_refusal(state, world)
        if beforehand is not None:
            until_ns = (
                self._valid_until_ns(plan, variant, state, world, seen) if beforehand.awaits_metrics else None
            )
            return self._refused_verdict(beforehand.message, beforehand, until_ns)
        decider, theirs = state, (overlay or self.overlay()) if nominated_pods else None
        if theirs is not None:
            # All others are refused as it is, and looked at only where somebody asks why.
            withheld = nominated_rows(state, world, nominated_pods, theirs, row_mask=state.feasible)
            state = state.excluding(withheld) if withheld else state

        def why() -> UnschedulableDiagnosis:
            held = (
                NO_NOMINATED_ROWS
                if theirs is None
                else nominated_rows(decider, world, nominated_pods, theirs)
            )
            return diagnose(decider, world, plan.layer_requeue_events, held)

        row, feasible = (
            None if nominated_node is None else self._columns.row(nominated_node),
            state.feasible_count,
        )
        among = None if domain is None else domain.rows(world.view())
        if row is None or not state.feasible[row] or (among is not None and not among[row]):
            row = state.best_row(text_hash(pod.uid), self._columns.name_hash, among)
        if among is not None:
            feasible = state.feasible_count_in(among)
        return Verdict(
            pod_refusal=None,
            feasible_count=feasible,
            feasible_outside_domain=state.feasible_count - feasible,
            node_count=self._columns.node_count,
            selected=None if row is None else self._columns.names[row],
            score=0 if row is None else int(state.total[row]),
            valid_until_ns=self._valid_until_ns(plan, variant, state, world, seen),
            diagnose=why,
        )

    def candidate_domains(
        self,
        plan: Plan,
        pod: Pod,
        key: str,
        *,
        now_ns: int,
        facts: QueuedPodInfo,
        samples: Samples,
        overlay: Overlay,
        pods_needed: int,
        same_requests: bool,
    ) -> tuple[str, ...]:
        """The values of the label `key` of nodes that would do for the pod, those of the nodes that it prefers first. Where all
        who `pods_needed` places are `same_requests`, domains that are too small for so many are left out, as far as that is known."""
        self._columns.refresh()
        if self._admission_refusal(plan, pod) is not None:
            return ()
        seen = self._snapshots.eval_context(pod, facts, now_ns, samples, overlay)
        variant = plan.variant(plan.active_layers(seen))
        state, world = self._evaluations.get(plan, variant, seen, overlay)
        view = world.view()
        order = state.rows_by_preference(text_hash(pod.uid), self._columns.name_hash)
        room = pod_capacity(pod.requests, variant, view) if same_requests else None
        return candidate_domains(state, view, key, order, room, pods_needed)

    def dry_run(
        self,
        plan: Plan,
        pod: Pod,
        *,
        now_ns: int,
        facts: QueuedPodInfo,
        samples: Samples,
        overlay: Overlay | None = None,
        domain: TopologyDomain | None = None,
        nominated_pods: NominatedPods = (),
    ) -> DryRun:
        """For a pod that finds no node on this cluster (`domain` a domain): to ask where it would if pods were lifted off the
        overlay (a fresh one where none is given). Nodes are `nominated_pods` as in `evaluate`."""
        self._columns.refresh()
        seen = self._snapshots.eval_context(pod, facts, now_ns, samples, overlay)
        variant = plan.variant(plan.active_layers(seen))
        state, world = self._evaluations.get(plan, variant, seen, overlay)
        return DryRun(state, world, overlay or self.overlay(), domain, nominated_pods)

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
        """What has to be done about the pod's volumes and devices before it is bound to a node that `evaluate` has chosen;
        None: nothing."""
        claims = [self._columns.available_volumes.claim(use.claim) for use in pod.claims]
        if not uses_devices(pod) and all(one is not None and one.fully_bound for one in claims):
            return None
        self._columns.refresh()
        seen = self._snapshots.eval_context(pod, facts, now_ns, samples, overlay)
        variant = plan.variant(plan.active_layers(seen))
        state, world = self._evaluations.get_without_claims(plan, variant, seen, overlay)
        bound, _ = specialize_claim_filters(state.rules, self._snapshots.cluster_context(plan, variant, pod))
        row = self._columns.row(node)
        assert row is not None, f"node {node} is not known"
        view = world.view([row])
        volumes, devices, timeout_s = None, DeviceChoice(), BINDING_TIMEOUT_S
        for rule in bound.filters:
            kernel = rule.kernel
            if isinstance(kernel, ConditionalFilter):
                kernel = kernel.kernel if kernel.applies(view)[0] else rule.kernel
            if isinstance(kernel, VolumeBindingFilter):
                choice = kernel.choice(self._cache.nodes[node], view)
                volumes = VolumesToBind(choice, kernel.timeout_s) if choice else None
            elif isinstance(kernel, DynamicResourcesFilter):
                devices = kernel.choice(pod, self._cache.nodes[node], view.available_devices)
                timeout_s = kernel.timeout_s
        return PrebindRequirements(volumes, devices, timeout_s) if volumes is not None or devices else None

    def explain(
        self,
        plan: Plan,
        pod: Pod,
        *,
        now_ns: int,
        facts: QueuedPodInfo,
        samples: Samples,
        overlay: Overlay | None = None,
        nodes: Collection[NodeName] | None = None,
    ) -> PlacementExplanation:
        """Every verdict, every score and the choice, node by node: for people, not for speed. With `nodes` the other nodes are
        set aside, as `evaluate_nodes` has it: they are neither feasible nor scored."""
        self._columns.refresh()
        refusal = self._admission_refusal(plan, pod)
        if refusal is not None:
            return PlacementExplanation(refusal, (), {}, {}, {}, None)
        seen = self._snapshots.eval_context(pod, facts, now_ns, samples, overlay)
        rows = None if nodes is None else row_mask(self._columns, nodes)
        state, world = self._evaluations.evaluate_uncached(plan, seen, overlay, row_mask=rows)
        beforehand = prefilter_refusal(state, world)
        if beforehand is not None:
            return PlacementExplanation(
                beforehand.message, (), {}, {}, {}, None, pod_refused_by=beforehand.rule
            )
        row = state.best_row(text_hash(pod.uid), self._columns.name_hash)
        return explanation(state, world, seen, None if row is None else self._columns.names[row])

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
        """What the plan says of these nodes, the others set aside. Names that are no nodes are passed over; nodes
        are `nominated_pods` as in `evaluate`."""
        self._columns.refresh()
        refusal = self._admission_refusal(plan, pod)
        if refusal is not None:
            return NodeSubsetVerdict(refusal, {}, {}, 0)
        seen = self._snapshots.eval_context(pod, facts, now_ns, samples, overlay)
        rows = row_mask(self._columns, nodes)
        state, world = self._evaluations.evaluate_uncached(plan, seen, overlay, row_mask=rows)
        beforehand = prefilter_refusal(state, world)
        if beforehand is not None:
            return NodeSubsetVerdict(beforehand.message, {}, {}, 0)
        withheld = NO_NOMINATED_ROWS
        if nominated_pods:
            withheld = nominated_rows(state, world, nominated_pods, overlay or self.overlay(), row_mask=rows)
            state = state.excluding(withheld) if withheld else state
        return node_subset_result(state, world, seen, rows, withheld)

    def active_layers(self, plan: Plan, pod: Pod, *, now_ns: int, facts: QueuedPodInfo) -> tuple[int, ...]:
        """Indexes of the layers that apply to the pod, the cluster being as it is."""
        return plan.active_layers(self._snapshots.eval_context(pod, facts, now_ns, {}, None))

    def cluster_read_key(self, plan: Plan, pod: Pod) -> Hashable:
        """Those of the pod's labels that terms of placed pods ask about and, where a filter spreads by default, its
        siblings. Beside `Plan.read_key`, what pods have to agree on to be kin."""
        labels = self._columns.selected_label_values(pod)
        if pod.spread or not plan.filters_by_selector_group:
            return labels
        return labels, self._cache.pod_sets.default_selector(pod)

    # ── parts ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _admission_refusal(self, plan: Plan, pod: Pod) -> str | None:
        return plan.admission(pod, self._cache.namespaces.get(pod.namespace))

    def _refused_verdict(
        self, refusal: str, by: PrefilterRefusal | None = None, valid_until_ns: int | None = None
    ) -> Verdict:
        wakes = _POD_EVENTS if by is None else _POD_EVENTS | by.requeue_events
        waits = by is not None and by.awaits_metrics
        return Verdict(
            pod_refusal=refusal,
            feasible_count=0,
            node_count=self._columns.node_count,
            selected=None,
            score=0,
            valid_until_ns=valid_until_ns,
            diagnose=lambda: UnschedulableDiagnosis({}, scaleup_would_not_help=waits, requeue_events=wakes),
            refused_by=None if by is None else by.rule,
        )

    def _valid_until_ns(
        self, plan: Plan, variant: Variant, state: Evaluation, world: Snapshot, seen: EvalContext
    ) -> int | None:
        """When samples go stale or a value that reads the clock flips; None: the verdict does not age."""
        machine, clock = variant.machine, variant.clock_reads
        times = [world.metrics_known_until_ns(variant.metrics)]
        times += [
            next_change_ns(leaf.expr, seen, plan.program) for leaf in machine.leaves if leaf.in_cache_key
        ]
        times += [next_change_ns(layer.condition, seen, plan.program) for layer in plan.program.layers]
        if clock.has_other_reads:
            times.append(seen.now_ns + _SECOND_NS)
        for left, right, steep in clock.comparisons:
            frame = state.rules.activation.frame(world.view())
            one, two = machine.run(frame, left), machine.run(frame, right)
            gaps = np.unique(np.broadcast_to(one.values - two.values, (frame.view.count,)))
            times += [crossing_ns(gap, steep, seen.now_ns) for gap in gaps.tolist()]
        return min((time for time in times if time is not None and time < INT64_MAX), default=None)


def _columns_needed(plan: Plan) -> Iterator[ColumnKind]:
    """Those that its rules without layers read of nodes, one as often as it is read."""
    variant = plan.variant(())
    rules: list[AnyRule] = [step.rule for step in variant.filters]
    rules += [step.rule for step in variant.scores]
    for rule in rules:
        for expr in rule_expressions(rule):
            if expr:
                yield from columns_read_by(expr, plan.program)
        if isinstance(rule, BuiltinFilter | BuiltinScore):
            yield from KERNEL_COLUMNS.get(rule.builtin, ())

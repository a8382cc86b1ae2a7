"""One pod against every node.

The columns (one set for all policies) are kept in `worlds`, what recent evaluations found in `kept_states`.
"""

from collections.abc import Collection, Hashable, Iterator

import numpy as np

from policysched.builtins.dynamic_resources.kernel import DynamicResources
from policysched.builtins.kernels import COLUMNS
from policysched.builtins.volume_binding.kernel import VolumeBinding
from policysched.cluster.cache import Cache
from policysched.cluster.devices.binding_conditions import BINDING_TIMEOUT_S
from policysched.cluster.devices.pod_claims import uses_devices
from policysched.cluster.devices.reservations import DeviceChoice
from policysched.cluster.samples import Samples
from policysched.evaluate.columns.column_kinds import ColumnKind
from policysched.evaluate.columns.columns import text_hash
from policysched.evaluate.columns.overlay import Overlay
from policysched.evaluate.columns.snapshot import World
from policysched.evaluate.compile.lower import AnyRule, Variant, deciding
from policysched.evaluate.compile.plan import Plan
from policysched.evaluate.compile.specialize import bind_claims
from policysched.evaluate.dry_run import DryRun
from policysched.evaluate.evaluation import State
from policysched.evaluate.evaluation_cache import KeptStates
from policysched.evaluate.explain import explanation
from policysched.evaluate.judge import judgement, rows_of
from policysched.evaluate.nominated import NOTHING_WITHHELD, Reserved, withheld_rows
from policysched.evaluate.reasons import Beforehand, refused_beforehand, why_not
from policysched.evaluate.rules.bound_rules import ConditionalFilter
from policysched.evaluate.scalar.eval_context import Seen
from policysched.evaluate.scalar.times import crossing_ns, next_change_ns
from policysched.evaluate.snapshots import Worlds
from policysched.evaluate.topology_domains import Within, domains_worth_trying, room_for
from policysched.evaluate.vector.node_values import columns_of
from policysched.evaluate.verdict import BeforeBind, NoNode, Verdict, VolumesToBind
from policysched.lang.ir.program import BuiltinFilter, BuiltinScore
from policysched.lang.ir.verdict import Explanation, Judgement
from policysched.model.cluster_events import ClusterEvent
from policysched.model.objects import NodeName, Pod, PodFacts
from policysched.model.quantity import INT64_MAX

_SECOND_NS = 10**9

_POD_EVENTS = frozenset({ClusterEvent.UNSCHEDULED_POD_UPDATE, ClusterEvent.NAMESPACE})


class Evaluator:
    """Answers for one cache. Between two answers the cache may change in any way; within an overlay's life it may not."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._worlds = Worlds(cache)
        self._states = KeptStates(self._worlds)
        self._columns = self._worlds.columns

    # ── getting ready ──────────────────────────────────────────────────────────────────────────────────────────────

    def prepare(self, plan: Plan) -> None:
        """Make the columns that the plan needs and that are not there yet."""
        for _ in self.prepare_steps(plan):
            pass

    def prepare_steps(self, plan: Plan) -> Iterator[None]:
        """The same in slices of a thousand rows of a column, so that deciding and changes can go on in between."""
        self._columns.refresh()
        for kind in _columns_needed(plan):
            yield from self._columns.keep_steps(kind)

    def keep_only(self, plans: Collection[Plan]) -> None:
        """Give back what was kept for plans that decide no more. Without it each edit of a policy would leave its columns
        behind, to be refreshed for ever."""
        self._columns.keep_only({kind for plan in plans for kind in _columns_needed(plan)})
        self._worlds.keep_only(plans)
        self._states.keep_only(plans)

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
        facts: PodFacts,
        samples: Samples,
        overlay: Overlay | None = None,
        nominated: NodeName | None = None,
        within: Within | None = None,
        reserved: Reserved = (),
    ) -> Verdict:
        """Where the pod goes under the plan, or why it waits. A node that it is `nominated` to is taken before all
        others if it passes the filters. `within` a domain it goes to a node of that, whatever is better elsewhere. Nodes are
        `reserved` for pods that are nominated to them: they must do with those as well."""
        self._columns.refresh()
        seen = self._worlds.seen(pod, facts, now_ns, samples, overlay)
        refusal = self._refusal(plan, pod)
        if refusal is not None:
            return self._refused(refusal)
        variant = plan.variant(plan.active_layers(seen))
        state, world = self._states.of(plan, variant, seen, overlay)
        beforehand = refused_beforehand(state, world)
        if beforehand is not None:
            until_ns = self._valid_until_ns(plan, variant, state, world, seen) if beforehand.waits else None
            return self._refused(beforehand.words, beforehand, until_ns)
        decider, theirs = state, (overlay or self.overlay()) if reserved else None
        if theirs is not None:
            # All others are refused as it is, and looked at only where somebody asks why.
            withheld = withheld_rows(state, world, reserved, theirs, only=state.feasible)
            state = state.without(withheld) if withheld else state

        def why() -> NoNode:
            held = NOTHING_WITHHELD if theirs is None else withheld_rows(decider, world, reserved, theirs)
            return why_not(decider, world, plan.layer_wakes, held)

        row, feasible = None if nominated is None else self._columns.row(nominated), state.feasible_count
        among = None if within is None else within.rows(world.view())
        if row is None or not state.feasible[row] or (among is not None and not among[row]):
            row = state.best(text_hash(pod.uid), self._columns.name_hash, among)
        if among is not None:
            feasible = state.feasible_among(among)
        return Verdict(
            pod_refusal=None,
            feasible_count=feasible,
            elsewhere=state.feasible_count - feasible,
            node_count=self._columns.node_count,
            selected=None if row is None else self._columns.names[row],
            score=0 if row is None else int(state.total[row]),
            valid_until_ns=self._valid_until_ns(plan, variant, state, world, seen),
            why_not=why,
        )

    def domains(
        self,
        plan: Plan,
        pod: Pod,
        key: str,
        *,
        now_ns: int,
        facts: PodFacts,
        samples: Samples,
        overlay: Overlay,
        needed: int,
        alike: bool,
    ) -> tuple[str, ...]:
        """The values of the label `key` of nodes that would do for the pod, those of the nodes that it prefers first. Where all
        who `needed` places are `alike`, domains that are too small for so many are left out, as far as that is known."""
        self._columns.refresh()
        if self._refusal(plan, pod) is not None:
            return ()
        seen = self._worlds.seen(pod, facts, now_ns, samples, overlay)
        variant = plan.variant(plan.active_layers(seen))
        state, world = self._states.of(plan, variant, seen, overlay)
        view = world.view()
        order = state.ordered(text_hash(pod.uid), self._columns.name_hash)
        room = room_for(pod.requests, variant, view) if alike else None
        return domains_worth_trying(state, view, key, order, room, needed)

    def dry_run(
        self,
        plan: Plan,
        pod: Pod,
        *,
        now_ns: int,
        facts: PodFacts,
        samples: Samples,
        overlay: Overlay | None = None,
        within: Within | None = None,
        reserved: Reserved = (),
    ) -> DryRun:
        """For a pod that finds no node on this cluster (`within` a domain): to ask where it would if pods were lifted off the
        overlay (a fresh one where none is given). Nodes are `reserved` as in `evaluate`."""
        self._columns.refresh()
        seen = self._worlds.seen(pod, facts, now_ns, samples, overlay)
        variant = plan.variant(plan.active_layers(seen))
        state, world = self._states.of(plan, variant, seen, overlay)
        return DryRun(state, world, overlay or self.overlay(), within, reserved)

    def before_bind(
        self,
        plan: Plan,
        pod: Pod,
        node: NodeName,
        *,
        now_ns: int,
        facts: PodFacts,
        samples: Samples,
        overlay: Overlay | None = None,
    ) -> BeforeBind | None:
        """What has to be done about the pod's volumes and devices before it is bound to a node that `evaluate` has chosen;
        None: nothing."""
        claims = [self._columns.stock.claim(use.claim) for use in pod.claims]
        if not uses_devices(pod) and all(one is not None and one.fully_bound for one in claims):
            return None
        self._columns.refresh()
        seen = self._worlds.seen(pod, facts, now_ns, samples, overlay)
        variant = plan.variant(plan.active_layers(seen))
        state, world = self._states.shared(plan, variant, seen, overlay)
        bound, _ = bind_claims(state.bound, self._worlds.around(plan, variant, pod))
        row = self._columns.row(node)
        assert row is not None, f"node {node} is not known"
        view = world.view([row])
        volumes, devices, timeout_s = None, DeviceChoice(), BINDING_TIMEOUT_S
        for rule in bound.filters:
            kernel = rule.kernel
            if isinstance(kernel, ConditionalFilter):
                kernel = kernel.kernel if kernel.applies(view)[0] else rule.kernel
            if isinstance(kernel, VolumeBinding):
                choice = kernel.choice(self._cache.nodes[node], view)
                volumes = VolumesToBind(choice, kernel.timeout_s) if choice else None
            elif isinstance(kernel, DynamicResources):
                devices = kernel.choice(pod, self._cache.nodes[node], view.devices)
                timeout_s = kernel.timeout_s
        return BeforeBind(volumes, devices, timeout_s) if volumes is not None or devices else None

    def explain(
        self,
        plan: Plan,
        pod: Pod,
        *,
        now_ns: int,
        facts: PodFacts,
        samples: Samples,
        overlay: Overlay | None = None,
        among: Collection[NodeName] | None = None,
    ) -> Explanation:
        """Every verdict, every score and the choice, node by node: for people, not for speed. With `among` the other nodes are
        set aside, as `judge` has it: they are neither feasible nor scored."""
        self._columns.refresh()
        refusal = self._refusal(plan, pod)
        if refusal is not None:
            return Explanation(refusal, (), {}, {}, {}, None)
        seen = self._worlds.seen(pod, facts, now_ns, samples, overlay)
        rows = None if among is None else rows_of(self._columns, among)
        state, world = self._states.fresh(plan, seen, overlay, among=rows)
        beforehand = refused_beforehand(state, world)
        if beforehand is not None:
            return Explanation(beforehand.words, (), {}, {}, {}, None, refused_by=beforehand.rule)
        row = state.best(text_hash(pod.uid), self._columns.name_hash)
        return explanation(state, world, seen, None if row is None else self._columns.names[row])

    def judge(
        self,
        plan: Plan,
        pod: Pod,
        among: Collection[NodeName],
        *,
        now_ns: int,
        facts: PodFacts,
        samples: Samples,
        overlay: Overlay | None = None,
        reserved: Reserved = (),
    ) -> Judgement:
        """What the plan says of these nodes, the others set aside. Names that are no nodes are passed over; nodes
        are `reserved` as in `evaluate`."""
        self._columns.refresh()
        refusal = self._refusal(plan, pod)
        if refusal is not None:
            return Judgement(refusal, {}, {}, 0)
        seen = self._worlds.seen(pod, facts, now_ns, samples, overlay)
        rows = rows_of(self._columns, among)
        state, world = self._states.fresh(plan, seen, overlay, among=rows)
        beforehand = refused_beforehand(state, world)
        if beforehand is not None:
            return Judgement(beforehand.words, {}, {}, 0)
        withheld = NOTHING_WITHHELD
        if reserved:
            withheld = withheld_rows(state, world, reserved, overlay or self.overlay(), only=rows)
            state = state.without(withheld) if withheld else state
        return judgement(state, world, seen, rows, withheld)

    def active_layers(self, plan: Plan, pod: Pod, *, now_ns: int, facts: PodFacts) -> tuple[int, ...]:
        """Indexes of the layers that apply to the pod, the cluster being as it is."""
        return plan.active_layers(self._worlds.seen(pod, facts, now_ns, {}, None))

    def seen_by_others(self, plan: Plan, pod: Pod) -> Hashable:
        """Those of the pod's labels that terms of placed pods ask about and, where a filter spreads by default, its
        siblings. Beside `Plan.read_key`, what pods have to agree on to be kin."""
        labels = self._columns.asked_labels(pod)
        if pod.spread or not plan.refuses_by_siblings:
            return labels
        return labels, self._cache.pod_sets.siblings(pod)

    # ── parts ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _refusal(self, plan: Plan, pod: Pod) -> str | None:
        return plan.admission(pod, self._cache.namespaces.get(pod.namespace))

    def _refused(
        self, refusal: str, by: Beforehand | None = None, valid_until_ns: int | None = None
    ) -> Verdict:
        wakes = _POD_EVENTS if by is None else _POD_EVENTS | by.wakes
        waits = by is not None and by.waits
        return Verdict(
            pod_refusal=refusal,
            feasible_count=0,
            node_count=self._columns.node_count,
            selected=None,
            score=0,
            valid_until_ns=valid_until_ns,
            why_not=lambda: NoNode({}, only_scaleup_no=waits, wakes=wakes),
            refused_by=None if by is None else by.rule,
        )

    def _valid_until_ns(
        self, plan: Plan, variant: Variant, state: State, world: World, seen: Seen
    ) -> int | None:
        """When samples go stale or a value that reads the clock flips; None: the verdict does not age."""
        machine, clock = variant.machine, variant.clock
        times = [world.metrics_known_until_ns(variant.metrics)]
        times += [next_change_ns(leaf.expr, seen, plan.program) for leaf in machine.leaves if leaf.in_key]
        times += [next_change_ns(layer.condition, seen, plan.program) for layer in plan.program.layers]
        if clock.vague:
            times.append(seen.now_ns + _SECOND_NS)
        for left, right, steep in clock.compares:
            frame = state.bound.moment.frame(world.view())
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
        for expr in deciding(rule):
            if expr:
                yield from columns_of(expr, plan.program)
        if isinstance(rule, BuiltinFilter | BuiltinScore):
            yield from COLUMNS.get(rule.builtin, ())

"""One pod against every node.

The Evaluator owns the columns (one set for all policies) and keeps the state of recent evaluations by what their pods have
in common, so that a thousand replicas cost one evaluation and a thousand refreshed rows.
"""

from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from policysched.cluster.cache import Cache
from policysched.cluster.device_binding import BINDING_TIMEOUT_S
from policysched.cluster.device_promises import DeviceChoice
from policysched.cluster.device_stock import DeviceStock
from policysched.cluster.objects import Namespace, NodeName, Pod, PodFacts, Samples
from policysched.cluster.resource_claims import uses_devices
from policysched.cluster.shares import ShareOf
from policysched.lang.arithmetic import Number
from policysched.lang.events import ClusterEvent
from policysched.lang.program import BuiltinFilter, BuiltinScore, Metric
from policysched.lang.types import INT64_MAX
from policysched.lang.verdict import Explanation, Judgement
from policysched.plan.assume import Laid
from policysched.plan.bind import bind, bind_claims
from policysched.plan.census import Counts, Without
from policysched.plan.column_kinds import ColumnKind
from policysched.plan.columns import Array, Columns, text_hash
from policysched.plan.dry_run import DryRun
from policysched.plan.explain import explanation
from policysched.plan.judge import judgement, rows_of
from policysched.plan.kernel import NOTHING_AROUND, Around
from policysched.plan.kernels import COLUMNS
from policysched.plan.kernels.dynamic_resources import DynamicResources
from policysched.plan.kernels.volume_binding import VolumeBinding
from policysched.plan.lower import AnyRule, Variant, deciding
from policysched.plan.metrics import MetricColumn
from policysched.plan.of_node import columns_of
from policysched.plan.overlay import Overlay
from policysched.plan.plan import Plan
from policysched.plan.reads import nameless
from policysched.plan.reasons import Beforehand, refused_beforehand, why_not
from policysched.plan.rules import ConditionalFilter
from policysched.plan.seen import Seen, Value
from policysched.plan.state import State
from policysched.plan.times import crossing_ns, next_change_ns
from policysched.plan.verdict import BeforeBind, NoNode, Verdict, VolumesToBind
from policysched.plan.withheld import NOTHING_WITHHELD, Reserved, withheld_rows
from policysched.plan.within import Within, domains_worth_trying, room_for
from policysched.plan.world import World

StateKey = tuple[Plan, Hashable]
"""What pods have in common that share a state: the plan, and what it reads of them."""

_STATES_BYTES_MAX = 64 * 2**20
_STATES_MIN = 4
_BYTES_A_ROW = 120  # of a state: masks, totals and a few scores
_SECOND_NS = 10**9

_POD_EVENTS = frozenset({ClusterEvent.UNSCHEDULED_POD_UPDATE, ClusterEvent.NAMESPACE})


class Evaluator:
    """Answers for one cache. Between two answers the cache may change in any way; within an overlay's life it may not."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._columns = Columns(cache)
        self._counts = Counts(cache)
        self._states: OrderedDict[StateKey, State] = OrderedDict()
        self._overlay_states: tuple[Overlay, dict[StateKey, State]] | None = None
        self._metric_columns: dict[tuple[str, Metric], MetricColumn] = {}
        self._laid: dict[Plan, Laid] = {}

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
        metrics = {(plan.program.name, metric) for plan in plans for metric in plan.program.metrics.values()}
        self._metric_columns = {key: one for key, one in self._metric_columns.items() if key in metrics}
        self._laid = {plan: laid for plan, laid in self._laid.items() if plan in plans}
        self._overlay_states = None
        for key in [one for one in self._states if one[0] not in plans]:
            del self._states[key]

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
        seen = self._seen(pod, facts, now_ns, samples, overlay)
        refusal = self._refusal(plan, pod)
        if refusal is not None:
            return self._refused(refusal)
        variant = plan.variant(plan.active_layers(seen))
        state, world = self._state(plan, variant, seen, overlay)
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
        seen = self._seen(pod, facts, now_ns, samples, overlay)
        variant = plan.variant(plan.active_layers(seen))
        state, world = self._state(plan, variant, seen, overlay)
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
        seen = self._seen(pod, facts, now_ns, samples, overlay)
        variant = plan.variant(plan.active_layers(seen))
        state, world = self._state(plan, variant, seen, overlay)
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
        seen = self._seen(pod, facts, now_ns, samples, overlay)
        variant = plan.variant(plan.active_layers(seen))
        state, world = self._shared_state(plan, variant, seen, overlay)
        bound, _ = bind_claims(state.bound, self._around(plan, variant, pod))
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
        seen = self._seen(pod, facts, now_ns, samples, overlay)
        rows = None if among is None else rows_of(self._columns, among)
        state, world = self._fresh_state(plan, seen, overlay, among=rows)
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
        seen = self._seen(pod, facts, now_ns, samples, overlay)
        rows = rows_of(self._columns, among)
        state, world = self._fresh_state(plan, seen, overlay, among=rows)
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
        return plan.active_layers(self._seen(pod, facts, now_ns, {}, None))

    def seen_by_others(self, plan: Plan, pod: Pod) -> Hashable:
        """Those of the pod's labels that terms of placed pods ask about and, where a filter spreads by default, its
        siblings. Beside `Plan.read_key`, what pods have to agree on to be kin."""
        labels = self._columns.asked_labels(pod)
        if pod.spread or not plan.refuses_by_siblings:
            return labels
        return labels, self._cache.pod_sets.siblings(pod)

    # ── parts ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _seen(
        self, pod: Pod, facts: PodFacts, now_ns: int, samples: Samples, overlay: Overlay | None
    ) -> Seen:
        shares: ShareOf = self._cache.shares if overlay is None else overlay.shares
        counts = self._counts if overlay is None else Without(self._counts, overlay)
        return Seen(pod, self._namespace(pod), facts, now_ns, samples, shares=shares, everybody=counts)

    def _namespace(self, pod: Pod) -> Namespace:
        return self._cache.namespaces.get(pod.namespace) or nameless(pod)

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

    def _state(
        self, plan: Plan, variant: Variant, seen: Seen, overlay: Overlay | None
    ) -> tuple[State, World]:
        """The state of all that ask the same, brought up to date. Of their claims pods have each their own: rules about these
        are asked on top of what all others say, for this one answer."""
        shared, world = self._shared_state(plan, variant, seen, overlay)
        if not seen.pod.claims or not plan.read_set(variant.active).claims:
            return shared, world
        bound, places = bind_claims(shared.bound, self._around(plan, variant, seen.pod))
        return shared.with_claims(bound, places, world), world

    def _shared_state(
        self, plan: Plan, variant: Variant, seen: Seen, overlay: Overlay | None
    ) -> tuple[State, World]:
        """What pods say that agree on everything but their claims, as if they had none."""
        leaves = variant.machine.leaf_values(seen)
        if overlay is not None and plan.read_set(variant.active).selected_labels:
            overlay.pods.take_moves()  # their terms may ask about yet other labels
        around = self._around(plan, variant, seen.pod)
        key = self._key(plan, variant, seen, leaves, around)
        base_world = self._world(plan, variant, seen, None)
        state = self._states.get(key)
        if state is None:
            bare = replace(seen, pod=replace(seen.pod, claims=())) if seen.pod.claims else seen
            bound = bind(variant, bare, leaves, around)
            bound.moment.seen = seen
            state = self._states[key] = State(bound, plan.program.outage, base_world)
            self._forget_old_states()
        else:
            self._states.move_to_end(key)
            state.bound.moment.seen, state.bound.moment.leaves = seen, leaves
            state.catch_up(base_world)
        if overlay is None:
            return state, base_world
        world = self._world(plan, variant, seen, overlay)
        if self._overlay_states is None or self._overlay_states[0] is not overlay:
            self._overlay_states = (overlay, {})
        laid = self._overlay_states[1].get(key)
        if laid is None:
            laid = self._overlay_states[1][key] = state.copied()
        laid.catch_up(world)
        return laid, world

    def _fresh_state(
        self, plan: Plan, seen: Seen, overlay: Overlay | None, *, among: Array | None
    ) -> tuple[State, World]:
        """One that is not kept. `seen` gets the samples as the overlay has them, for texts that show values."""
        variant = plan.variant(plan.active_layers(seen))
        world = self._world(plan, variant, seen, overlay)
        if overlay is not None and plan.assume.metrics:
            seen.samples = self._laid_on(overlay, plan, seen.samples).samples
        bound = bind(variant, seen, variant.machine.leaf_values(seen), self._around(plan, variant, seen.pod))
        return State(bound, plan.program.outage, world, among=among), world

    def _around(self, plan: Plan, variant: Variant, pod: Pod) -> Around:
        siblings = None
        if not pod.spread and plan.read_set(variant.active).siblings:
            siblings = self._cache.pod_sets.siblings(pod)
        if pod.extended and plan.sees_to_devices:
            left_over = DeviceStock(self._cache.devices).has_made_for(pod.uid)
            return Around(siblings, gives_devices=True, left_over=left_over)
        return NOTHING_AROUND if siblings is None else Around(siblings)

    def _key(self, plan: Plan, variant: Variant, seen: Seen, leaves: list[Value], around: Around) -> StateKey:
        reads = plan.read_set(variant.active)
        clock = tuple(
            [value for leaf, value in zip(variant.machine.leaves, leaves, strict=True) if leaf.in_key]
        )
        timed = variant.clock.vague or bool(variant.clock.compares)
        facts = seen.facts if reads.facts or timed else None
        now_ns = seen.now_ns if variant.clock.in_words else None
        labels = self._columns.placed.asked_labels(seen.pod) if reads.selected_labels else ()
        share = seen.shares.of(seen.namespace.name) if variant.clock.shares_in_words else None
        counts = tuple([count(seen) for count in variant.clock.counts_in_words])
        # A claim for devices that pods share may be reserved for one of them.
        reserved_for = seen.pod.uid if seen.pod.device_claims else None
        return plan, (
            variant.active,
            reads.key_but_claims(seen),
            reserved_for,
            labels,
            around,
            clock,
            facts,
            now_ns,
            share,
            counts,
        )

    def _world(self, plan: Plan, variant: Variant, seen: Seen, overlay: Overlay | None) -> World:
        columns: dict[str, MetricColumn] = {}
        for name in variant.metrics:
            metric = plan.program.metrics[name]
            column = self._metric_columns.get((plan.program.name, metric))
            if column is None:
                column = self._metric_columns[plan.program.name, metric] = MetricColumn(metric, self._columns)
            column.refresh(seen.samples.get(name))
            columns[name] = column
        laid: Mapping[str, Mapping[int, Number]] = {}
        if overlay is not None and plan.assume.metrics:
            laid = self._laid_on(overlay, plan, seen.samples).values
        generations = tuple([column.generation for column in columns.values()])
        return World(self._columns, overlay, columns, seen.now_ns, generations, laid)

    def _laid_on(self, overlay: Overlay, plan: Plan, samples: Samples) -> Laid:
        """What the pods on the overlay add to the plan's metrics."""
        found = self._laid.get(plan)
        if found is None or not found.is_of(overlay, samples):
            # Overlays are as large as the cluster: those that are over are not held until their policy needs another.
            self._laid = {one: laid for one, laid in self._laid.items() if laid.overlay is overlay}
            found = self._laid[plan] = Laid(plan.assume, overlay, self._columns, self._namespace, samples)
        found.catch_up(samples)
        return found

    def _forget_old_states(self) -> None:
        most = max(_STATES_MIN, _STATES_BYTES_MAX // (_BYTES_A_ROW * self._columns.capacity))
        while len(self._states) > most:
            self._states.popitem(last=False)

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

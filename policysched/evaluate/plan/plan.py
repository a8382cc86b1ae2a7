"""Plan: a compiled policy. Immutable; the scheduler reads order, gangs and PreEnqueue from it, the
Evaluator its rules.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import cached_property, lru_cache, partial

from policysched.cluster.metric_samples import PairEndpoint
from policysched.cluster.namespace_shares import ShareLookup
from policysched.evaluate.columns.pod_counter import ScopedSpec
from policysched.evaluate.plan.assume_clauses import CompiledAssume
from policysched.evaluate.plan.gang_terms import CompiledGang, GangTerms
from policysched.evaluate.plan.kept_variants import KeptVariants
from policysched.evaluate.plan.lowering import LoweringOptions, Variant
from policysched.evaluate.plan.queue_order import CompiledQueueOrder, QueueSortKey
from policysched.evaluate.plan.quotas import CompiledQuotas, QuotaCharge
from policysched.evaluate.plan.read_set import ReadSet, RuleReads, read_set, unknown_namespace
from policysched.evaluate.plan.totals_needed import totals_needed, totals_of_conditions, totals_of_variant
from policysched.evaluate.plan.victims import CompiledVictims, VictimChange, VictimOrder, VictimPredicate
from policysched.evaluate.scalar.compiler import compile_scalar
from policysched.evaluate.scalar.eval_context import EMPTY_SHARES, EvalContext
from policysched.evaluate.scalar.leaves import input_text
from policysched.lang.ir.arithmetic import Number
from policysched.lang.ir.cost import policy_cost, scalar_cost, statements_cost, victim_operations
from policysched.lang.ir.declarations import Input, PairJoinSpec
from policysched.lang.ir.expr import VOLATILE_STAGES, Attr, Stage
from policysched.lang.ir.expr_analysis import stage_of, walk
from policysched.lang.ir.program import (
    Program,
    device_binding_timeout_s,
    handles_extended_resources,
    handles_resource_claims,
    handles_volume_claims,
    rules_for,
    shadow_program,
)
from policysched.lang.ir.reads import expr_reads, program_reads
from policysched.lang.ir.rules import NO_RULES, with_shadows
from policysched.lang.types.records import NoValueReason, parse_typed_value
from policysched.model.cluster_events import ClusterEvent
from policysched.model.messages import (
    NO_DEVICE_FILTER_MESSAGE,
    NO_POD_GROUPS_MESSAGE,
    NO_VOLUME_FILTER_MESSAGE,
    unsupported_message,
)
from policysched.model.namespaces import Namespace
from policysched.model.pods import Pod, QueuedPodInfo
from policysched.text.sanitize import sanitize_line

LONG_POLICY = 2_000
"""The evaluation of a policy that costs more operations (`lang.ir.cost`) runs in steps, and on more than a thousand nodes of one that
costs as much fewer. It is twice the largest shipped one."""
_LONG_POLICY_NODES = 1_000
_READ_SETS_MAX = 512
"""With layers on labels, there are as many sets as tenants have pods with different labels."""


class Plan:
    """Made by `compile_program`. Its results depend only on their arguments. Variants for sets of
    layers are lowered on first use, or before it in steps, and the ones used last are kept.
    """

    def __init__(self, program: Program, lowering: LoweringOptions) -> None:
        self.program = program
        self._order = CompiledQueueOrder(program)
        self._gangs = CompiledGang(program)
        self.covers_claims = handles_volume_claims(program)
        self.covers_devices = handles_resource_claims(program)
        self.covers_extended_resources = handles_extended_resources(program)
        self.devices_timeout_s = device_binding_timeout_s(program)
        self._pre_enqueue = CompiledPreEnqueue(
            program,
            covers_claims=self.covers_claims,
            covers_devices=self.covers_devices,
            reads_pod_groups=self._gangs.reads_pod_groups,
        )
        self._victims = CompiledVictims(program)
        self.quotas = CompiledQuotas(program)
        self.assume = CompiledAssume(program)
        self._peer_key_functions = {
            name: compile_scalar(metric.join.pod_key, program)
            for name, metric in program.metrics.items()
            if isinstance(metric.join, PairJoinSpec)
        }
        self._layer_conditions = tuple(compile_scalar(layer.condition, program) for layer in program.layers)
        self._variants = KeptVariants(program, lowering)
        self._dynamic_layers = tuple(
            index
            for index, layer in enumerate(program.layers)
            if stage_of(layer.condition) & (Stage.TIME | VOLATILE_STAGES)
        )
        self._static_layers = tuple(
            index for index in range(len(program.layers)) if index not in self._dynamic_layers
        )
        kept = lru_cache(_READ_SETS_MAX)  # its functions must not refer to the plan: a reference cycle
        reads_of = RuleReads(program)
        self._read_sets = kept(partial(_read_set, program, reads_of))
        self._equivalence_read_sets = kept(
            partial(_equivalence_read_set, program, reads_of, self._dynamic_layers)
        )
        self._totals_read = kept(partial(totals_of_variant, program))
        self.layer_requeue_events = _layer_requeue_events(program)
        rules = with_shadows(program.rules, program.shadows)
        self.victim_operations = victim_operations(program.preemption)
        self._cost = policy_cost(rules, program.layers).total
        self.shadow = None if program.shadows == NO_RULES else Plan(shadow_program(program), lowering)
        """The shadow rules, as the rules of a plan of their own."""

    def is_long(self, node_count: int) -> bool:
        """Whether an evaluation on so many nodes runs in steps."""
        return self._cost * max(node_count, _LONG_POLICY_NODES) > LONG_POLICY * _LONG_POLICY_NODES

    def order_key(
        self, pod: Pod, namespace: Namespace | None, facts: QueuedPodInfo, now_ns: int
    ) -> tuple[QueueSortKey, int | None]:
        """A key that compares with `<` across pods of this policy (smaller first, the UID last),
        and the time in ns at which it may change by itself. With `order_reads_shares` it
        compares within one namespace only.
        """
        context = self.eval_context(pod, namespace, facts, now_ns)
        return self._order.key(context), self._order.next_change_ns(context)

    @cached_property
    def order_operations(self) -> int:
        """The static cost of `order_key`."""
        return sum(scalar_cost(key.value).per_pod for key in self.program.queue)

    @cached_property
    def quota_operations(self) -> int:
        """The static cost of `quota_charge`."""
        return self.quotas.operations

    @cached_property
    def pre_enqueue_operations(self) -> int:
        """The static cost of everything that is computed for a pod before it is queued."""
        program = self.program
        statements = statements_cost(
            program.queue, program.gang, None, (), (), (), (), program.inputs.values()
        )
        of_layers = sum(scalar_cost(layer.condition).per_pod for layer in program.layers)
        return of_layers + sum(cost.per_pod for cost, _ in statements)

    @property
    def order_reads_shares(self) -> bool:
        return self._order.reads_shares

    def order_with_shares(
        self,
        key: QueueSortKey,
        pod: Pod,
        namespace: Namespace | None,
        shares: ShareLookup,
        quota_share: Callable[[str], float] | None = None,
    ) -> QueueSortKey:
        """A key from `order_key` completed with the present shares of the namespace and of the pod's
        entities: compares across them.
        """
        context = EvalContext(
            pod, namespace or unknown_namespace(pod), shares=shares, quota_share=quota_share
        )
        return self._order.with_shares(key, context)

    @property
    def order_reads_quotas(self) -> bool:
        """Whether the order reads `pod.quota_share`."""
        return any(
            isinstance(part, Attr) and part.owner == "pod" and part.path[:1] == ("quota_share",)
            for key in self.program.queue
            for part in walk(key.value)
        )

    @property
    def reads_pod_groups(self) -> bool:
        """Whether the gangs of the policy are PodGroups."""
        return self._gangs.reads_pod_groups

    def gang(self, pod: Pod, namespace: Namespace | None) -> GangTerms | None:
        return self._gangs.terms(EvalContext(pod, namespace or unknown_namespace(pod)))

    def quota_charge(self, pod: Pod, namespace: Namespace | None) -> QuotaCharge:
        """What the pod uses of the quotas while it is placed."""
        return self.quotas.charge(EvalContext(pod, namespace or unknown_namespace(pod)))

    def pre_enqueue_message(self, pod: Pod, namespace: Namespace | None) -> str | None:
        """Why the pod stays pending whatever the nodes are; None: it may be tried."""
        return self._pre_enqueue.message(EvalContext(pod, namespace or unknown_namespace(pod)))

    def warnings(self, pod: Pod, namespace: Namespace | None) -> tuple[str, ...]:
        """Invalid inputs that count as absent, to be reported once per pod."""
        return self._pre_enqueue.warnings(EvalContext(pod, namespace or unknown_namespace(pod)))

    def assumed_load(self, metric: str, pod: Pod, namespace: Namespace | None) -> Number:
        """What the metric (one of `assume.metrics`) assumes for the pod until a sample contains it,
        in its internal unit.
        """
        return self.assume.amount(metric, pod, namespace)

    def peer_keys(self, pod: Pod, namespace: Namespace | None) -> Mapping[str, PairEndpoint]:
        """The pod's key in each metric between pods, by metric name."""
        context = EvalContext(pod, namespace or unknown_namespace(pod))
        return {name: (pod.namespace, str(key(context))) for name, key in self._peer_key_functions.items()}

    def read_key(self, pod: Pod, namespace: Namespace | None) -> Hashable:
        """Pods with equal keys get the same verdict on the same cluster at the same time, unless
        the policy reads queue facts (attempts, waiting time), labels that terms of placed pods
        select by, or the selector group (`Evaluator.cluster_read_key`).
        """
        context = EvalContext(pod, namespace or unknown_namespace(pod))
        active = tuple(
            [index for index in self._static_layers if self._layer_conditions[index](context) is True]
        )
        return active, self._equivalence_read_set(active).key(context)

    @cached_property
    def filters_by_selector_group(self) -> bool:
        """Whether any filter, with or without layers, reads the pod's selector group."""
        return ClusterEvent.SELECTOR_OWNER_UPDATE in program_reads(self.program).requeue_events

    @cached_property
    def counts_placed_pods(self) -> bool:
        """Whether a rule without layers, of topology spread or affinity, counts the placed pods."""
        reads = self.read_set(())
        return reads.reads_selected_labels or reads.reads_selector_group

    @cached_property
    def pod_totals(self) -> tuple[ScopedSpec, ...]:
        """The totals over pods that any rule, layer or shadow rule reads."""
        return totals_needed(self.program)

    @cached_property
    def totals_of_layers(self) -> tuple[ScopedSpec, ...]:
        """The totals that say which layers apply to a pod."""
        return totals_of_conditions(self.program)

    def totals_read(self, active: tuple[int, ...]) -> tuple[ScopedSpec, ...]:
        """The totals that the rules with these layers read."""
        return self._totals_read(active)

    @property
    def allows_preemption(self) -> bool:
        """Whether the policy allows any preemption."""
        return self._victims.mode != "never"

    @property
    def victim_events(self) -> frozenset[ClusterEvent]:
        """The events after which other pods may be evicted."""
        return self._victims.requeue_events

    def may_evict(
        self,
        pod: Pod,
        namespace: Namespace | None,
        facts: QueuedPodInfo,
        now_ns: int,
        shares: ShareLookup = EMPTY_SHARES,
    ) -> VictimPredicate:
        """Which pods may be evicted for this one. Shares are those before the eviction."""
        return self._victims.predicate(self.eval_context(pod, namespace, facts, now_ns, shares))

    def next_victim_change(
        self, pod: Pod, namespace: Namespace | None, facts: QueuedPodInfo, now_ns: int
    ) -> VictimChange | None:
        """When `may_evict` changes for a pod; None: it does not depend on the clock."""
        return self._victims.next_change(self.eval_context(pod, namespace, facts, now_ns))

    def may_reclaim(
        self,
        pod: Pod,
        namespace: Namespace | None,
        facts: QueuedPodInfo,
        now_ns: int,
        shares: ShareLookup = EMPTY_SHARES,
    ) -> VictimPredicate:
        """Which pods may be evicted for this one to take back what they borrow of a quota."""
        return self._victims.reclaim_predicate(self.eval_context(pod, namespace, facts, now_ns, shares))

    def next_reclaim_change(
        self, pod: Pod, namespace: Namespace | None, facts: QueuedPodInfo, now_ns: int
    ) -> VictimChange | None:
        """When `may_reclaim` changes for a pod; None: it does not depend on the clock."""
        return self._victims.reclaim_next_change(self.eval_context(pod, namespace, facts, now_ns))

    def victim_order(
        self,
        pod: Pod,
        namespace: Namespace | None,
        facts: QueuedPodInfo,
        now_ns: int,
        shares: ShareLookup = EMPTY_SHARES,
    ) -> VictimOrder | None:
        """Which of the pods that may be evicted go first; None: in kube-scheduler's order."""
        return self._victims.order(self.eval_context(pod, namespace, facts, now_ns, shares))

    def victims_key(self, pod: Pod, namespace: Namespace | None) -> Hashable:
        """Pods with equal keys may evict the same pods, unless the clause reads queue facts
        (attempts, waiting time).
        """
        return self._victims.key(EvalContext(pod, namespace or unknown_namespace(pod)))

    # ── for the Evaluator ──────────────────────────────────────────────────────────────────────────────────────────

    def eval_context(
        self,
        pod: Pod,
        namespace: Namespace | None,
        facts: QueuedPodInfo,
        now_ns: int,
        shares: ShareLookup = EMPTY_SHARES,
    ) -> EvalContext:
        return EvalContext(pod, namespace or unknown_namespace(pod), facts, now_ns, shares=shares)

    def active_layers(self, context: EvalContext) -> tuple[int, ...]:
        """Indexes of the layers whose condition is true for the pod."""
        return tuple([index for index, holds in enumerate(self._layer_conditions) if holds(context) is True])

    def layer_applies(self, index: int, pod: Pod, namespace: Namespace | None) -> bool:
        """Whether the layer applies. Its condition must read the pod and its namespace alone."""
        return self._layer_conditions[index](EvalContext(pod, namespace or unknown_namespace(pod))) is True

    def variant(self, active: tuple[int, ...]) -> Variant:
        return self._variants[active]

    def is_lowered(self, active: tuple[int, ...]) -> bool:
        return active in self._variants

    def lower_in_steps(self, active: tuple[int, ...]) -> Iterator[None]:
        """Prepare the variant for these layers, one rule after the other."""
        return self._variants.lower_in_steps(active)

    def lower_some(self, active: tuple[int, ...], namespace: str) -> bool:
        """Prepare a few more rules of the variant between attempts. Returns whether a pod of the namespace can be attempted."""
        return self._variants.lower_some(active, namespace)

    def _equivalence_read_set(self, active: tuple[int, ...]) -> ReadSet:
        return self._equivalence_read_sets(active) if self._dynamic_layers else self.read_set(active)

    def read_set(self, active: tuple[int, ...]) -> ReadSet:
        return self._read_sets(active)


def _read_set(program: Program, reads_of: RuleReads, active: tuple[int, ...]) -> ReadSet:
    rules = rules_for(program, active)
    return read_set(reads_of, (*rules.filters, *rules.scores))


def _equivalence_read_set(
    program: Program, reads_of: RuleReads, dynamic_layers: tuple[int, ...], active: tuple[int, ...]
) -> ReadSet:
    """Everything the plan may read of pods with these layers, whichever dynamic layers (conditions on the clock, on shares
    or on other pods) apply as well. It includes what one of them adds and another replaces: there are too many combinations
    to apply each.
    """
    rules = rules_for(program, active)
    return read_set(reads_of, (*rules.filters, *rules.scores), (*active, *dynamic_layers))


def _layer_requeue_events(program: Program) -> frozenset[ClusterEvent]:
    """Events that can activate or end a layer whose condition reads shares or other pods."""
    events = frozenset[ClusterEvent]()
    for layer in program.layers:
        reads = expr_reads(layer.condition, program.inputs)
        if reads.shares or reads.cluster_pods:
            events |= reads.requeue_events
    return events


def compile_program(program: Program, lowering: LoweringOptions | None = None) -> Plan:
    """Lower a checked program. Deterministic. Takes milliseconds, and up to a second near the limits of a policy."""
    plan = Plan(program, lowering or LoweringOptions())
    plan.variant(())
    return plan


def compile_lazily(program: Program) -> Plan:
    """As `compile_program`; the rules are lowered by `Plan.lower_in_steps`, or on first use."""
    return Plan(program, LoweringOptions())


class CompiledPreEnqueue:
    """What keeps a pod pending before any node is looked at: the inputs of pod and namespace in the
    order of their declaration, and the features that no rule covers.
    """

    def __init__(
        self, program: Program, *, covers_claims: bool, covers_devices: bool, reads_pod_groups: bool
    ) -> None:
        self._removed = program.removed or None
        self._covers_claims = covers_claims
        self._covers_devices = covers_devices
        self._reads_pod_groups = reads_pod_groups
        self._inputs = [
            (declared, input_text(declared))
            for declared in program.inputs.values()
            if declared.owner != "node"
        ]
        self._required_inputs = [
            (declared, text_of)
            for declared, text_of in self._inputs
            if declared.required_text is not None or declared.invalid_text is not None
        ]

    def message(self, context: EvalContext) -> str | None:
        """Why the pod stays pending; None: it may be tried."""
        if self._removed is not None:
            return self._removed
        if context.pod.too_large:
            return context.pod.too_large
        for declared, text_of in self._required_inputs:
            rejection = _rejection(declared, text_of(context))
            if rejection is not None:
                return rejection
        if context.pod.uncovered:
            return unsupported_message(context.pod.uncovered)
        if context.pod.group_references and (group_message := self._group_message(context.pod)) is not None:
            return group_message
        if context.pod.claims and not self._covers_claims:
            return NO_VOLUME_FILTER_MESSAGE
        return NO_DEVICE_FILTER_MESSAGE if context.pod.device_claims and not self._covers_devices else None

    def _group_message(self, pod: Pod) -> str | None:
        """A policy that does not read PodGroups ignores the labels and annotations of other systems, as
        kube-scheduler does."""
        if self._reads_pod_groups:
            return pod.group_problem
        return NO_POD_GROUPS_MESSAGE if pod.group_references[0].api == "scheduling.k8s.io" else None

    def warnings(self, context: EvalContext) -> tuple[str, ...]:
        """A message for each invalid value that counts as absent."""
        return tuple(
            f"input {declared.name}: `{sanitize_line(text[:64])}` is not a valid {declared.type.as_required()}; treated as absent"
            for declared, text_of in self._inputs
            if declared.invalid_default
            and (text := text_of(context)) is not None
            and _is_invalid(declared, text)
        )


def _rejection(declared: Input, text: str | None) -> str | None:
    if text is not None:
        value = parse_typed_value(text, declared.type, declared.unit, declared.json_path)
        if not isinstance(value, NoValueReason):
            return None
        if value is NoValueReason.INVALID and declared.invalid_text is not None:
            return declared.invalid_text
    return declared.required_text if declared.default is None else None


def _is_invalid(declared: Input, text: str) -> bool:
    return parse_typed_value(text, declared.type, declared.unit, declared.json_path) is NoValueReason.INVALID

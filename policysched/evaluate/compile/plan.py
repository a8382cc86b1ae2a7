"""A compiled policy: immutable, asked by the scheduler about order, gangs and admission, and by the Evaluator for rules."""

from collections.abc import Hashable, Mapping
from functools import cached_property

from policysched.cluster.samples import PairEndpoint
from policysched.cluster.shares import ShareLookup
from policysched.evaluate.compile.admission import CompiledAdmission
from policysched.evaluate.compile.assumed_load import CompiledAssume
from policysched.evaluate.compile.gang_terms import CompiledGang, GangTerms
from policysched.evaluate.compile.lower import AnyRule, LoweringOptions, Variant, lower
from policysched.evaluate.compile.queue_order import CompiledQueueOrder, QueueSortKey
from policysched.evaluate.compile.read_set import ReadSet, read_set, unknown_namespace
from policysched.evaluate.compile.victims import CompiledVictims, VictimPredicate
from policysched.evaluate.scalar.compiler import compile_scalar
from policysched.evaluate.scalar.eval_context import EvalContext
from policysched.lang.ir.arithmetic import Number
from policysched.lang.ir.declarations import PairJoinSpec
from policysched.lang.ir.expr import VOLATILE_STAGES, Stage, stage_of
from policysched.lang.ir.program import (
    Program,
    device_binding_timeout_s,
    handles_resource_claims,
    handles_volume_claims,
    rules_for,
)
from policysched.lang.ir.reads import expr_reads, program_reads
from policysched.model.cluster_events import ClusterEvent
from policysched.model.namespaces import Namespace
from policysched.model.pods import Pod, QueuedPodInfo


class Plan:
    """Made by `compile_program`. What it answers depends on its arguments alone; variants for sets of layers are lowered when
    first needed and kept."""

    def __init__(self, program: Program, lowering: LoweringOptions) -> None:
        self.program = program
        self._lowering = lowering
        self._order = CompiledQueueOrder(program)
        self._gangs = CompiledGang(program)
        self.covers_claims = handles_volume_claims(program)
        self.covers_devices = handles_resource_claims(program)
        self.devices_timeout_s = device_binding_timeout_s(program)
        self._admission = CompiledAdmission(
            program, covers_claims=self.covers_claims, covers_devices=self.covers_devices
        )
        self._victims = CompiledVictims(program)
        self.assume = CompiledAssume(program)
        self._peer_key_functions = {
            name: compile_scalar(metric.join.pod_key, program)
            for name, metric in program.metrics.items()
            if isinstance(metric.join, PairJoinSpec)
        }
        self._layer_conditions = tuple(compile_scalar(layer.condition, program) for layer in program.layers)
        self._variants: dict[tuple[int, ...], Variant] = {}
        self._read_sets: dict[tuple[int, ...], ReadSet] = {}
        self._dynamic_layers = tuple(
            index
            for index, layer in enumerate(program.layers)
            if stage_of(layer.condition) & (Stage.TIME | VOLATILE_STAGES)
        )
        self._static_layers = tuple(
            index for index in range(len(program.layers)) if index not in self._dynamic_layers
        )
        self._equivalence_read_sets: dict[tuple[int, ...], ReadSet] = {}
        self.layer_requeue_events = _layer_requeue_events(program)
        self.variant(())

    def order_key(
        self, pod: Pod, namespace: Namespace | None, facts: QueuedPodInfo, now_ns: int
    ) -> tuple[QueueSortKey, int | None]:
        """A key that compares with `<` across pods of this policy (smaller comes first, the UID closes it), and the time in
        ns at which it may flip by itself. Where `order_reads_shares`, only across the pods of one namespace."""
        seen = self.eval_context(pod, namespace, facts, now_ns)
        return self._order.key(seen), self._order.next_change_ns(seen)

    @property
    def order_reads_shares(self) -> bool:
        return self._order.reads_shares

    def order_with_shares(
        self, key: QueueSortKey, pod: Pod, namespace: Namespace | None, shares: ShareLookup
    ) -> QueueSortKey:
        """A key that `order_key` gave, with the place that the namespace has now: compares across all namespaces."""
        return self._order.with_shares(
            key, EvalContext(pod, namespace or unknown_namespace(pod), shares=shares)
        )

    def gang(self, pod: Pod, namespace: Namespace | None) -> GangTerms | None:
        return self._gangs.terms(EvalContext(pod, namespace or unknown_namespace(pod)))

    def admission(self, pod: Pod, namespace: Namespace | None) -> str | None:
        """The text for which the pod stays pending whatever the nodes are; None: let it try."""
        return self._admission.refusal(EvalContext(pod, namespace or unknown_namespace(pod)))

    def warnings(self, pod: Pod, namespace: Namespace | None) -> tuple[str, ...]:
        """Invalid inputs that counted as absent, to be reported once a pod."""
        return self._admission.warnings(EvalContext(pod, namespace or unknown_namespace(pod)))

    def assumed_load(self, metric: str, pod: Pod, namespace: Namespace | None) -> Number:
        """What the metric, one of `assume.metrics`, assumes of the pod until a sample has it, in its held unit."""
        return self.assume.amount(metric, pod, namespace)

    def peer_keys(self, pod: Pod, namespace: Namespace | None) -> Mapping[str, PairEndpoint]:
        """What each metric between pods calls the pod, by the name of the metric."""
        seen = EvalContext(pod, namespace or unknown_namespace(pod))
        return {name: (pod.namespace, str(key(seen))) for name, key in self._peer_key_functions.items()}

    def read_key(self, pod: Pod, namespace: Namespace | None) -> Hashable:
        """Pods that agree on it get the same verdict on the same cluster at the same moment, unless the policy reads what the
        queue knows of a pod (attempts, waiting time), what placed pods' terms select or which pods are its siblings
        (`Evaluator.cluster_read_key`)."""
        seen = EvalContext(pod, namespace or unknown_namespace(pod))
        active = tuple(
            [index for index in self._static_layers if self._layer_conditions[index](seen) is True]
        )
        return active, self._equivalence_read_set(active).key(seen)

    @cached_property
    def filters_by_selector_group(self) -> bool:
        """Whether some layer or none has a filter that reads which pods are siblings."""
        return ClusterEvent.POD_SELECTOR_UPDATE in program_reads(self.program).requeue_events

    @property
    def allows_preemption(self) -> bool:
        """Whether the policy lets anybody be evicted at all."""
        return self._victims.mode != "never"

    def may_evict(
        self, pod: Pod, namespace: Namespace | None, facts: QueuedPodInfo, now_ns: int
    ) -> VictimPredicate:
        """Which pods may be evicted for this one."""
        return self._victims.predicate(self.eval_context(pod, namespace, facts, now_ns))

    def victims_key(self, pod: Pod, namespace: Namespace | None) -> Hashable:
        """Pods that agree on it may evict the same pods, unless the clause reads what the queue knows
        of a pod (attempts, waiting time)."""
        return self._victims.key(EvalContext(pod, namespace or unknown_namespace(pod)))

    # ── for the Evaluator ──────────────────────────────────────────────────────────────────────────────────────────

    def eval_context(
        self, pod: Pod, namespace: Namespace | None, facts: QueuedPodInfo, now_ns: int
    ) -> EvalContext:
        return EvalContext(pod, namespace or unknown_namespace(pod), facts, now_ns)

    def active_layers(self, seen: EvalContext) -> tuple[int, ...]:
        """Indexes of the layers whose condition is True for the pod."""
        return tuple([index for index, holds in enumerate(self._layer_conditions) if holds(seen) is True])

    def variant(self, active: tuple[int, ...]) -> Variant:
        found = self._variants.get(active)
        if found is None:
            found = self._variants[active] = lower(self.program, active, self._lowering)
        return found

    def _equivalence_read_set(self, active: tuple[int, ...]) -> ReadSet:
        """What pods with these layers may be asked about, whichever of the layers that come and go (with the clock, with what
        namespaces hold, with other pods) apply as well. A rule that several of them amend reads no more than what each of them brings."""
        if not self._dynamic_layers:
            return self.read_set(active)
        found = self._equivalence_read_sets.get(active)
        if found is None:
            rules: dict[AnyRule, None] = {}
            for more in ((), *((index,) for index in self._dynamic_layers), self._dynamic_layers):
                variant = rules_for(self.program, tuple(sorted({*active, *more})))
                rules |= dict.fromkeys((*variant.filters, *variant.scores))
            found = self._equivalence_read_sets[active] = read_set(self.program, rules)
        return found

    def read_set(self, active: tuple[int, ...]) -> ReadSet:
        found = self._read_sets.get(active)
        if found is None:
            rules = rules_for(self.program, active)
            everything: tuple[AnyRule, ...] = (*rules.filters, *rules.scores)
            found = self._read_sets[active] = read_set(self.program, everything)
        return found


def _layer_requeue_events(program: Program) -> frozenset[ClusterEvent]:
    """What can bring a layer into force, or end it, that rests on what a namespace holds or on which pods there are."""
    found = frozenset[ClusterEvent]()
    for layer in program.layers:
        reads = expr_reads(layer.condition, program.inputs)
        if reads.shares or reads.cluster_pods:
            found |= reads.requeue_events
    return found


def compile_program(program: Program, lowering: LoweringOptions | None = None) -> Plan:
    """Lower a checked program. Deterministic, and quick enough for a worker: milliseconds for hundreds of rules."""
    return Plan(program, lowering or LoweringOptions())

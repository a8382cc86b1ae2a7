"""A compiled policy: immutable, asked by the scheduler about order, gangs and admission, and by the Evaluator for rules."""

from collections.abc import Hashable, Mapping
from functools import cached_property

from policysched.cluster.samples import Peer
from policysched.cluster.shares import ShareOf
from policysched.evaluate.compile.admission import Admission
from policysched.evaluate.compile.assumed_load import Assume
from policysched.evaluate.compile.gang_terms import Gangs, GangTerms
from policysched.evaluate.compile.lower import AnyRule, Lowering, Variant, lower
from policysched.evaluate.compile.queue_order import Order, OrderPlace
from policysched.evaluate.compile.read_set import ReadSet, nameless, read_set
from policysched.evaluate.compile.victims import MayEvict, Victims
from policysched.evaluate.scalar.compiler import compiled
from policysched.evaluate.scalar.eval_context import Seen
from policysched.lang.ir.arithmetic import Number
from policysched.lang.ir.expr import MOVING, Stage, stage_of
from policysched.lang.ir.program import (
    Between,
    Program,
    devices_timeout_s,
    rules_for,
    sees_to_claims,
    sees_to_devices,
)
from policysched.lang.ir.reads import program_reads, reads_of
from policysched.model.cluster_events import ClusterEvent
from policysched.model.objects import Namespace, Pod, PodFacts


class Plan:
    """Made by `compile_program`. What it answers depends on its arguments alone; variants for sets of layers are lowered when
    first needed and kept."""

    def __init__(self, program: Program, lowering: Lowering) -> None:
        self.program = program
        self._lowering = lowering
        self._order = Order(program)
        self._gangs = Gangs(program)
        self.sees_to_claims = sees_to_claims(program)
        self.sees_to_devices = sees_to_devices(program)
        self.devices_timeout_s = devices_timeout_s(program)
        self._admission = Admission(
            program, sees_to_claims=self.sees_to_claims, sees_to_devices=self.sees_to_devices
        )
        self._victims = Victims(program)
        self.assume = Assume(program)
        self._called = {
            name: compiled(metric.join.key, program)
            for name, metric in program.metrics.items()
            if isinstance(metric.join, Between)
        }
        self._layers = tuple(compiled(layer.condition, program) for layer in program.layers)
        self._variants: dict[tuple[int, ...], Variant] = {}
        self._read_sets: dict[tuple[int, ...], ReadSet] = {}
        self._moving = tuple(
            index
            for index, layer in enumerate(program.layers)
            if stage_of(layer.condition) & (Stage.TIME | MOVING)
        )
        self._standing = tuple(index for index in range(len(program.layers)) if index not in self._moving)
        self._kin_reads: dict[tuple[int, ...], ReadSet] = {}
        self.layer_wakes = _layer_wakes(program)
        self.variant(())

    def order_key(
        self, pod: Pod, namespace: Namespace | None, facts: PodFacts, now_ns: int
    ) -> tuple[OrderPlace, int | None]:
        """A key that compares with `<` across pods of this policy (smaller comes first, the UID closes it), and the time in
        ns at which it may flip by itself. Where `order_reads_shares`, only across the pods of one namespace."""
        seen = self.seen(pod, namespace, facts, now_ns)
        return self._order.key(seen), self._order.next_change_ns(seen)

    @property
    def order_reads_shares(self) -> bool:
        return self._order.reads_shares

    def order_with_shares(
        self, key: OrderPlace, pod: Pod, namespace: Namespace | None, shares: ShareOf
    ) -> OrderPlace:
        """A key that `order_key` gave, with the place that the namespace has now: compares across all namespaces."""
        return self._order.with_shares(key, Seen(pod, namespace or nameless(pod), shares=shares))

    def gang(self, pod: Pod, namespace: Namespace | None) -> GangTerms | None:
        return self._gangs.terms(Seen(pod, namespace or nameless(pod)))

    def admission(self, pod: Pod, namespace: Namespace | None) -> str | None:
        """The text for which the pod stays pending whatever the nodes are; None: let it try."""
        return self._admission.refusal(Seen(pod, namespace or nameless(pod)))

    def warnings(self, pod: Pod, namespace: Namespace | None) -> tuple[str, ...]:
        """Invalid inputs that counted as absent, to be reported once a pod."""
        return self._admission.warnings(Seen(pod, namespace or nameless(pod)))

    def assumed(self, metric: str, pod: Pod, namespace: Namespace | None) -> Number:
        """What the metric, one of `assume.metrics`, assumes of the pod until a sample has it, in its held unit."""
        return self.assume.amount(metric, pod, namespace)

    def called(self, pod: Pod, namespace: Namespace | None) -> Mapping[str, Peer]:
        """What each metric between pods calls the pod, by the name of the metric."""
        seen = Seen(pod, namespace or nameless(pod))
        return {name: (pod.namespace, str(key(seen))) for name, key in self._called.items()}

    def read_key(self, pod: Pod, namespace: Namespace | None) -> Hashable:
        """Pods that agree on it get the same verdict on the same cluster at the same moment, unless the policy reads what the
        queue knows of a pod (attempts, waiting time), what placed pods' terms select or which pods are its siblings
        (`Evaluator.seen_by_others`)."""
        seen = Seen(pod, namespace or nameless(pod))
        active = tuple([index for index in self._standing if self._layers[index](seen) is True])
        return active, self._reads_of_kin(active).key(seen)

    @cached_property
    def refuses_by_siblings(self) -> bool:
        """Whether some layer or none has a filter that reads which pods are siblings."""
        return ClusterEvent.POD_SET in program_reads(self.program).wakes

    @property
    def preempts(self) -> bool:
        """Whether the policy lets anybody be evicted at all."""
        return self._victims.mode != "never"

    def may_evict(self, pod: Pod, namespace: Namespace | None, facts: PodFacts, now_ns: int) -> MayEvict:
        """Which pods may be evicted for this one."""
        return self._victims.allowed(self.seen(pod, namespace, facts, now_ns))

    def victims_key(self, pod: Pod, namespace: Namespace | None) -> Hashable:
        """Pods that agree on it may evict the same pods, unless the clause reads what the queue knows
        of a pod (attempts, waiting time)."""
        return self._victims.key(Seen(pod, namespace or nameless(pod)))

    # ── for the Evaluator ──────────────────────────────────────────────────────────────────────────────────────────

    def seen(self, pod: Pod, namespace: Namespace | None, facts: PodFacts, now_ns: int) -> Seen:
        return Seen(pod, namespace or nameless(pod), facts, now_ns)

    def active_layers(self, seen: Seen) -> tuple[int, ...]:
        """Indexes of the layers whose condition is True for the pod."""
        return tuple([index for index, holds in enumerate(self._layers) if holds(seen) is True])

    def variant(self, active: tuple[int, ...]) -> Variant:
        found = self._variants.get(active)
        if found is None:
            found = self._variants[active] = lower(self.program, active, self._lowering)
        return found

    def _reads_of_kin(self, active: tuple[int, ...]) -> ReadSet:
        """What pods with these layers may be asked about, whichever of the layers that come and go (with the clock, with what
        namespaces hold, with other pods) apply as well. A rule that several of them amend reads no more than what each of them brings."""
        if not self._moving:
            return self.read_set(active)
        found = self._kin_reads.get(active)
        if found is None:
            rules: dict[AnyRule, None] = {}
            for more in ((), *((index,) for index in self._moving), self._moving):
                variant = rules_for(self.program, tuple(sorted({*active, *more})))
                rules |= dict.fromkeys((*variant.filters, *variant.scores))
            found = self._kin_reads[active] = read_set(self.program, rules)
        return found

    def read_set(self, active: tuple[int, ...]) -> ReadSet:
        found = self._read_sets.get(active)
        if found is None:
            rules = rules_for(self.program, active)
            everything: tuple[AnyRule, ...] = (*rules.filters, *rules.scores)
            found = self._read_sets[active] = read_set(self.program, everything)
        return found


def _layer_wakes(program: Program) -> frozenset[ClusterEvent]:
    """What can bring a layer into force, or end it, that rests on what a namespace holds or on which pods there are."""
    found = frozenset[ClusterEvent]()
    for layer in program.layers:
        reads = reads_of(layer.condition, program.inputs)
        if reads.shares or reads.anywhere:
            found |= reads.wakes
    return found


def compile_program(program: Program, lowering: Lowering | None = None) -> Plan:
    """Lower a checked program. Deterministic, and quick enough for a worker: milliseconds for hundreds of rules."""
    return Plan(program, lowering or Lowering())

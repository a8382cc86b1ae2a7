"""`PodTotals`: counts and sums of pods that satisfy a condition, kept as pods come and go.

In `other.namespace == pod.namespace and other.labels["group"] == group and other.priority > 3` the
equalities are an index lookup: pods are grouped by the counted pod's side of them (the group key),
and the pod being scheduled looks up one key. In a group, pods are counted by what the rest of the
condition and the value read of them (their class) and by topology domain: the rest is evaluated
once per class.
"""

from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policysched.evaluate.columns.interner import UNKNOWN, Interner
from policysched.evaluate.scalar.compiler import compile_scalar
from policysched.evaluate.scalar.eval_context import (
    EvalContext,
    ExprDeclarations,
    InputDeclarations,
    ScalarFunction,
    expect_number,
    inputs_read,
)
from policysched.evaluate.scalar.leaves import attribute
from policysched.lang.ir import expr as e
from policysched.lang.ir.arithmetic import ExactNumber, exact_number, rounded_total
from policysched.lang.ir.declarations import Input
from policysched.lang.ir.expr_analysis import is_floating, walk
from policysched.lang.ir.reads import expr_reads
from policysched.model.identifiers import PodUid
from policysched.model.namespaces import Namespace
from policysched.model.nodes import Node
from policysched.model.pods import Pod

_SPECS_MAX = 64
_RESULTS_MAX = 1_000
_CHANGES_MAX = 1_000
_AMOUNTS_MAX = 10_000
_NO_NAMESPACE = Namespace("", {}, {})
_REVISIONS = count(1)

Array = NDArray[Any]
GroupKey = tuple[Hashable, ...]
ClassKey = tuple[Hashable, ...]
CountedKeys = tuple[GroupKey, ClassKey]
Domain = str | None
"""The value of the topology label; None: no topology key, or the node lacks the label."""


@dataclass(frozen=True)
class PodTotalSpec:
    """What `lang.ir.expr.PodTotal` totals, without the set of pods. Equal specs share their totals."""

    where: e.Expr | None
    value: e.Expr | None
    topology_key: str | None
    floating: bool
    inputs: tuple[Input, ...]

    @classmethod
    def of(cls, expr: e.PodTotal, program: ExprDeclarations) -> "PodTotalSpec":
        inputs = inputs_read(program, expr)
        return cls(expr.where, expr.value, expr.topology_key, expr.floating, inputs)

    def __hash__(self) -> int:
        return self._cached_hash

    @cached_property
    def _cached_hash(self) -> int:
        """Needed for several lookups in each decision."""
        return hash((self.where, self.value, self.topology_key, self.floating, self.inputs))


class DomainTotals:
    """Totals by domain; domains without a counted pod are absent or 0. `revision` changes whenever they do."""

    __slots__ = ("_changed", "_domains", "_table", "by_domain", "revision")

    def __init__(self) -> None:
        self.by_domain: dict[Domain, ExactNumber] = {}
        self.revision = 0
        self._table: Array | None = None
        self._domains: Interner[str] | None = None  # that the table is for
        self._changed: set[Domain] = set()  # since the table was made

    def add(self, domain: Domain, amount: ExactNumber) -> None:
        self.by_domain[domain] = self.by_domain.get(domain, 0) + amount
        self._changed.add(domain)
        self.revision = next(_REVISIONS)

    def table(self, domains: Interner[str], *, floating: bool) -> Array:
        """[1 + number of domains]: totals by code of `DomainColumn`. Read-only, valid until the next change."""
        if self._table is None or self._domains is not domains or len(self._table) != 1 + len(domains):
            self._table = np.zeros(1 + len(domains), np.float64 if floating else np.int64)
            self._domains, self._changed = domains, set(self.by_domain)
        for domain in self._changed:
            code = UNKNOWN if domain is None else domains.find(domain)
            if code != UNKNOWN:
                self._table[1 + code] = rounded_total(self.by_domain[domain], floating=floating)
        self._changed.clear()
        return self._table


_NO_TOTALS = DomainTotals()


class PodQuery:
    """A condition split for the index: `other_key` of a counted pod must equal `pod_key` of the pod being
    scheduled, and `_residual` (None: nothing more) must be true. That and `_value` read `other_reads`
    of the former and `pod_reads` of the latter."""

    def __init__(self, spec: PodTotalSpec) -> None:
        declarations = InputDeclarations.of(spec.inputs)
        equalities, rest = list[tuple[e.Expr, e.Expr]](), list[e.Expr]()
        where = spec.where
        for item in where.items if isinstance(where, e.And) else () if where is None else (where,):
            operands = _equality_operands(item)
            if operands is None:
                rest.append(item)
            else:
                equalities.append(operands)
        # A conjunction is true where every item is; a missing item makes it not true.
        residual = None if not rest else rest[0] if len(rest) == 1 else e.And(tuple(rest), rest[0].span)
        reads = expr_reads(residual, declarations.inputs) | expr_reads(spec.value, declarations.inputs)
        self._other_key = [compile_scalar(other_side, declarations) for other_side, _ in equalities]
        self._pod_key = [compile_scalar(pod_side, declarations) for _, pod_side in equalities]
        self._residual = None if residual is None else compile_scalar(residual, declarations)
        self._value = None if spec.value is None else compile_scalar(spec.value, declarations)
        self._other_reads = [attribute("other", path) for path in sorted(reads.counted_pods)]
        self._pod_reads = [
            *(attribute("pod", path) for path in sorted(reads.pod)),
            *(attribute("namespace", path) for path in sorted(reads.namespace)),
        ]
        self.floating = spec.floating
        self.reads_node = spec.topology_key is not None or any(
            isinstance(part, e.Attr) and part.owner == "other" and part.path[0] == "node"
            for expr in (spec.where, spec.value)
            for part in (() if expr is None else walk(expr))
        )

    def group_key(self, other: EvalContext) -> GroupKey | None:
        """The key of a counted pod; None: a value is missing, so that the pod never counts."""
        return _values(self._other_key, other)

    def class_key(self, other: EvalContext) -> ClassKey:
        return tuple([read(other) for read in self._other_reads])

    def wanted_key(self, context: EvalContext) -> GroupKey | None:
        """The key of the pods that count for the pod being scheduled; None: none does."""
        return _values(self._pod_key, context)

    def pod_values(self, context: EvalContext) -> tuple[Hashable, ...]:
        """What the totals of a group depend on of the pod being scheduled."""
        return tuple([read(context) for read in self._pod_reads])

    def amount(self, context: EvalContext, other: Pod, node: Node | None) -> ExactNumber | None:
        """What one pod with the wanted key adds; None: it does not count."""
        pair_context = context.with_other_pod(other, node)
        if self._residual is not None and self._residual(pair_context) is not True:
            return None
        if self._value is None:
            return 1
        value = self._value(pair_context)
        return None if value is None else exact_number(expect_number(value), floating=self.floating)

    def amount_of_pod(self, context: EvalContext, other: Pod) -> ExactNumber:
        """What any pod adds, where nothing of its node is read."""
        key = self.group_key(_other_pod_context(other, None))
        if key is None or key != self.wanted_key(context):
            return 0
        return self.amount(context, other, None) or 0


def _values(functions: Sequence[ScalarFunction], context: EvalContext) -> GroupKey | None:
    values = tuple([function(context) for function in functions])
    return None if None in values else values


def _other_pod_context(pod: Pod, node: Node | None) -> EvalContext:
    return EvalContext(pod, _NO_NAMESPACE, other=pod, other_node=node)


def _equality_operands(item: e.Expr) -> tuple[e.Expr, e.Expr] | None:
    """The counted pod's side of an equality and the other side; None: not an equality that an index can serve."""
    if not isinstance(item, e.Compare) or item.op != "==":
        return None
    if is_floating(item.left) or is_floating(item.right):
        return None
    match _reads_only_other(item.left), _reads_only_other(item.right):
        case True, False:
            return item.left, item.right
        case False, True:
            return item.right, item.left
        case _:
            return None


def _reads_only_other(expr: e.Expr) -> bool | None:
    """True: reads only the counted pod; False: does not read it; None: reads both pods."""
    reads_other = set[bool]()
    for part in walk(expr):
        match part:
            case e.Attr(owner=owner) | e.InputRef(owner=owner):
                reads_other.add(owner == "other")
    return None if len(reads_other) > 1 else reads_other == {True}


@dataclass(slots=True)
class _PodClass:
    """Pods that count alike, by domain. `pod` and `node` represent all of them."""

    pod: Pod
    node: Node | None
    counts: Counter[Domain]


@dataclass(slots=True)
class _Group:
    """`changes`: the pods that came (1) or left (-1), each as its class and domain; `results`: by what is read of
    the pod being scheduled, the totals and how many changes they include."""

    classes: dict[ClassKey, _PodClass] = field(default_factory=dict)
    changes: list[tuple[ClassKey, _PodClass, Domain, int]] = field(default_factory=list)
    results: dict[tuple[Hashable, ...], tuple[int, DomainTotals]] = field(default_factory=dict)

    def copy(self) -> "_Group":
        return _Group(
            {key: replace(tally, counts=Counter(tally.counts)) for key, tally in self.classes.items()}
        )


class PodTotals:
    """The totals of one spec over pods that `adjust` adds and removes. With a `base` only the groups that
    change are copied (an overlay); it is valid while the base does not change."""

    def __init__(self, spec: PodTotalSpec, base: "PodTotals | None" = None) -> None:
        self._topology_key = spec.topology_key
        self._spec, self._base = spec, base
        self.query: PodQuery = PodQuery(spec) if base is None else base.query
        self._groups: dict[GroupKey, _Group] = {}
        self._amounts: dict[tuple[Hashable, ...], ExactNumber] = {} if base is None else base._amounts
        self._changes_applied = 0

    def overlay(self) -> "PodTotals":
        return PodTotals(self._spec, self)

    def adjust(self, pod: Pod, node: Node | None, delta: int) -> CountedKeys | None:
        """Add (1) or remove (-1) a pod that is on the node, and return where it counts; None: nowhere."""
        other = _other_pod_context(pod, node)
        group_key = self.query.group_key(other)
        if group_key is None:
            return None
        keys = group_key, self.query.class_key(other)
        self._change(keys, pod, node, delta)
        return keys

    def remove(self, keys: CountedKeys) -> None:
        """Remove a pod that was added without a node."""
        group_key, class_key = keys
        self._change(keys, self._groups[group_key].classes[class_key].pod, None, -1)

    def _change(self, keys: CountedKeys, pod: Pod, node: Node | None, delta: int) -> None:
        key, class_key = keys
        group = self._groups.get(key)
        if group is None:
            shared = None if self._base is None else self._base._groups.get(key)
            group = self._groups[key] = _Group() if shared is None else shared.copy()
        pod_class = group.classes.get(class_key)
        if pod_class is None:
            pod_class = group.classes[class_key] = _PodClass(pod, node, Counter())
        domain = None if node is None or self._topology_key is None else node.labels.get(self._topology_key)
        total = pod_class.counts[domain] + delta
        assert total >= 0, f"{total} pods like {pod.full_name} in {domain}"
        group.changes.append((class_key, pod_class, domain, delta))
        if len(group.changes) > _CHANGES_MAX:
            group.changes.clear()
            group.results.clear()
        if total:
            pod_class.counts[domain] = total
            return
        del pod_class.counts[domain]
        if not pod_class.counts:
            del group.classes[class_key]
            if not group.classes and self._base is None:
                del self._groups[key]

    def catch_up(self, changes: Sequence[tuple[int, Pod, int]], nodes: Sequence[Node | None]) -> None:
        """Apply the new changes of an overlay, which are pods by row. `changes` are all of them, in order."""
        for row, pod, delta in changes[self._changes_applied :]:
            self.adjust(pod, nodes[row], delta)
        self._changes_applied = len(changes)

    def totals(self, context: EvalContext) -> DomainTotals:
        """For the pod being scheduled."""
        key = self.query.wanted_key(context)
        group = None if key is None else self._groups.get(key)
        if group is None and self._base is not None and key is not None:
            group = self._base._groups.get(key)
        if group is None:
            return _NO_TOTALS
        pod_values = self.query.pod_values(context)
        cached = group.results.get(pod_values)
        if cached is None:
            totals = DomainTotals()
            for class_key, pod_class in group.classes.items():
                amount = self._amount(class_key, pod_class.pod, pod_class.node, pod_values, context)
                for domain, number in pod_class.counts.items() if amount else ():
                    totals.add(domain, amount * number)
            if len(group.results) >= _RESULTS_MAX:
                group.results.clear()
        elif cached[0] == len(group.changes):
            return cached[1]
        else:
            totals = cached[1]
            for class_key, pod_class, domain, delta in group.changes[cached[0] :]:
                amount = self._amount(class_key, pod_class.pod, pod_class.node, pod_values, context)
                if amount:
                    totals.add(domain, amount * delta)
        group.results[pod_values] = len(group.changes), totals
        return totals

    def _amount(
        self,
        class_key: ClassKey,
        pod: Pod,
        node: Node | None,
        pod_values: tuple[Hashable, ...],
        context: EvalContext,
    ) -> ExactNumber:
        """What each pod of the class adds; 0 also where it does not count."""
        key = class_key, pod_values
        amount = self._amounts.get(key)
        if amount is None:
            if len(self._amounts) >= _AMOUNTS_MAX:
                self._amounts.clear()
            amount = self._amounts[key] = self.query.amount(context, pod, node) or 0
        return amount


class PlacedPodTotals:
    """The totals over the placed pods, each kept from its first use on, least recently used ones evicted."""

    def __init__(self) -> None:
        self._by_spec: OrderedDict[PodTotalSpec, PodTotals] = OrderedDict()

    def get(
        self,
        spec: PodTotalSpec,
        pods_by_row: Mapping[int, Mapping[PodUid, Pod]],
        nodes: Sequence[Node | None],
    ) -> PodTotals:
        totals = self._by_spec.get(spec)
        if totals is None:
            totals = self._by_spec[spec] = PodTotals(spec)
            for row, pods in pods_by_row.items():
                for pod in pods.values():
                    totals.adjust(pod, nodes[row], 1)
            if len(self._by_spec) > _SPECS_MAX:
                self._by_spec.popitem(last=False)
        else:
            self._by_spec.move_to_end(spec)
        return totals

    def adjust(self, pod: Pod, node: Node | None, delta: int) -> None:
        """Add (1) or remove (-1) a pod that is on the node."""
        assert node is not None, f"{pod.full_name} is on a row without a node"
        for totals in self._by_spec.values():
            totals.adjust(pod, node, delta)

    def relabel(self, pods: Iterable[Pod], before: Node, after: Node) -> None:
        """Count the pods of a node by its new labels."""
        if before.labels == after.labels:
            return
        reading = [totals for totals in self._by_spec.values() if totals.query.reads_node]
        for pod in pods if reading else ():
            for totals in reading:
                totals.adjust(pod, before, -1)
                totals.adjust(pod, after, 1)

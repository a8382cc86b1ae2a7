"""`PodQuery`: which pods a total counts, split for an index.

In `other.namespace == pod.namespace and other.labels["group"] == group and other.priority > 3` the
equalities are an index lookup: pods are grouped by the counted pod's side of them (the group key),
and the pod being scheduled looks up one key. The rest is evaluated once per class: what it and the
value read of the counted pod. Long texts are compared by their digest in keys, which outlive pods.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property

from policysched.evaluate.columns.pod_parts import PodParts
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
from policysched.evaluate.scalar.next_change import NextChange, compile_next_change
from policysched.lang.ir import expr as e
from policysched.lang.ir.arithmetic import ExactNumber, exact_number
from policysched.lang.ir.declarations import Input
from policysched.lang.ir.expr_analysis import is_floating, stage_of, walk
from policysched.lang.ir.reads import Path, expr_reads
from policysched.model.namespaces import Namespace
from policysched.model.nodes import Node
from policysched.model.pods import Pod
from policysched.text.short_key import KEY_CHARACTERS_MAX, short_value, value_characters

_NO_NAMESPACE = Namespace("", {}, {})
_SHORT = frozenset(
    [
        "name",
        "namespace",
        "uid",
        "labels",
        "node",
        "priority",
        "qos",
        "created",
        "deadline",
        "ready",
        "requests",
        "limits",
    ]
)
"""Attributes whose values the API server keeps short: nothing has to look at their length."""

GroupKey = tuple[Hashable, ...]
ClassKey = tuple[Hashable, ...]
KeyFunction = Callable[[EvalContext], Hashable]


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
        self._other_key = [_key_part(other_side, declarations) for other_side, _ in equalities]
        self._pod_key = [_key_part(pod_side, declarations) for _, pod_side in equalities]
        self._residual = None if residual is None else compile_scalar(residual, declarations)
        self.next_change: NextChange | None = None
        """When a counted pod comes of age, so that it counts or ceases to; None: the condition does not read the clock."""
        if residual is not None and e.Stage.TIME in stage_of(residual):
            self.next_change = compile_next_change(residual, declarations)
        self._value = None if spec.value is None else compile_scalar(spec.value, declarations)
        self._other_reads = [_reader("other", path) for path in sorted(reads.counted_pods)]
        self.long_reads = [attribute("other", path) for path in reads.counted_pods if path[0] not in _SHORT]
        self.part_of = PodParts(reads.counted_pods).of
        """What the total reads of a counted pod with the group key."""
        self._pod_reads = [
            *(_reader("pod", path) for path in sorted(reads.pod)),
            *(_reader("namespace", path) for path in sorted(reads.namespace)),
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

    def long_characters(self, other: EvalContext) -> int:
        """Of the texts and lists that the class key has by their digest."""
        lengths = [value_characters(read(other)) for read in self.long_reads]
        return sum(length for length in lengths if length > KEY_CHARACTERS_MAX)

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
        key = self.group_key(other_pod_context(other, None))
        if key is None or key != self.wanted_key(context):
            return 0
        return self.amount(context, other, None) or 0


def _values(functions: Sequence[KeyFunction], context: EvalContext) -> GroupKey | None:
    values = tuple([function(context) for function in functions])
    return None if None in values else values


def _reader(owner: e.Owner, path: Path) -> KeyFunction:
    read = attribute(owner, path)
    return read if path[0] in _SHORT else _shortened(read)


def _key_part(expr: e.Expr, declarations: InputDeclarations) -> KeyFunction:
    value = compile_scalar(expr, declarations)
    return value if isinstance(expr, e.Attr) and expr.path[0] in _SHORT else _shortened(value)


def _shortened(function: ScalarFunction) -> KeyFunction:
    return lambda context: short_value(function(context))


def other_pod_context(pod: Pod, node: Node | None) -> EvalContext:
    return EvalContext(pod, _NO_NAMESPACE, other=pod, other_node=node)


def _equality_operands(item: e.Expr) -> tuple[e.Expr, e.Expr] | None:
    """The counted pod's side of an equality and the other side; None: not an equality that an index can serve."""
    if not isinstance(item, e.Compare) or item.op != "==":
        return None
    if is_floating(item.left) or is_floating(item.right) or e.Stage.TIME in stage_of(item):
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

"""What an expression is made of: its parts, its type, its stage, and what it depends on."""

from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

from policysched.lang.ir.expr import (
    Aggregate,
    And,
    Arith,
    Attr,
    Bucket,
    Call,
    Compare,
    Const,
    CountPodsOnNode,
    ElementField,
    Else,
    Expr,
    GangTraffic,
    Has,
    If,
    In,
    InputRef,
    ListFold,
    MetricRef,
    Negate,
    Not,
    NotRecovered,
    Now,
    Or,
    PodTotal,
    Rank,
    Split,
    Stage,
    StateRef,
    SumPodsOnNode,
    WeeklyWindow,
)
from policysched.lang.types import kinds
from policysched.lang.types.kinds import Type

_KINDS = frozenset(get_args(Expr))


def _is_of_expressions(hint: Any) -> bool:
    return hint in _KINDS or any(map(_is_of_expressions, get_args(hint)))


OPERANDS: dict[type, tuple[str, ...]] = {
    kind: tuple(name for name, hint in get_type_hints(kind).items() if _is_of_expressions(hint))
    for kind in _KINDS
}
"""The fields with direct operands by the type of an expression, in source order: an expression, None, or a tuple of them."""


def children(expr: Expr) -> tuple[Expr, ...]:
    """The direct operands, in source order."""
    names = OPERANDS[type(expr)]
    if not names:  # most have none
        return ()
    operands: list[Expr] = []
    for name in names:
        operand = getattr(expr, name)
        if type(operand) is tuple:
            operands += operand
        elif operand is not None:
            operands.append(operand)
    return tuple(operands)


def walk(expr: Expr) -> Iterator[Expr]:
    """The expression and all its sub-expressions in pre-order. A shared object is visited once: every use of a `let` is
    the same object, and nested `let`s would otherwise grow exponentially."""
    pending, visited = [expr], {id(expr)}
    while pending:
        node = pending.pop()
        yield node
        for child in reversed(children(node)):
            if id(child) not in visited:
                visited.add(id(child))
                pending.append(child)


def type_of(expr: Expr) -> Type:
    """The type of the value, also for the expressions without a `type` field."""
    match expr:
        case (
            Const()
            | Attr()
            | InputRef()
            | MetricRef()
            | GangTraffic()
            | StateRef()
            | Arith()
            | Call()
            | Else()
            | If()
            | ElementField()
            | ListFold()
            | SumPodsOnNode()
            | PodTotal()
            | Aggregate()
            | Split()
        ):
            return expr.type
        case Negate(operand=operand):
            return type_of(operand)
        case Rank() | Bucket() | CountPodsOnNode():
            return kinds.INT
        case Now():
            return kinds.TIMESTAMP
        case _:
            return kinds.BOOL


def is_floating(expr: Expr) -> bool:
    """Whether the value is a float64."""
    match expr:
        case Arith() | Call() | Else() | If() | ListFold() | PodTotal() | Aggregate():
            return expr.floating
        case Negate(operand=operand):
            return is_floating(operand)
        case _:
            return type_of(expr).is_float64


def reads_node(expr: Expr) -> bool:
    """Whether the expression, without its sub-expressions, depends on the node."""
    match expr:
        case (
            Attr(owner="node")
            | MetricRef()
            | GangTraffic()
            | StateRef()
            | CountPodsOnNode()
            | SumPodsOnNode()
            | NotRecovered()
            | Aggregate()
        ):
            return True
        case PodTotal(topology_key=topology_key):
            return topology_key is not None
        case InputRef(stage=stage):
            return Stage.NODE in stage
        case _:
            return False


def stage_of(expr: Expr, stages: dict[int, Stage] | None = None) -> Stage:
    """The union of the stages of all sub-expressions. `stages` keeps them by `id`, so that asking for every part of one
    expression takes linear time."""
    stages = {} if stages is None else stages
    stage = stages.get(id(expr))
    if stage is None:
        stage = _own_stage(expr)
        for child in children(expr):
            of_child = stage_of(child, stages)
            if of_child is not stage:  # mostly it is, and the union of flags is slow
                stage |= of_child
        stages[id(expr)] = stage
    return stage


_OF_OPERANDS = frozenset((Const, Compare, Arith, And, Or, Not, Negate, Has, In, Call, Else, If))
"""Without a stage of their own."""


def _own_stage(expr: Expr) -> Stage:
    """The stage of the expression without its sub-expressions."""
    if type(expr) in _OF_OPERANDS:
        return Stage.CONSTANT
    match expr:
        case Attr(owner="namespace", path=("share", _)) | Attr(owner="pod", path=("quota_share", _)):
            return Stage.POD | Stage.NAMESPACE_SHARES
        case Attr(owner="pod" | "namespace", path=path):
            return Stage.POD | (Stage.TIME if path == ("waited",) else Stage.CONSTANT)
        case (
            Attr(owner="node")
            | MetricRef()
            | StateRef()
            | CountPodsOnNode()
            | SumPodsOnNode()
            | NotRecovered()
        ):
            return Stage.NODE
        case GangTraffic():
            return Stage.POD | Stage.NODE
        case PodTotal(topology_key=topology_key):
            return Stage.POD | (Stage.CLUSTER_PODS if topology_key is None else Stage.NODE)
        case InputRef():
            return expr.stage
        case Aggregate():
            return Stage.NODE | Stage.CANDIDATES
        case Now() | WeeklyWindow():
            return Stage.TIME
        case _:
            return Stage.CONSTANT

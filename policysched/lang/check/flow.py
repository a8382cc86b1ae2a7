"""What may be missing, and what a `has` that was asked before rules out.

`holes` names every read that can leave a whole expression without a value: an optional label nobody asked for, a
metric, a division that may divide by zero. Those inside `else` are filled, those that a `has` dominates are not there.
It looks at expressions before folding, at what the user wrote.
"""

from collections.abc import Iterable, Iterator

from policysched.lang.check.scope import Scope
from policysched.lang.ir.constant_folding import fold
from policysched.lang.ir.expr import (
    Aggregate,
    And,
    Arith,
    Attr,
    Call,
    Const,
    CountAnywhere,
    CountPods,
    Element,
    Else,
    Expr,
    Fold,
    Has,
    If,
    InputRef,
    MetricRef,
    Negate,
    Not,
    Or,
    Stage,
    SumPods,
    TrafficTo,
    children,
    stage_of,
    type_of,
)

Known = frozenset[Expr]
"""Reads that are known to be there."""

NOTHING: Known = frozenset()


def holes(expr: Expr, known: Known = NOTHING) -> Iterator[Expr]:
    """The parts that may be missing and would make all of it missing, in the order of the text."""
    match expr:
        case Attr() | InputRef() | Element():
            if type_of(expr).optional and expr not in known:
                yield expr
        case MetricRef():
            if expr not in known:
                yield expr
        case TrafficTo():
            yield expr
        case Has() | CountPods() | CountAnywhere() | SumPods():
            return
        case Fold(items=items, function=function):
            yield from holes(items, known)
            if function in ("min", "max"):
                yield expr
        case And(items=items):
            for item in items:
                yield from holes(item, known)
                known |= implied(item, True)
        case Or(items=items):
            for item in items:
                yield from holes(item, known)
                known |= implied(item, False)
        case Else(fallback=fallback):
            yield from holes(fallback, known)
        case Aggregate(body=body):
            # What was asked of this node says nothing of the others.
            yield from holes(body, frozenset(one for one in known if not stage_of(one) & Stage.NODE))
        case If(condition=condition, then=then, otherwise=otherwise):
            yield from holes(condition, known)
            yield from holes(then, known | implied(condition, True))
            yield from holes(otherwise, known | implied(condition, False))
        case _:
            for child in children(expr):
                yield from holes(child, known)
            if _leaves_domain(expr):
                yield expr


def implied(expr: Expr, value: bool) -> Known:
    """What must be there where the condition is True (or where it is False)."""
    match expr:
        case Has(target=target):
            return frozenset({target}) if value else NOTHING
        case Not(operand=operand):
            return implied(operand, not value)
        case And(items=items):
            return _together(items, value, every=value)
        case Or(items=items):
            return _together(items, value, every=not value)
        case _:
            return NOTHING


def _together(items: Iterable[Expr], value: bool, *, every: bool) -> Known:
    """`every`: all items have the value, so all that they imply holds; else one of them, we do not know which."""
    parts = [implied(item, value) for item in items]
    return frozenset().union(*parts) if every else frozenset.intersection(*parts)


def _leaves_domain(expr: Expr) -> bool:
    match expr:
        case Arith(op="/", right=divisor):
            return not _never_zero(fold(divisor))
        case Call(function="log", args=(arg,)):
            return not _positive(fold(arg))
        case Call(function="sqrt", args=(arg,)):
            return not (_positive(arg) or _zero(arg) or (isinstance(arg, Call) and arg.function == "abs"))
        case _:
            return False


def _never_zero(expr: Expr) -> bool:
    negative = isinstance(expr, Negate) and _positive(expr.operand)
    return negative or _positive(expr)


def _positive(expr: Expr) -> bool:
    """Whether a number is greater than zero whatever happens: a constant, or at least one."""
    match expr:
        case Const(value=int() | float() as value):
            return value > 0
        case Call(function="max", args=args):
            return any(map(_positive, args)) and all(
                isinstance(arg, Const) or not list(holes(arg)) for arg in args
            )
        case _:
            return False


def _zero(expr: Expr) -> bool:
    return isinstance(expr, Const) and not isinstance(expr.value, str | tuple) and expr.value == 0


def no_holes(scope: Scope, expr: Expr, known: Known = NOTHING, *, metric_help: str = "") -> bool:
    """Report everything that may be missing; whether there was nothing."""
    found = list(holes(expr, known))
    for hole in found:
        if isinstance(hole, MetricRef | TrafficTo):
            scope.report(
                "PS214",
                f"nothing says what to do while `{hole.name}` has no sample",
                hole.span,
                label="can be missing",
                help=metric_help or f"write `{asked_again(hole)} else VALUE`",
            )
        else:
            report_hole(scope, hole)
    return not found


def asked_again(hole: MetricRef | TrafficTo) -> str:
    """What is written for it once more, to put an `else` behind."""
    return hole.span.text if isinstance(hole, TrafficTo) else hole.name


def report_hole(scope: Scope, hole: Expr) -> None:
    """An optional that nobody asked for, or an operation that may have no value."""
    written = hole.span.text
    match hole:
        case Arith():
            scope.report(
                "PS218",
                f"`{hole.right.span.text}` can be zero",
                hole.span,
                label="no value when it is",
                help="say what it is then: `... else 0`",
            )
        case Fold():
            scope.report(
                "PS218",
                f"`{hole.function}` of no elements has no value",
                hole.span,
                help=f"say what it is then: `{written} else 0`",
            )
        case Call():
            what = "greater than zero" if hole.function == "log" else "zero or more"
            scope.report(
                "PS218",
                f"`{hole.function}` has a value only for what is {what}",
                hole.span,
                help=f"say what it is otherwise: `{written} else 0`",
            )
        case _:
            scope.report(
                "PS201",
                f"`{written}` may be absent",
                hole.span,
                label="read without asking",
                help=f"ask first: `has {written} and ...`, or give a value: `{written} else ...`",
            )

"""Presence analysis: which parts of an expression can be missing, and which a `has` guards.

`possibly_missing` yields every part that can leave the whole expression without a value: an unguarded
optional label, a metric, a division that can divide by zero. Parts with an `else` or dominated by a `has`
are excluded. The analysis runs before constant folding, on the expression as written.
"""

from collections.abc import Iterable, Iterator

from policysched.lang.check.scope import Scope
from policysched.lang.ir.constant_folding import fold_constants
from policysched.lang.ir.expr import (
    Aggregate,
    And,
    Arith,
    Attr,
    Call,
    Const,
    CountPodsOnNode,
    ElementField,
    Else,
    Expr,
    GangTraffic,
    Has,
    If,
    InputRef,
    ListFold,
    MetricRef,
    Negate,
    Not,
    Or,
    PodTotal,
    Stage,
    SumPodsOnNode,
)
from policysched.lang.ir.expr_analysis import children, stage_of, type_of
from policysched.lang.types.kinds import STRING

PresentReads = frozenset[Expr]
"""Reads that are known to be present."""

NO_PRESENT_READS: PresentReads = frozenset()


def possibly_missing(expr: Expr, present: PresentReads = NO_PRESENT_READS) -> Iterator[Expr]:
    """The parts that can be missing and would make the whole expression missing, in text order."""
    match expr:
        case Attr() | InputRef() | ElementField():
            if type_of(expr).optional and expr not in present:
                yield expr
        case MetricRef():
            if expr not in present:
                yield expr
        case GangTraffic():
            yield expr
        case Has() | CountPodsOnNode() | SumPodsOnNode():
            return
        case PodTotal(topology_key=key):
            if (
                key is not None
                and Attr("node", ("labels", key), STRING.as_optional(), expr.span) not in present
            ):
                yield expr
        case ListFold(items=items, function=function):
            yield from possibly_missing(items, present)
            if function in ("min", "max"):
                yield expr
        case And(items=items):
            for item in items:
                yield from possibly_missing(item, present)
                present |= implied_present(item, True)
        case Or(items=items):
            for item in items:
                yield from possibly_missing(item, present)
                present |= implied_present(item, False)
        case Else(fallback=fallback):
            yield from possibly_missing(fallback, present)
        case Aggregate(body=body):
            # A `has` on this node does not guard the other nodes.
            yield from possibly_missing(
                body, frozenset(read for read in present if not stage_of(read) & Stage.NODE)
            )
        case If(condition=condition, then=then, otherwise=otherwise):
            yield from possibly_missing(condition, present)
            yield from possibly_missing(then, present | implied_present(condition, True))
            yield from possibly_missing(otherwise, present | implied_present(condition, False))
        case _:
            for child in children(expr):
                yield from possibly_missing(child, present)
            if _may_be_undefined(expr):
                yield expr


def implied_present(expr: Expr, value: bool) -> PresentReads:
    """The reads that must be present if the condition has the value."""
    match expr:
        case Has(target=target):
            return frozenset({target}) if value else NO_PRESENT_READS
        case Not(operand=operand):
            return implied_present(operand, not value)
        case And(items=items):
            return _combine_implied(items, value, every=value)
        case Or(items=items):
            return _combine_implied(items, value, every=not value)
        case _:
            return NO_PRESENT_READS


def _combine_implied(items: Iterable[Expr], value: bool, *, every: bool) -> PresentReads:
    """`every`: all items have the value, so the union holds; otherwise one of them does: the intersection."""
    parts = [implied_present(item, value) for item in items]
    return frozenset().union(*parts) if every else frozenset.intersection(*parts)


def _may_be_undefined(expr: Expr) -> bool:
    match expr:
        case Arith(op="/", right=divisor):
            return not _is_never_zero(fold_constants(divisor))
        case Call(function="log", args=(arg,)):
            return not _is_positive(fold_constants(arg))
        case Call(function="sqrt", args=(arg,)):
            return not (
                _is_positive(arg) or _is_zero(arg) or (isinstance(arg, Call) and arg.function == "abs")
            )
        case _:
            return False


def _is_never_zero(expr: Expr) -> bool:
    negative = isinstance(expr, Negate) and _is_positive(expr.operand)
    return negative or _is_positive(expr)


def _is_positive(expr: Expr) -> bool:
    """Whether a number is always greater than zero: a positive constant, or `max` with one."""
    match expr:
        case Const(value=int() | float() as value):
            return value > 0
        case Call(function="max", args=args):
            return any(map(_is_positive, args)) and all(
                isinstance(arg, Const) or not list(possibly_missing(arg)) for arg in args
            )
        case _:
            return False


def _is_zero(expr: Expr) -> bool:
    return isinstance(expr, Const) and not isinstance(expr.value, str | tuple) and expr.value == 0


def check_always_present(
    scope: Scope, expr: Expr, present: PresentReads = NO_PRESENT_READS, *, metric_help: str = ""
) -> bool:
    """Report every part that can be missing; True if there is none."""
    holes = list(possibly_missing(expr, present))
    for hole in holes:
        if isinstance(hole, MetricRef | GangTraffic):
            scope.report(
                "PS214",
                f"no fallback while `{hole.name}` has no sample",
                hole.span,
                label="can be missing",
                help=metric_help or f"write `{else_operand_text(hole)} else VALUE`",
            )
        else:
            report_possibly_missing(scope, hole)
    return not holes


def else_operand_text(hole: MetricRef | GangTraffic) -> str:
    """The text of the operand, for a suggested `else`."""
    return hole.span.text if isinstance(hole, GangTraffic) else hole.name


def report_possibly_missing(scope: Scope, hole: Expr) -> None:
    """Report an unguarded optional value, or an operation that can be undefined."""
    written = hole.span.text
    match hole:
        case Arith():
            scope.report(
                "PS218",
                f"`{hole.right.span.text}` can be zero",
                hole.span,
                label="undefined if it is zero",
                help="add a fallback: `... else 0`",
            )
        case ListFold():
            scope.report(
                "PS218",
                f"`{hole.function}` of an empty list is undefined",
                hole.span,
                help=f"add a fallback: `{written} else 0`",
            )
        case Call():
            domain = "greater than zero" if hole.function == "log" else "of zero or more"
            scope.report(
                "PS218",
                f"`{hole.function}` is only defined for values {domain}",
                hole.span,
                help=f"add a fallback: `{written} else 0`",
            )
        case _:
            checked = f'node.labels["{hole.topology_key}"]' if isinstance(hole, PodTotal) else written
            scope.report(
                "PS201",
                f"`{written}` can be absent",
                hole.span,
                label="read without a check",
                help=f"check it first: `has {checked} and ...`, or add a fallback: `({written} else ...)`",
            )

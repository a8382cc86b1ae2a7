"""When the value of an expression that reads the clock can next change.

A comparison of the clock with a constant flips once, at a computable time; a weekly window changes
at its next edge. Every other use of the clock is evaluated again after a second.
"""

from collections.abc import Callable
from zoneinfo import ZoneInfo

from policysched.evaluate.scalar.compiler import compile_scalar
from policysched.evaluate.scalar.eval_context import EvalContext, ExprDeclarations
from policysched.evaluate.scalar.operations import minute_of_week
from policysched.lang.ir import expr as e
from policysched.lang.ir.expr_analysis import children, is_floating, stage_of, type_of

_SECOND_NS = 10**9
_MINUTE_NS = 60 * _SECOND_NS
_HALF_HOUR_NS = 30 * _MINUTE_NS


NextChange = Callable[[EvalContext], int | None]
"""The earliest time after `context.now_ns` at which a value can change; None: never."""


def next_change_ns(
    expr: e.Expr, context: EvalContext, program: ExprDeclarations, *, running: bool = True
) -> int | None:
    """The earliest time after `context.now_ns` at which the value of an expression of the pod can
    change; None: never."""
    return compile_next_change(expr, program, running=running)(context)


def compile_next_change(expr: e.Expr, program: ExprDeclarations, *, running: bool = True) -> NextChange:
    """`next_change_ns` as a function, for many pods.

    `running` False ignores a bare clock (`pod.waited`, `now + 5m`), which changes all the time and
    equally for all pods.
    """
    if e.Stage.TIME not in stage_of(expr):
        return _never
    if slope(expr) is not None and not isinstance(expr, e.Compare):
        return (lambda context: context.now_ns + 1) if running else _never
    match expr:
        case e.Compare(left=left, right=right) if slope(left) is not None and slope(right) is not None:
            return _crossing(expr, program)
        case e.WeeklyWindow(minute_ranges=spans, time_zone=zone):
            zone_info = ZoneInfo(zone)
            return lambda context: _next_edge_ns(spans, zone_info, context.now_ns)
        case e.Not() | e.And() | e.Or() | e.Has() | e.Else() | e.If():
            changes = [compile_next_change(child, program, running=running) for child in children(expr)]
            if not running and any(slope(child) for child in children(expr)):
                # A choice can give the clock to one pod and a constant to another.
                changes.append(_in_a_second)
            return lambda context: min(
                (time for change in changes if (time := change(context)) is not None), default=None
            )
        case _:
            return _in_a_second


def _never(context: EvalContext) -> None:
    return None


def _in_a_second(context: EvalContext) -> int:
    return context.now_ns + _SECOND_NS


def _crossing(expr: e.Compare, program: ExprDeclarations) -> NextChange:
    left, right = compile_scalar(expr.left, program), compile_scalar(expr.right, program)
    growth = slope_difference(expr.left, expr.right)

    def change(context: EvalContext) -> int | None:
        left_ns, right_ns = left(context), right(context)
        if left_ns is None or right_ns is None:
            return None
        assert isinstance(left_ns, int) and isinstance(right_ns, int), f"{left_ns!r} {expr.op} {right_ns!r}"
        return crossing_ns(left_ns - right_ns, growth, context.now_ns)

    return change


def slope(expr: e.Expr) -> int | None:
    """By how many ns an integer value grows per ns; None where the value is not linear in time."""
    if e.Stage.TIME not in stage_of(expr):
        return None if is_floating(expr) or not type_of(expr).is_numeric else 0
    match expr:
        case e.Now() | e.Attr(owner="pod", path=("waited",)):
            return 1
        case e.Arith(op="+" | "-" as op, left=left, right=right, floating=False):
            left_slope, right_slope = slope(left), slope(right)
            if left_slope is None or right_slope is None:
                return None
            return left_slope + right_slope if op == "+" else left_slope - right_slope
        case e.Negate(operand=operand):
            inner = slope(operand)
            return None if inner is None else -inner
        case _:
            return None


def slope_difference(left: e.Expr, right: e.Expr) -> int:
    left_slope, right_slope = slope(left), slope(right)
    assert left_slope is not None and right_slope is not None, "an operand is not linear in time"
    return left_slope - right_slope


def crossing_ns(difference: int, growth: int, now_ns: int) -> int | None:
    """When a difference that grows by `growth` per ns next reaches or leaves 0; None: never."""
    if growth < 0:
        difference, growth = -difference, -growth
    if growth == 0 or difference > 0:
        return None
    if difference == 0:
        return now_ns + 1
    return now_ns - (difference // growth)


def _next_edge_ns(spans: tuple[tuple[int, int], ...], zone: ZoneInfo, now_ns: int) -> int:
    """Half an hour at most: daylight saving changes the offset on half hours."""
    week = 7 * 24 * 60
    minute = minute_of_week(now_ns, zone)
    edges = [(edge - minute) % week or week for span in spans for edge in span]
    this_minute = now_ns - now_ns % _MINUTE_NS
    half_hour = now_ns - now_ns % _HALF_HOUR_NS + _HALF_HOUR_NS
    return min([half_hour, *(this_minute + edge * _MINUTE_NS for edge in edges)])


def time_dependent_parts(expr: e.Expr) -> tuple[list[e.Compare], bool]:
    """The parts of an expression of the node that depend on the clock: the comparisons whose
    crossing can be computed, and whether there are other parts. Conditions of the pod alone are
    left out."""
    if e.Stage.TIME not in stage_of(expr):
        return [], False
    match expr:
        case _ if e.Stage.NODE not in stage_of(expr):
            return [], not isinstance(expr, e.Compare | e.WeeklyWindow | e.Not | e.And | e.Or | e.Has)
        case e.Compare(left=left, right=right) if slope(left) is not None and slope(right) is not None:
            return [expr], False
        case e.CountPodsOnNode():
            return [], True
        case _:
            comparisons, has_others = [], False
            for child in children(expr):
                child_comparisons, child_has_others = time_dependent_parts(child)
                comparisons += child_comparisons
                has_others |= child_has_others
            return comparisons, has_others

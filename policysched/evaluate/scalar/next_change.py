"""When the value of an expression that reads the clock can next change.

A comparison of the clock with a constant flips once, at a computable time; a weekly window changes
at its next edge, a total over pods when the next pod comes of age. Every other use of the clock is
evaluated again after a second.
"""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from operator import or_
from zoneinfo import ZoneInfo

from policysched.evaluate.scalar.compiler import compile_scalar
from policysched.evaluate.scalar.eval_context import EvalContext, ExprDeclarations
from policysched.evaluate.scalar.operations import minute_of_week
from policysched.lang.ir import expr as e
from policysched.lang.ir.clock import compares_linearly, slope, slope_difference
from policysched.lang.ir.expr_analysis import children, stage_of

_SECOND_NS = 10**9
_MINUTE_NS = 60 * _SECOND_NS
_HALF_HOUR_NS = 30 * _MINUTE_NS
_WEEK_MINUTES = 7 * 24 * 60


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
        case e.Compare() if compares_linearly(expr):
            return _crossing(expr, program)
        case e.PodTotal():
            return _of_total(expr, program)
        case e.WeeklyWindow(minute_ranges=spans, time_zone=zone):
            zone_info, edges = ZoneInfo(zone), tuple(chain.from_iterable(spans))
            return lambda context: _next_edge_ns(edges, zone_info, context.now_ns)
        case e.Compare() | e.Arith() | e.Call() if any(map(slope, children(expr))):
            return _in_a_second
        case e.Not() | e.And() | e.Or() | e.Has() | e.Else() | e.If() | e.Compare() | e.Arith() | e.Call():
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


def _of_total(expr: e.PodTotal, program: ExprDeclarations) -> NextChange:
    def change(context: EvalContext) -> int | None:
        assert context.pod_counter is not None, f"the context has no counter for `{expr.span.text}`"
        return context.pod_counter.next_change_ns(expr, program, context)

    return change


def crossing_ns(difference: int, growth: int, now_ns: int) -> int | None:
    """When a difference that grows by `growth` per ns next reaches or leaves 0; None: never."""
    if growth < 0:
        difference, growth = -difference, -growth
    if growth == 0 or difference > 0:
        return None
    if difference == 0:
        return now_ns + 1
    return now_ns - (difference // growth)


def _next_edge_ns(edges: tuple[int, ...], zone: ZoneInfo, now_ns: int) -> int:
    """`edges`: where spans begin and end, sorted. Half an hour at most: daylight saving changes the offset on half hours."""
    minute = minute_of_week(now_ns, zone)
    number = bisect_right(edges, minute)
    edge = edges[number] if number < len(edges) else edges[0] + _WEEK_MINUTES
    this_minute = now_ns - now_ns % _MINUTE_NS
    half_hour = now_ns - now_ns % _HALF_HOUR_NS + _HALF_HOUR_NS
    return min(half_hour, this_minute + (edge - minute) * _MINUTE_NS)


@dataclass(frozen=True, slots=True)
class TimedParts:
    """The parts of expressions of the node that depend on the clock: the comparisons whose crossing can be computed, totals over
    pods of a domain, and whether there are other parts. Conditions of the pod alone are left out."""

    comparisons: tuple[e.Compare, ...] = ()
    totals: tuple[e.PodTotal, ...] = ()
    has_others: bool = False

    def __or__(self, other: "TimedParts") -> "TimedParts":
        return TimedParts(
            self.comparisons + other.comparisons,
            self.totals + other.totals,
            self.has_others or other.has_others,
        )


def time_dependent_parts(expr: e.Expr) -> TimedParts:
    if e.Stage.TIME not in stage_of(expr):
        return TimedParts()
    match expr:
        case e.PodTotal(topology_key=str()):
            return TimedParts(totals=(expr,))
        case _ if e.Stage.NODE not in stage_of(expr):
            timed_alone = e.Compare | e.WeeklyWindow | e.Not | e.And | e.Or | e.Has | e.PodTotal
            return TimedParts(has_others=not isinstance(expr, timed_alone))
        case e.Compare() if compares_linearly(expr):
            return TimedParts(comparisons=(expr,))
        case e.CountPodsOnNode():
            return TimedParts(has_others=True)
        case _:
            return reduce(or_, map(time_dependent_parts, children(expr)), TimedParts())

"""When a value that reads the clock may become another one.

A comparison of a running clock with something that stands still flips once, at a moment that can be computed; a weekly window at
its next edge. Whatever else is made of the clock is looked at again after a second.
"""

from zoneinfo import ZoneInfo

from policysched.evaluate.scalar.compiler import compile_scalar
from policysched.evaluate.scalar.eval_context import EvalContext
from policysched.evaluate.scalar.operations import minute_of_week
from policysched.lang.ir import expr as e
from policysched.lang.ir.program import Program

_SECOND_NS = 10**9
_MINUTE_NS = 60 * _SECOND_NS
_HALF_HOUR_NS = 30 * _MINUTE_NS


def next_change_ns(expr: e.Expr, seen: EvalContext, program: Program, *, running: bool = True) -> int | None:
    """The earliest time after `seen.now_ns` at which the value of an expression of the pod may change; None: never.

    `running` False leaves out a bare clock (`pod.waited`, `now + 5m`), which changes all the time and for all alike.
    """
    if e.Stage.TIME not in e.stage_of(expr):
        return None
    if slope(expr) is not None and not isinstance(expr, e.Compare):
        return seen.now_ns + 1 if running else None
    match expr:
        case e.Compare(left=left, right=right) if slope(left) is not None and slope(right) is not None:
            one, two = compile_scalar(left, program)(seen), compile_scalar(right, program)(seen)
            if one is None or two is None:
                return None
            assert isinstance(one, int) and isinstance(two, int), f"{one!r} {expr.op} {two!r}"
            return crossing_ns(one - two, slope_difference(left, right), seen.now_ns)
        case e.WeeklyWindow(minute_ranges=spans, time_zone=zone):
            return _next_edge_ns(spans, ZoneInfo(zone), seen.now_ns)
        case e.Not() | e.And() | e.Or() | e.Has() | e.Else() | e.If():
            changes = [next_change_ns(child, seen, program, running=running) for child in e.children(expr)]
            if not running and any(slope(child) for child in e.children(expr)):
                changes.append(
                    seen.now_ns + _SECOND_NS
                )  # of a choice one pod has the clock, another what stands still
            return min((change for change in changes if change is not None), default=None)
        case _:
            return seen.now_ns + _SECOND_NS


def slope(expr: e.Expr) -> int | None:
    """How many ns a whole-number value gains a ns; None where that is not one number."""
    if e.Stage.TIME not in e.stage_of(expr):
        return None if e.is_floating(expr) or not e.type_of(expr).is_numeric else 0
    match expr:
        case e.Now() | e.Attr(owner="pod", path=("waited",)):
            return 1
        case e.Arith(op="+" | "-" as op, left=left, right=right, floating=False):
            one, two = slope(left), slope(right)
            if one is None or two is None:
                return None
            return one + two if op == "+" else one - two
        case e.Negate(operand=operand):
            inner = slope(operand)
            return None if inner is None else -inner
        case _:
            return None


def slope_difference(left: e.Expr, right: e.Expr) -> int:
    one, two = slope(left), slope(right)
    assert one is not None and two is not None, "only lines have a slope"
    return one - two


def crossing_ns(difference: int, steep: int, now_ns: int) -> int | None:
    """When a difference that grows by `steep` a ns next reaches 0, or leaves it; None: never."""
    if steep < 0:
        difference, steep = -difference, -steep
    if steep == 0 or difference > 0:
        return None
    if difference == 0:
        return now_ns + 1
    return now_ns - (difference // steep)


def _next_edge_ns(spans: tuple[tuple[int, int], ...], zone: ZoneInfo, now_ns: int) -> int:
    """At the latest after the half hour: clocks are put forward and back on such moments."""
    week = 7 * 24 * 60
    minute = minute_of_week(now_ns, zone)
    edges = [(edge - minute) % week or week for span in spans for edge in span]
    this_minute = now_ns - now_ns % _MINUTE_NS
    half_hour = now_ns - now_ns % _HALF_HOUR_NS + _HALF_HOUR_NS
    return min([half_hour, *(this_minute + edge * _MINUTE_NS for edge in edges)])


def time_dependent_parts(expr: e.Expr) -> tuple[list[e.Compare], bool]:
    """What in an expression of the node runs with the clock: comparisons whose moment can be computed, and whether there is
    anything else. Conditions of the pod alone are not among them."""
    if e.Stage.TIME not in e.stage_of(expr):
        return [], False
    match expr:
        case _ if e.Stage.NODE not in e.stage_of(expr):
            return [], not isinstance(expr, e.Compare | e.WeeklyWindow | e.Not | e.And | e.Or | e.Has)
        case e.Compare(left=left, right=right) if slope(left) is not None and slope(right) is not None:
            return [expr], False
        case e.CountPodsOnNode():
            return [], True
        case _:
            found, vague = [], False
            for child in e.children(expr):
                compares, other = time_dependent_parts(child)
                found += compares
                vague |= other
            return found, vague

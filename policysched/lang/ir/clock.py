"""How an expression depends on the clock: values that are linear in time, and comparisons of them, which flip once."""

from collections.abc import Iterator

from policysched.lang.ir.expr import Arith, Attr, Compare, Expr, Negate, Now, PodTotal, Stage, WeeklyWindow
from policysched.lang.ir.expr_analysis import children, is_floating, stage_of, type_of


def slope(expr: Expr) -> int | None:
    """By how many ns an integer value grows per ns; None where the value is not linear in time."""
    if Stage.TIME not in stage_of(expr):
        return None if is_floating(expr) or not type_of(expr).is_numeric else 0
    match expr:
        case Now() | Attr(owner="pod", path=("waited",)):
            return 1
        case Arith(op="+" | "-" as op, left=left, right=right, floating=False):
            left_slope, right_slope = slope(left), slope(right)
            if left_slope is None or right_slope is None:
                return None
            return left_slope + right_slope if op == "+" else left_slope - right_slope
        case Negate(operand=operand):
            inner = slope(operand)
            return None if inner is None else -inner
        case _:
            return None


def slope_difference(left: Expr, right: Expr) -> int:
    left_slope, right_slope = slope(left), slope(right)
    assert left_slope is not None and right_slope is not None, "an operand is not linear in time"
    return left_slope - right_slope


def compares_linearly(expr: Expr) -> bool:
    """Whether it compares values that are linear in time, so that the result flips once, at a computable time."""
    return isinstance(expr, Compare) and slope(expr.left) is not None and slope(expr.right) is not None


def clock_reads_outside_comparisons(expr: Expr) -> Iterator[Expr]:
    """Reads of the clock that are not in a linear comparison."""
    if Stage.TIME not in stage_of(expr) or compares_linearly(expr):
        return
    if isinstance(expr, Now | WeeklyWindow | Attr):
        yield expr
    for child in children(expr):
        yield from clock_reads_outside_comparisons(child)


def reads_clock_beside_totals(expr: Expr) -> bool:
    """Whether it reads the clock elsewhere than in the condition of a total over pods."""
    if isinstance(expr, PodTotal) or Stage.TIME not in stage_of(expr):
        return False
    parts = children(expr)
    return not parts or any(reads_clock_beside_totals(part) for part in parts)

"""Rounding of aggregates over nodes, so that results do not depend on the order of summation.

A sum of floats depends on their order, and subtracting a term again is inexact. The values of one aggregate (before and
after placement) are therefore rounded to multiples of a power of two, fine enough that the largest has `GRID_BITS` bits,
or `STDDEV_GRID_BITS` for a standard deviation, where squares are summed. All further steps are exact up to one final
rounding.

An aggregate nested in one with `body_after_placement` is one number for all nodes, but differs by the candidate that the
pod is placed on. The outer body is evaluated once for each distinct number; where there are too many, they are rounded to
a grid as well (`grid_step_exponent`).
"""

import math

from policysched.lang.ir import expr as e
from policysched.lang.ir.expr_analysis import children

GRID_BITS = 45
"""For sums and means: one part in 35,000,000,000,000 of the largest value."""

STDDEV_GRID_BITS = 30
"""For standard deviations: one part in 1,000,000,000 of the largest value."""

CANDIDATES_MAX = 2**16
"""More candidates would overflow 64 bits."""

STEP_BITS = 5
"""More than `2 ** STEP_BITS` distinct numbers are rounded to at most one more than that."""


def outermost_aggregates(*exprs: e.Expr) -> tuple[e.Aggregate, ...]:
    """The distinct aggregates that are not nested in another one."""
    aggregates: dict[e.Aggregate, None] = {}
    pending = list(reversed(exprs))
    while pending:
        expr = pending.pop()
        if isinstance(expr, e.Aggregate):
            aggregates[expr] = None
        else:
            pending.extend(reversed(children(expr)))
    return tuple(aggregates)


def nested_aggregates(expr: e.Aggregate) -> tuple[e.Aggregate, ...]:
    """The nested aggregates that are one number at all nodes for each candidate that the pod is placed on."""
    return (
        ()
        if expr.body_after_placement is None
        else outermost_aggregates(expr.body, expr.body_after_placement)
    )


def grid_step_exponent(lowest: int | float, highest: int | float) -> int | None:
    """The exponent of the power of two to whose multiples numbers in this range are rounded; None where all are equal."""
    if isinstance(lowest, int) and isinstance(highest, int):
        return max(0, (highest - lowest).bit_length() - STEP_BITS)
    half = highest / 2 - lowest / 2
    return None if half == 0 else math.frexp(half)[1] + 1 - STEP_BITS

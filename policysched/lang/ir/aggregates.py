"""What plan and oracle agree on about sums over many nodes.

A sum of floats depends on their order, and what was added to it cannot be taken out again exactly. So the values of one
aggregate (before and after placing) are rounded to a grid first: whole multiples of a power of two, fine enough that the largest of
them has `GRID_BITS` bits, or `STDDEV_GRID_BITS` for a standard deviation, where squares are summed. Then all is exact until
one last rounding.

An aggregate in the value of one that is `placed` is one number for all nodes, but another one for each candidate that the pod is thought
on. So the value is worked out once for each number that the candidates see; where these are too many they are brought onto a grid,
too (`steps`).
"""

import math

from policysched.lang.ir import expr as e

GRID_BITS = 45
"""For sums and means: one part in 35,000,000,000,000 of the largest value."""

STDDEV_GRID_BITS = 30
"""For standard deviations: one part in 1,000,000,000 of the largest value."""

CANDIDATES_MAX = 2**16
"""So many candidates at most: more would not fit in 64 bits."""

STEP_BITS = 5
"""Where candidates see more than `2 ** STEP_BITS` numbers, these are brought to at most one more than so many."""


def outermost_aggregates(*exprs: e.Expr) -> tuple[e.Aggregate, ...]:
    """Those in the expressions that are in no other one, each once."""
    found: dict[e.Aggregate, None] = {}
    pending = list(reversed(exprs))
    while pending:
        one = pending.pop()
        if isinstance(one, e.Aggregate):
            found[one] = None
        else:
            pending.extend(reversed(e.children(one)))
    return tuple(found)


def nested_aggregates(expr: e.Aggregate) -> tuple[e.Aggregate, ...]:
    """The aggregates that are one number at all nodes while the pod is thought on one of them."""
    return (
        ()
        if expr.body_after_placement is None
        else outermost_aggregates(expr.body, expr.body_after_placement)
    )


def grid_step_exponent(lowest: int | float, highest: int | float) -> int | None:
    """The exponent of two of whose whole multiples numbers between these are made; None where they stay as they are: all are equal."""
    if isinstance(lowest, int) and isinstance(highest, int):
        return max(0, (highest - lowest).bit_length() - STEP_BITS)
    half = highest / 2 - lowest / 2
    return None if half == 0 else math.frexp(half)[1] + 1 - STEP_BITS

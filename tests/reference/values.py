"""Runtime values and total arithmetic.

Integers saturate at the limits of int64, floats at the largest finite float64. An undefined result
(division by zero, logarithm of zero) is MISSING, like an absent label.
"""

import math
from collections.abc import Callable
from enum import Enum
from fractions import Fraction
from typing import Final

from policysched.lang.types.kinds import FLOAT64_MAX
from policysched.lang.types.records import RecordValue
from policysched.model.quantity import INT64_MAX, INT64_MIN


class Missing(Enum):
    """The type of MISSING; an enum, so that type checkers can narrow it."""

    MISSING = "missing"

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = Missing.MISSING

Number = int | float
Present = bool | int | float | str | tuple[int | float | str, ...] | tuple[RecordValue, ...]
Value = Present | Missing


def saturated(number: int) -> int:
    """The nearest integer within int64."""
    return max(INT64_MIN, min(INT64_MAX, number))


def finite(number: float) -> float:
    """The nearest finite float64."""
    assert number == number, "no operation of the language makes a NaN of finite operands"
    return max(-FLOAT64_MAX, min(FLOAT64_MAX, number))


def arithmetic(op: str, left: Number, right: Number, *, floating: bool) -> Number | Missing:
    """`left op right`, in float64 if `floating`, else in int64 where `/` rounds toward minus
    infinity."""
    if op == "/" and right == 0:
        return MISSING
    if floating:
        return finite(_FLOAT_OPERATIONS[op](float(left), float(right)))
    assert isinstance(left, int) and isinstance(right, int), (
        f"{left!r} {op} {right!r} is not of whole numbers"
    )
    return saturated(_WHOLE_OPERATIONS[op](left, right))


_FLOAT_OPERATIONS: dict[str, Callable[[float, float], float]] = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    "/": lambda left, right: left / right,
}
_WHOLE_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    "/": lambda left, right: left // right,
}


def rounded(function: str, number: Number) -> int:
    """`floor`, `ceil`, `trunc`, or `round` in one of its modes, as an int64."""
    if isinstance(number, int):
        return number
    match function:
        case "floor":
            return saturated(math.floor(number))
        case "ceil":
            return saturated(math.ceil(number))
        case "trunc":
            return saturated(int(number))
        case "round_half_up":
            # Exactly, for `floor(number + 0.5)` is wrong just below a half and far from zero.
            return saturated(math.floor(Fraction(number) + Fraction(1, 2)))
        case "round_half_away":
            away = math.floor(abs(Fraction(number)) + Fraction(1, 2))
            return saturated(away if number >= 0 else -away)
        case _:
            return saturated(round(number))


def transcendental(function: str, number: float) -> float | Missing:
    """`sqrt`, `log` or `exp`; outside the domain there is no answer."""
    match function:
        case "sqrt":
            return math.sqrt(number) if number >= 0 else MISSING
        case "log":
            return math.log(number) if number > 0 else MISSING
        case _:
            try:
                return math.exp(number)
            except OverflowError:
                return FLOAT64_MAX

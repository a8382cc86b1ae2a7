"""Scalar arithmetic of the language: saturating int64 and finite float64, as defined in `lang.ir.expr`.

Constant folding uses it. An undefined result (division by zero, the logarithm of zero) is None.
"""

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction

from policysched.lang.ir.distributions import beta_cdf, normal_cdf
from policysched.lang.ir.expr import CompareOp, Function
from policysched.lang.types.kinds import FLOAT64_MAX
from policysched.model.quantity import INT64_MAX, INT64_MIN

Number = int | float


def saturate(value: int) -> int:
    return max(INT64_MIN, min(INT64_MAX, value))


def clamp_finite(value: float) -> float:
    """The value clamped to the finite range; NaN becomes 0."""
    if math.isnan(value):
        return 0.0
    return max(-FLOAT64_MAX, min(FLOAT64_MAX, value))


def exact_total(numbers: Sequence[Number], *, floating: bool) -> Number:
    """The sum, independent of the order: integers exactly and then saturated, floats with a single rounding at the end."""
    if not floating:
        return saturate(sum(int(number) for number in numbers))
    try:
        return clamp_finite(math.fsum(numbers))
    except OverflowError:  # an intermediate sum; at that size one more rounding does not matter
        return clamp_finite(sum(sorted(map(float, numbers))))


ExactNumber = int | Fraction
"""A total that is not rounded or saturated yet, so that parts can be added and subtracted in any order."""


def exact_number(number: Number, *, floating: bool) -> ExactNumber:
    return Fraction(number) if floating else int(number)


def rounded_total(total: ExactNumber, *, floating: bool) -> Number:
    """The total with a single rounding, saturated to int64 or to the largest float64."""
    if not floating:
        return saturate(int(total))
    try:
        return clamp_finite(float(total))
    except OverflowError:
        return math.copysign(FLOAT64_MAX, total)


def integer_sum(numbers: Iterable[int], *, floating: bool) -> Number:
    """The exact sum of integers that are not negative, saturated to int64 or to the largest float64."""
    total = sum(numbers)
    return float(min(total, int(FLOAT64_MAX))) if floating else saturate(total)


def arithmetic(op: str, left: Number, right: Number, *, floating: bool) -> Number | None:
    """`left op right`, for `+ - * /`. Integer division rounds toward minus infinity."""
    if floating:
        return _float_arithmetic(op, float(left), float(right))
    assert isinstance(left, int) and isinstance(right, int), (op, left, right)
    match op:
        case "+":
            return saturate(left + right)
        case "-":
            return saturate(left - right)
        case "*":
            return saturate(left * right)
        case _:
            return None if right == 0 else saturate(left // right)


def _float_arithmetic(op: str, left: float, right: float) -> float | None:
    match op:
        case "+":
            return clamp_finite(left + right)
        case "-":
            return clamp_finite(left - right)
        case "*":
            return clamp_finite(left * right)
        case _:
            return None if right == 0 else clamp_finite(left / right)


def negate(value: Number) -> Number:
    return saturate(-value) if isinstance(value, int) else -value


def compare(op: CompareOp, left: bool | Number | str, right: bool | Number | str) -> bool:
    """Both have one dimension; with a float on one side, the other is converted to float first."""
    if isinstance(left, float) or isinstance(right, float):
        left, right = float(left), float(right)
    match op:
        case "==":
            return left == right
        case "!=":
            return left != right
        case "<":
            return left < right  # type: ignore[operator]  # the checker ensures numbers
        case "<=":
            return left <= right  # type: ignore[operator]
        case ">":
            return left > right  # type: ignore[operator]
        case ">=":
            return left >= right  # type: ignore[operator]


def call(function: Function, args: Sequence[Number], *, floating: bool) -> Number | None:
    """The value of a function; `round` rounds half to even, `clamp(x, lo, hi)` is `min(max(x, lo), hi)`."""
    match function:
        case "min" | "max" | "clamp" | "abs":
            values = [float(arg) for arg in args] if floating else list(args)
            return _choose(function, values)
        case "floor" | "ceil" | "round" | "round_half_up" | "round_half_away" | "trunc":
            return _round_to_int(function, args[0])
        case "normal_cdf":
            return normal_cdf(float(args[0]), float(args[1]), float(args[2]))
        case "beta_cdf":
            return beta_cdf(float(args[0]), float(args[1]), float(args[2]))
        case "sqrt":
            return None if args[0] < 0 else math.sqrt(float(args[0]))
        case "log":
            return None if args[0] <= 0 else math.log(float(args[0]))
        case "exp":
            try:
                return clamp_finite(math.exp(float(args[0])))
            except OverflowError:
                return FLOAT64_MAX


def _choose(function: Function, values: list[Number]) -> Number:
    match function:
        case "min":
            return min(values)
        case "max":
            return max(values)
        case "clamp":
            return min(max(values[0], values[1]), values[2])
        case _:
            value = abs(values[0])
            return saturate(value) if isinstance(value, int) else value


def _round_to_int(function: Function, value: Number) -> int:
    if isinstance(value, int):
        return value
    match function:
        case "floor":
            return saturate(math.floor(value))
        case "ceil":
            return saturate(math.ceil(value))
        case "trunc":
            return saturate(math.trunc(value))
        case "round_half_up":
            low = math.floor(value)
            return saturate(low + (value - low >= 0.5))
        case "round_half_away":
            magnitude = math.floor(abs(value))
            return saturate(int(math.copysign(magnitude + (abs(value) - magnitude >= 0.5), value)))
        case _:
            return saturate(round(value))

"""The functions of the policy language on arrays: rounding, roots and logarithms, distributions.

Each returns values and the mask of defined ones: outside its domain a function has no value.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.saturating_arithmetic import saturating_negate
from policysched.evaluate.vector.distributions import beta_cdf, normal_cdf
from policysched.lang.types.kinds import FLOAT64_MAX
from policysched.model.quantity import INT64_MAX, INT64_MIN

FunctionResult = tuple[Array, Array | bool]


def as_float(values: Array) -> Array:
    return values.astype(np.float64)


def finite(values: Array) -> Array:
    return np.clip(values, -FLOAT64_MAX, FLOAT64_MAX)


def _smallest(args: Sequence[Array]) -> FunctionResult:
    least = args[0]
    for arg in args[1:]:
        least = np.minimum(least, arg)
    return (least, True)


def _largest(args: Sequence[Array]) -> FunctionResult:
    greatest = args[0]
    for arg in args[1:]:
        greatest = np.maximum(greatest, arg)
    return (greatest, True)


def _clamp(args: Sequence[Array]) -> FunctionResult:
    """The upper bound wins where the bounds are in the wrong order."""
    return (np.minimum(np.maximum(args[0], args[1]), args[2]), True)


def _absolute_value(args: Sequence[Array]) -> FunctionResult:
    values = args[0]
    if values.dtype == np.float64:
        return (np.abs(values), True)
    return (np.where(values < 0, saturating_negate(values), values), True)


def _rounding(function: Callable[[Array], Array]) -> Callable[[Sequence[Array]], FunctionResult]:
    def run(args: Sequence[Array]) -> FunctionResult:
        values = args[0]
        return (to_int64(function(values)) if values.dtype == np.float64 else values, True)

    return run


def _half_up(values: Array) -> Array:
    """Not `floor(values + 0.5)`, which is wrong just below a half."""
    low = np.floor(values)
    return np.where(values - low >= 0.5, low + 1.0, low)


def to_int64(values: Array) -> Array:
    """Floats without a fraction as int64, saturating."""
    low, high = values <= float(INT64_MIN), values >= float(INT64_MAX)
    inside = np.where(low | high, 0.0, values).astype(np.int64)
    return np.where(high, INT64_MAX, np.where(low, INT64_MIN, inside))


def _root(args: Sequence[Array]) -> FunctionResult:
    values = as_float(args[0])
    return (np.sqrt(np.maximum(values, 0.0)), values >= 0)


def _logarithm(args: Sequence[Array]) -> FunctionResult:
    # NumPy's own log and exp may differ in the last bit between machines.
    values = as_float(args[0])
    return (_map_values(math.log, np.where(values > 0, values, 1.0)), values > 0)


def _exponential(args: Sequence[Array]) -> FunctionResult:
    return (_map_values(_exp, as_float(args[0])), True)


def _exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return FLOAT64_MAX


def _map_values(function: Callable[[float], float], values: Array) -> Array:
    return np.array([function(value) for value in values.ravel().tolist()], np.float64).reshape(values.shape)


FUNCTIONS: dict[str, Callable[[Sequence[Array]], FunctionResult]] = {
    "min": _smallest,
    "max": _largest,
    "clamp": _clamp,
    "abs": _absolute_value,
    "floor": _rounding(np.floor),
    "ceil": _rounding(np.ceil),
    "round": _rounding(np.rint),
    "round_half_up": _rounding(_half_up),
    "round_half_away": _rounding(lambda values: np.copysign(_half_up(np.abs(values)), values)),
    "trunc": _rounding(np.trunc),
    "sqrt": _root,
    "log": _logarithm,
    "exp": _exponential,
    "normal_cdf": lambda args: (normal_cdf([as_float(arg) for arg in args]), True),
    "beta_cdf": lambda args: (beta_cdf([as_float(arg) for arg in args]), True),
}

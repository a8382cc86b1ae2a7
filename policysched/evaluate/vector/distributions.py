"""The distributions of `lang.ir.distributions` on arrays.

The same operations in the same order give results that are equal to the last bit. Logarithms and
other transcendental functions are evaluated number by number, because NumPy's own may differ
between machines.
"""

from collections.abc import Callable, Sequence

import numpy as np

from policysched.evaluate.columns.columns import Array
from policysched.lang.ir import distributions as plain


def normal_cdf(args: Sequence[Array]) -> Array:
    return _map_rows(plain.normal_cdf, args)


def beta_cdf(args: Sequence[Array]) -> Array:
    """Evaluates each distinct triple once, because similar nodes have equal ones, and the continued
    fractions of all triples together."""
    x, mean, deviation = (arg.ravel() for arg in np.broadcast_arrays(*args))
    shape = np.broadcast_shapes(*(arg.shape for arg in args))
    indexes: dict[tuple[float, float, float], int] = {}
    rows = [
        indexes.setdefault(key, len(indexes))
        for key in zip(x.tolist(), mean.tolist(), deviation.tolist(), strict=True)
    ]
    probabilities = np.zeros(len(indexes))
    fractions: list[tuple[int, plain.BetaContinuedFraction]] = []
    for index, key in enumerate(indexes):
        result = plain.beta_cdf_or_fraction(*key)
        if isinstance(result, plain.BetaContinuedFraction):
            fractions.append((index, result))
        else:
            probabilities[index] = result
    if fractions:
        parameters = zip(*((fraction.x, fraction.a, fraction.b) for _, fraction in fractions), strict=True)
        values = _continued_fractions(*(np.array(column) for column in parameters))
        for (index, fraction), value in zip(fractions, values.tolist(), strict=True):
            probabilities[index] = fraction.to_probability(value)
    return probabilities[rows].reshape(shape)


def _map_rows(function: Callable[[float, float, float], float], args: Sequence[Array]) -> Array:
    shape = np.broadcast_shapes(*(arg.shape for arg in args))
    columns = [np.broadcast_to(arg, shape).ravel().tolist() for arg in args]
    return np.array([function(*row) for row in zip(*columns, strict=True)], np.float64).reshape(shape)


def _continued_fractions(x: Array, a: Array, b: Array) -> Array:
    """As `lang.ir.distributions.evaluate_continued_fraction`; converged values drop out of the iteration."""
    result = np.empty(len(x))
    active = np.arange(len(x))
    c = np.ones(len(x))
    d = 1.0 / _avoid_zero(1.0 - (a + b) * x / (a + 1.0))
    value = d.copy()
    for step in range(1, plain.LENTZ_STEPS_MAX):
        twice = a + 2.0 * step
        even = step * (b - step) * x / ((twice - 1.0) * twice)
        d = 1.0 / _avoid_zero(1.0 + even * d)
        c = _avoid_zero(1.0 + even / c)
        value = value * (d * c)
        odd = -(a + step) * (a + b + step) * x / (twice * (twice + 1.0))
        d = 1.0 / _avoid_zero(1.0 + odd * d)
        c = _avoid_zero(1.0 + odd / c)
        change = d * c
        value = value * change
        converged = np.abs(change - 1.0) < plain.CONVERGENCE_TOLERANCE
        if converged.any():
            result[active[converged]] = value[converged]
            remaining = ~converged
            if not remaining.any():
                return result
            active, x, a, b = active[remaining], x[remaining], a[remaining], b[remaining]
            c, d, value = c[remaining], d[remaining], value[remaining]
    result[active] = value
    return result


def _avoid_zero(values: Array) -> Array:
    """Replace values near zero, by which Lentz's method cannot divide."""
    return np.where(np.abs(values) > plain.LENTZ_TINY, values, plain.LENTZ_TINY)

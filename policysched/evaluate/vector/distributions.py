"""The distributions of `lang.ir.distributions` on arrays: the same operations in the same order, so that the answers are the same to
the last bit. Logarithms and their kin are taken number by number, for NumPy's own may differ from machine to machine."""

from collections.abc import Callable, Sequence

import numpy as np

from policysched.evaluate.columns.columns import Array
from policysched.lang.ir import distributions as plain


def normal_cdf(args: Sequence[Array]) -> Array:
    return _map_rows(plain.normal_cdf, args)


def beta_cdf(args: Sequence[Array]) -> Array:
    """Each distinct triple once: where nodes are alike, and for those that no distribution fits, there is little to do. The
    continued fraction is worked out for all together."""
    x, mean, deviation = (one.ravel() for one in np.broadcast_arrays(*args))
    shape = np.broadcast_shapes(*(one.shape for one in args))
    places: dict[tuple[float, float, float], int] = {}
    rows = [
        places.setdefault(key, len(places))
        for key in zip(x.tolist(), mean.tolist(), deviation.tolist(), strict=True)
    ]
    found = np.zeros(len(places))
    fractions: list[tuple[int, plain.BetaContinuedFraction]] = []
    for place, key in enumerate(places):
        settled = plain.beta_cdf_or_fraction(*key)
        if isinstance(settled, plain.BetaContinuedFraction):
            fractions.append((place, settled))
        else:
            found[place] = settled
    if fractions:
        values = _continued_fractions(
            *(
                np.array(column)
                for column in zip(*((one.x, one.a, one.b) for _, one in fractions), strict=True)
            )
        )
        for (place, one), value in zip(fractions, values.tolist(), strict=True):
            found[place] = one.to_probability(value)
    return found[rows].reshape(shape)


def _map_rows(function: Callable[[float, float, float], float], args: Sequence[Array]) -> Array:
    shape = np.broadcast_shapes(*(one.shape for one in args))
    columns = [np.broadcast_to(one, shape).ravel().tolist() for one in args]
    return np.array([function(*row) for row in zip(*columns, strict=True)], np.float64).reshape(shape)


def _continued_fractions(x: Array, a: Array, b: Array) -> Array:
    """As `lang.ir.distributions.fraction`; what is near enough leaves, the others go on."""
    result = np.empty(len(x))
    alive = np.arange(len(x))
    c = np.ones(len(x))
    d = 1.0 / _avoid_zero(1.0 - (a + b) * x / (a + 1.0))
    found = d.copy()
    for step in range(1, plain.LENTZ_STEPS_MAX):
        twice = a + 2.0 * step
        even = step * (b - step) * x / ((twice - 1.0) * twice)
        d = 1.0 / _avoid_zero(1.0 + even * d)
        c = _avoid_zero(1.0 + even / c)
        found = found * (d * c)
        odd = -(a + step) * (a + b + step) * x / (twice * (twice + 1.0))
        d = 1.0 / _avoid_zero(1.0 + odd * d)
        c = _avoid_zero(1.0 + odd / c)
        change = d * c
        found = found * change
        near = np.abs(change - 1.0) < plain.CONVERGENCE_TOLERANCE
        if near.any():
            result[alive[near]] = found[near]
            left = ~near
            if not left.any():
                return result
            alive, x, a, b = alive[left], x[left], a[left], b[left]
            c, d, found = c[left], d[left], found[left]
    result[alive] = found
    return result


def _avoid_zero(values: Array) -> Array:
    """From zero, which Lentz's method cannot divide by."""
    return np.where(np.abs(values) > plain.LENTZ_TINY, values, plain.LENTZ_TINY)

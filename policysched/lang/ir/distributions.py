"""Cumulative distribution functions: how likely a value is at most `x`.

A Beta distribution is given by its mean and standard deviation, as measured. The function is total: where no Beta
distribution has this mean and deviation, the result is 0.

The regularised incomplete beta function is computed in logarithms, so that narrow distributions neither underflow nor
lose digits. The prefactor follows C. Loader, "Fast and Accurate Computation of Binomial Probabilities" (2000); the
continued fraction is evaluated by Lentz's method. Above `a + b` of a million, where that takes hundreds of steps,
the leading terms of N. M. Temme's uniform expansion ("Incomplete Laplace integrals", 1987) are used, which are exact to
nine digits there.
"""

import math
from dataclasses import dataclass

from policysched.lang.types.kinds import FLOAT64_MAX

SQRT_2 = math.sqrt(2.0)
SQRT_TWO_PI = math.sqrt(2.0 * math.pi)
HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)
BETA_SIZE_MAX = 1e15
"""Of `a + b`: a larger size is narrower than float64 can distinguish from the mean."""
TEMME_SIZE_MIN = 1e6
TEMME_CENTER_MAX = 0.01
LENTZ_STEPS_MAX = 50_000
CONVERGENCE_TOLERANCE = 1e-15
LENTZ_TINY = 1e-300


def normal_cdf(x: float, mean: float, deviation: float) -> float:
    """With a deviation of 0 or less: 1 at the mean and above, 0 below it."""
    if deviation <= 0:
        return 1.0 if mean <= x else 0.0
    far = max(-FLOAT64_MAX, min(FLOAT64_MAX, x - mean)) / deviation
    return 0.5 * math.erfc(-far / SQRT_2)


def beta_cdf(x: float, mean: float, deviation: float) -> float:
    """`beta_cdf` of single numbers."""
    result = beta_cdf_or_fraction(x, mean, deviation)
    return (
        result.to_probability(evaluate_continued_fraction(result.x, result.a, result.b))
        if isinstance(result, BetaContinuedFraction)
        else result
    )


def beta_cdf_or_fraction(x: float, mean: float, deviation: float) -> "float | BetaContinuedFraction":
    """The mean is clamped to 0..1. With a mean of 0: 1 for `x >= 0`, else 0. With a deviation of 0 or less: 1 at the mean
    and above, 0 below it. With a variance too large for a Beta distribution of this mean: 0."""
    mean = min(max(mean, 0.0), 1.0)
    if mean == 0:
        return 1.0 if x >= 0 else 0.0
    spread, variance = mean * (1.0 - mean), max(deviation, 0.0) * max(deviation, 0.0)
    if variance == 0 or spread > variance * BETA_SIZE_MAX:
        return 1.0 if mean <= x else 0.0
    size = spread / variance - 1.0
    if size <= 0 or x <= 0:
        return 0.0
    if x >= 1:
        return 1.0
    return incomplete_beta(x, mean * size, (1.0 - mean) * size)


def incomplete_beta(x: float, a: float, b: float) -> "float | BetaContinuedFraction":
    """`I_x(a, b)` for `0 < x < 1` and `a, b > 0`, or the continued fraction that remains to be evaluated."""
    size = a + b
    if size > TEMME_SIZE_MIN:
        return _temme_expansion(x, a, b)
    front = _prefactor(x, a, b)
    if x < (a + 1.0) / (size + 2.0):
        return BetaContinuedFraction(x, a, b, front / a, is_upper_tail=False)
    return BetaContinuedFraction(1.0 - x, b, a, front / b, is_upper_tail=True)


@dataclass(frozen=True, slots=True)
class BetaContinuedFraction:
    """The probability is `factor` times the continued fraction of `x, a, b`, with `is_upper_tail` 1 minus that."""

    x: float
    a: float
    b: float
    factor: float
    is_upper_tail: bool

    def to_probability(self, value: float) -> float:
        part = min(max(self.factor * value, 0.0), 1.0)
        return 1.0 - part if self.is_upper_tail else part


def _prefactor(x: float, a: float, b: float) -> float:
    """`x^a (1 - x)^b / B(a, b)`."""
    size = a + b
    logarithm = (
        stirling_error(size)
        - stirling_error(a)
        - stirling_error(b)
        - deviance(a, size * x)
        - deviance(b, size * (1.0 - x))
    )
    return math.exp(logarithm) * (math.sqrt(a / size * b) / SQRT_TWO_PI)


def stirling_error(z: float) -> float:
    """The error of Stirling's formula for `log(z!)`."""
    if z < 16:
        return math.lgamma(z + 1.0) - (z + 0.5) * math.log(z) + z - HALF_LOG_TWO_PI
    square = z * z
    return (1 / 12 - (1 / 360 - (1 / 1260 - (1 / 1680 - 1 / 1188 / square) / square) / square) / square) / z


def deviance(z: float, expected: float) -> float:
    """`z log(z / expected) + expected - z`, which is 0 where the two are equal."""
    off = (expected - z) / z
    return z * (off - math.log1p(off))


def evaluate_continued_fraction(x: float, a: float, b: float) -> float:
    c, d = 1.0, 1.0 - (a + b) * x / (a + 1.0)
    d = 1.0 / (d if abs(d) > LENTZ_TINY else LENTZ_TINY)
    value = d
    for step in range(1, LENTZ_STEPS_MAX):
        twice = a + 2.0 * step
        even = step * (b - step) * x / ((twice - 1.0) * twice)
        d = 1.0 + even * d
        d = 1.0 / (d if abs(d) > LENTZ_TINY else LENTZ_TINY)
        c = 1.0 + even / c
        c = c if abs(c) > LENTZ_TINY else LENTZ_TINY
        value = value * (d * c)
        odd = -(a + step) * (a + b + step) * x / (twice * (twice + 1.0))
        d = 1.0 + odd * d
        d = 1.0 / (d if abs(d) > LENTZ_TINY else LENTZ_TINY)
        c = 1.0 + odd / c
        c = c if abs(c) > LENTZ_TINY else LENTZ_TINY
        change = d * c
        value = value * change
        if abs(change - 1.0) < CONVERGENCE_TOLERANCE:
            break
    return value


def _temme_expansion(x: float, a: float, b: float) -> float:
    size = a + b
    center = a / size
    width = math.sqrt(center * (b / size))
    away = math.sqrt(2.0 * max(deviance(a, size * x) + deviance(b, size * (1.0 - x)), 0.0))
    if x < center:
        away = -away
    if abs(away) < TEMME_CENTER_MAX:
        skew = (1.0 - 2.0 * center) / (3.0 * width)
    else:
        skew = math.sqrt(size) / away - width / (x - center)
    density = math.exp(-0.5 * away * away) / (SQRT_TWO_PI * math.sqrt(size))
    return min(max(0.5 * math.erfc(-away / SQRT_2) + density * skew, 0.0), 1.0)

"""Cumulative distribution functions: how likely a value is at most `x`.

A Beta distribution is given by its mean and standard deviation, as measurements give them, and has a meaning for every
argument: where no Beta distribution fits, nothing is certain and the answer is 0.

The regularised incomplete beta function is worked out in logarithms, so that narrow distributions neither underflow nor
lose their digits: the factor in front after C. Loader, "Fast and Accurate Computation of Binomial Probabilities" (2000),
the continued fraction by Lentz's method, and beyond four million of `a + b`, where it would take thousands of steps, the leading
terms of N. M. Temme's uniform expansion ("Incomplete Laplace integrals", 1987), exact to nine digits there.
"""

import math
from dataclasses import dataclass

from policysched.lang.types.kinds import FLOAT64_MAX

SQRT_2 = math.sqrt(2.0)
SQRT_TWO_PI = math.sqrt(2.0 * math.pi)
HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)
BETA_SIZE_MAX = 1e15
"""Of `a + b`: beyond it a distribution is narrower than float64 can tell from its mean."""
TEMME_SIZE_MIN = 4e6
TEMME_CENTER_MAX = 0.01
LENTZ_STEPS_MAX = 50_000
CONVERGENCE_TOLERANCE = 1e-15
LENTZ_TINY = 1e-300


def normal_cdf(x: float, mean: float, deviation: float) -> float:
    """Of a deviation of 0 (or less): 1 from the mean on, 0 below it."""
    if deviation <= 0:
        return 1.0 if mean <= x else 0.0
    far = max(-FLOAT64_MAX, min(FLOAT64_MAX, x - mean)) / deviation
    return 0.5 * math.erfc(-far / SQRT_2)


def beta_cdf(x: float, mean: float, deviation: float) -> float:
    """The meaning of `beta_cdf`, one number at a time."""
    found = beta_cdf_or_fraction(x, mean, deviation)
    return (
        found.to_probability(evaluate_continued_fraction(found.x, found.a, found.b))
        if isinstance(found, BetaContinuedFraction)
        else found
    )


def beta_cdf_or_fraction(x: float, mean: float, deviation: float) -> "float | BetaContinuedFraction":
    """Of a mean of 0 (or less): 1 from 0 on. Of a deviation of 0 (or less): 1 from the mean on, 0 below it. A mean above
    1 counts as 1; where the variance is too large for a Beta distribution of this mean: 0."""
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
    """`I_x(a, b)` for `0 < x < 1` and `a, b > 0`, or the continued fraction that it still takes."""
    size = a + b
    if size > TEMME_SIZE_MIN:
        return _temme_expansion(x, a, b)
    front = _prefactor(x, a, b)
    if x < (a + 1.0) / (size + 2.0):
        return BetaContinuedFraction(x, a, b, front / a, is_upper_tail=False)
    return BetaContinuedFraction(1.0 - x, b, a, front / b, is_upper_tail=True)


@dataclass(frozen=True, slots=True)
class BetaContinuedFraction:
    """`factor` times the continued fraction of `x, a, b` is the answer; `is_upper_tail`: 1 less that."""

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
    """What Stirling's formula lacks of `log(z!)`."""
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
    found = d
    for step in range(1, LENTZ_STEPS_MAX):
        twice = a + 2.0 * step
        even = step * (b - step) * x / ((twice - 1.0) * twice)
        d = 1.0 + even * d
        d = 1.0 / (d if abs(d) > LENTZ_TINY else LENTZ_TINY)
        c = 1.0 + even / c
        c = c if abs(c) > LENTZ_TINY else LENTZ_TINY
        found = found * (d * c)
        odd = -(a + step) * (a + b + step) * x / (twice * (twice + 1.0))
        d = 1.0 + odd * d
        d = 1.0 / (d if abs(d) > LENTZ_TINY else LENTZ_TINY)
        c = 1.0 + odd / c
        c = c if abs(c) > LENTZ_TINY else LENTZ_TINY
        change = d * c
        found = found * change
        if abs(change - 1.0) < CONVERGENCE_TOLERANCE:
            break
    return found


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

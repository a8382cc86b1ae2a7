"""Normalizers of a policy's own scores: `prefer`, `range`, `max` and `minmax`.

The formulas are those of `lang.ir.program`. Integers stay exact; where the value or a bound is
float64, all operands are, in the order of the formula.
"""

import math
from collections.abc import Hashable

import numpy as np

from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.saturating_arithmetic import percent
from policysched.evaluate.kernel import MAX_SCORE, Normalizer
from policysched.evaluate.vector.functions import finite, to_int64
from policysched.lang.ir import arithmetic
from policysched.lang.ir.arithmetic import Number
from policysched.lang.ir.rules import Direction, MaxNormalize, MinMaxNormalize, RangeNormalize, ScoreRule


def normalizer_of(rule: ScoreRule) -> Normalizer:
    lower = rule.direction is Direction.LOWER
    match rule.normalize:
        case None:
            assert rule.direction is Direction.PREFER, f"score {rule.name} has no normalizer"
            return PreferNormalizer()
        case RangeNormalize(low=low, high=high):
            return RangeNormalizer(low, high, lower=lower)
        case MaxNormalize():
            return MaxNormalizer(lower=lower)
        case MinMaxNormalize():
            return MinMaxNormalizer(lower=lower)


class PreferNormalizer:
    """A condition: 100 or 0."""

    node_local = True

    def candidate_stats(self, raw: Array, scored: Array) -> Hashable:
        return ()

    def normalize(self, raw: Array, stats: Hashable) -> Array:
        return raw.astype(np.int64) * MAX_SCORE


class RangeNormalizer:
    node_local = True

    def __init__(self, low: Number, high: Number, *, lower: bool) -> None:
        self._low, self._high, self._lower = low, high, lower

    def candidate_stats(self, raw: Array, scored: Array) -> Hashable:
        return ()

    def normalize(self, raw: Array, stats: Hashable) -> Array:
        return _reverse_if_lower(percent_of_range(raw, self._low, self._high), self._lower)


class MaxNormalizer:
    node_local = False

    def __init__(self, *, lower: bool) -> None:
        self._lower = lower

    def candidate_stats(self, raw: Array, scored: Array) -> Hashable:
        maximum: Number = raw[scored].max().item()
        return maximum

    def normalize(self, raw: Array, stats: Hashable) -> Array:
        assert isinstance(stats, int | float)
        scores = percent_of_range(raw, 0, stats) if stats > 0 else np.zeros(len(raw), np.int64)
        return _reverse_if_lower(scores, self._lower)


class MinMaxNormalizer:
    """Between the least and the greatest value; 100 everywhere where they are equal."""

    node_local = False

    def __init__(self, *, lower: bool) -> None:
        self._lower = lower

    def candidate_stats(self, raw: Array, scored: Array) -> Hashable:
        counted = raw[scored]
        return counted.min().item(), counted.max().item()

    def normalize(self, raw: Array, stats: Hashable) -> Array:
        assert isinstance(stats, tuple)
        minimum, maximum = stats
        if minimum == maximum:
            return np.full(len(raw), MAX_SCORE, np.int64)
        return _reverse_if_lower(percent_of_range(raw, minimum, maximum), self._lower)


def _reverse_if_lower(scores: Array, lower: bool) -> Array:
    return MAX_SCORE - scores if lower else scores


def percent_of_range(raw: Array, low: Number, high: Number) -> Array:
    """`floor(100 * (raw - low) / (high - low))`, with raw clamped to the bounds first."""
    if len(raw) == 1:  # a single changed row: NumPy takes as long as for hundreds
        return np.array([_percent_of_range_scalar(raw.item(), low, high)], np.int64)
    is_integer = raw.dtype != np.float64 and isinstance(low, int) and isinstance(high, int)
    under, over = raw <= low, raw >= high
    if is_integer:
        inside = np.where(under | over, low, raw)
        # As Python integers where the span itself exceeds int64.
        wide = int(high) - int(low) >= 2**63
        part = (inside.astype(object) if wide else inside) - low
        span = np.full(len(raw), int(high) - int(low), object if wide else np.int64)
        scores = (part * MAX_SCORE // span).astype(np.int64) if wide else percent(part, span)
    else:
        inside = np.where(under | over, low, raw).astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            part = finite(MAX_SCORE * finite(inside - float(low)))
            scores = np.minimum(
                to_int64(np.floor(part / finite(np.asarray(float(high) - float(low))))), MAX_SCORE
            )
    return np.where(under, 0, np.where(over, MAX_SCORE, scores)).astype(np.int64)


def _percent_of_range_scalar(value: Number, low: Number, high: Number) -> int:
    if not all(isinstance(number, int) for number in (value, low, high)):
        value, low, high = float(value), float(low), float(high)
    if value <= low:
        return 0
    if value >= high:
        return MAX_SCORE
    if isinstance(value, int):
        return int(MAX_SCORE * (value - low) // (high - low))
    part = arithmetic.clamp_finite(MAX_SCORE * arithmetic.clamp_finite(value - low))
    return math.floor(min(part / arithmetic.clamp_finite(high - low), MAX_SCORE))

"""From a policy's own numbers to scores: `prefer`, `range`, `max`, `minmax`.

The formulas are those of `lang.ir.program`; whole numbers stay exact, and where any of value and bounds is held as float64
all are, in the order in which the formula is written.
"""

import math
from collections.abc import Hashable

import numpy as np

from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.saturating_arithmetic import percent
from policysched.evaluate.kernel import MAX_SCORE, Normalizer
from policysched.evaluate.vector.functions import finite, to_int64
from policysched.lang.ir import arithmetic
from policysched.lang.ir.rules import Direction, MaxNormalize, MinMaxNormalize, RangeNormalize, ScoreRule

Number = int | float


def normalizer_of(rule: ScoreRule) -> Normalizer:
    lower = rule.direction is Direction.LOWER
    match rule.normalize:
        case None:
            assert rule.direction is Direction.PREFER, (
                f"score {rule.name} has no way to normalise its numbers"
            )
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

    def candidate_stats(self, raw: Array, taking_part: Array) -> Hashable:
        return ()

    def normalize(self, raw: Array, facts: Hashable) -> Array:
        return raw.astype(np.int64) * MAX_SCORE


class RangeNormalizer:
    node_local = True

    def __init__(self, low: Number, high: Number, *, lower: bool) -> None:
        self._low, self._high, self._lower = low, high, lower

    def candidate_stats(self, raw: Array, taking_part: Array) -> Hashable:
        return ()

    def normalize(self, raw: Array, facts: Hashable) -> Array:
        return _reverse_if_lower(percent_of_range(raw, self._low, self._high), self._lower)


class MaxNormalizer:
    node_local = False

    def __init__(self, *, lower: bool) -> None:
        self._lower = lower

    def candidate_stats(self, raw: Array, taking_part: Array) -> Hashable:
        most: Number = raw[taking_part].max().item()
        return most

    def normalize(self, raw: Array, facts: Hashable) -> Array:
        assert isinstance(facts, int | float)
        marks = percent_of_range(raw, 0, facts) if facts > 0 else np.zeros(len(raw), np.int64)
        return _reverse_if_lower(marks, self._lower)


class MinMaxNormalizer:
    """Between the least and the greatest; where they are one, everybody gets 100."""

    node_local = False

    def __init__(self, *, lower: bool) -> None:
        self._lower = lower

    def candidate_stats(self, raw: Array, taking_part: Array) -> Hashable:
        counted = raw[taking_part]
        return counted.min().item(), counted.max().item()

    def normalize(self, raw: Array, facts: Hashable) -> Array:
        assert isinstance(facts, tuple)
        least, most = facts
        if least == most:
            return np.full(len(raw), MAX_SCORE, np.int64)
        return _reverse_if_lower(percent_of_range(raw, least, most), self._lower)


def _reverse_if_lower(marks: Array, lower: bool) -> Array:
    return MAX_SCORE - marks if lower else marks


def percent_of_range(raw: Array, low: Number, high: Number) -> Array:
    """`floor(100 * (raw - low) / (high - low))`, brought between the bounds first."""
    if len(raw) == 1:  # a row that changed by itself: NumPy would take as long as for hundreds
        return np.array([_percent_of_range_scalar(raw.item(), low, high)], np.int64)
    whole = raw.dtype != np.float64 and isinstance(low, int) and isinstance(high, int)
    under, over = raw <= low, raw >= high
    if whole:
        inside = np.where(under | over, low, raw)
        # As Python's whole numbers where the span itself leaves int64.
        wide = int(high) - int(low) >= 2**63
        part = (inside.astype(object) if wide else inside) - low
        span = np.full(len(raw), int(high) - int(low), object if wide else np.int64)
        marks = (part * MAX_SCORE // span).astype(np.int64) if wide else percent(part, span)
    else:
        inside = np.where(under | over, low, raw).astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            part = finite(MAX_SCORE * finite(inside - float(low)))
            marks = np.minimum(
                to_int64(np.floor(part / finite(np.asarray(float(high) - float(low))))), MAX_SCORE
            )
    return np.where(under, 0, np.where(over, MAX_SCORE, marks)).astype(np.int64)


def _percent_of_range_scalar(value: Number, low: Number, high: Number) -> int:
    if not all(isinstance(one, int) for one in (value, low, high)):
        value, low, high = float(value), float(low), float(high)
    if value <= low:
        return 0
    if value >= high:
        return MAX_SCORE
    if isinstance(value, int):
        return int(MAX_SCORE * (value - low) // (high - low))
    part = arithmetic.clamp_finite(MAX_SCORE * arithmetic.clamp_finite(value - low))
    return math.floor(min(part / arithmetic.clamp_finite(high - low), MAX_SCORE))

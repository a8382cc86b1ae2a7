"""Samples as columns: a value a row, and when each was true, so that staleness is one comparison.

A column belongs to one policy's metric and is filled when new samples arrive; a sample is as old as the older of the
moment it was true and the last poll that answered. Where the metric assumes something of pods, a row is also filled
again when pods came to its node or left it: that is when the amount assumed for it changes.
"""

from bisect import bisect_right
from collections.abc import Iterable

import numpy as np

from policysched.cluster.samples import MetricSamples, PairSamples, Sample
from policysched.evaluate.columns.columns import Array, Columns
from policysched.evaluate.columns.dtypes import dtype_of
from policysched.lang.ir.arithmetic import Number, clamp_finite, saturate
from policysched.lang.ir.declarations import Metric, is_node_metric
from policysched.lang.ir.expr import RecoveryCondition
from policysched.model.quantity import INT64_MAX, INT64_MIN

_NEVER_NS = INT64_MIN // 2


def add_metric_values(metric: Metric, left: Number, right: Number) -> Number:
    """`left + right` as values of the metric's type: whole numbers saturate (a fraction is cut off), others stay finite."""
    if metric.type.is_float64:
        return clamp_finite(float(left) + float(right))
    return saturate(int(left) + int(right))


class MetricColumn:
    """`values` and, by `known`, which of them are fresh. `capacity` long, as the columns are.

    Of a metric between pods there are no values by node: `known` says for all rows alike whether the last poll is fresh, and `pairs`
    what it brought.
    """

    def __init__(self, metric: Metric, columns: Columns) -> None:
        self._metric = metric
        self._is_per_node = is_node_metric(metric)
        self._stale_ns = metric.stale_after_ns
        self._dtype = dtype_of(metric.type.kind)
        self._columns = columns
        self._samples: MetricSamples | None = None
        self._position = -1
        self.values: Array = np.zeros(0, self._dtype)
        self._at_ns: Array = np.zeros(0, np.int64)
        self._known: Array = np.zeros(0, np.bool_)
        self._known_from_ns = 0
        self._known_until_ns = -1
        self._recovery_until_ns: dict[RecoveryCondition, Array] = {}
        self._recoveries_ns: list[int] = []
        self.samples_version = 0  # how often other samples were taken over

    def refresh(self, samples: MetricSamples | None) -> bool:
        """Take over new samples, and nodes that came since; answers whether the samples are others."""
        columns = self._columns
        fresh = samples is not self._samples or len(self.values) != columns.capacity
        touched = None if fresh else columns.touched_since(self._position)
        if touched is None:
            self._samples = samples
            self.samples_version += 1
            self.values = np.zeros(columns.capacity, self._dtype)
            self._at_ns = np.full(columns.capacity, _NEVER_NS)
            self._fill(range(columns.size))
            self._recovery_until_ns.clear()
            held = {} if samples is None else samples.recovering_until_ns
            self._recoveries_ns = sorted({until for of in held.values() for until in of.values()})
        else:
            if touched[0]:
                self._recovery_until_ns.clear()
                self._fill(touched[0])
            if touched[1] and self._is_per_node and self._metric.assumed_load is not None:
                self._fill_values(list(touched[1]))
        self._position = columns.log_end
        return fresh

    @property
    def pairs(self) -> PairSamples:
        return {} if self._samples is None else self._samples.pairs

    def known(self, now_ns: int) -> Array:
        """bool[capacity]: whether there is a sample not older than the metric's `stale`."""
        if not self._known_from_ns <= now_ns < self._known_until_ns:
            self._known = now_ns - self._at_ns <= self._stale_ns
            self._known_from_ns = now_ns
            fresh = self._at_ns[self._known]
            self._known_until_ns = int(fresh.min()) + self._stale_ns + 1 if len(fresh) else INT64_MAX
        return self._known

    def known_until_ns(self, now_ns: int) -> int:
        """When the next sample goes stale or the next node is held no more (INT64_MAX: neither can be)."""
        self.known(now_ns)
        place = bisect_right(self._recoveries_ns, now_ns)
        release_ns = self._recoveries_ns[place] if place < len(self._recoveries_ns) else INT64_MAX
        return min(self._known_until_ns, release_ns)

    def awaiting_recovery(self, watch: RecoveryCondition, now_ns: int) -> Array:
        """bool[capacity]: whether the node is held for having crossed the watch's limit."""
        until_ns = self._recovery_until_ns.get(watch)
        if until_ns is None:
            until_ns = self._recovery_until_ns[watch] = np.full(self._columns.capacity, _NEVER_NS)
            for name, one in (
                {} if self._samples is None else self._samples.recovering_until_ns.get(watch, {})
            ).items():
                row = self._columns.row(name)
                if row is not None:
                    until_ns[row] = one
        return now_ns < until_ns

    def _fill(self, rows: Iterable[int]) -> None:
        samples = self._samples
        if samples is not None and not self._is_per_node:
            self._at_ns[list(rows)] = samples.polled_ns
        elif samples is not None:
            chosen = list(rows)
            self._at_ns[chosen] = [
                _NEVER_NS if one is None else min(one.at_ns, samples.polled_ns)
                for one in self._fill_values(chosen)
            ]
        self._known_until_ns = -1

    def _fill_values(self, rows: list[int]) -> list[Sample | None]:
        """Answers the samples of the rows. A free row keeps the name of a node that left; what it says of it, nobody asks."""
        samples = self._samples
        if samples is None:
            return []
        names, found, assumed = self._columns.names, samples.values, samples.assumed
        taken = [found.get(names[row]) for row in rows]
        self.values[rows] = [0 if one is None else one.value for one in taken]
        if assumed:
            for row, one in zip(rows, taken, strict=True):
                more = assumed.get(names[row])
                if one is not None and more is not None:
                    self.values[row] = add_metric_values(self._metric, one.value, more)
        return taken

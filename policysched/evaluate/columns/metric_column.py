"""`MetricColumn`: the samples of one policy's metric as a column, with the time of each sample.

A column is filled when new samples arrive. The age of a sample counts from its timestamp or from
the last successful poll, whichever is older. With assumed load, a row is filled again when pods are
added to or removed from its node, which changes the assumed amount.
"""

from bisect import bisect_right
from collections.abc import Iterable

import numpy as np

from policysched.cluster.metric_samples import MetricSamples, PairSamples, Sample
from policysched.evaluate.columns.columns import Array, Columns
from policysched.evaluate.columns.dtypes import dtype_of
from policysched.lang.ir.arithmetic import Number, clamp_finite, saturate
from policysched.lang.ir.declarations import Metric, is_node_metric
from policysched.lang.ir.recovery_condition import RecoveryCondition
from policysched.model.quantity import INT64_MAX, INT64_MIN

_NEVER_NS = INT64_MIN // 2


def add_metric_values(metric: Metric, left: Number, right: Number) -> Number:
    """`left + right` in the metric's type: integers saturate (fractions are cut off), floats stay finite."""
    if metric.type.is_float64:
        return clamp_finite(float(left) + float(right))
    return saturate(int(left) + int(right))


class MetricColumn:
    """`values` and the mask `known` of fresh ones, as long as the columns' capacity.

    A metric between pods has no values by node: `known` is equal for all rows and tells whether the
    last poll is fresh, and `pairs` holds the values.
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
        self.samples_version = 0  # counts replacements of the samples

    def refresh(self, samples: MetricSamples | None) -> bool:
        """Apply new samples and changed nodes. Returns whether the samples were replaced."""
        columns = self._columns
        replaced = samples is not self._samples or len(self.values) != columns.capacity
        touched = None if replaced else columns.touched_since(self._position)
        if touched is None:
            self._samples = samples
            self.samples_version += 1
            self.values = np.zeros(columns.capacity, self._dtype)
            self._at_ns = np.full(columns.capacity, _NEVER_NS)
            self._fill(range(columns.size))
            self._recovery_until_ns.clear()
            recoveries = {} if samples is None else samples.recovering_until_ns
            self._recoveries_ns = sorted(
                {until_ns for by_node in recoveries.values() for until_ns in by_node.values()}
            )
        else:
            if touched[0]:
                self._recovery_until_ns.clear()
                self._fill(touched[0])
            if touched[1] and self._is_per_node and self._metric.assumed_load is not None:
                self._fill_values(list(touched[1]))
        self._position = columns.log_end
        return replaced

    @property
    def pairs(self) -> PairSamples:
        return {} if self._samples is None else self._samples.pairs

    def known(self, now_ns: int) -> Array:
        """bool[capacity]: whether the row has a sample not older than the metric's `stale`."""
        if not self._known_from_ns <= now_ns < self._known_until_ns:
            self._known = now_ns - self._at_ns <= self._stale_ns
            self._known_from_ns = now_ns
            fresh = self._at_ns[self._known]
            self._known_until_ns = int(fresh.min()) + self._stale_ns + 1 if len(fresh) else INT64_MAX
        return self._known

    def known_until_ns(self, now_ns: int) -> int:
        """When the next sample becomes stale or the next node recovers; INT64_MAX: never."""
        self.known(now_ns)
        index = bisect_right(self._recoveries_ns, now_ns)
        recovery_ns = self._recoveries_ns[index] if index < len(self._recoveries_ns) else INT64_MAX
        return min(self._known_until_ns, recovery_ns)

    def awaiting_recovery(self, condition: RecoveryCondition, now_ns: int) -> Array:
        """bool[capacity]: whether the node crossed the condition's limit and has not recovered."""
        until_ns = self._recovery_until_ns.get(condition)
        if until_ns is None:
            until_ns = self._recovery_until_ns[condition] = np.full(self._columns.capacity, _NEVER_NS)
            recoveries = {} if self._samples is None else self._samples.recovering_until_ns
            for name, node_until_ns in recoveries.get(condition, {}).items():
                row = self._columns.row(name)
                if row is not None:
                    until_ns[row] = node_until_ns
        return now_ns < until_ns

    def _fill(self, rows: Iterable[int]) -> None:
        samples = self._samples
        if samples is not None and not self._is_per_node:
            self._at_ns[list(rows)] = samples.polled_ns
        elif samples is not None:
            filled = list(rows)
            self._at_ns[filled] = [
                _NEVER_NS if sample is None else min(sample.at_ns, samples.polled_ns)
                for sample in self._fill_values(filled)
            ]
        self._known_until_ns = -1

    def _fill_values(self, rows: list[int]) -> list[Sample | None]:
        """Returns the samples of the rows. A free row keeps the name of a deleted node; its value is never read."""
        samples = self._samples
        if samples is None:
            return []
        names, values, assumed = self._columns.names, samples.values, samples.assumed
        row_samples = [values.get(names[row]) for row in rows]
        self.values[rows] = [0 if sample is None else sample.value for sample in row_samples]
        if assumed:
            for row, sample in zip(rows, row_samples, strict=True):
                load = assumed.get(names[row])
                if sample is not None and load is not None:
                    self.values[row] = add_metric_values(self._metric, sample.value, load)
        return row_samples

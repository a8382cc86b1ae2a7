"""Metric outages: a metric is out when too many candidates lack a usable sample of it.

Candidates are the nodes that pass every filter that reads no metric. `scheduler.metric_outages` counts all nodes instead, for
the events that mark the start and the end of an outage.
"""

from collections.abc import Iterable

import numpy as np

from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.snapshot import Snapshot
from policysched.lang.ir.declarations import OutageSpec


def metrics_in_outage(
    outage: OutageSpec, metrics: Iterable[str], candidates: Array, snapshot: Snapshot
) -> tuple[dict[str, int], int]:
    """The metrics that are out with the number of candidates that lack each, and the number of candidates."""
    count = int(np.count_nonzero(candidates))
    lacking = {
        name: int(np.count_nonzero(candidates & ~snapshot.metrics[name].known(snapshot.now_ns)))
        for name in sorted(metrics)
    }
    missing_max = outage.missing_ratio_max * count
    return {name: missing for name, missing in lacking.items() if missing > missing_max}, count


def rows_that_would_await_metrics(
    outage: OutageSpec, metrics: Iterable[str], candidates: Array, snapshot: Snapshot
) -> Array:
    """bool by row: no candidate, and as one more candidate it would put a metric that it lacks out."""
    count, rows = int(np.count_nonzero(candidates)), np.zeros_like(candidates)
    for name in metrics:
        lacks = ~snapshot.metrics[name].known(snapshot.now_ns)
        if np.count_nonzero(candidates & lacks) + 1 > outage.missing_ratio_max * (count + 1):
            rows |= lacks
    return rows & snapshot.columns.valid & ~candidates

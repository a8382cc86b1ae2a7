"""Clock skew: a sample is never newer than its first observation, so a clock that is ahead cannot keep it fresh.

Annotations, the metrics API and `sampled_at` carry times of other clocks. A time in our future is replaced by the time
at which this value with this time was first observed, for as long as the node reports the same. The state does not
survive a restart.
"""

from collections.abc import Collection, Hashable
from dataclasses import dataclass

from policysched.model.identifiers import NodeName

_QUERIES_MAX = 64
"""Queries whose state is kept; the least recently used is evicted."""

ClaimedSample = tuple[float | str, float | int]
"""A value and its claimed time."""


@dataclass(frozen=True, slots=True)
class _FutureSample:
    claimed: ClaimedSample
    first_seen_ns: int


@dataclass(slots=True)
class QuerySkew:
    """The skew state of one response to one query, at `now_ns`."""

    future_samples: dict[NodeName, _FutureSample]
    now_ns: int

    def clamp_ns(self, node: NodeName, sample: ClaimedSample, claimed_ns: int) -> int:
        """The latest possible time of the sample: its claimed time, or when it was first observed."""
        before = self.future_samples.get(node)
        if before is not None and before.claimed == sample:
            return min(claimed_ns, before.first_seen_ns)
        if claimed_ns <= self.now_ns:
            self.future_samples.pop(node, None)
            return claimed_ns
        self.future_samples[node] = _FutureSample(sample, self.now_ns)
        return self.now_ns


class ClockSkewTracker:
    """The samples of one source with a time in our future, by query and node."""

    def __init__(self) -> None:
        self._future_samples: dict[Hashable, dict[NodeName, _FutureSample]] = {}

    def begin_query(self, query: Hashable, nodes: Collection[NodeName], now_ns: int) -> QuerySkew:
        """State of nodes that are not in `nodes` is dropped."""
        before = self._future_samples.pop(query, {})
        current = self._future_samples[query] = {
            node: sample for node, sample in before.items() if node in nodes
        }
        if len(self._future_samples) > _QUERIES_MAX:
            del self._future_samples[next(iter(self._future_samples))]
        return QuerySkew(current, now_ns)

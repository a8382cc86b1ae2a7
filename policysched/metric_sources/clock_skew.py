"""No sample is from later than when it first came: a clock that is ahead must not keep a sample fresh that nobody renews.

Annotations, the metrics API and `sampled_at` bring times of other clocks. A time ahead of ours counts as the moment at
which this value with this time was first seen; that is remembered as long as a node shows the same. A process that starts anew sees
everything for the first time.
"""

from collections.abc import Collection, Hashable
from dataclasses import dataclass

from policysched.model.identifiers import NodeName

_QUERIES_MAX = 64
"""Questions that are remembered; those asked last are kept."""

ClaimedSample = tuple[float | str, float | int]
"""A value, and the time it says."""


@dataclass(frozen=True, slots=True)
class _FutureSample:
    claimed: ClaimedSample
    first_seen_ns: int


@dataclass(slots=True)
class QuerySkew:
    """One answer to one question, at `now_ns`."""

    future_samples: dict[NodeName, _FutureSample]
    now_ns: int

    def clamp_ns(self, node: NodeName, shown: ClaimedSample, claimed_ns: int) -> int:
        """When the sample was true at the latest: as it claims, or when it was first seen."""
        before = self.future_samples.get(node)
        if before is not None and before.claimed == shown:
            return min(claimed_ns, before.first_seen_ns)
        if claimed_ns <= self.now_ns:
            self.future_samples.pop(node, None)
            return claimed_ns
        self.future_samples[node] = _FutureSample(shown, self.now_ns)
        return self.now_ns


class ClockSkewTracker:
    """Of one source: by question and node what was ahead of our clock, and since when."""

    def __init__(self) -> None:
        self._future_samples: dict[Hashable, dict[NodeName, _FutureSample]] = {}

    def begin_query(self, question: Hashable, nodes: Collection[NodeName], now_ns: int) -> QuerySkew:
        """`nodes` are those that there are: what others showed is forgotten."""
        before = self._future_samples.pop(question, {})
        ahead = self._future_samples[question] = {
            node: seen for node, seen in before.items() if node in nodes
        }
        if len(self._future_samples) > _QUERIES_MAX:
            del self._future_samples[next(iter(self._future_samples))]
        return QuerySkew(ahead, now_ns)

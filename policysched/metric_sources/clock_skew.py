"""No sample is from later than when it first came: a clock that is ahead must not keep a sample fresh that nobody renews.

Annotations, the metrics API and `sampled_at` bring times of other clocks. A time ahead of ours counts as the moment at
which this value with this time was first seen; that is remembered as long as a node shows the same. A process that starts anew sees
everything for the first time.
"""

from collections.abc import Collection, Hashable
from dataclasses import dataclass

from policysched.model.objects import NodeName

_QUESTIONS_MAX = 64
"""Questions that are remembered; those asked last are kept."""

Shown = tuple[float | str, float | int]
"""A value, and the time it says."""


@dataclass(frozen=True, slots=True)
class _Seen:
    shown: Shown
    first_ns: int


@dataclass(slots=True)
class Look:
    """One answer to one question, at `now_ns`."""

    ahead: dict[NodeName, _Seen]
    now_ns: int

    def at_ns(self, node: NodeName, shown: Shown, claimed_ns: int) -> int:
        """When the sample was true at the latest: as it claims, or when it was first seen."""
        before = self.ahead.get(node)
        if before is not None and before.shown == shown:
            return min(claimed_ns, before.first_ns)
        if claimed_ns <= self.now_ns:
            self.ahead.pop(node, None)
            return claimed_ns
        self.ahead[node] = _Seen(shown, self.now_ns)
        return self.now_ns


class FirstSight:
    """Of one source: by question and node what was ahead of our clock, and since when."""

    def __init__(self) -> None:
        self._ahead: dict[Hashable, dict[NodeName, _Seen]] = {}

    def look(self, question: Hashable, nodes: Collection[NodeName], now_ns: int) -> Look:
        """`nodes` are those that there are: what others showed is forgotten."""
        before = self._ahead.pop(question, {})
        ahead = self._ahead[question] = {node: seen for node, seen in before.items() if node in nodes}
        if len(self._ahead) > _QUESTIONS_MAX:
            del self._ahead[next(iter(self._ahead))]
        return Look(ahead, now_ns)

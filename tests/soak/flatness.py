"""Whether memory is flat: the line through the readings of the later part, and how far it climbs.

The first quarter is for warming up. The slope is Theil's and Sen's, the median of the slopes between all pairs, which a few
readings with more in the caches than usual do not move.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

WARM_UP_SHARE = 0.25
GROWTH_MOST_SHARE = 0.05
"""Of what is held: so much the line may climb from its beginning to its end, of noise."""


@dataclass(frozen=True, slots=True)
class Flatness:
    """`growth_bytes` over the readings that count; `usual_bytes` is their median."""

    growth_bytes: float
    usual_bytes: float

    @property
    def flat(self) -> bool:
        return self.growth_bytes <= GROWTH_MOST_SHARE * self.usual_bytes


def flatness(points: Sequence[tuple[float, int]]) -> Flatness:
    """Of (seconds, bytes), in order. At least four."""
    assert len(points) >= 4, f"{len(points)} readings are too few for a line"
    kept = points[int(len(points) * WARM_UP_SHARE) :]
    slope = median(
        (later - sooner) / (until_s - from_s) for (from_s, sooner), (until_s, later) in combinations(kept, 2)
    )
    return Flatness(slope * (kept[-1][0] - kept[0][0]), median(held for _, held in kept))

"""Whether memory is flat: the trend of the readings after the warm-up.

The first quarter is the warm-up. The slope is the Theil-Sen estimator, the median of the slopes between all
pairs, so a few readings with fuller caches do not change it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

WARM_UP_SHARE = 0.25
GROWTH_MAX_SHARE = 0.2
"""The growth between the first and the last reading that counts as noise, of the memory held. In twenty minutes a
run without a leak grows by up to 10 %, while caches fill; one that keeps all deleted pods doubles."""


@dataclass(frozen=True, slots=True)
class Flatness:
    """`growth_bytes` over the readings after the warm-up; `usual_bytes` is their median."""

    growth_bytes: float
    usual_bytes: float

    @property
    def flat(self) -> bool:
        return self.growth_bytes <= GROWTH_MAX_SHARE * self.usual_bytes


def flatness(points: Sequence[tuple[float, int]]) -> Flatness:
    """The trend of at least four points (seconds, bytes), in order of time."""
    assert len(points) >= 4, f"{len(points)} readings are too few for a line"
    kept = points[int(len(points) * WARM_UP_SHARE) :]
    slope = median(
        (later - sooner) / (until_s - from_s) for (from_s, sooner), (until_s, later) in combinations(kept, 2)
    )
    return Flatness(slope * (kept[-1][0] - kept[0][0]), median(held for _, held in kept))

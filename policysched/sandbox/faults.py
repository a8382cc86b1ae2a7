"""What can go wrong on the road to the API server, drawn from a stream of dice.

A `FaultRates` says how often; `FaultInjector` draws one `RequestFault` a request and one `WatchFault` a watch. The stream is handed in,
so a seed decides all of it, and `disable` ends it: from then on every request takes the base latency and arrives.

The kinds of misfortune:
    lost before    the request never reaches the server; the client sees no answer
    lost after     the server acts, the answer is lost; the client sees no answer
    late           the client has given up before the server acts: at any time within the request's life
    doubled        the server gets the same request twice, the second a moment later
    cut            a watch breaks after some time, between two events or in the middle of a line
"""

from dataclasses import dataclass, field, replace
from random import Random
from typing import Literal

RequestOutcome = Literal["arrives", "lost before", "lost after", "late"]


@dataclass(frozen=True, slots=True)
class FaultRates:
    """Shares between 0 and 1, times in seconds. `NO_FAULTS` is all zero but a millisecond each way."""

    latency_s: float = 0.001
    latency_spread_s: float = 0.0
    slow_share: float = 0.0
    slow_s: float = 0.0
    lost_before_share: float = 0.0
    lost_after_share: float = 0.0
    late_share: float = 0.0
    duplicate_share: float = 0.0
    watch_lifetime_s: float | None = None
    """Mean life of a watch before it is cut; None: until the server ends it."""
    truncated_line_share: float = 0.0
    """Of the watches that are cut: how many in the middle of the next line, instead of between two."""
    split_share: float = 0.0
    """Of the pieces of a watch: how many arrive in two."""

    def __post_init__(self) -> None:
        lost = self.lost_before_share + self.lost_after_share + self.late_share
        assert 0.0 <= lost <= 1.0, f"more requests get lost than there are: {self}"


NO_FAULTS = FaultRates()


@dataclass(frozen=True, slots=True)
class RequestFault:
    """What happens to one request. The times are one way, in seconds."""

    outcome: RequestOutcome
    request_latency_s: float
    response_latency_s: float
    late_timeout_fraction: float
    duplicate_after_s: float | None


@dataclass(frozen=True, slots=True)
class WatchFault:
    """What happens to one watch once it is open."""

    connect_latency_s: float
    cut_after_s: float | None
    cuts_line: bool


@dataclass(slots=True)
class FaultInjector:
    """Draws fates. Counts them by road, so that a simulation can say that its faults happened."""

    rates: FaultRates
    random: Random
    counts: dict[str, int] = field(default_factory=dict)

    def disable(self) -> None:
        """No more faults; the latency stays."""
        self.rates = replace(
            NO_FAULTS, latency_s=self.rates.latency_s, latency_spread_s=self.rates.latency_spread_s
        )

    def draw_request_fault(self) -> RequestFault:
        climate, dice = self.rates, self.random
        roll = dice.random()
        road: RequestOutcome = "arrives"
        for name, share in (
            ("lost before", climate.lost_before_share),
            ("lost after", climate.lost_after_share),
            ("late", climate.late_share),
        ):
            if roll < share:
                road = name  # type: ignore[assignment]  # the tuple's names are the literals
                break
            roll -= share
        self._count(road)
        again_after_s = None
        if dice.random() < climate.duplicate_share:
            self._count("doubled")
            again_after_s = dice.expovariate(1 / max(climate.latency_s, 0.001))
        return RequestFault(road, self._latency_s(), self._latency_s(), dice.random(), again_after_s)

    def draw_watch_fault(self) -> WatchFault:
        climate, dice = self.rates, self.random
        cut_after_s = None
        if climate.watch_lifetime_s is not None:
            cut_after_s = dice.expovariate(1 / climate.watch_lifetime_s)
            self._count("cut")
        return WatchFault(self._latency_s(), cut_after_s, dice.random() < climate.truncated_line_share)

    def draw_split(self, piece_bytes: int) -> int:
        """Where a piece of a watch is torn in two; 0 where it stays whole."""
        if piece_bytes < 2 or self.random.random() >= self.rates.split_share:
            return 0
        return self.random.randrange(1, piece_bytes)

    def _latency_s(self) -> float:
        climate = self.rates
        latency_s = climate.latency_s + self.random.random() * climate.latency_spread_s
        if self.random.random() < climate.slow_share:
            latency_s += self.random.random() * climate.slow_s
        return latency_s

    def _count(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1

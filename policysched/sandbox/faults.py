"""Random faults of the transport to the API server.

`FaultRates` are the probabilities; `FaultInjector` draws a `RequestFault` for each request and a
`WatchFault` for each watch from a given random stream, so a seed determines all faults. After
`disable` every request arrives with the base latency.

Kinds of faults:
    lost before    the request never reaches the server; the client gets no response
    lost after     the server acts and the response is lost; the client gets no response
    late           the server acts after the client has given up, within the server's request timeout
    doubled        the server receives the request twice, the second time a moment later
    cut            a watch breaks after some time, between two events or in the middle of a line
"""

from dataclasses import dataclass, field, replace
from random import Random
from typing import Literal

RequestOutcome = Literal["arrives", "lost before", "lost after", "late"]


@dataclass(frozen=True, slots=True)
class FaultRates:
    """Shares between 0 and 1, times in seconds. The default has no faults and a latency of 1 ms."""

    latency_s: float = 0.001
    latency_spread_s: float = 0.0
    slow_share: float = 0.0
    slow_s: float = 0.0
    lost_before_share: float = 0.0
    lost_after_share: float = 0.0
    late_share: float = 0.0
    duplicate_share: float = 0.0
    watch_lifetime_s: float | None = None
    """Mean lifetime of a watch before it is cut; None: never cut."""
    truncated_line_share: float = 0.0
    """The share of cut watches that are cut in the middle of a line."""
    split_share: float = 0.0
    """The share of watch chunks that arrive in two parts."""

    def __post_init__(self) -> None:
        lost = self.lost_before_share + self.lost_after_share + self.late_share
        assert 0.0 <= lost <= 1.0, f"the shares of lost requests add up to {lost}: {self}"


NO_FAULTS = FaultRates()


@dataclass(frozen=True, slots=True)
class RequestFault:
    """The faults of one request. Latencies are one way, in seconds."""

    outcome: RequestOutcome
    request_latency_s: float
    response_latency_s: float
    late_timeout_fraction: float
    duplicate_after_s: float | None


@dataclass(frozen=True, slots=True)
class WatchFault:
    """The faults of one watch."""

    connect_latency_s: float
    cut_after_s: float | None
    cuts_line: bool


@dataclass(slots=True)
class FaultInjector:
    """Draws faults and counts them by kind, so that a simulation can assert that they happened."""

    rates: FaultRates
    random: Random
    counts: dict[str, int] = field(default_factory=dict)

    def disable(self) -> None:
        """Stop injecting faults; the base latency remains."""
        self.rates = replace(
            NO_FAULTS, latency_s=self.rates.latency_s, latency_spread_s=self.rates.latency_spread_s
        )

    def draw_request_fault(self) -> RequestFault:
        rates, random = self.rates, self.random
        draw = random.random()
        outcome: RequestOutcome = "arrives"
        for name, share in (
            ("lost before", rates.lost_before_share),
            ("lost after", rates.lost_after_share),
            ("late", rates.late_share),
        ):
            if draw < share:
                outcome = name  # type: ignore[assignment]  # the tuple's names are the literals
                break
            draw -= share
        self._count(outcome)
        duplicate_after_s = None
        if random.random() < rates.duplicate_share:
            self._count("doubled")
            duplicate_after_s = random.expovariate(1 / max(rates.latency_s, 0.001))
        return RequestFault(outcome, self._latency_s(), self._latency_s(), random.random(), duplicate_after_s)

    def draw_watch_fault(self) -> WatchFault:
        rates, random = self.rates, self.random
        cut_after_s = None
        if rates.watch_lifetime_s is not None:
            cut_after_s = random.expovariate(1 / rates.watch_lifetime_s)
            self._count("cut")
        return WatchFault(self._latency_s(), cut_after_s, random.random() < rates.truncated_line_share)

    def draw_split(self, chunk_bytes: int) -> int:
        """The offset at which a watch chunk is split in two; 0: not split."""
        if chunk_bytes < 2 or self.random.random() >= self.rates.split_share:
            return 0
        return self.random.randrange(1, chunk_bytes)

    def _latency_s(self) -> float:
        rates = self.rates
        latency_s = rates.latency_s + self.random.random() * rates.latency_spread_s
        if self.random.random() < rates.slow_share:
            latency_s += self.random.random() * rates.slow_s
        return latency_s

    def _count(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1

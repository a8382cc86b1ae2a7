"""Limits on the rate of requests, per address and in total: token buckets whose requests wait for their turn.

A request above the rate waits, which slows a client down that sends one request after another, and is refused only if
its turn is more than `PATIENCE_S` away. The total counts allowed requests, and keeps the readers' share of the
interpreter small, whose lock the decisions need.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

PATIENCE_S = 1.0
RETRY_AFTER_S = 1
"""The `Retry-After` of a 429."""
PROBE_DELAY_S = 0.2
"""What a probe above the rate waits: less than the kubelet's time-out."""
_ADDRESSES_MAX = 4096
_ROUNDING_S = 1e-6


class RateExceeded(Exception):
    """The turn of this request is too far away."""


class TokenBucket:
    """`per_s` tokens a second, at most `burst` at once. The time of the next token is the whole state."""

    def __init__(self, per_s: float, burst: int) -> None:
        self._interval_s = 1.0 / per_s
        self._slack_s = (burst - 1) * self._interval_s
        self._next_s = float("-inf")

    def delay_s(self, now_s: float) -> float:
        """How long the next request has to wait."""
        delay_s = self._next_s - self._slack_s - now_s
        return delay_s if delay_s > _ROUNDING_S else 0.0

    def take(self, now_s: float) -> None:
        self._next_s = max(now_s, self._next_s) + self._interval_s


class AddressBuckets:
    """A bucket for each address. The least recently used addresses are forgotten."""

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def of(self, address: str) -> TokenBucket:
        bucket = self._buckets.pop(address, None) or new_bucket(self._per_s)
        self._buckets[address] = bucket
        if len(self._buckets) > _ADDRESSES_MAX:
            self._buckets.popitem(last=False)
        return bucket


@dataclass(frozen=True, slots=True)
class RateLimits:
    """Requests a second; twice as many at once."""

    per_address_per_s: float = 20.0
    total_per_s: float = 50.0


class RequestRate:
    """The buckets of all addresses, and the shared one."""

    def __init__(self, limits: RateLimits, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._monotonic_s = monotonic_s
        self._shared = new_bucket(limits.total_per_s)
        self._by_address = AddressBuckets(limits.per_address_per_s)
        self._probes_by_address = AddressBuckets(limits.per_address_per_s)

    async def wait_turn(self, address: str) -> None:
        """For every request, before it is known who sends it. Raises RateExceeded."""
        await self._wait(self._by_address.of(address))

    async def slow_down(self, address: str) -> None:
        """For a probe. It is never refused: somebody else may send from the address of the kubelet."""
        bucket, now_s = self._probes_by_address.of(address), self._monotonic_s()
        if bucket.delay_s(now_s) > 0:
            await asyncio.sleep(PROBE_DELAY_S)
        else:
            bucket.take(now_s)

    async def wait_shared_turn(self) -> None:
        """For a request that is allowed, so that others cannot use up the total. Raises RateExceeded."""
        await self._wait(self._shared)

    async def _wait(self, bucket: TokenBucket) -> None:
        now_s = self._monotonic_s()
        delay_s = bucket.delay_s(now_s)
        if delay_s > PATIENCE_S:
            await asyncio.sleep(PATIENCE_S)
            raise RateExceeded
        bucket.take(now_s)
        if delay_s > 0:
            await asyncio.sleep(delay_s)


def new_bucket(per_s: float) -> TokenBucket:
    """Twice as many at once."""
    return TokenBucket(per_s, max(1, round(2 * per_s)))

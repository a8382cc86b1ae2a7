"""Rate limit of writes: a token bucket."""

import asyncio


class RateLimiter:
    """A token bucket on the event loop's clock. `per_s` 0: no limit."""

    def __init__(self, per_s: float, burst: int) -> None:
        assert per_s == 0 or burst >= 1, f"a burst of {burst} never lets anything through"
        self._per_s = per_s
        self._burst = float(burst)
        self._tokens = float(burst)
        self._refilled_s: float | None = None

    async def acquire(self) -> None:
        """Wait for one token. Concurrent callers each take one, so the count may be negative meanwhile."""
        if self._per_s == 0:
            return
        now_s = asyncio.get_running_loop().time()
        if self._refilled_s is not None:
            self._tokens = min(self._burst, self._tokens + (now_s - self._refilled_s) * self._per_s)
        self._refilled_s = now_s
        self._tokens -= 1.0
        if self._tokens < 0:
            await asyncio.sleep(-self._tokens / self._per_s)

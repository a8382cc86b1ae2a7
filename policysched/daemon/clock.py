"""The clock that decisions use: the wall clock, but it never goes back.

Backoff, gang deadlines and the age of samples are differences of its times. A wall clock that is set back by an hour
would leave pods in backoff, and samples fresh, for that hour. A small step back is therefore absorbed: the clock runs at
half speed until the wall clock has caught up. After a large one (a machine that booted with a wrong clock) no time in
memory is comparable any more, and the process exits cleanly to be restarted. A step forward is followed at once: the
time may really have passed, as in a virtual machine that was suspended.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from threading import Lock

log = logging.getLogger(__name__)

SET_BACK_MAX_S = 60.0
"""The largest step back that is absorbed; that takes twice its length."""

CHECK_INTERVAL_S = 1.0


class NonDecreasingClock:
    """Thread-safe."""

    def __init__(
        self,
        wall_ns: Callable[[], int] = time.time_ns,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns
        self._lock = Lock()
        self._last_ns = wall_ns()
        self._last_monotonic_ns = monotonic_ns()

    def now_ns(self) -> int:
        """Nanoseconds since 1970."""
        with self._lock:
            wall_ns, monotonic_ns = self._wall_ns(), self._monotonic_ns()
            slow_ns = self._last_ns + (monotonic_ns - self._last_monotonic_ns) // 2
            self._last_ns, self._last_monotonic_ns = max(wall_ns, slow_ns), monotonic_ns
            return self._last_ns

    def offset_s(self) -> float:
        """How far it is ahead of the wall clock, in seconds; 0 unless the wall clock was set back."""
        return max(0.0, (self.now_ns() - self._wall_ns()) / 1e9)


async def wait_until_set_back(clock: NonDecreasingClock) -> float:
    """Returns once the wall clock was set back by more than can be absorbed: by how many seconds."""
    warned = False
    while (ahead_s := clock.offset_s()) <= SET_BACK_MAX_S:
        # An adjustment of a second or less is what time daemons do.
        if ahead_s > 1.0 and not warned:
            log.warning(
                "the wall clock was set back; the scheduler's clock runs at half speed until the wall clock has caught up",
                extra={"by_s": round(ahead_s, 1)},
            )
        warned = ahead_s > 1.0
        await asyncio.sleep(CHECK_INTERVAL_S)
    log.error(
        "the wall clock was set back too far; exiting so that the process is restarted",
        extra={"by_s": round(ahead_s, 1)},
    )
    return ahead_s

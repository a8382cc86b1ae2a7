"""The clock that decisions go by: the wall clock, but it never goes back.

Backing off, gangs' deadlines and the age of samples are differences of its times. A wall clock that is set back by an
hour would leave pods backing off, and samples fresh, for that hour. So a small step back is slept off: time goes at
half its speed until the wall clock has caught up. After a large one (a machine that booted with a wrong clock) the
process ends in good order and is started again with the right time, for nothing inside is comparable with it any more.
A step forward is followed at once: the time may well have passed, as in a virtual machine that was suspended.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from threading import Lock

log = logging.getLogger(__name__)

SET_BACK_MAX_S = 60.0
"""What is slept off, in twice that time."""

CHECK_INTERVAL_S = 1.0


class SteadyClock:
    """May be asked from any thread."""

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
        """By how much it is ahead of the wall clock, in seconds; 0 as long as nobody sets that back."""
        return max(0.0, (self.now_ns() - self._wall_ns()) / 1e9)


async def wait_until_set_back(clock: SteadyClock) -> float:
    """Return once the wall clock was set back by more than can be slept off, in seconds by how much."""
    said = False
    while (ahead_s := clock.offset_s()) <= SET_BACK_MAX_S:
        # An adjustment of a second or less is what time daemons do.
        if ahead_s > 1.0 and not said:
            log.warning(
                "the wall clock was set back; time goes at half its speed until that is slept off",
                extra={"by_s": round(ahead_s, 1)},
            )
        said = ahead_s > 1.0
        await asyncio.sleep(CHECK_INTERVAL_S)
    log.error(
        "ending, for the wall clock was set back by too much: to be started again with the right time",
        extra={"by_s": round(ahead_s, 1)},
    )
    return ahead_s

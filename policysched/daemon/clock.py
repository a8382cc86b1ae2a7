"""The clock that decisions use: wall time, but it neither goes back nor jumps.

Backoff, gang deadlines and the age of samples are differences of its times. A wall clock that is set back by an hour
would leave pods in backoff, and samples fresh, for that hour; one that is set forward would end every gang's wait at
once. A small step is therefore absorbed: the clock runs at half speed, or an eighth faster, until it agrees with the
wall clock. After a large one (a machine that booted with a wrong clock, a virtual machine that was paused) no time in
memory is comparable any more, and the process exits cleanly to be restarted. Time that a suspended machine counts as
uptime has really passed, and is no step.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from threading import Lock

log = logging.getLogger(__name__)

STEP_MAX_S = 60.0
"""The largest step that is absorbed: back in twice its length, forward in eight times."""

CHECK_INTERVAL_S = 1.0


def uptime_ns() -> int:
    """A monotonic clock that also counts the time that the machine was suspended, where there is one."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) if _HAS_BOOT_TIME else time.monotonic_ns()


def uptime_s() -> float:
    return uptime_ns() / 1e9


_HAS_BOOT_TIME = hasattr(time, "CLOCK_BOOTTIME")


class NonDecreasingClock:
    """Thread-safe."""

    def __init__(
        self,
        wall_ns: Callable[[], int] = time.time_ns,
        monotonic_ns: Callable[[], int] = uptime_ns,
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
            elapsed_ns = monotonic_ns - self._last_monotonic_ns
            fastest_ns = self._last_ns + elapsed_ns + (elapsed_ns >> 3)
            self._last_ns = max(min(wall_ns, fastest_ns), self._last_ns + (elapsed_ns >> 1))
            self._last_monotonic_ns = monotonic_ns
            return self._last_ns

    def offset_s(self) -> float:
        """How far it is ahead of the wall clock, in seconds: positive after a step back, negative after one forward."""
        return (self.now_ns() - self._wall_ns()) / 1e9


async def wait_until_stepped(clock: NonDecreasingClock) -> float:
    """Returns once the wall clock was set by more than can be absorbed: by how many seconds, negative if back."""
    warned = False
    while abs(step_s := -clock.offset_s()) <= STEP_MAX_S:
        # An adjustment of a second or less is what time daemons do.
        if abs(step_s) > 1.0 and not warned:
            log.warning(
                "the wall clock jumped; adjusting the scheduler's clock gradually",
                extra={"by_s": round(step_s, 1)},
            )
        warned = abs(step_s) > 1.0
        await asyncio.sleep(CHECK_INTERVAL_S)
    log.error(
        "the wall clock jumped by more than a minute; exiting for a restart",
        extra={"by_s": round(step_s, 1)},
    )
    return step_s

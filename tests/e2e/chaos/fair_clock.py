"""A clock that slows down while the machine is busy with other processes, so that timeouts do not depend
on its load.

The kernel counts for each thread how long it ran and how long it was ready and waited for a processor. A
process that waits nine times as long as it runs is ten times slower, and so is the clock. It follows the
slowest of the processes involved: the program, the API server, etcd, and the test with its proxy.

A process that mostly sleeps is delayed by no more than it waited. So the clock loses at most what all of
the processes waited together, as if each had waited for the one before. It stands still while this process is
stopped (SIGSTOP, a suspended machine): no timer of it runs then, and the others are usually stopped with it.
"""

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

SAMPLE_INTERVAL_S = 0.5
WAIT_MIN_S = 0.005
"""A process that waited for less than this in an interval counts as not delayed."""


@dataclass(frozen=True, slots=True)
class Share:
    """Seconds of all live threads of a process since their start."""

    ran_s: float
    waited_s: float


NOTHING = Share(0.0, 0.0)


def share_of(pid: int) -> Share | None:
    """None: the process is gone, or the kernel does not provide schedstat."""
    ran_ns = waited_ns = 0
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError, ValueError):  # a thread may end while it is read
                ran, waited, _ = (task / "schedstat").read_text().split()
                ran_ns += int(ran)
                waited_ns += int(waited)
        return Share(ran_ns / 1e9, waited_ns / 1e9)
    return None


def spent(before: Share | None, after: Share | None) -> Share:
    """Between two samples of a process. Zero where too little was measured."""
    if before is None or after is None:
        return NOTHING
    ran_s, waited_s = after.ran_s - before.ran_s, after.waited_s - before.waited_s
    if ran_s < 0 or waited_s < WAIT_MIN_S:  # the times of ended threads are lost
        return NOTHING
    return Share(ran_s, waited_s)


def slowdown(share: Share) -> float:
    """Factor by which the process was slower than on an idle machine, while it had something to do."""
    return (share.ran_s + share.waited_s) / max(share.ran_s, share.waited_s / 100) if share.waited_s else 1.0


def without_stops(span_s: float, before: Share | None, after: Share | None) -> float:
    """`span_s` of wall time without the time in which the process whose samples these are was stopped: it neither slept
    for its interval, nor ran, nor waited."""
    if before is None or after is None:
        return span_s
    busy_s = max(0.0, after.ran_s - before.ran_s) + max(0.0, after.waited_s - before.waited_s)
    return min(span_s, SAMPLE_INTERVAL_S + busy_s)


class FairClock:
    """`now_s` begins at 0. `run` advances it until cancelled. `pids`: of the processes now."""

    def __init__(self, pids: Callable[[], Iterable[int]] = tuple) -> None:
        self._pids = pids
        self.now_s = 0.0

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        at_s, shares, own = loop.time(), self._shares(), share_of(os.getpid())
        while True:
            await asyncio.sleep(SAMPLE_INTERVAL_S)
            now_s, now, own_now = loop.time(), self._shares(), share_of(os.getpid())
            self.pass_time(without_stops(now_s - at_s, own, own_now), shares, now)
            at_s, shares, own = now_s, now, own_now

    def pass_time(
        self, span_s: float, before: Mapping[int, Share | None], after: Mapping[int, Share | None]
    ) -> None:
        """Advance by `span_s` of wall time, without what the processes lost by waiting."""
        shares = [spent(before.get(pid), share) for pid, share in after.items()]
        waited_s = sum(share.waited_s for share in shares)
        self.now_s += max(span_s / max(map(slowdown, shares)), span_s - waited_s)

    def _shares(self) -> dict[int, Share | None]:
        return {pid: share_of(pid) for pid in self._pids()}

"""A clock that stands still while the machine has no time for us: what is judged by it does not depend on who else is busy.

The kernel counts for each thread how long it ran and how long it was ready and waited for a processor. Who waits nine
times as long as it runs gets ahead ten times slower, and so the clock goes ten times slower. It goes by the slowest of
the processes that have a part in the answer: the program, the API server, etcd, and the test with its road.
"""

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

LOOK_EVERY_S = 0.5
WORTH_A_LOOK_S = 0.005
"""A process that neither ran nor waited for longer than this in that time was not held up."""


@dataclass(frozen=True, slots=True)
class Share:
    """Seconds, since the process began, of all its threads that live."""

    ran_s: float
    waited_s: float


def share_of(pid: int) -> Share | None:
    """None: the process is gone, or the kernel does not count."""
    ran_ns = waited_ns = 0
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError, ValueError):  # a thread may end while it is looked at
                ran, waited, _ = (task / "schedstat").read_text().split()
                ran_ns += int(ran)
                waited_ns += int(waited)
        return Share(ran_ns / 1e9, waited_ns / 1e9)
    return None


def slowdown(before: Share | None, after: Share | None) -> float:
    """How much slower than alone the process got ahead in between; 1: not at all."""
    if before is None or after is None:
        return 1.0
    ran_s, waited_s = after.ran_s - before.ran_s, after.waited_s - before.waited_s
    if ran_s < 0 or waited_s < WORTH_A_LOOK_S:  # threads that ended took their times with them
        return 1.0
    return (ran_s + waited_s) / max(ran_s, waited_s / 100)


class FairClock:
    """`now_s` begins at 0. `run` beside everything else until cancelled."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._pids = tuple(pids)
        self.now_s = 0.0

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        at_s, shares = loop.time(), self._shares()
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            now_s, now = loop.time(), self._shares()
            self.pass_time(now_s - at_s, shares, now)
            at_s, shares = now_s, now

    def pass_time(
        self, span_s: float, before: Mapping[int, Share | None], after: Mapping[int, Share | None]
    ) -> None:
        """So much has passed on everybody's clock."""
        self.now_s += span_s / max(slowdown(before[pid], after[pid]) for pid in self._pids)

    def _shares(self) -> dict[int, Share | None]:
        return {pid: share_of(pid) for pid in self._pids}

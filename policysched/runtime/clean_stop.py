"""The end of a leader that stops cleanly: nothing may be carried out any more when the next one takes over, and until then others
do not wait for namespaces whose writes fail or take long.

    deciding ──no write is late──► sending what was decided ──all of it is answered, or QUEUED_TIMEOUT_S──► closed ──none is open──► ended
       ▲                               │
       └────────a write is late────────┘

A late write may be carried out for seconds, and nobody else can hurry it. Until it is not, decisions for the others go on; its namespace
has no further writes (`kube.write.open_writes`). What is not sent or answered by then is left to the next leader, which reads
the pods, claims and volumes as they are, as after a crash.
"""

import asyncio
from collections.abc import Callable

from policysched.kube.write.open_writes import OpenWrites

LOOK_INTERVAL_S = 0.02
QUEUED_TIMEOUT_S = 1.0
"""For what was decided before the end, once nothing is decided any more. Others wait meanwhile."""


class CleanStop:
    """`queued_in` counts the commands without an outcome in the namespaces for which it is asked, `wake` has decisions go on. The stop takes `timeout_s` at most,
    and `settle_s` is how long a write can be open. `may_decide` is false from `begin` on, but while others would wait."""

    def __init__(
        self,
        writes: OpenWrites,
        queued_in: Callable[[Callable[[str], bool]], int],
        wake: Callable[[], None],
        *,
        timeout_s: float,
        settle_s: float,
    ) -> None:
        self._writes = writes
        self._queued_in = queued_in
        self._wake = wake
        self._timeout_s = timeout_s
        self._settle_s = settle_s
        self._decides_until_s = float("-inf")
        self._ends_s: float | None = None
        self.may_decide = True

    def begin(self, *, decides: bool) -> None:
        """`decides`: the state is right, so others can be decided meanwhile. Again: has no effect, but that it may be right no more."""
        if self._ends_s is not None:
            if not decides:
                self._decides_until_s, self.may_decide = float("-inf"), False
            return
        now_s = asyncio.get_running_loop().time()
        self._ends_s = now_s + self._timeout_s
        if decides:
            self._decides_until_s = self._ends_s - self._settle_s
        self._writes.begin_stop()
        self._look(now_s)

    async def drain(self) -> bool:
        """Ends when no write is open, and none will be, or after the time-out: false."""
        loop, writes = asyncio.get_running_loop(), self._writes
        assert self._ends_s is not None, "not begun"
        decided_s = loop.time()
        while (now_s := loop.time()) < self._ends_s:
            if self._look(now_s):
                decided_s = now_s
            is_queued = now_s < decided_s + QUEUED_TIMEOUT_S and self._queued_in(writes.admits) > 0
            writes.is_closed = not self.may_decide and not is_queued
            if writes.is_closed and not writes.any_open():
                return True
            await asyncio.sleep(LOOK_INTERVAL_S)
        return not self.close()

    def close(self) -> bool:
        """Nothing more is sent. Whether a write is open that was sent before."""
        self._writes.is_closed = True
        return self._writes.any_open()

    def _look(self, now_s: float) -> bool:
        decided, is_late = self.may_decide, self._writes.any_late()
        self.may_decide = is_late and now_s < self._decides_until_s
        if self.may_decide and not decided:
            self._wake()
        return self.may_decide

    @property
    def left_s(self) -> float:
        assert self._ends_s is not None, "not begun"
        return max(0.0, self._ends_s - asyncio.get_running_loop().time())

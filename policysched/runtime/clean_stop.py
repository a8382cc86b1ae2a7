"""How a leader stops cleanly: when the next leader takes over, no write of this one can still be carried out. Until then, other
namespaces do not wait for those whose writes fail or take long.

    deciding ──no write is late──► sending what was decided ──all answered, or QUEUED_TIMEOUT_S──► closed ──none is open──► ended
       ▲                               │
       └────────a write is late────────┘

A late write may be carried out for seconds, and nothing can shorten that. Meanwhile this process decides for the other namespaces;
the one of the late write gets no further writes (`kube.write.open_writes`). What is not sent or answered in the end is left to the
next leader, which reads the pods, claims and volumes as they are, as after a crash.
"""

import asyncio
from collections.abc import Callable

from policysched.kube.write.open_writes import OpenWrites

LOOK_INTERVAL_S = 0.02
QUEUED_TIMEOUT_S = 1.0
"""How long queued commands may still be sent after the last decision. All namespaces wait meanwhile."""


class CleanStop:
    """`queued_in` counts the commands without an outcome in the namespaces that its argument admits; `wake` resumes decisions.
    The stop takes `timeout_s` at most; a write can be open for `settle_s`. From `begin` on, `may_decide` only while one is late."""

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
        """`decides`: the state is valid, so others may be decided until `settle_s` before the end. A later False ends this."""
        if self._ends_s is not None:
            if not decides:
                self._decides_until_s, self.may_decide = float("-inf"), False
            return
        now_s = asyncio.get_running_loop().time()
        self._ends_s = now_s + self._timeout_s
        if decides:
            self._decides_until_s = self._ends_s - self._settle_s
        self._writes.begin_stop()
        self._update_may_decide(now_s)

    async def drain(self) -> bool:
        """Wait until no write is open and none can be sent, or for the time-out. Returns whether no write is open."""
        loop, writes = asyncio.get_running_loop(), self._writes
        assert self._ends_s is not None, "not begun"
        decided_s = loop.time()
        while (now_s := loop.time()) < self._ends_s:
            if self._update_may_decide(now_s):
                decided_s = now_s
            is_queued = now_s < decided_s + QUEUED_TIMEOUT_S and self._queued_in(writes.admits) > 0
            writes.is_closed = not self.may_decide and not is_queued
            if writes.is_closed and not writes.any_open():
                return True
            await asyncio.sleep(LOOK_INTERVAL_S)
        return not self.close()

    def close(self) -> bool:
        """Send nothing more. Returns whether a write that was sent before is still open."""
        self._writes.is_closed = True
        return self._writes.any_open()

    def _update_may_decide(self, now_s: float) -> bool:
        could_decide, is_late = self.may_decide, self._writes.any_late()
        self.may_decide = is_late and now_s < self._decides_until_s
        if self.may_decide and not could_decide:
            self._wake()
        return self.may_decide

    @property
    def left_s(self) -> float:
        assert self._ends_s is not None, "not begun"
        return max(0.0, self._ends_s - asyncio.get_running_loop().time())

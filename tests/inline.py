"""Parts of the scheduler process on the caller's event loop, for virtual time: no worker process, no thread."""

import asyncio
import contextlib
from collections.abc import Callable

from policysched.daemon.policy_checker import PolicyTexts, check_texts
from policysched.kube.leader_election import LeaderElector, LeadershipStatus
from policysched.lang.check.bundle import PolicyBundle
from policysched.scheduler.steps import run_to_completion as run_to_completion


async def check_inline(texts: PolicyTexts, place: str) -> PolicyBundle:
    """Checks on the calling thread: a virtual clock does not advance meanwhile."""
    return check_texts(texts, place)


class EventLoopLeaderElection:
    """A `Leadership` whose elector runs on the caller's event loop."""

    def __init__(self, elector: LeaderElector) -> None:
        self._elector = elector
        self._task: asyncio.Task[None] | None = None

    @property
    def status(self) -> LeadershipStatus:
        return self._elector.status

    @property
    def holder(self) -> str:
        return self._elector.holder

    def leads(self) -> bool:
        return self._elector.leads()

    def may_write(self) -> bool:
        return self._elector.may_write()

    def may_decide(self) -> bool:
        return self._elector.may_decide()

    def stalls(self) -> int:
        return self._elector.stalls

    def decides_in_s(self) -> float:
        return self._elector.decides_in_s()

    async def start(self, changed: Callable[[LeadershipStatus], None]) -> None:
        self._elector.on_change = changed
        self._task = asyncio.create_task(self._elector.run(), name="lease")

        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and task.exception() is not None:
                changed(LeadershipStatus.LOST)  # a bug in the elector: `stop` raises it

        self._task.add_done_callback(ended)

    async def stop(self, *, nothing_in_flight: bool) -> None:
        """Releases the Lease if it is held."""
        assert self._task is not None, "stopped before it was started"
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await self._elector.release(nothing_in_flight=nothing_in_flight)

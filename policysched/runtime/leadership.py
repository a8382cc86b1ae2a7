"""Leader election for the rest of the program: none, or on a thread.

`policysched run` renews the Lease on a thread with its own loop and connection, so that a long decision cannot cost
the leadership.
"""

import asyncio
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from policysched.kube.leader_election import LeaderElector, LeadershipStatus

log = logging.getLogger(__name__)

EXIT_TIMEOUT_S = 4.0
"""After the leadership was lost: another process may lead 5 s later, with the default Lease (`kube.leader_election`)."""
_LOG_TIMEOUT_S = 0.5


class Leadership(Protocol):
    """`start` begins the election and calls `changed` on the caller's loop with each new status. `leads`, `may_write`,
    `may_decide` and `stalls`, a count, are current at any time, without waiting for a call. While `may_write`, a changed
    count means that this process stalled in between."""

    @property
    def status(self) -> LeadershipStatus: ...
    @property
    def holder(self) -> str: ...
    def leads(self) -> bool: ...
    def may_write(self) -> bool: ...
    def may_decide(self) -> bool: ...
    def stalls(self) -> int: ...
    def decides_in_s(self) -> float: ...
    async def start(self, changed: Callable[[LeadershipStatus], None]) -> None: ...
    async def stop(self, *, nothing_in_flight: bool) -> None: ...


class NoLeaderElection:
    """`--no-leader-elect`: always leads. Does not wait for requests that an earlier process may have in flight."""

    status = LeadershipStatus.LEADING
    holder = ""

    def leads(self) -> bool:
        return True

    def may_write(self) -> bool:
        return True

    def may_decide(self) -> bool:
        return True

    def stalls(self) -> int:
        return 0

    def decides_in_s(self) -> float:
        return 0.0

    async def start(self, changed: Callable[[LeadershipStatus], None]) -> None:
        changed(LeadershipStatus.LEADING)

    async def stop(self, *, nothing_in_flight: bool) -> None:
        del nothing_in_flight


MakeLeaderElector = Callable[[], AbstractAsyncContextManager[LeaderElector]]
"""Creates the elector and its connection on the loop that it will run on."""


def exit_within(timeout_s: float, exit_code: int) -> None:
    """End the process after this time whatever its other threads do: the main loop may be far from noticing, closing
    files, connections and threads may take long, and nobody may read the log."""

    def say() -> None:
        time.sleep(timeout_s)
        log.error("still running after the lease was lost; exiting at once", extra={"for_s": timeout_s})
        for handler in logging.getLogger().handlers:
            handler.flush()
        sys.stderr.flush()

    def end() -> None:
        saying.join(timeout_s + _LOG_TIMEOUT_S)
        os._exit(exit_code)

    saying = threading.Thread(target=say, name="exit log", daemon=True)
    saying.start()
    threading.Thread(target=end, name="exit", daemon=True).start()


class ThreadedLeaderElection:
    """An elector on its own thread. `start` raises what creating it raises. `on_lost` is called there when the leadership is
    lost, not when it is given up by `stop`."""

    def __init__(self, make: MakeLeaderElector, on_lost: Callable[[], None] = lambda: None) -> None:
        self._make = make
        self._on_lost = on_lost
        self._elector: LeaderElector | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._nothing_in_flight = False

    @property
    def status(self) -> LeadershipStatus:
        return LeadershipStatus.FOLLOWING if self._elector is None else self._elector.status

    @property
    def holder(self) -> str:
        return "" if self._elector is None else self._elector.holder

    def leads(self) -> bool:
        return self._elector is not None and self._elector.leads()

    def may_write(self) -> bool:
        return self._elector is not None and self._elector.may_write()

    def may_decide(self) -> bool:
        return self._elector is not None and self._elector.may_decide()

    def stalls(self) -> int:
        return 0 if self._elector is None else self._elector.stalls

    def decides_in_s(self) -> float:
        return float("inf") if self._elector is None else self._elector.decides_in_s()

    async def start(self, changed: Callable[[LeadershipStatus], None]) -> None:
        caller = asyncio.get_running_loop()
        started: asyncio.Future[None] = caller.create_future()

        def notify(status: LeadershipStatus) -> None:
            if not caller.is_closed():
                caller.call_soon_threadsafe(changed, status)

        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._main(caller, started, notify)), name="lease", daemon=True
        )
        self._thread.start()
        await started

    async def _main(
        self,
        caller: asyncio.AbstractEventLoop,
        started: "asyncio.Future[None]",
        notify: Callable[[LeadershipStatus], None],
    ) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        try:
            async with self._make() as elector:
                elector.on_change = notify
                self._elector = elector
                caller.call_soon_threadsafe(started.set_result, None)
                await self._run_until_stopped(elector)
        except Exception as error:
            if started.done():
                # A bug in the elector: callers must not wait for ever.
                notify(LeadershipStatus.LOST)
                raise
            caller.call_soon_threadsafe(started.set_exception, error)

    async def _run_until_stopped(self, elector: LeaderElector) -> None:
        assert self._stop is not None
        running = asyncio.create_task(elector.run())
        stopped = asyncio.create_task(self._stop.wait())
        await asyncio.wait((running, stopped), return_when=asyncio.FIRST_COMPLETED)
        if not stopped.done():
            self._on_lost()
        for task in (running, stopped):
            task.cancel()
        ended = await asyncio.gather(running, stopped, return_exceptions=True)
        if isinstance(ended[0], Exception):
            raise ended[0]
        await elector.release(nothing_in_flight=self._nothing_in_flight)

    async def stop(self, *, nothing_in_flight: bool) -> None:
        """Releases the Lease if it is held, and ends the thread."""
        if self._loop is None or self._stop is None or self._thread is None:
            return
        self._nothing_in_flight = nothing_in_flight
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        await asyncio.to_thread(self._thread.join, 10.0)

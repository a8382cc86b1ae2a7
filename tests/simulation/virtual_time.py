"""An asyncio event loop on virtual time: nothing waits, the clock jumps to the next timer.

The selector never selects. Where the loop would sleep until its next timer, the selector moves the
clock there; where it would sleep forever, because no timer is set and a task is still waiting, it
raises `Deadlock`. Executors run their function at once, in the same thread, and timers of the same
moment fire in the order in which they were set, so that every run is the same.
"""

import asyncio
import heapq
import selectors
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from contextvars import Context, ContextVar
from typing import Any, TypeVar, TypeVarTuple

Result = TypeVar("Result")
Args = TypeVarTuple("Args")


class Deadlock(Exception):
    """A task waits, and no timer is set that could resume it."""


class Process:
    """A process of the simulation: the callbacks of its tasks, found by their context. While it is frozen they collect
    in the order in which they are due, as with SIGSTOP; time passes for it, too."""

    def __init__(self) -> None:
        self.frozen = False
        self.backlog: list[asyncio.Handle] = []

    def freeze(self) -> None:
        self.frozen = True

    def thaw(self) -> None:
        self.frozen = False
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        loop._ready.extend(self.backlog)
        self.backlog.clear()


PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)
"""The process that a task belongs to; None: the world around, which is never frozen."""


def is_held(handle: asyncio.Handle, context: Context) -> bool:
    """Whether the callback has to wait: its process is frozen."""
    process = context.get(PROCESS)
    if process is None or not process.frozen:
        return False
    process.backlog.append(handle)
    return True


class _Handle(asyncio.Handle):
    __slots__ = ()
    _context: Context

    def _run(self) -> None:
        if not is_held(self, self._context):
            super()._run()


class _VirtualClockSelector(selectors.BaseSelector):
    """A selector without files. Waiting advances the clock."""

    def __init__(self, start_s: float):
        self.time_s = start_s

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Deadlock("nothing is scheduled and something is still awaited")
        self.time_s += max(0.0, timeout)
        return []

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        raise OSError(f"no input or output on virtual time: {fileobj!r}, {events!r}, {data!r}")

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        raise OSError(f"no input or output on virtual time: {fileobj!r}")

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return {}


class _Timer(asyncio.TimerHandle):
    """A timer with a sequence number: asyncio compares timers by time alone, and its heap does not
    keep the order of equal ones.
    """

    __slots__ = ("_order",)
    _scheduled: bool
    _context: Context

    def __init__(
        self,
        place: int,
        when_s: float,
        callback: Callable[[*Args], object],
        args: tuple[*Args],
        loop: asyncio.AbstractEventLoop,
        context: Context | None,
    ) -> None:
        super().__init__(when_s, callback, args, loop, context)
        self._order = (when_s, place)

    def _run(self) -> None:
        if not is_held(self, self._context):
            super()._run()

    def __lt__(self, other: object) -> bool:
        assert isinstance(other, _Timer), f"{other!r} was not set by this loop"
        return self._order < other._order


class VirtualTimeLoop(asyncio.BaseEventLoop):
    """`loop.time()` is virtual seconds, starting at `start_s`."""

    _scheduled: list[asyncio.TimerHandle]
    _ready: deque[asyncio.Handle]

    def __init__(self, start_s: float = 0.0):
        super().__init__()
        self._selector = _VirtualClockSelector(start_s)
        self._timers = 0
        # No rounding to the resolution of a real clock, except for floating point.
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self._selector.time_s

    def skip(self, span_s: float) -> None:
        """Let time pass without running anything."""
        self._selector.time_s += span_s

    def call_at(
        self,
        when: float,
        callback: Callable[[*Args], object],
        *args: *Args,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        self._timers += 1
        timer = _Timer(self._timers, when, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)
        # As in BaseEventLoop.call_at: cancelled timers that are still in the heap are counted by
        # this flag.
        timer._scheduled = True
        return timer

    def _call_soon(
        self, callback: Callable[[*Args], object], args: tuple[*Args], context: Context | None
    ) -> asyncio.Handle:
        """As BaseEventLoop's, with a handle that knows its process."""
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def _process_events(self, event_list: list[object]) -> None:
        assert not event_list, f"events without input or output: {event_list!r}"

    def _write_to_self(self) -> None:
        """Does nothing: there is no other thread, and the loop never sleeps."""

    def run_in_executor(
        self, executor: object, func: Callable[[*Args], Result], *args: *Args
    ) -> "asyncio.Future[Result]":
        del executor
        future: asyncio.Future[Result] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - whatever it raises belongs to who awaits it
            future.set_exception(error)
        return future


def run_virtual(main: Coroutine[Any, Any, Result], *, start_s: float = 0.0) -> Result:
    """Run a coroutine to its end on virtual time. Raises `Deadlock` if it would wait forever."""
    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(start_s)) as runner:
        return runner.run(main)

"""An asyncio event loop on which time is a number: nothing waits, the clock jumps to the next timer.

The selector never selects. Where the loop would sleep until its next timer, it moves the clock there; where it would
sleep for ever, since nothing is scheduled and something is still awaited, it raises `Deadlock` instead of hanging.
Executors run their function at once, on the spot, so that a run is the same each time.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar, TypeVarTuple

Result = TypeVar("Result")
Args = TypeVarTuple("Args")


class Deadlock(Exception):
    """Everything waits, and no timer will ever wake it."""


class _Clock(selectors.BaseSelector):
    """A selector without files, whose waiting is time passing."""

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


class VirtualTimeLoop(asyncio.BaseEventLoop):
    """`loop.time()` is virtual seconds, from `start_s` on."""

    def __init__(self, start_s: float = 0.0):
        super().__init__()
        self._selector = _Clock(start_s)
        # What is due is due: no rounding of timers to a clock's steps beyond what floats need.
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self._selector.time_s

    def _process_events(self, event_list: list[object]) -> None:
        assert not event_list, f"events without input or output: {event_list!r}"

    def _write_to_self(self) -> None:
        """Nothing to wake: there is no other thread, and the loop never sleeps."""

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
    """Run a coroutine to its end on virtual time. Raises `Deadlock` where it would wait for ever."""
    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(start_s)) as runner:
        return runner.run(main)

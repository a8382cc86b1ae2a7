"""What is imported late is imported at the start, beside the main loop."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from policysched.cluster.devices.cel_selectors import DeviceSelectors
from policysched.daemon.clock import NonDecreasingClock
from policysched.daemon.process import ExitReason
from policysched.runtime import program

TIMEOUT_S = 30.0


class IdleApp:
    """Runs until CEL is loaded, and never gets a slice."""

    synced = False

    def __init__(self, loaded: asyncio.Event) -> None:
        self._loaded = loaded

    async def run(self) -> ExitReason:
        await asyncio.wait_for(self._loaded.wait(), TIMEOUT_S)
        return ExitReason.STOPPED


async def nothing() -> None:
    pass


async def loading_threads(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """The threads on which a process that starts has loaded CEL."""
    loop, loaded, right = asyncio.get_running_loop(), asyncio.Event(), DeviceSelectors.load
    threads: list[threading.Thread] = []

    def load(selectors: DeviceSelectors) -> None:
        right(selectors)
        assert selectors._environment is not None
        threads.append(threading.current_thread())
        loop.call_soon_threadsafe(loaded.set)

    monkeypatch.setattr(DeviceSelectors, "load", load)
    app: Any = IdleApp(loaded)
    checker: Any = SimpleNamespace(warm_up=nothing)
    probe: Any = SimpleNamespace(run=nothing)
    await program._run_app(app, checker, NonDecreasingClock(), None, probe)
    return threads


def test_cel_is_loaded_on_a_thread_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    (thread,) = asyncio.run(loading_threads(monkeypatch))

    assert thread is not threading.main_thread()


def test_a_start_without_it_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "_import_late_modules", lambda: None)
    monkeypatch.setattr(f"{__name__}.TIMEOUT_S", 0.2)

    with pytest.raises(TimeoutError):
        asyncio.run(loading_threads(monkeypatch))

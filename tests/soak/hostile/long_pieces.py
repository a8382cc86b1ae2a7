"""Names the long pieces of work of a process's main loop, by its processor time: a busy machine does not make a piece longer.

`record_in` is planted in the process. It runs asyncio's own loop instead of uvloop, which cannot be looked into. Each piece
is one callback of the loop; a thread takes its stack while it lasts.
"""

import asyncio
import gc
import sys
import threading
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

LONG_S = 0.01
_COUNTED_S = 0.005
_SAMPLED_EVERY_S = 0.004
_FRAMES = 9
_SUMMARY_EVERY_S = 10.0


def record_in(file: Path) -> None:
    """Append each long piece, its stacks, and now and then what all pieces took."""
    sys.modules["uvloop"] = None  # type: ignore[assignment]
    recorder = _Recorder(file)
    run_handle = asyncio.events.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        if threading.current_thread() is not threading.main_thread():
            run_handle(handle)
            return
        recorder.began_s = time.thread_time()
        try:
            run_handle(handle)
        finally:
            elapsed_s, recorder.began_s = time.thread_time() - recorder.began_s, None
            if elapsed_s > _COUNTED_S:
                recorder.count(_name(handle), elapsed_s)

    asyncio.events.Handle._run = timed  # type: ignore[method-assign]
    gc.callbacks.append(recorder.on_collection)
    threading.Thread(target=recorder.run, name="pieces", daemon=True).start()


class _Recorder:
    """`began_s`: of the present piece, on the processor clock of the main thread; None between two."""

    def __init__(self, file: Path) -> None:
        self.began_s: float | None = None
        self._file = file.open("a", buffering=1)
        self._counts = Counter[str]()
        self._total_s: dict[str, float] = {}
        self._longest_s: dict[str, float] = {}
        self._collection_began_s = 0.0

    def count(self, name: str, elapsed_s: float) -> None:
        self._counts[name] += 1
        self._total_s[name] = self._total_s.get(name, 0.0) + elapsed_s
        self._longest_s[name] = max(self._longest_s.get(name, 0.0), elapsed_s)
        if elapsed_s > LONG_S:
            self._file.write(f"long piece: {elapsed_s * 1000:.0f} ms: {name}\n")

    def on_collection(self, phase: str, info: dict[str, int]) -> None:
        """Collections are part of a piece, and counted again by themselves."""
        if threading.current_thread() is not threading.main_thread():
            return
        if phase == "start":
            self._collection_began_s = time.thread_time()
        elif (elapsed_s := time.thread_time() - self._collection_began_s) > _COUNTED_S:
            self.count(f"garbage collection of generation {info['generation']}", elapsed_s)

    def run(self) -> None:
        main = threading.main_thread().ident
        assert main is not None, "the main thread has no number"
        clock, sampled_s, summary_s = time.pthread_getcpuclockid(main), 0.0, time.monotonic()
        while True:
            time.sleep(_SAMPLED_EVERY_S)
            now_s, began_s = time.clock_gettime(clock), self.began_s
            if began_s is not None and now_s - began_s > LONG_S and now_s - sampled_s > LONG_S / 2:
                sampled_s = now_s
                stack = traceback.format_stack(sys._current_frames()[main])[-_FRAMES:]
                self._file.write(f"after {(now_s - began_s) * 1000:.0f} ms:\n{''.join(stack)}")
            if time.monotonic() - summary_s > _SUMMARY_EVERY_S:
                summary_s = time.monotonic()
                self._file.write(f"{now_s:.1f} s of the main thread in all\n{self._summary()}")

    def _summary(self) -> str:
        return "".join(
            f"{count:6} pieces above {_COUNTED_S * 1000:.0f} ms, {self._total_s[name]:7.2f} s, the longest "
            f"{self._longest_s[name] * 1000:5.0f} ms: {name}\n"
            for name, count in self._counts.most_common(20)
        )


def _name(handle: asyncio.Handle) -> str:
    callback: Any = handle._callback  # type: ignore[attr-defined]
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        name = owner.get_name()
        prefix = "" if name.startswith("Task-") else f"{name}: "
        return f"{prefix}{getattr(owner.get_coro(), '__qualname__', '')}"
    return str(getattr(callback, "__qualname__", type(callback).__name__))

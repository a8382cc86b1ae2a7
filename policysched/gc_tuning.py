"""Tunes the garbage collector for long-lived objects.

Most objects either live long (syntax trees, decoded pods, columns) or are freed by reference counting at once. With
Python's default thresholds the cycle collector takes a sixth of the time of `lint` and a tenth of a scheduling attempt,
and with 50,000 pods it pauses the scheduler for 0.1 s at a time, or for as long as a tenant's objects take.
"""

import gc
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

GEN0_THRESHOLD, GEN1_THRESHOLD, GEN2_THRESHOLD = 20_000, 20, 50
SHORT_THRESHOLDS = 4_000, 1, 1
"""A full collection after about 20,000 new objects that are not freed: about 3 ms. Each object is visited once in each
generation, so that more collections take no more time in all."""
_GENERATIONS = 3
GROWTH_FACTOR, GROWTH_BYTES_MIN = 1.5, 256 * 2**20


class _Pauses:
    """How many threads have paused the collections, and whether these were enabled before the first one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._was_enabled = False

    def begin(self) -> None:
        with self._lock:
            if not self._count:
                self._was_enabled = gc.isenabled()
                gc.disable()
            self._count += 1

    def end(self) -> None:
        with self._lock:
            self._count -= 1
            if not self._count and self._was_enabled:
                gc.enable()


_PAUSES = _Pauses()


def raise_gc_thresholds() -> None:
    """Applies to the whole process; only an entry point may call it."""
    gc.set_threshold(GEN0_THRESHOLD, GEN1_THRESHOLD, GEN2_THRESHOLD)


def keep_collections_short() -> None:
    """From now on a full collection visits what was allocated since the last one, instead of the whole cluster. Called after
    the initial lists are read, without a visit to them, since pods wait by then. Cycles that live longer are freed by
    only `collect_all`."""
    gc.set_threshold(*SHORT_THRESHOLDS)
    gc.freeze()
    if _freeze_survivors not in gc.callbacks:
        gc.callbacks.append(_freeze_survivors)
    _forget_survivor_count()


class MemoryGrowth:
    """Whether the process took so much more memory that cycles may be a part of it worth stopping for. Judged by the peak, which
    garbage raises and what is freed and used again does not: at most one collection for each half more."""

    def __init__(self, peak_bytes: int) -> None:
        self._peak_bytes = peak_bytes

    def is_due(self, peak_bytes: int) -> bool:
        """A collection. The next one is due after as much growth again."""
        if peak_bytes < max(self._peak_bytes * GROWTH_FACTOR, self._peak_bytes + GROWTH_BYTES_MIN):
            return False
        self._peak_bytes = peak_bytes
        return True


def peak_memory_bytes() -> int:
    """The most memory that the process had resident. Not on Windows."""
    import resource  # which Windows does not have

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def collect_all() -> int:
    """Visits every object once: 80 ms for the 150,000 of a process with a small cluster, 0.8 s for a million, and 1 ms more for each
    thousand that it frees. Returns how many these are."""
    gc.unfreeze()
    freed = gc.collect()
    _forget_survivor_count()
    return freed


def _forget_survivor_count() -> None:
    """The interpreter puts a full collection off until the new objects are a quarter of those that survived the last one,
    here of the whole cluster. One that visits nothing lets the next one come when the thresholds say."""
    gc.collect()


@contextmanager
def collections_paused() -> Iterator[None]:
    """While much is allocated that is used and freed soon, such as the JSON of a large object: a collection would visit all
    of it, and find nothing."""
    _PAUSES.begin()
    try:
        yield
    finally:
        _PAUSES.end()


@contextmanager
def allocated_for_long() -> Iterator[None]:
    """While a large object is decoded that is kept: no collection visits it, once collections are short. What becomes garbage in
    cycles meanwhile, or just before, is freed by `collect_all`: a few objects a second. To collect it first would hold the
    interpreter for up to 10 ms, since what large objects free puts the usual collections off."""
    with collections_paused():
        yield
        if _freeze_survivors in gc.callbacks:
            gc.freeze()


def _freeze_survivors(phase: str, info: Mapping[str, int]) -> None:
    if phase == "stop" and info["generation"] == _GENERATIONS - 1:
        gc.freeze()

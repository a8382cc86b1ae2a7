"""Rests between the items of a large object that is decoded on a thread.

A thread that computes takes half of the interpreter from the event loop, in turns of half a millisecond, and of the processor what
the kernel gives it. With a rest of twice its time after each piece it takes a quarter.
"""

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

Item = TypeVar("Item")

ITEMS_PER_PIECE = 64
"""Half a millisecond of terms."""
REST_FACTOR = 2.0


class _Thread(threading.local):
    rests = False


_THREAD = _Thread()


@contextmanager
def rests_between_pieces() -> Iterator[None]:
    """What this thread decodes in the block."""
    _THREAD.rests = True
    try:
        yield
    finally:
        _THREAD.rests = False


def in_pieces(items: Sequence[Item] | None) -> Iterable[Item]:
    """The items, with rests if the thread rests and they are many. None: no items."""
    if not items:
        return ()
    if not _THREAD.rests or len(items) <= ITEMS_PER_PIECE:
        return items
    return _with_rests(items)


def _with_rests(items: Sequence[Item]) -> Iterator[Item]:
    for start in range(0, len(items), ITEMS_PER_PIECE):
        began_s = time.thread_time()
        yield from items[start : start + ITEMS_PER_PIECE]
        time.sleep(REST_FACTOR * (time.thread_time() - began_s))

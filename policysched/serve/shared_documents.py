"""Documents that all readers share, made again only as often as their cost allows.

A document that takes `t` seconds to make is made again after `t / share` seconds at the earliest, whoever asks and how often.
Whoever asks after that gets one that is made after the request, and requests that arrive while it is made wait for it.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

from aiohttp import web

DOCUMENTS_MAX = 16
BYTES_MAX = 4 * 2**20

Value = TypeVar("Value")
Outside = Callable[[Awaitable[None]], Awaitable[None]]
"""Waits for something, and meanwhile other documents of the path are made."""
Key = tuple[tuple[str, str], ...]


class Rest:
    """Time without work after work: `t / share` seconds for `t` seconds. The first `burst_s` seconds of work need no rest; time
    without work restores them."""

    def __init__(self, share: float, burst_s: float = 0.0) -> None:
        self._share, self._burst_s = share, burst_s
        self.until_s = 0.0

    def after(self, took_s: float) -> None:
        rested_s = time.monotonic() - self._burst_s / self._share
        self.until_s = max(self.until_s, rested_s) + took_s / self._share

    async def wait(self) -> None:
        await asyncio.sleep(max(0.0, self.until_s - time.monotonic()))


@dataclass(frozen=True, slots=True)
class _Document(Generic[Value]):
    value: Value
    bytes: int
    made_s: float
    rest: Rest


class _Turn:
    """One of those that hold a lock one after another."""

    def __init__(self, lock: asyncio.Lock) -> None:
        self._lock, self._is_held = lock, False

    async def __aenter__(self) -> None:
        await self._lock.acquire()
        self._is_held = True

    async def __aexit__(self, *_error: object) -> None:
        if self._is_held:  # not if it was cancelled outside
            self._lock.release()

    async def outside(self, wait: Awaitable[None]) -> None:
        self._is_held = False
        self._lock.release()
        await wait
        await self.__aenter__()


class SharedDocuments(Generic[Value]):
    """Those of one path, by query, made one after another. `rest`: one for all of them, for which requests with other queries
    wait; None: each has its own. The newest is kept, and others as long as they are few and small."""

    def __init__(self, share: float, *, rest: Rest | None = None, interval_min_s: float = 0.0) -> None:
        self._share, self._rest, self._interval_min_s = share, rest, interval_min_s
        self._by_key: OrderedDict[Key, _Document[Value]] = OrderedDict()
        self._lock = asyncio.Lock()
        self._lock_of = WeakValueDictionary[Key, asyncio.Lock]()

    async def current(
        self, request: web.Request, key: Key, make: Callable[[Outside], Awaitable[tuple[Value, float, int]]]
    ) -> Value:
        """`make`: the value, the seconds that it took, and its bytes in memory. What it raises is not kept."""
        asked_s = time.monotonic()
        lock, turn = self._lock_of.setdefault(key, asyncio.Lock()), _Turn(self._lock)
        async with lock, turn:
            known = self._by_key.get(key)
            if known is not None:
                is_new = asked_s <= known.made_s or time.monotonic() < known.made_s + self._interval_min_s
                if is_new or time.monotonic() < known.rest.until_s:
                    self._by_key.move_to_end(key)
                    return known.value
                del self._by_key[key]
            # Those who wait for their turn need not wait for those who have left.
            if request.transport is None:
                raise web.HTTPServiceUnavailable(text="the client has left\n")
            rest = self._rest or Rest(self._share)
            await rest.wait()
            value, took_s, size = await make(turn.outside)
            rest.after(took_s)
            self._by_key[key] = _Document(value, size, time.monotonic(), rest)
            self._drop_oldest()
            return value

    def _drop_oldest(self) -> None:
        documents = self._by_key
        while len(documents) > 1 and (
            len(documents) > DOCUMENTS_MAX or sum(each.bytes for each in documents.values()) > BYTES_MAX
        ):
            documents.popitem(last=False)

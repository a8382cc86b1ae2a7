"""Large objects of a watch, which wait to be decoded beside the event loop, so that those behind them do not wait.

    watch ──a line of LARGE_LINE_BYTES or more──► waiting, the newest version of each object ──one at a time──► a thread
      │                                                                                                           │
      └──all others──► decoded at once                                      the reflector, as if it had just arrived

Large objects of a list are decoded there, too. The first list waits for those that count for others. A pod of a megabyte takes up to 100 ms of
processor time to decode. A thread lets the event loop run every half millisecond, and rests between the pieces of a long list
(`decode.rests`).
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from typing import Any, Protocol, TypeVar

import orjson

from policysched.gc_tuning import allocated_for_long
from policysched.kube.client.transport import TransportError
from policysched.kube.decode.errors import MalformedObject
from policysched.kube.decode.pod_updates import LONG_SPEC_BYTES
from policysched.kube.decode.rests import rests_between_pieces

Result = TypeVar("Result")

LARGE_LINE_BYTES = LONG_SPEC_BYTES
WAITING_BYTES_MAX = 64 * 1024 * 1024
"""Beyond this, the watch is not read until fewer bytes wait. If that takes long, the server ends the watch, and a list follows."""

_NONE = -1, b""


def is_large(obj: Mapping[str, Any]) -> bool:
    """Whether an object of a list takes long to decode, by the length of its spec: annotations and managed fields do not.
    Also if its spec has more levels than orjson writes, such as the opaque parameters of a claim."""
    try:
        return len(orjson.dumps(obj.get("spec"))) >= LARGE_LINE_BYTES
    except orjson.JSONEncodeError:
        return True


def as_line(obj: Mapping[str, Any]) -> bytes | None:
    """An object of a list as the line of a watch; None if it has more levels than orjson writes."""
    try:
        return orjson.dumps({"type": "MODIFIED", "object": obj})
    except orjson.JSONEncodeError:
        return None


def decode_large(
    kind: str, key: str, decode: Callable[[], Result | MalformedObject], *, rests: bool = True
) -> Result | MalformedObject:
    """Decodes an object on a thread. `rests`: between pieces of it."""
    try:
        with allocated_for_long(), rests_between_pieces() if rests else nullcontext():
            return decode()
    except MalformedObject as malformed:
        return malformed
    except TransportError as error:
        return MalformedObject(kind, key, "(object)", str(error))


class RunBeside(Protocol):
    """Runs a function on a thread, as `asyncio.to_thread`."""

    def __call__(self, function: Callable[[], Result], /) -> Awaitable[Result]: ...


class LargeObjects:
    """The version and the line of each by key. `generation`: what was taken in an earlier one is out of date."""

    def __init__(self) -> None:
        self.generation = 0
        self._waiting: OrderedDict[str, tuple[int, bytes]] = OrderedDict()
        self._bytes = 0
        self._changed = asyncio.Event()

    def put(self, key: str, version: int, line: bytes) -> None:
        """A newer version takes the place of an older one, so an object that changes all the time is decoded as often as
        there is time."""
        older_version, older_line = self._waiting.get(key, _NONE)
        if older_version <= version:
            self._waiting[key] = version, line
            self._change_bytes(len(line) - len(older_line))

    def discard(self, key: str, version: int) -> None:
        """The object has this version, or was deleted in it."""
        older_version, line = self._waiting.get(key, _NONE)
        if older_version <= version and line:
            del self._waiting[key]
            self._change_bytes(-len(line))

    def clear(self) -> None:
        """A list is complete, and has newer versions of all."""
        self.generation += 1
        self._waiting.clear()
        self._change_bytes(-self._bytes)

    async def take(self) -> tuple[str, int, bytes]:
        """The one that waits longest: its key, version and line."""
        while not self._waiting:
            await self._next_change()
        key, (version, line) = self._waiting.popitem(last=False)
        self._change_bytes(-len(line))
        return key, version, line

    @property
    def has_room(self) -> bool:
        return self._bytes <= WAITING_BYTES_MAX

    async def wait_for_room(self) -> None:
        while not self.has_room:
            await self._next_change()

    def _change_bytes(self, change: int) -> None:
        self._bytes += change
        self._changed.set()

    async def _next_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

"""Large objects of a watch, which wait to be decoded beside the event loop, so that those behind them do not wait.

    watch ──a line of LARGE_LINE_BYTES or more──► waiting, the newest version of each object ──one at a time──► a thread
      │                                               │      ▲                                                    │
      │        more than WAITING_BYTES_MAX: its line is dropped, and it is read again where there is room         │
      │                                               ▼      │                                                    ▼
      └──all others──► decoded at once                unread ┘                    the reflector, as if it had just arrived

Namespaces have equal shares in bytes, small objects first, and the namespace with the most bytes loses lines, so that the objects of one
delay no others. Large objects of a list are decoded there, too. The first list waits for those that count for others. A pod of a megabyte takes up to 100 ms of processor
time to decode. A thread lets the event loop run every half millisecond, and rests between the pieces of a long list (`decode.rests`).
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import orjson

from policysched.gc_tuning import allocated_for_long
from policysched.kube.client.api import ApiErrors
from policysched.kube.client.transport import TransportError
from policysched.kube.decode.errors import MalformedObject
from policysched.kube.decode.pod_updates import LONG_SPEC_BYTES
from policysched.kube.decode.rests import rests_between_pieces

Result = TypeVar("Result")

LARGE_LINE_BYTES = LONG_SPEC_BYTES
WAITING_BYTES_MAX = 64 * 1024 * 1024
"""Beyond this, the newest object of the namespace with the most bytes is read again later. The watch is read all the time."""
PASSING_NAMESPACES_MAX = 128
"""More than there are objects of half a megabyte among those that wait."""
RETRY_S = 1.0
_REST_S = 0.1
_REST_SHARE = 10
"""After an object was read, none is read for so many times as long: the event loop parses it in one piece."""


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


@dataclass(frozen=True, slots=True)
class LargeObject:
    """`line`: empty if it is unread."""

    key: str
    namespace: str
    name: str
    version: int
    line: bytes


class _ByNamespace:
    """Objects by key, in order, and the bytes of each namespace. Namespaces are in the order of their turns."""

    def __init__(self) -> None:
        self._objects: dict[str, LargeObject] = {}
        self._keys: OrderedDict[str, OrderedDict[str, None]] = OrderedDict()
        self.bytes: dict[str, int] = {}
        self.bytes_total = 0

    def __len__(self) -> int:
        return len(self._objects)

    def get(self, key: str) -> LargeObject | None:
        return self._objects.get(key)

    def put(self, large: LargeObject) -> None:
        """It keeps the place of an older version."""
        older = self._objects.get(large.key)
        self._objects[large.key] = large
        self._keys.setdefault(large.namespace, OrderedDict())[large.key] = None
        self._add_bytes(large.namespace, len(large.line) - (len(older.line) if older else 0))

    def remove(self, key: str) -> None:
        large = self._objects.pop(key, None)
        if large is None:
            return
        keys = self._keys[large.namespace]
        del keys[key]
        self._add_bytes(large.namespace, -len(large.line))
        if not keys:
            del self._keys[large.namespace], self.bytes[large.namespace]

    def namespaces(self) -> Iterable[str]:
        return self._keys

    def first(self, namespace: str) -> LargeObject:
        return self._objects[next(iter(self._keys[namespace]))]

    def last(self, namespace: str) -> LargeObject:
        return self._objects[next(reversed(self._keys[namespace]))]

    def end_turn(self, namespace: str) -> None:
        if namespace in self._keys:
            self._keys.move_to_end(namespace)

    def _add_bytes(self, namespace: str, change: int) -> None:
        self.bytes[namespace] = self.bytes.get(namespace, 0) + change
        self.bytes_total += change


class LargeObjects:
    """Those that wait, and those that are to be read again. `generation`: what was taken in an earlier one is out of date.

    Namespaces are served by fair queueing: next is the object that would end first if all waiting namespaces were decoded at the same
    time, byte for byte. So a small object passes larger ones, and an object waits until each of the others has had as many bytes as it
    has. New namespaces without end pass it only until `PASSING_NAMESPACES_MAX` times its bytes were decoded."""

    def __init__(self) -> None:
        self.generation = 0
        self._waiting, self._unread = _ByNamespace(), _ByNamespace()
        self._reached = 0.0  # how many bytes each namespace would have had that has waited all the time
        self._begins: dict[str, float] = {}  # where the first object of each namespace begins on that scale
        self._changed = asyncio.Event()

    def put(self, key: str, version: int, metadata: Mapping[str, Any], line: bytes) -> None:
        """A newer version takes the place of an older one, so an object that changes all the time is decoded as often as
        there is time."""
        older = self._waiting.get(key) or self._unread.get(key)
        if older is not None and older.version > version:
            return
        namespace, name = str(metadata.get("namespace") or ""), str(metadata.get("name") or "")
        self._unread.remove(key)
        if namespace not in self._waiting.bytes:
            self._begins[namespace] = max(self._reached, self._begins.get(namespace, 0.0))
        self._waiting.put(LargeObject(key, namespace, name, version, line))
        while self._waiting.bytes_total > WAITING_BYTES_MAX and len(self._waiting) > 1:
            last = self._waiting.last(max(self._waiting.bytes, key=self._waiting.bytes.__getitem__))
            self._waiting.remove(last.key)
            self._unread.put(replace(last, line=b""))
        self._changed.set()

    def discard(self, key: str, version: int) -> None:
        """The object has this version, or was deleted in it."""
        for objects in (self._waiting, self._unread):
            if (older := objects.get(key)) is not None and older.version <= version:
                objects.remove(key)
                self._changed.set()

    def clear(self) -> None:
        """A list is complete, and has newer versions of all."""
        self.generation += 1
        self._reached, self._begins = 0.0, {}
        self._waiting, self._unread = _ByNamespace(), _ByNamespace()
        self._changed.set()

    async def take(self) -> LargeObject:
        """The one that waits longest in the namespace that is next."""
        while not self._waiting:
            await self._next_change()
        waiting = self._waiting
        firsts = [waiting.first(namespace) for namespace in waiting.namespaces()]
        large = min(firsts, key=lambda each: self._begins[each.namespace] + len(each.line))
        self._reached += len(large.line) / min(len(firsts), PASSING_NAMESPACES_MAX)
        self._begins[large.namespace] = max(self._reached, self._begins[large.namespace] + len(large.line))
        waiting.remove(large.key)
        if not waiting:
            self._reached, self._begins = 0.0, {}
        self._changed.set()
        return large

    async def next_unread(self) -> LargeObject:
        """One whose line would not be dropped at once. It stays until it is put, or discarded."""
        while True:
            for namespace in self._unread.namespaces():
                if self._has_room(namespace):
                    large = self._unread.first(namespace)
                    self._unread.end_turn(namespace)
                    return large
            await self._next_change()

    def is_unread(self, key: str) -> bool:
        return self._unread.get(key) is not None

    def _has_room(self, namespace: str) -> bool:
        """Half of the limit is free, or another namespace has twice as many bytes: that one would lose lines."""
        waiting = self._waiting
        if 2 * waiting.bytes_total <= WAITING_BYTES_MAX:
            return True
        return 2 * waiting.bytes.get(namespace, 0) <= max(waiting.bytes.values())

    async def _next_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


async def read_unread(large: LargeObjects, read: Callable[[str, Mapping[str, str]], Awaitable[None]]) -> None:
    """Runs until cancelled. `read` takes the key of an object and how to list it, puts it if it is there, and may raise `ApiErrors`.
    The deletion of one that is not there arrives by the watch."""
    clock = asyncio.get_running_loop().time
    while True:
        unread = await large.next_unread()
        began_s = clock()
        with suppress(*ApiErrors):
            await read(unread.key, params_to_list(unread.namespace, unread.name))
        rest_s = RETRY_S if large.is_unread(unread.key) else _REST_S
        await asyncio.sleep(max(rest_s, _REST_SHARE * (clock() - began_s)))


def params_to_list(namespace: str, name: str) -> Mapping[str, str]:
    """One object by its name, without a namespace by the name alone. The API server reads it alone, as both fields are there."""
    within = f"metadata.namespace={namespace}," if namespace else ""
    return {"fieldSelector": f"{within}metadata.name={name}"}

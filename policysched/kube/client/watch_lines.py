"""Decodes the byte stream of a watch: one JSON object per line, in chunks that are split anywhere."""

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from policysched.gc_tuning import collections_paused
from policysched.kube.client.json_values import parse_json
from policysched.kube.client.transport import TransportError

_TEXT = rb'"([^"\\]*)"'
_IDENTITY = re.compile(
    rb'\{"type":"(ADDED|MODIFIED|DELETED)","object":\{"kind":"\w+","apiVersion":"[\w./]+","metadata":'
    rb'\{"name":%b,(?:"generateName":"[^"\\]*",)?(?:"namespace":%b,)?"uid":%b,"resourceVersion":%b'
    % ((_TEXT,) * 4)
)
"""The API server writes the fields of an object's metadata in this order, and all that a tenant makes long after them."""
_SPEC, _STATUS = b',"spec":{', b',"status":{'
"""A quote in a string is escaped, so these are keys. The API server writes the fields of an object in this order, too."""


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One line. For ERROR, `object` is a Status; for BOOKMARK only its resourceVersion counts. Of a `large` one it is
    what identifies it in the metadata, at least, and `whole_object` reads the rest."""

    type: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"]
    object: dict[str, Any]
    large: bytes | None = None


async def watch_events(
    chunks: AsyncIterator[bytes], idle_timeout_s: float, *, large_bytes: int | None = None
) -> AsyncIterator[WatchEvent]:
    """Ends with the stream. Raises TransportError if the stream breaks, is idle for `idle_timeout_s`, or is not a watch.
    An incomplete last line is dropped. Of a line of `large_bytes` or more only what identifies the object is read."""
    begun: list[bytes] = []  # of a line without its end: joined once, since a line can have many chunks
    while True:
        try:
            async with asyncio.timeout(idle_timeout_s):
                chunk = await anext(chunks)
        except StopAsyncIteration:
            return
        except TimeoutError as error:
            raise TransportError(f"the watch was idle for {idle_timeout_s:g} s") from error
        end, *more = chunk.split(b"\n")
        begun.append(end)
        for next_line in more:
            line = b"".join(begun)
            begun = [next_line]
            if large_bytes is not None and len(line) >= large_bytes:
                yield _large_event(line)
            elif line.strip():
                yield _decode_event(line)


def whole_object(line: bytes) -> dict[str, Any]:
    """The object of a `large` event. Raises TransportError."""
    with collections_paused():
        return _decode_event(line).object


def split_object(line: bytes) -> tuple[dict[str, Any], bytes | None]:
    """The object of a `large` event without its spec, and the JSON of the spec; None: the object is whole. Raises
    TransportError."""
    begins, ends = line.find(_SPEC) + len(_SPEC) - 1, line.rfind(_STATUS)
    if len(_SPEC) <= begins < ends:
        try:  # cut at other keys of these names, the braces of the rest would not match
            event = _decode_event(line[:begins] + b"null" + line[ends:])
        except TransportError:
            return whole_object(line), None
        if event.object.get("spec", "") is None:
            return event.object, line[begins:ends]
    return whole_object(line), None


def _large_event(line: bytes) -> WatchEvent:
    """What identifies the object is at the begin: the rest of the line is not parsed for it."""
    begun = _IDENTITY.match(line)
    if begun is not None:
        kind, *fields = (None if field is None else field.decode() for field in begun.groups())
        identity = dict(zip(("name", "namespace", "uid", "resourceVersion"), fields, strict=True))
        return WatchEvent(kind, {"metadata": identity}, line)  # type: ignore[arg-type]
    with collections_paused():  # nothing of it is left afterwards
        event = _decode_event(line)
        if event.type == "ERROR":
            return event
        metadata = event.object.get("metadata")
        return WatchEvent(event.type, {"metadata": metadata}, line)


def _decode_event(line: bytes) -> WatchEvent:
    try:
        decoded = parse_json(line)
    except orjson.JSONDecodeError as error:
        raise TransportError(f"a watch line is not JSON: {error}") from error
    match decoded:
        case {
            "type": "ADDED" | "MODIFIED" | "DELETED" | "BOOKMARK" | "ERROR" as kind,
            "object": dict() as obj,
        }:
            return WatchEvent(kind, obj)
        case _:
            raise TransportError(f"a watch line is not an event: {line[:100]!r}")

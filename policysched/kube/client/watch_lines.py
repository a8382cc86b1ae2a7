"""A watch's bytes as events: one JSON object a line, cut anywhere, perhaps broken off in the middle of one."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from policysched.kube.client.transport import TransportError


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One line. For ERROR, `object` is a Status; for BOOKMARK only its version means anything."""

    type: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"]
    object: dict[str, Any]


async def watch_events(chunks: AsyncIterator[bytes], idle_timeout_s: float) -> AsyncIterator[WatchEvent]:
    """Ends where the stream ends; raises TransportError where it breaks, falls silent for `idle_timeout_s`, or turns into
    something that is not a watch. The rest of a line at the end was never a whole event and is dropped."""
    buffered = b""
    while True:
        try:
            async with asyncio.timeout(idle_timeout_s):
                chunk = await anext(chunks)
        except StopAsyncIteration:
            return
        except TimeoutError as error:
            raise TransportError(f"the watch was idle for {idle_timeout_s:g} s") from error
        *lines, buffered = (buffered + chunk).split(b"\n")
        for line in lines:
            if line.strip():
                yield _decode_event(line)


def _decode_event(line: bytes) -> WatchEvent:
    try:
        read = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise TransportError(f"a watch line is not JSON: {error}") from error
    match read:
        case {
            "type": "ADDED" | "MODIFIED" | "DELETED" | "BOOKMARK" | "ERROR" as kind,
            "object": dict() as obj,
        }:
            return WatchEvent(kind, obj)
        case _:
            raise TransportError(f"a watch line is not an event: {line[:100]!r}")

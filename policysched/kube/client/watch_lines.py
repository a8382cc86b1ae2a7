"""Decodes the byte stream of a watch: one JSON object per line, in chunks that are split anywhere."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from policysched.kube.client.transport import TransportError


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One line. For ERROR, `object` is a Status; for BOOKMARK only its resourceVersion counts."""

    type: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"]
    object: dict[str, Any]


async def watch_events(chunks: AsyncIterator[bytes], idle_timeout_s: float) -> AsyncIterator[WatchEvent]:
    """Ends with the stream. Raises TransportError if the stream breaks, is idle for `idle_timeout_s`, or is not a watch.
    An incomplete last line is dropped."""
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
            if line.strip():
                yield _decode_event(line)


def _decode_event(line: bytes) -> WatchEvent:
    try:
        decoded = orjson.loads(line)
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

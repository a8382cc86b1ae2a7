"""JSON of the API server, also where a tenant wrote a part of it that the parser refuses.

The opaque parameters of a ResourceClaim are stored as they were written, if Go's parser takes them: 10,000 levels, halves of
surrogate pairs, bytes that are no UTF-8. One such object would end each watch and each list of its kind.
"""

import asyncio
import contextlib
import re
from collections.abc import Iterator
from typing import Any

import orjson

from policysched.gc_tuning import collections_paused

LEVELS_MAX = 400
"""Deeper values are read as null. More than the 254 that orjson writes, so that an object is malformed and not changed."""
_CHUNK_BYTES = 64 * 1024
TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)
_HEX = rb"[0-9a-fA-F]"
_LOW = rb"\\u[dD][c-fC-F]%b{2}" % _HEX
_SURROGATES = re.compile(rb"\\\\|\\u[dD][89abAB]%b{2}(?:%b)?|%b" % (_HEX, _LOW, _LOW))
_HALF_LENGTH = len(rb"\ud800")


def parse_json(text: bytes) -> Any:
    """Raises orjson.JSONDecodeError."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        with contextlib.suppress(orjson.JSONDecodeError):
            return _repaired(text)
        raise


async def read_json(text: bytes) -> Any:
    """The same for a text of any length: a repair takes up to 0.25 s for each megabyte, so it runs beside the event loop.
    Collections of garbage would take as long as the parser."""
    try:
        with collections_paused():
            return orjson.loads(text)
    except orjson.JSONDecodeError:
        return await asyncio.to_thread(parse_json, text)


def _repaired(text: bytes) -> Any:
    """With the replacement character for what is no Unicode, as Go reads it, and if need be without deep values."""
    chunks = _chunks(text.decode(errors="replace").encode())
    valid = b"".join(_SURROGATES.sub(_without_half, chunk) for chunk in chunks)
    try:
        return orjson.loads(valid)
    except orjson.JSONDecodeError:
        return orjson.loads(_without_deep_values(valid))


def _chunks(text: bytes) -> Iterator[bytes]:
    """So that a thread gives up the interpreter between them. None ends
    within an escape, or between two that belong together."""
    begin = 0
    while begin < len(text):
        end = text.find(b',"', begin + _CHUNK_BYTES) + 1 or len(text)
        yield text[begin:end]
        begin = end


def _without_half(escape: re.Match[bytes]) -> bytes:
    return rb"\ufffd" if len(escape[0]) == _HALF_LENGTH else escape[0]  # else a pair, or a backslash


def _without_deep_values(text: bytes) -> bytes:
    parts, begin, cut, level = list[bytes](), 0, 0, 0
    for token in TOKEN.finditer(text):
        match token[0]:
            case b"[" | b"{":
                level += 1
                if level == LEVELS_MAX + 1:
                    cut = token.start()
            case b"]" | b"}":
                if level == LEVELS_MAX + 1:
                    parts += (text[begin:cut], b"null")
                    begin = token.end()
                level -= 1
            case _:
                pass  # a string
    return b"".join([*parts, text[begin:]])

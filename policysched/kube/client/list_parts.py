"""Parses a list in parts of PART_BYTES, so that other tasks run between two of them.

    {"kind":"PodList","metadata":{...},"items":[ {"metadata":{...}, {"metadata":{...} ... ]}
    └────────────── begin ───────────────────┘ └───── a part ─────┘└─── a part ───┘  └┘ end

A text is cut where an item seems to begin. That can be inside an item, since a tenant writes the opaque parameters of a claim. Then
the brackets of the part do not match, and where its items end is found by counting brackets.
"""

import asyncio
import re
from collections.abc import AsyncGenerator
from typing import Any

import orjson

from policysched.gc_tuning import collections_paused
from policysched.kube.client.json_values import TOKEN, read_json

PART_BYTES = 256 * 1024
"""Of a part, or one item: 1 to 4 ms."""

_BEGIN = re.compile(rb'\{[^\[]*"items":\[(\{(?:"(?:kind|apiVersion)":"[^"\\]*",){0,2}"metadata":\{)')


async def read_list(text: bytes) -> AsyncGenerator[Any, None]:
    """The list, once for each part of its items. Raises orjson.JSONDecodeError."""
    begin = _BEGIN.match(text)
    if begin is None or len(text) <= PART_BYTES:
        yield await read_json(text)
        return
    at, end, separator = begin.start(1), text.rfind(b"]"), b"}," + begin[1]
    envelope = await read_json(text[:at] + text[end:])
    while at < end:
        cut = text.find(separator, at + PART_BYTES, end) + 1 or end
        try:
            with collections_paused():
                items = orjson.loads(b"[%b]" % text[at:cut])
        except orjson.JSONDecodeError:
            cut = await asyncio.to_thread(_end_of_items, text, at, end)
            items = await read_json(b"[%b]" % text[at:cut])
        yield {**envelope, "items": items}
        at = cut + 1


def _end_of_items(text: bytes, begin: int, end: int) -> int:
    """Of those with PART_BYTES or more in all that begin there."""
    level = 0
    for token in TOKEN.finditer(text, begin, end):
        match token[0]:
            case b"[" | b"{":
                level += 1
            case b"]" | b"}":
                level -= 1
                if not level and token.end() - begin >= PART_BYTES:
                    return token.end()
            case _:
                pass  # a string
    return end

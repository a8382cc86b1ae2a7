"""The data of the page: documents that all viewers share, made again only as often as their cost allows.

A document that takes `t` seconds to make is made again after `t / share` seconds at the earliest, whoever asks and how
often. So the page costs the server a bounded share of a core, for one viewer as for fifty. A user who may not list the
pods of all namespaces gets the rows of the namespaces whose pods he may list.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from aiohttp import web

from policysched.serve.page_files import Document

INTERVAL_MIN_S = 0.9
"""Viewers ask once a second."""
_DOCUMENTS_MAX = 16
_NAMESPACES_REVIEWED_MAX = 64

Json = Mapping[str, Any]
MayListPods = Callable[[str | None], Awaitable[bool]]
"""Of one namespace, or of all (None)."""
Render = Callable[[Mapping[str, str]], Awaitable[tuple[Json, float]]]
"""The document of a query, and the seconds that it took. Raises NoSuchEndpoint, and HTTPServiceUnavailable."""


@dataclass(slots=True)
class _Version:
    value: Json
    made_s: float
    document: Document | None = None


class PageFeed:
    """One path of the page's data. `share`: of one core, at most."""

    def __init__(self, render: Render, share: float) -> None:
        self._render, self._share = render, share
        self._versions: OrderedDict[tuple[tuple[str, str], ...], _Version] = OrderedDict()
        self._rests_until_s = 0.0
        self._turn = asyncio.Lock()

    async def response(self, request: web.Request, may_list_pods: MayListPods) -> web.Response:
        version = await self._current(dict(request.query))
        if await may_list_pods(None):
            if version.document is None:
                began_s = time.thread_time()
                version.document = _document(version.value)
                self._rest(time.thread_time() - began_s)
            document = version.document
        else:
            document = _document(await visible_to(version.value, may_list_pods))
        response = document.response(request)
        response.headers["Policysched-Time-Ms"] = str(time.time_ns() // 1_000_000)
        return response

    async def _current(self, query: dict[str, str]) -> _Version:
        key = tuple(sorted(query.items()))
        async with self._turn:
            version = self._versions.get(key)
            now_s = time.monotonic()
            if version is not None and now_s < max(version.made_s + INTERVAL_MIN_S, self._rests_until_s):
                return version
            await asyncio.sleep(max(0.0, self._rests_until_s - now_s))
            value, took_s = await self._render(query)
            self._versions.pop(key, None)
            version = self._versions[key] = _Version(value, time.monotonic())
            if len(self._versions) > _DOCUMENTS_MAX:
                self._versions.popitem(last=False)
            self._rests_until_s = time.monotonic()
            self._rest(took_s)
            return version

    def _rest(self, took_s: float) -> None:
        self._rests_until_s += took_s / self._share


def _document(value: Json) -> Document:
    return Document.of(orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS), "application/json")


async def visible_to(value: Json, may_list_pods: MayListPods) -> dict[str, Any]:
    """The document without the rows of other namespaces: those with a `namespace`, or only `namespaces`, whose pods the
    user may not list. `hidden_rows` counts them."""
    namespaces: dict[str, None] = {}
    _collect(value, namespaces)
    reviewed = list(namespaces)[:_NAMESPACES_REVIEWED_MAX]
    allowed = {name for name in reviewed if await may_list_pods(name)}
    hidden = [0]
    kept = _keep(value, allowed, hidden)
    assert isinstance(kept, dict)
    return {**kept, "hidden_rows": hidden[0]}


def _namespaces_of(row: Mapping[str, Any]) -> list[str] | None:
    if "namespace" in row:
        return [row["namespace"]]
    return row.get("namespaces")


def _collect(value: Any, into: dict[str, None]) -> None:
    if isinstance(value, Mapping):
        into.update(dict.fromkeys(_namespaces_of(value) or ()))
        for part in value.values():
            _collect(part, into)
    elif isinstance(value, list):
        for part in value:
            _collect(part, into)


def _keep(value: Any, allowed: set[str], hidden: list[int]) -> Any:
    if isinstance(value, Mapping):
        kept = {name: _keep(part, allowed, hidden) for name, part in value.items()}
        if "namespaces" in kept:
            kept["namespaces"] = [name for name in kept["namespaces"] if name in allowed]
        return kept
    if not isinstance(value, list):
        return value
    rows = []
    for row in value:
        namespaces = _namespaces_of(row) if isinstance(row, Mapping) else None
        if namespaces is not None and allowed.isdisjoint(namespaces):
            hidden[0] += 1
        else:
            rows.append(_keep(row, allowed, hidden))
    return rows

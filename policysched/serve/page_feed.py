"""The data of the page: documents that all viewers share (`shared_documents`).

What is left of a document for viewers with fewer permissions is shared, too, and its cost counts. So the page costs the server
a bounded share of a core, for one viewer as for fifty, whichever pods they ask for. A user who may not list the pods of all
namespaces gets the rows of the namespaces whose pods he may list.
"""

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web

from policysched.serve.main_loop_reader import live_query
from policysched.serve.page_files import Document
from policysched.serve.shared_documents import Outside, Rest, SharedDocuments

INTERVAL_MIN_S = 0.9
"""Viewers ask once a second."""
_NAMESPACES_REVIEWED_MAX = 64

Json = Mapping[str, Any]
MayListPods = Callable[[str | None], Awaitable[bool]]
"""Of one namespace, or of all (None)."""
Render = Callable[[Mapping[str, str], Outside], Awaitable[tuple[Json, float]]]
"""The document of a query, and the seconds that it took. Raises NoSuchEndpoint, and HTTPServiceUnavailable."""


@dataclass(slots=True)
class _Version:
    """`documents` by what their viewers may list: namespaces, or all pods (None)."""

    value: Json
    documents: dict[frozenset[str] | None, Document] = field(default_factory=dict)
    namespaces: list[str] | None = None


class PageFeed:
    """One path of the page's data. `share`: of one core, at most."""

    def __init__(self, render: Render, share: float) -> None:
        self._render, self._rest = render, Rest(share)
        self._versions = SharedDocuments[_Version](share, rest=self._rest, interval_min_s=INTERVAL_MIN_S)

    async def response(self, request: web.Request, may_list_pods: MayListPods) -> web.Response:
        query = live_query(request)
        await _require_namespace(query.get("pod", ""), may_list_pods)

        async def make(outside: Outside) -> tuple[_Version, float, int]:
            value, took_s = await self._render(query, outside)
            return _Version(value), took_s, 0  # the programs that fill the page bound it

        version = await self._versions.current(request, tuple(sorted(query.items())), make)
        allowed = await self._allowed(version, may_list_pods)
        document = version.documents.get(allowed)
        if document is None:
            began_s = time.thread_time()
            shown = version.value if allowed is None else visible_in(version.value, allowed)
            document = version.documents[allowed] = _document(shown)
            self._rest.after(time.thread_time() - began_s)
        response = document.response(request)
        response.headers["Policysched-Time-Ms"] = str(time.time_ns() // 1_000_000)
        return response

    async def _allowed(self, version: _Version, may_list_pods: MayListPods) -> frozenset[str] | None:
        """None: all namespaces."""
        if await may_list_pods(None):
            return None
        if version.namespaces is None:
            began_s = time.thread_time()
            version.namespaces = namespaces_of(version.value)
            self._rest.after(time.thread_time() - began_s)
        reviewed = version.namespaces[:_NAMESPACES_REVIEWED_MAX]
        return frozenset([name for name in reviewed if await may_list_pods(name)])


async def _require_namespace(pod: str, may_list_pods: MayListPods) -> None:
    """Of a pod that is asked for by `namespace/name`. Otherwise the answers about pods that exist and those that do not would
    differ, and an answer that there is nothing to explain names the pod's node."""
    namespace, slash, _ = pod.strip().partition("/")
    if slash and not await may_list_pods(None) and not await may_list_pods(namespace):
        raise web.HTTPForbidden(text=f"you may not list the pods of namespace {namespace}\n")


def _document(value: Json) -> Document:
    return Document.of(orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS), "application/json")


def namespaces_of(value: Json) -> list[str]:
    """The namespaces that rows of the document name."""
    namespaces: dict[str, None] = {}
    _collect(value, namespaces)
    return list(namespaces)


def visible_in(value: Json, allowed: frozenset[str]) -> dict[str, Any]:
    """The document without the rows of other namespaces: those with a `namespace`, or only `namespaces`, whose pods the
    user may not list. `hidden_rows` counts them."""
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


def _keep(value: Any, allowed: frozenset[str], hidden: list[int]) -> Any:
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

"""The endpoints with data of the main loop, for people and programs. Equal requests share a rendered body (`shared_documents`)."""

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import orjson
from aiohttp import web

from policysched.serve.main_loop_reader import Json, LiveEndpoint, MainLoopReader, live_query
from policysched.serve.policy_try import PolicyTries
from policysched.serve.prometheus_text import CONTENT_TYPE
from policysched.serve.shared_documents import Outside, SharedDocuments

DECISIONS_LIMIT_DEFAULT = 100
LIMIT_DIGITS_MAX = 9
DOCUMENT_SHARE = 0.02

RenderDecisions = Callable[[], bytes]
Query = Mapping[str, str]
_Looked = tuple[Callable[[], bytes], float]
"""What renders the body in the HTTP thread, and the seconds that it took to get it."""


@dataclass(frozen=True, slots=True)
class StatusEndpoints:
    """Functions that run in the main loop. `decisions` takes a limit and a `namespace/name` or '', and returns a function
    that renders its snapshot as JSON in another thread. It and `quotas` are None if the program does not decide.
    `live_endpoints` by path. `page_feeds`: the data of the page at `/`, by path, with the share of a core that each may cost;
    empty: there is no page. `policy_tries`: its playground. `is_standby` is called in the server's thread."""

    metrics: Callable[[], str]
    policy: Callable[[], Json]
    decisions: Callable[[int, str], RenderDecisions] | None
    configz: Callable[[], Json]
    quotas: Callable[[], Json] | None = None
    live_endpoints: Mapping[str, LiveEndpoint] = field(default_factory=dict)
    page_feeds: Mapping[str, tuple[LiveEndpoint, float]] = field(default_factory=dict)
    policy_tries: PolicyTries | None = None
    is_standby: Callable[[], bool] = lambda: False


def status_routes(endpoints: StatusEndpoints, main_loop: MainLoopReader) -> list[web.RouteDef]:
    def json(path: str, look: Callable[[], Json]) -> web.RouteDef:
        async def looked(_query: Query, _outside: Outside) -> _Looked:
            value, took_s = await main_loop.run(look)
            return lambda: orjson.dumps(value) + b"\n", took_s

        return _route(path, looked)

    def live(path: str, page: LiveEndpoint) -> web.RouteDef:
        async def looked(query: Query, outside: Outside) -> _Looked:
            value, took_s = await main_loop.run_steps(page, query, outside)
            return lambda: orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS) + b"\n", took_s

        return _route(path, looked, live_query)

    async def metrics(_query: Query, _outside: Outside) -> _Looked:
        text, took_s = await main_loop.run(endpoints.metrics)
        return text.encode, took_s

    routes = [
        _route("/metrics", metrics, content_type=CONTENT_TYPE),
        json("/policy", endpoints.policy),
        json("/configz", endpoints.configz),
    ]
    if (decisions := endpoints.decisions) is not None:
        look = decisions

        async def looked(query: Query, _outside: Outside) -> _Looked:
            return await main_loop.run(lambda: look(int(query["limit"]), query["pod"]))

        routes.append(_route("/decisions", looked, _decisions_query))
    if endpoints.quotas is not None:
        routes.append(json("/quotas", endpoints.quotas))
    return routes + [live(path, page) for path, page in endpoints.live_endpoints.items()]


def _route(
    path: str,
    look: Callable[[Query, Outside], Awaitable[_Looked]],
    query_of: Callable[[web.Request], dict[str, str]] = lambda _request: {},
    content_type: str = "application/json",
) -> web.RouteDef:
    documents = SharedDocuments[bytes](DOCUMENT_SHARE)

    async def answer(request: web.Request) -> web.Response:
        query = query_of(request)

        async def make(outside: Outside) -> tuple[bytes, float, int]:
            render, took_s = await look(query, outside)
            began_s = time.thread_time()
            body = render()
            return body, took_s + time.thread_time() - began_s, len(body)

        body = await documents.current(request, tuple(sorted(query.items())), make)
        return web.Response(body=body, headers={"Content-Type": content_type})

    return web.get(path, answer)


def _decisions_query(request: web.Request) -> dict[str, str]:
    limit = request.query.get("limit", str(DECISIONS_LIMIT_DEFAULT))
    if not (limit.isascii() and limit.isdigit() and len(limit) <= LIMIT_DIGITS_MAX):
        raise web.HTTPBadRequest(text=f"limit is not a number: {limit}\n")
    return {"limit": limit, "pod": request.query.get("pod", "")}

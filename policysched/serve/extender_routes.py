"""The routes of the extender protocol, `POST /POLICY/VERB`: parsed here, answered by the main loop within a time budget.

kube-scheduler builds the URL from `urlPrefix` and the verb, so the prefix selects the policy:
`http://extender:8888/network-aware` with the verbs filter, prioritize, preempt and bind. A client that has timed out
reads no response, so a request that exceeds the budget gets a time-out response and is dropped.

The number of concurrent requests is bounded, since each may have a large body: further requests get 503 with
`Retry-After` before their body is read.

Large bodies (node lists) are parsed in another thread, because this thread's event loop also answers probes.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import orjson
from aiohttp import web

VERBS = ("filter", "prioritize", "preempt", "bind")
_PARSE_ON_LOOP_BYTES_MAX = 64 * 1024
RETRY_AFTER_S = 1
"""The `Retry-After` of a 503. Responses take milliseconds."""


@dataclass(frozen=True, slots=True)
class ExtenderHttpCall:
    """One request. `options` is the query string; `deadline_s` is on the clock of `time.monotonic`."""

    policy: str
    verb: str
    options: Mapping[str, str]
    body: bytes
    deadline_s: float


@dataclass(frozen=True, slots=True)
class ExtenderResponse:
    """`value` is sent as JSON, a string as plain text. `outcome` is a label of the metrics."""

    status: int
    value: Any
    outcome: str


PendingResponse = Callable[[], Awaitable[ExtenderResponse]]


class ExtenderRequestHandler(Protocol):
    """`parse` runs in a server thread and returns work for the main loop, or a response that needs none.
    `timeout_response` is sent after the deadline. `record` may be called in any thread. At most `requests_max` requests
    are processed at a time."""

    budget_s: float
    requests_max: int

    def parse(self, call: ExtenderHttpCall) -> PendingResponse | ExtenderResponse: ...
    def timeout_response(self, call: ExtenderHttpCall) -> ExtenderResponse: ...
    def record(self, call: ExtenderHttpCall, response: ExtenderResponse, seconds: float) -> None: ...


def extender_routes(
    handler: ExtenderRequestHandler, main_loop: asyncio.AbstractEventLoop, *, require_client_certificate: bool
) -> list[web.RouteDef]:
    """`require_client_certificate`: reject clients without a certificate (TLS has verified it)."""

    in_flight = 0

    async def answer(request: web.Request) -> web.Response:
        nonlocal in_flight
        started_s = time.monotonic()
        if require_client_certificate and not _has_certificate(request):
            return web.Response(status=403, text="a client certificate is required\n")
        policy, verb = request.match_info["policy"], request.match_info["verb"]
        call = ExtenderHttpCall(policy, verb, dict(request.query), b"", started_s + handler.budget_s)
        if in_flight >= handler.requests_max:
            response = _busy_response(handler)
        else:
            in_flight += 1
            try:
                call, response = await _read_and_answer(request, handler, call, main_loop)
            finally:
                in_flight -= 1
        handler.record(call, response, time.monotonic() - started_s)
        headers = {"Retry-After": str(RETRY_AFTER_S)} if response.outcome == "busy" else None
        if isinstance(response.value, str):
            return web.Response(status=response.status, text=response.value, headers=headers)
        return web.Response(
            status=response.status, body=orjson.dumps(response.value), content_type="application/json"
        )

    return [web.post(f"/{{policy}}/{{verb:{'|'.join(VERBS)}}}", answer)]


def _busy_response(handler: ExtenderRequestHandler) -> ExtenderResponse:
    return ExtenderResponse(
        503,
        f"policysched extender: too many requests in flight (limit {handler.requests_max}); retry later\n",
        "busy",
    )


async def _read_and_answer(
    request: web.Request,
    handler: ExtenderRequestHandler,
    call: ExtenderHttpCall,
    main_loop: asyncio.AbstractEventLoop,
) -> tuple[ExtenderHttpCall, ExtenderResponse]:
    """A slow client occupies its slot no longer than the budget."""
    try:
        async with asyncio.timeout(call.deadline_s - time.monotonic()):
            call = replace(call, body=await request.read())
    except TimeoutError:
        return call, handler.timeout_response(call)
    return call, await _answer(handler, call, main_loop)


async def _answer(
    handler: ExtenderRequestHandler, call: ExtenderHttpCall, main_loop: asyncio.AbstractEventLoop
) -> ExtenderResponse:
    try:
        async with asyncio.timeout(call.deadline_s - time.monotonic()):
            if len(call.body) > _PARSE_ON_LOOP_BYTES_MAX:
                work = await asyncio.to_thread(handler.parse, call)
            else:
                work = handler.parse(call)
            if isinstance(work, ExtenderResponse):
                return work
            future = asyncio.run_coroutine_threadsafe(_run_pending(work), main_loop)
            return await asyncio.wrap_future(future)
    except TimeoutError:
        return handler.timeout_response(call)


async def _run_pending(work: PendingResponse) -> ExtenderResponse:
    return await work()


def _has_certificate(request: web.Request) -> bool:
    return request.transport is not None and bool(request.transport.get_extra_info("peercert"))

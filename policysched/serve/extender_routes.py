"""The extender protocol's routes: `POST /POLICY/VERB`, read here, answered by the main loop, in time or not at all.

kube-scheduler puts the URL together from `urlPrefix` and the verb, so the policy is chosen by the prefix:
`http://extender:8888/network-aware` with the verbs filter, prioritize, preempt and bind. A caller that has given up
reads nothing any more, so what cannot be answered within the budget is answered with that fact, and is not worked on.

Only so many requests are taken in at a time, for each may bring a large body: who comes when the house is full is sent away
before its body is read, with 503 and `Retry-After`.

What is large (whole node lists) is read off the loop of this thread, which also answers the probes.
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
"""When to ask again after a refusal. Answers take milliseconds."""


@dataclass(frozen=True, slots=True)
class ExtenderHttpCall:
    """One request. `options` is its query, `deadline_s` on the clock of `time.monotonic`."""

    policy: str
    verb: str
    options: Mapping[str, str]
    body: bytes
    deadline_s: float


@dataclass(frozen=True, slots=True)
class ExtenderResponse:
    """`value` is answered as JSON; a text as it is. `outcome` is a word for the metrics."""

    status: int
    value: Any
    outcome: str


PendingResponse = Callable[[], Awaitable[ExtenderResponse]]


class ExtenderRequestHandler(Protocol):
    """Who answers. `parse` runs in a thread of ours and gives what is to be awaited in the main loop, or a reply where
    there is no verb is configured. `timeout_response` is what is said when time is up. `record` may be called in any thread. More than
    `requests_max` at a time are not answered."""

    budget_s: float
    requests_max: int

    def parse(self, call: ExtenderHttpCall) -> PendingResponse | ExtenderResponse: ...
    def timeout_response(self, call: ExtenderHttpCall) -> ExtenderResponse: ...
    def record(self, call: ExtenderHttpCall, reply: ExtenderResponse, seconds: float) -> None: ...


def extender_routes(
    handler: ExtenderRequestHandler, main_loop: asyncio.AbstractEventLoop, *, require_client_certificate: bool
) -> list[web.RouteDef]:
    """`require_client_certificate`: only a client that has shown a certificate (which TLS has verified) is answered."""

    under_way = 0

    async def answer(request: web.Request) -> web.Response:
        nonlocal under_way
        began_s = time.monotonic()
        if require_client_certificate and not _has_certificate(request):
            return web.Response(status=403, text="a client certificate is required\n")
        policy, verb = request.match_info["policy"], request.match_info["verb"]
        call = ExtenderHttpCall(policy, verb, dict(request.query), b"", began_s + handler.budget_s)
        if under_way >= handler.requests_max:
            reply = _busy_response(handler)
        else:
            under_way += 1
            try:
                call, reply = await _read_and_answer(request, handler, call, main_loop)
            finally:
                under_way -= 1
        handler.record(call, reply, time.monotonic() - began_s)
        headers = {"Retry-After": str(RETRY_AFTER_S)} if reply.outcome == "busy" else None
        if isinstance(reply.value, str):
            return web.Response(status=reply.status, text=reply.value, headers=headers)
        return web.Response(
            status=reply.status, body=orjson.dumps(reply.value), content_type="application/json"
        )

    return [web.post(f"/{{policy}}/{{verb:{'|'.join(VERBS)}}}", answer)]


def _busy_response(desk: ExtenderRequestHandler) -> ExtenderResponse:
    return ExtenderResponse(
        503,
        f"policysched extender: too many requests in flight (limit {desk.requests_max}); retry later\n",
        "busy",
    )


async def _read_and_answer(
    request: web.Request,
    desk: ExtenderRequestHandler,
    call: ExtenderHttpCall,
    main_loop: asyncio.AbstractEventLoop,
) -> tuple[ExtenderHttpCall, ExtenderResponse]:
    """Who sends slowly, or stops sending, keeps its place no longer than the budget."""
    try:
        async with asyncio.timeout(call.deadline_s - time.monotonic()):
            call = replace(call, body=await request.read())
    except TimeoutError:
        return call, desk.timeout_response(call)
    return call, await _answer(desk, call, main_loop)


async def _answer(
    desk: ExtenderRequestHandler, call: ExtenderHttpCall, main_loop: asyncio.AbstractEventLoop
) -> ExtenderResponse:
    try:
        async with asyncio.timeout(call.deadline_s - time.monotonic()):
            if len(call.body) > _PARSE_ON_LOOP_BYTES_MAX:
                work = await asyncio.to_thread(desk.parse, call)
            else:
                work = desk.parse(call)
            if isinstance(work, ExtenderResponse):
                return work
            under_way = asyncio.run_coroutine_threadsafe(_run_pending(work), main_loop)
            return await asyncio.wrap_future(under_way)
    except TimeoutError:
        return desk.timeout_response(call)


async def _run_pending(work: PendingResponse) -> ExtenderResponse:
    return await work()


def _has_certificate(request: web.Request) -> bool:
    return request.transport is not None and bool(request.transport.get_extra_info("peercert"))

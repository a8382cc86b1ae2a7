"""The routes of the extender protocol, `POST /POLICY/VERB`: parsed here, answered by the main loop within a time budget.

kube-scheduler builds the URL from `urlPrefix` and the verb, so the prefix selects the policy:
`http://extender:8888/network-aware` with the verbs filter, prioritize, preempt and bind. A client that has timed out
reads no response, so a request that exceeds the budget gets a time-out response and is dropped.

The memory of requests is bounded. At most `requests_max` are processed at a time, and their bodies share a budget:
further ones get 503 with `Retry-After`. A body is measured while it arrives, in bytes and in JSON values, because a value
of two bytes (`[]`) becomes an object of 64; an object with a key needs three times as much and counts as three. Large bodies are parsed in another thread, because this thread's event loop
also answers probes; those with many values one after another.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import orjson
from aiohttp import web

from policysched.serve.access import USER

VERBS = ("filter", "prioritize", "preempt", "bind")
_PARSE_ON_LOOP_BYTES_MAX = 64 * 1024
_MANY_VALUES = 20_000
_VALUE_STARTS = ((b",", 1), (b"[", 1), (b"{", 3))
"""Each value but the first of an array or object follows a comma. Those inside strings count too: the count is an upper
bound. With these weights a value needs at most 100 bytes once it is parsed, however values are nested."""
_BODIES_BUDGET_FACTOR = 2
"""The bodies of all requests together may have this many times `body_bytes_max`."""
RETRY_AFTER_S = 1
"""The `Retry-After` of a 503. Responses take milliseconds."""


@dataclass(frozen=True, slots=True)
class ExtenderHttpCall:
    """One request. `options` is the query string; `deadline_s` is on the clock of `time.monotonic`. `client`: the name of the
    user; without access control, and for a certificate without a name, the address."""

    policy: str
    verb: str
    options: Mapping[str, str]
    body: bytes
    deadline_s: float
    client: str = ""


@dataclass(frozen=True, slots=True)
class ExtenderResponse:
    """`value` is sent as JSON, a string as plain text. `outcome` is a label of the metrics."""

    status: int
    value: Any
    outcome: str


PendingResponse = Callable[[], Awaitable[ExtenderResponse]]


class ExtenderRequestHandler(Protocol):
    """`parse` runs in a server thread and returns work for the main loop, or a response that needs none.
    `timeout_response` is sent after the deadline, `too_large_response` for a body beyond the limits. `record` may be called
    in any thread."""

    response_timeout_s: float
    requests_max: int
    body_bytes_max: int
    values_max: int

    def parse(self, call: ExtenderHttpCall) -> PendingResponse | ExtenderResponse: ...
    def timeout_response(self, call: ExtenderHttpCall) -> ExtenderResponse: ...
    def too_large_response(self, call: ExtenderHttpCall, limit: str) -> ExtenderResponse: ...
    def record(self, call: ExtenderHttpCall, response: ExtenderResponse, seconds: float) -> None: ...


class _TooLarge(Exception):
    """A body beyond a limit. The message names it."""


class _Busy(Exception):
    """Too many requests, or too many bytes of them."""


def extender_routes(
    handler: ExtenderRequestHandler, main_loop: asyncio.AbstractEventLoop
) -> list[web.RouteDef]:
    """The routes of all verbs. The server checks who may call them."""
    processor = ExtenderRequestProcessor(handler, main_loop)
    return [web.post(f"/{{policy}}/{{verb:{'|'.join(VERBS)}}}", processor.answer)]


class ExtenderRequestProcessor:
    """Reads, parses and answers requests within the limits. Runs on the server's loop."""

    def __init__(self, handler: ExtenderRequestHandler, main_loop: asyncio.AbstractEventLoop) -> None:
        self._handler = handler
        self._main_loop = main_loop
        self._in_flight = 0
        self._bodies_bytes = 0
        self._many_values_turn = asyncio.Lock()

    async def answer(self, request: web.Request) -> web.Response:
        handler, started_s = self._handler, time.monotonic()
        policy, verb = request.match_info["policy"], request.match_info["verb"]
        user = request.get(USER)
        client = request.remote or "" if user is None else user.name
        deadline_s = started_s + handler.response_timeout_s
        call = ExtenderHttpCall(policy, verb, dict(request.query), b"", deadline_s, client)
        try:
            async with asyncio.timeout(handler.response_timeout_s):
                response = await self._process(request, call)
        except TimeoutError:
            response = handler.timeout_response(call)
        except _TooLarge as error:
            response = handler.too_large_response(call, str(error))
        except _Busy as error:
            response = ExtenderResponse(503, f"policysched extender: {error}; retry later\n", "busy")
        handler.record(call, response, time.monotonic() - started_s)
        headers = {"Retry-After": str(RETRY_AFTER_S)} if response.outcome == "busy" else None
        if isinstance(response.value, str):
            return web.Response(status=response.status, text=response.value, headers=headers)
        return web.Response(
            status=response.status, body=orjson.dumps(response.value), content_type="application/json"
        )

    async def _process(self, request: web.Request, call: ExtenderHttpCall) -> ExtenderResponse:
        """A slow client occupies its slot no longer than the budget. Raises _Busy and _TooLarge."""
        if self._in_flight >= self._handler.requests_max:
            raise _Busy(f"too many requests in flight (limit {self._handler.requests_max})")
        self._in_flight += 1
        chunks: list[bytes] = []
        size = 0
        try:
            try:
                values = await self._read(request, chunks)
            finally:
                size = sum(map(len, chunks))
            call = replace(call, body=b"".join(chunks))
            chunks.clear()  # not kept twice while the body is parsed
            if values <= _MANY_VALUES:
                return await self._evaluate(call)
            async with self._many_values_turn:
                return await self._evaluate(call)
        finally:
            self._in_flight -= 1
            self._bodies_bytes -= size

    async def _read(self, request: web.Request, chunks: list[bytes]) -> int:
        """Appends the body to `chunks`. Returns the maximum number of values in it."""
        bytes_max, values_max, size, values = self._handler.body_bytes_max, self._handler.values_max, 0, 1
        if (request.content_length or 0) > bytes_max:
            raise _TooLarge(f"the body has more than {bytes_max} bytes")
        async for chunk in request.content.iter_any():
            size += len(chunk)
            values += sum(weight * chunk.count(start) for start, weight in _VALUE_STARTS)
            if size > bytes_max:
                raise _TooLarge(f"the body has more than {bytes_max} bytes")
            if values > values_max:
                raise _TooLarge(f"the body has more than {values_max} values")
            if self._bodies_bytes + len(chunk) > _BODIES_BUDGET_FACTOR * bytes_max:
                raise _Busy("the requests in flight are too large")
            self._bodies_bytes += len(chunk)
            chunks.append(chunk)
        return values

    async def _evaluate(self, call: ExtenderHttpCall) -> ExtenderResponse:
        if len(call.body) > _PARSE_ON_LOOP_BYTES_MAX:
            work = await asyncio.to_thread(self._handler.parse, call)
        else:
            work = self._handler.parse(call)
        if isinstance(work, ExtenderResponse):
            return work
        future = asyncio.run_coroutine_threadsafe(_run_pending(work), self._main_loop)
        return await asyncio.wrap_future(future)


async def _run_pending(work: PendingResponse) -> ExtenderResponse:
    return await work()

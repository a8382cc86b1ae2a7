"""A transport to the API server in memory, with injected faults.

`MemoryTransport` implements `kube.client.transport.Transport` over an `ApiServer`. It waits with
asyncio only, so on a virtual-time loop a simulation of hours takes seconds. `FaultInjector` draws the
faults. Each client has its own transport and fault injector.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

from policysched.kube.client.transport import (
    AnswerTooLong,
    ApiRequest,
    ApiResponse,
    ApiStream,
    RequestNotSent,
    TransportError,
)
from policysched.sandbox.apiserver.requests import ServerRequest
from policysched.sandbox.apiserver.server import ApiServer
from policysched.sandbox.apiserver.watch import WatchSubscription
from policysched.sandbox.faults import FaultInjector, RequestFault, WatchFault

REQUEST_TIMEOUT_S = 60.0
"""How long the server may act on a request without `?timeout=`: kube-apiserver's default."""


class MemoryTransport:
    """A client's transport to a server in memory. Without `faults`, requests have no latency."""

    def __init__(self, server: ApiServer, *, faults: FaultInjector | None = None):
        self._server = server
        self._faults = faults
        self._refused_until_s = float("-inf")
        self._open_watches: dict[WatchSubscription, None] = {}  # in the order in which they were opened

    def refuse_for(self, span_s: float) -> None:
        """Close open watches and refuse connections for a while, as if the server restarted."""
        self._refused_until_s = asyncio.get_running_loop().time() + span_s
        for subscription in tuple(self._open_watches):
            subscription.close()

    async def request(self, request: ApiRequest) -> ApiResponse:
        """Send a request. Raises `TransportError` if a fault leaves the client without a response."""
        self._check_reachable(request)
        if request.may_write is not None and not request.may_write():
            raise RequestNotSent(request)
        if self._faults is None:
            await asyncio.sleep(0)
            return _read(request, self._handle(request))
        fate = self._faults.draw_request_fault()
        loop = asyncio.get_running_loop()
        gives_up_at_s = loop.time() + request.timeout_s
        if fate.duplicate_after_s is not None and fate.outcome != "lost before":
            loop.call_later(
                fate.request_latency_s + fate.duplicate_after_s, self._handle_without_response, request
            )
        match fate.outcome:
            case "lost before":
                await self._give_up(request, gives_up_at_s)
            case "late":
                # After the client has given up, and before the server's own request timeout.
                life_s = _timeout_s(request)
                waits_s = max(0.0, life_s - request.timeout_s) * fate.late_timeout_fraction
                loop.call_later(request.timeout_s + waits_s, self._handle_without_response, request)
                await self._give_up(request, gives_up_at_s)
            case "lost after":
                loop.call_later(fate.request_latency_s, self._handle_without_response, request)
                await self._give_up(request, gives_up_at_s)
            case "arrives":
                return await self._deliver(request, fate, gives_up_at_s)
        raise AssertionError(f"{request} came back from {fate.outcome}")

    async def _deliver(self, request: ApiRequest, fate: RequestFault, gives_up_at_s: float) -> ApiResponse:
        loop = asyncio.get_running_loop()
        if loop.time() + fate.request_latency_s >= gives_up_at_s:
            loop.call_later(fate.request_latency_s, self._handle_without_response, request)
            await self._give_up(request, gives_up_at_s)
        await asyncio.sleep(fate.request_latency_s)
        self._check_reachable(request)
        answer = self._handle(request)
        if loop.time() + fate.response_latency_s >= gives_up_at_s:
            await self._give_up(request, gives_up_at_s)
        await asyncio.sleep(fate.response_latency_s)
        return _read(request, answer)

    async def _give_up(self, request: ApiRequest, gives_up_at_s: float) -> None:
        await asyncio.sleep(max(0.0, gives_up_at_s - asyncio.get_running_loop().time()))
        raise TransportError(f"{request.method} {request.path}: no answer in {request.timeout_s:g} s")

    def _check_reachable(self, request: ApiRequest) -> None:
        if asyncio.get_running_loop().time() < self._refused_until_s:
            raise TransportError(f"{request.method} {request.path}: connection refused")

    def _handle(self, request: ApiRequest) -> ApiResponse:
        answer = self._server.handle(_server_request(request))
        assert isinstance(answer, ApiResponse), (
            f"{request.path}?{dict(request.params)} opens a watch: use stream()"
        )
        return answer

    def _handle_without_response(self, request: ApiRequest) -> None:
        """Let the server act and drop the response. A request is lost if the server is down."""
        if asyncio.get_running_loop().time() >= self._refused_until_s:
            self._handle(request)

    @asynccontextmanager
    async def stream(self, request: ApiRequest) -> AsyncIterator[ApiStream]:
        """Open a watch. Its chunks end with `TransportError` if a fault cuts the watch."""
        self._check_reachable(request)
        fate = self._faults.draw_watch_fault() if self._faults is not None else None
        await asyncio.sleep(fate.connect_latency_s if fate is not None else 0)
        self._check_reachable(request)
        answer = self._server.handle(_server_request(request))
        if isinstance(answer, ApiResponse):
            yield ApiStream(answer.status, answer.headers, _single_chunk(answer.body))
            return
        self._open_watches[answer] = None
        chunks = self._chunks(answer, fate)
        try:
            yield ApiStream(200, {"content-type": "application/json"}, chunks)
        finally:
            self._open_watches.pop(answer, None)
            answer.close()
            await chunks.aclose()

    async def _chunks(
        self, subscription: WatchSubscription, fate: WatchFault | None
    ) -> AsyncGenerator[bytes, None]:
        loop = asyncio.get_running_loop()
        breaks_at_s = float("inf")
        if fate is not None and fate.cut_after_s is not None:
            breaks_at_s = loop.time() + fate.cut_after_s
        # To be cut in the middle of a line, the watch must last until the next line.
        until_s = (
            None if breaks_at_s == float("inf") or (fate is not None and fate.cuts_line) else breaks_at_s
        )
        async for chunk in watch_chunks(subscription, self._server, until_s=until_s):
            if loop.time() < self._refused_until_s:
                break
            if loop.time() >= breaks_at_s:
                yield chunk[: max(1, len(chunk) // 2)]
                break
            split_at = self._faults.draw_split(len(chunk)) if self._faults is not None else 0
            if split_at:
                yield chunk[:split_at]
            yield chunk[split_at:]
        if loop.time() < self._refused_until_s or loop.time() >= breaks_at_s:
            raise TransportError("the watch was cut")


def _read(request: ApiRequest, answer: ApiResponse) -> ApiResponse:
    if request.answer_bytes_max is not None and len(answer.body) > request.answer_bytes_max:
        raise AnswerTooLong(request)
    return answer


async def _single_chunk(body: bytes) -> AsyncGenerator[bytes, None]:
    yield body


async def watch_chunks(
    subscription: WatchSubscription, server: ApiServer, *, until_s: float | None = None
) -> AsyncGenerator[bytes, None]:
    """Yield the chunks of a watch until it ends or the loop's clock reaches `until_s`."""
    loop = asyncio.get_running_loop()
    woken = asyncio.Event()
    subscription.notify = woken.set
    try:
        while True:
            woken.clear()
            chunk = subscription.drain(server.now())
            if chunk:
                yield chunk
                continue
            if subscription.ended:
                return
            waits_s = max(0.0, subscription.next_due_s() - server.now())
            if until_s is not None:
                if loop.time() >= until_s:
                    return
                waits_s = min(waits_s, until_s - loop.time())
            try:
                async with asyncio.timeout(waits_s):
                    await woken.wait()
            except TimeoutError:
                continue
    finally:
        subscription.close()


def _server_request(request: ApiRequest) -> ServerRequest:
    return ServerRequest(request.method, request.path, request.params, request.body, request.content_type)


def _timeout_s(request: ApiRequest) -> float:
    """How long the server may act on the request: its `?timeout=`, such as `5s`, or the default."""
    text = request.params.get("timeout", "")
    return float(text.removesuffix("s")) if text else REQUEST_TIMEOUT_S

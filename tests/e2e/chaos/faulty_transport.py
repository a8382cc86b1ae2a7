"""A proxy on loopback that injects faults until `stop_faults`. It speaks to the API server as an admin.

Faults are drawn for each request. Others hold for a while or for an object: an overloaded server (`put_off`), slow binds
(`bind_delay_s`), and pods of which no write succeeds (`failing_pods_share`).
"""

import asyncio
import contextlib
import re
import time
from collections import Counter
from random import Random

import aiohttp
from aiohttp import web

from tests.e2e.chaos.fault_profile import Fault, FaultProfile, draw
from tests.e2e.chaos.workload import FIRST

HOST = "127.0.0.1"
POD_PATH = re.compile(r"/api/v1/namespaces/[^/]+/pods/[^/]+")
NOT_FORWARDED = frozenset({"host", "connection", "transfer-encoding", "content-length", "accept-encoding"})


class FaultyTransport:
    """The proxy of one seed. `url` goes into the kubeconfig; `injected` counts the faults."""

    def __init__(
        self, session: aiohttp.ClientSession, server_url: str, profile: FaultProfile, seed: int
    ) -> None:
        self._session = session
        self._server_url = server_url
        self._profile = profile
        self._rng = Random(f"road {seed}")
        self._faults_on = True
        self._runner = web.AppRunner(self._app(), access_log=None, shutdown_timeout=0.1)
        self._late_requests: set[asyncio.Task[None]] = set()
        self.injected: Counter[Fault] = Counter()
        self.bind_delay_s = 0.0
        self.binds: list[tuple[float, str]] = []
        """Bind requests as they arrive: the time (`time.monotonic`) and the pod."""
        self.binds_open = 0
        self._put_off_until_s = float("-inf")
        self.url = ""

    def _app(self) -> web.Application:
        app = web.Application(client_max_size=2**24)
        app.router.add_route("*", "/{path:.*}", self._handle)
        return app

    async def __aenter__(self) -> "FaultyTransport":
        await self._runner.setup()
        site = web.TCPSite(self._runner, HOST, 0)
        await site.start()
        self.url = f"http://{HOST}:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()
        for late_request in self._late_requests:
            late_request.cancel()
        await asyncio.gather(*self._late_requests, return_exceptions=True)

    def stop_faults(self) -> None:
        """No more faults begin. Requests already delayed stay delayed."""
        self._faults_on = False
        self._put_off_until_s = float("-inf")

    def put_off(self, span_s: float) -> None:
        """Answer everything with 503 and a long `Retry-After` for a while."""
        self._put_off_until_s = time.monotonic() + span_s

    @property
    def is_busy_writing(self) -> bool:
        """Whether a bind is with the server, or any request is yet to be sent there."""
        return bool(self.binds_open or self._late_requests)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if time.monotonic() < self._put_off_until_s:
            return self._refuse(Fault.PUT_OFF)
        body = await request.read()
        if request.path.endswith("/binding"):
            return await self._bind(request, body)
        return await self._draw_and_forward(request, body)

    async def _bind(self, request: web.Request, body: bytes) -> web.StreamResponse:
        self.binds.append((time.monotonic(), request.path.split("/")[-2]))
        self.binds_open += 1
        try:
            await asyncio.sleep(self.bind_delay_s)
            return await self._draw_and_forward(request, body)
        finally:
            self.binds_open -= 1

    async def _draw_and_forward(self, request: web.Request, body: bytes) -> web.StreamResponse:
        if "watch" in request.query:
            return await self._watch(request)
        faults = self._profile.read_faults if request.method == "GET" else self._profile.write_faults
        fault = draw(self._rng, faults) if self._faults_on else Fault.NONE
        if self._faults_on and request.method != "GET" and self._is_of_failing_pod(request.path):
            fault = Fault.FAILING_POD
        self.injected[fault] += 1
        if self._faults_on:
            await asyncio.sleep(self._rng.uniform(0, self._profile.delay_s))
        match fault:
            case Fault.LOST_BEFORE:
                return _cut(request)
            case Fault.LOST_AFTER:
                await self._forward(request, body)
                return _cut(request)
            case Fault.LATE:
                self._send_later(request, body, self._rng.uniform(0, self._profile.late_s))
                return _cut(request)
            case Fault.TWICE:
                answer = await self._forward(request, body)
                # A refused request is not sent again: a client may rely on a definite refusal.
                if answer.status < 400 or answer.status >= 500:
                    self._send_later(request, body, self._rng.uniform(0, self._profile.late_s))
                return answer
            case Fault.NONE:
                return await self._forward(request, body)
            case _:
                return _error(fault)

    def _refuse(self, fault: Fault) -> web.Response:
        self.injected[fault] += 1
        return _error(fault)

    def _is_of_failing_pod(self, path: str) -> bool:
        pod = POD_PATH.match(path)
        if pod is None or pod[0].endswith(f"/{FIRST}"):  # it shows that the program works
            return False
        return self._profile.fails(pod[0])

    async def _forward(self, request: web.Request, body: bytes) -> web.Response:
        async with self._send(request, body) as answer:
            headers = {"Content-Type": answer.headers.get("Content-Type", "application/json")}
            if "Retry-After" in answer.headers:
                headers["Retry-After"] = answer.headers["Retry-After"]
            return web.Response(status=answer.status, body=await answer.read(), headers=headers)

    def _send_later(self, request: web.Request, body: bytes, in_s: float) -> None:
        async def send() -> None:
            await asyncio.sleep(in_s)
            with contextlib.suppress(aiohttp.ClientError):
                await self._forward(request, body)

        late_request = asyncio.create_task(send())
        self._late_requests.add(late_request)
        late_request.add_done_callback(self._late_requests.discard)

    def _send(self, request: web.Request, body: bytes = b""):  # type: ignore[no-untyped-def]
        headers = {
            name: value for name, value in request.headers.items() if name.lower() not in NOT_FORWARDED
        }
        return self._session.request(
            request.method, f"{self._server_url}{request.rel_url}", data=body or None, headers=headers
        )

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        fault = draw(self._rng, self._profile.watch_faults) if self._faults_on else Fault.NONE
        self.injected[fault] += 1
        if fault is Fault.LOST_BEFORE:
            return _cut(request)
        if fault is not Fault.NONE:
            return _error(fault)
        lives_s = self._rng.uniform(0, self._profile.watch_lives_s)
        cut_off = self._rng.random()
        async with self._send(request) as answer:
            if answer.status != 200:
                return web.Response(status=answer.status, body=await answer.read())
            response = web.StreamResponse(headers={"Content-Type": "application/json"})
            ends_s = asyncio.get_running_loop().time() + lives_s
            with contextlib.suppress(ConnectionError):  # policysched disconnected
                await response.prepare(request)
                while True:
                    chunk = await self._chunk(request, answer, ends_s)
                    if chunk is None:
                        break
                    if self._faults_on:
                        await asyncio.sleep(self._rng.uniform(0, self._profile.watch_lags_s))
                    if self._faults_on and asyncio.get_running_loop().time() > ends_s:
                        await response.write(chunk[: int(len(chunk) * cut_off)])  # in the middle of a line
                        break
                    await response.write(chunk)
        _cut(request)
        return response

    async def _chunk(
        self, request: web.Request, answer: aiohttp.ClientResponse, ends_s: float
    ) -> bytes | None:
        """The next events; None when the watch ends, by the server, by the proxy, or by policysched."""
        reading = asyncio.ensure_future(answer.content.readany())
        try:
            while not reading.done():
                if request.transport is None:  # aiohttp lets handlers of closed connections go on
                    return None
                if self._faults_on and asyncio.get_running_loop().time() > ends_s:
                    return None
                await asyncio.wait((reading,), timeout=0.1)
            return reading.result() or None
        except aiohttp.ClientError:
            return None
        finally:
            reading.cancel()


def _cut(request: web.Request) -> web.Response:
    """Break the connection; the response is not sent."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


def _error(fault: Fault) -> web.Response:
    code, reason = {
        Fault.SERVER_FAULT: (500, "InternalError"),
        Fault.FAILING_POD: (500, "InternalError"),
        Fault.PUT_OFF: (503, "ServiceUnavailable"),
        Fault.THROTTLED: (429, "TooManyRequests"),
        Fault.TOO_OLD: (410, "Expired"),
    }[fault]
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason}
    retry_after_s = {429: "1", 503: "3600"}.get(code)
    return web.json_response(
        body, status=code, headers={} if retry_after_s is None else {"Retry-After": retry_after_s}
    )

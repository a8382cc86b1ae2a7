"""A proxy on loopback that injects faults until `stop_faults`. It speaks to the API server as an admin."""

import asyncio
import contextlib
from collections import Counter
from random import Random

import aiohttp
from aiohttp import web

from tests.e2e.chaos.fault_profile import Fault, FaultProfile, draw

HOST = "127.0.0.1"
NOT_FORWARDED = frozenset({"host", "connection", "transfer-encoding", "content-length", "accept-encoding"})


class FaultyTransport:
    """The proxy of one seed. `url` goes into the kubeconfig; `injected` counts the faults."""

    def __init__(
        self, session: aiohttp.ClientSession, server_url: str, profile: FaultProfile, seed: int
    ) -> None:
        self._session = session
        self._server_url = server_url
        self._profile = profile
        self._dice = Random(f"road {seed}")
        self._faults_on = True
        self._runner = web.AppRunner(self._app(), access_log=None, shutdown_timeout=0.1)
        self._late_requests: set[asyncio.Task[None]] = set()
        self.injected: Counter[Fault] = Counter()
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

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if "watch" in request.query:
            return await self._watch(request)
        faults = self._profile.read_faults if request.method == "GET" else self._profile.write_faults
        fault = draw(self._dice, faults) if self._faults_on else Fault.NONE
        self.injected[fault] += 1
        if self._faults_on:
            await asyncio.sleep(self._dice.uniform(0, self._profile.delay_s))
        match fault:
            case Fault.LOST_BEFORE:
                return _cut(request)
            case Fault.LOST_AFTER:
                await self._forward(request, body)
                return _cut(request)
            case Fault.LATE:
                self._send_later(request, body, self._dice.uniform(0, self._profile.late_s))
                return _cut(request)
            case Fault.TWICE:
                self._send_later(request, body, self._dice.uniform(0, self._profile.late_s))
                return await self._forward(request, body)
            case Fault.SERVER_FAULT | Fault.THROTTLED | Fault.TOO_OLD:
                return _error(fault)
            case Fault.NONE:
                return await self._forward(request, body)

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
        fault = draw(self._dice, self._profile.watch_faults) if self._faults_on else Fault.NONE
        self.injected[fault] += 1
        if fault is Fault.LOST_BEFORE:
            return _cut(request)
        if fault is not Fault.NONE:
            return _error(fault)
        lives_s = self._dice.uniform(0, self._profile.watch_lives_s)
        cut_off = self._dice.random()
        async with self._send(request) as answer:
            if answer.status != 200:
                return web.Response(status=answer.status, body=await answer.read())
            response = web.StreamResponse(headers={"Content-Type": "application/json"})
            ends_s = asyncio.get_running_loop().time() + lives_s
            with contextlib.suppress(ConnectionError):  # policysched disconnected
                await response.prepare(request)
                while True:
                    chunk = await self._chunk(answer, ends_s)
                    if chunk is None:
                        break
                    if self._faults_on:
                        await asyncio.sleep(self._dice.uniform(0, self._profile.watch_lags_s))
                    if self._faults_on and asyncio.get_running_loop().time() > ends_s:
                        await response.write(chunk[: int(len(chunk) * cut_off)])  # in the middle of a line
                        break
                    await response.write(chunk)
        _cut(request)
        return response

    async def _chunk(self, answer: aiohttp.ClientResponse, ends_s: float) -> bytes | None:
        """The next events; None when the watch ends, by the server or by the proxy."""
        reading = asyncio.ensure_future(answer.content.readany())
        try:
            while not reading.done():
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
        Fault.THROTTLED: (429, "TooManyRequests"),
        Fault.TOO_OLD: (410, "Expired"),
    }[fault]
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason}
    return web.json_response(body, status=code, headers={"Retry-After": "1"} if code == 429 else {})

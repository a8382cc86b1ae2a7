"""A proxy on loopback that ends TLS, speaks to the API server as an admin, and mistreats what passes until `clear_up`."""

import asyncio
import contextlib
from collections import Counter
from random import Random

import aiohttp
from aiohttp import web

from tests.e2e.chaos.fault_profile import Climate, Fault, draw

HOST = "127.0.0.1"
NOT_FORWARDED = frozenset({"host", "connection", "transfer-encoding", "content-length", "accept-encoding"})


class Road:
    """One seed's. `url` is what goes into the kubeconfig; `met` counts the faults."""

    def __init__(self, session: aiohttp.ClientSession, server_url: str, climate: Climate, seed: int) -> None:
        self._session = session
        self._server_url = server_url
        self._climate = climate
        self._dice = Random(f"road {seed}")
        self._bad = True
        self._runner = web.AppRunner(self._app(), access_log=None, shutdown_timeout=0.1)
        self._strays: set[asyncio.Task[None]] = set()
        self.met: Counter[Fault] = Counter()
        self.url = ""

    def _app(self) -> web.Application:
        app = web.Application(client_max_size=2**24)
        app.router.add_route("*", "/{path:.*}", self._pass)
        return app

    async def __aenter__(self) -> "Road":
        await self._runner.setup()
        site = web.TCPSite(self._runner, HOST, 0)
        await site.start()
        self.url = f"http://{HOST}:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()
        for stray in self._strays:
            stray.cancel()
        await asyncio.gather(*self._strays, return_exceptions=True)

    def clear_up(self) -> None:
        """No more faults begin. What is under way is still late."""
        self._bad = False

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if "watch" in request.query:
            return await self._watch(request)
        faults = self._climate.read_faults if request.method == "GET" else self._climate.write_faults
        fault = draw(self._dice, faults) if self._bad else Fault.NONE
        self.met[fault] += 1
        if self._bad:
            await asyncio.sleep(self._dice.uniform(0, self._climate.delay_s))
        match fault:
            case Fault.LOST_BEFORE:
                return _cut(request)
            case Fault.LOST_AFTER:
                await self._forward(request, body)
                return _cut(request)
            case Fault.LATE:
                self._later(request, body, self._dice.uniform(0, self._climate.late_s))
                return _cut(request)
            case Fault.TWICE:
                self._later(request, body, self._dice.uniform(0, self._climate.late_s))
                return await self._forward(request, body)
            case Fault.SERVER_FAULT | Fault.THROTTLED | Fault.TOO_OLD:
                return _refusal(fault)
            case Fault.NONE:
                return await self._forward(request, body)

    async def _forward(self, request: web.Request, body: bytes) -> web.Response:
        async with self._send(request, body) as answer:
            headers = {"Content-Type": answer.headers.get("Content-Type", "application/json")}
            if "Retry-After" in answer.headers:
                headers["Retry-After"] = answer.headers["Retry-After"]
            return web.Response(status=answer.status, body=await answer.read(), headers=headers)

    def _later(self, request: web.Request, body: bytes, in_s: float) -> None:
        async def send() -> None:
            await asyncio.sleep(in_s)
            with contextlib.suppress(aiohttp.ClientError):
                await self._forward(request, body)

        stray = asyncio.create_task(send())
        self._strays.add(stray)
        stray.add_done_callback(self._strays.discard)

    def _send(self, request: web.Request, body: bytes = b""):  # type: ignore[no-untyped-def]
        headers = {
            name: value for name, value in request.headers.items() if name.lower() not in NOT_FORWARDED
        }
        return self._session.request(
            request.method, f"{self._server_url}{request.rel_url}", data=body or None, headers=headers
        )

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        fault = draw(self._dice, self._climate.watch_faults) if self._bad else Fault.NONE
        self.met[fault] += 1
        if fault is Fault.LOST_BEFORE:
            return _cut(request)
        if fault is not Fault.NONE:
            return _refusal(fault)
        lives_s = self._dice.uniform(0, self._climate.watch_lives_s)
        cut_off = self._dice.random()
        async with self._send(request) as answer:
            if answer.status != 200:
                return web.Response(status=answer.status, body=await answer.read())
            passed_on = web.StreamResponse(headers={"Content-Type": "application/json"})
            ends_s = asyncio.get_running_loop().time() + lives_s
            with contextlib.suppress(ConnectionError):  # policysched has left
                await passed_on.prepare(request)
                while True:
                    chunk = await self._chunk(answer, ends_s)
                    if chunk is None:
                        break
                    if self._bad:
                        await asyncio.sleep(self._dice.uniform(0, self._climate.watch_lags_s))
                    if self._bad and asyncio.get_running_loop().time() > ends_s:
                        await passed_on.write(chunk[: int(len(chunk) * cut_off)])  # in the middle of a line
                        break
                    await passed_on.write(chunk)
        _cut(request)
        return passed_on

    async def _chunk(self, answer: aiohttp.ClientResponse, ends_s: float) -> bytes | None:
        """The next news; None where the watch is at its end, by the server's will or the road's."""
        reading = asyncio.ensure_future(answer.content.readany())
        try:
            while not reading.done():
                if self._bad and asyncio.get_running_loop().time() > ends_s:
                    return None
                await asyncio.wait((reading,), timeout=0.1)
            return reading.result() or None
        except aiohttp.ClientError:
            return None
        finally:
            reading.cancel()


def _cut(request: web.Request) -> web.Response:
    """The connection breaks; what is returned goes nowhere."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


def _refusal(fault: Fault) -> web.Response:
    code, reason = {
        Fault.SERVER_FAULT: (500, "InternalError"),
        Fault.THROTTLED: (429, "TooManyRequests"),
        Fault.TOO_OLD: (410, "Expired"),
    }[fault]
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason}
    return web.json_response(body, status=code, headers={"Retry-After": "1"} if code == 429 else {})

"""The HTTP server and its thread.

`/livez` and `/readyz` are answered in this thread from plain attributes. All other data comes from the main loop, between
two decisions; if the loop does not respond in time, the status is 503.
"""

import asyncio
import ssl
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

import orjson
from aiohttp import web

from policysched import __version__
from policysched.serve.health import Health, render_health
from policysched.serve.metrics import CONTENT_TYPE

MAIN_LOOP_TIMEOUT_S = 5.0
DECISIONS_LIMIT_DEFAULT = 100
LIMIT_DIGITS_MAX = 9

Json = Mapping[str, object]
Answer = TypeVar("Answer")


class ListenFailed(Exception):
    """The address is in use, or not an address of this machine."""


@dataclass(frozen=True, slots=True)
class StatusEndpoints:
    """Functions that run in the main loop. `decisions` takes a limit and a `namespace/name` or ''; None if the program does
    not decide."""

    metrics: Callable[[], str]
    policy: Callable[[], Json]
    decisions: Callable[[int, str], Json] | None
    configz: Callable[[], Json]


@dataclass(frozen=True, slots=True)
class HttpServerOptions:
    """Additional routes and limits. `body_bytes_max`: larger requests get 413."""

    routes: Sequence[web.RouteDef] = ()
    tls: ssl.SSLContext | None = None
    body_bytes_max: int = 2**20


@dataclass(frozen=True, slots=True)
class ListenAddress:
    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "ListenAddress":
        """`:10259`, `127.0.0.1:10259`, `[::1]:10259`. Raises ValueError with a message for the user."""
        host, colon, port = text.rpartition(":")
        if not colon or not port.isdigit() or int(port) > 65535:
            raise ValueError(f"`{text}` is not an address: write HOST:PORT or :PORT")
        return cls(host.removeprefix("[").removesuffix("]") or "0.0.0.0", int(port))


class HttpThread:
    """Serves from `start` to `stop`."""

    def __init__(
        self,
        address: ListenAddress,
        health: Health,
        endpoints: StatusEndpoints,
        main_loop: asyncio.AbstractEventLoop,
        options: HttpServerOptions = HttpServerOptions(),
    ) -> None:
        self._options = options
        self._address = address
        self._health = health
        self._endpoints = endpoints
        self._main_loop = main_loop
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="http", daemon=True)
        self._listening_port: Future[int] = Future()
        self._stop = asyncio.Event()

    def start(self) -> int:
        """Returns the port. Raises ListenFailed."""
        self._thread.start()
        try:
            return self._listening_port.result()
        except OSError as error:
            self._thread.join()
            address = f"{self._address.host}:{self._address.port}"
            raise ListenFailed(f"--http {address}: {error.strerror or error}") from error

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(timeout=5)

    def _serve(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._main())

    async def _main(self) -> None:
        runner = web.AppRunner(self._application(), access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            try:
                site = web.TCPSite(
                    runner, self._address.host, self._address.port, ssl_context=self._options.tls
                )
                await site.start()
            except OSError as error:
                self._listening_port.set_exception(error)
                return
            self._listening_port.set_result(runner.addresses[0][1])
            await self._stop.wait()
        finally:
            await runner.cleanup()

    def _application(self) -> web.Application:
        application = web.Application(client_max_size=self._options.body_bytes_max)
        application.add_routes(
            [
                web.get("/livez", self._health_handler("livez")),
                web.get("/healthz", self._health_handler("livez")),
                web.get("/readyz", self._health_handler("readyz")),
                web.get("/metrics", self._metrics_handler),
                web.get("/policy", self._json_handler(self._endpoints.policy)),
                web.get("/configz", self._json_handler(self._endpoints.configz)),
                web.get("/version", self._version_handler),
            ]
        )
        if self._endpoints.decisions is not None:
            application.add_routes(
                [web.get("/decisions", self._decisions_handler(self._endpoints.decisions))]
            )
        application.add_routes(self._options.routes)
        return application

    def _health_handler(self, what: str) -> Callable[[web.Request], Awaitable[web.Response]]:
        checks = self._health.live if what == "livez" else self._health.ready

        async def answer(request: web.Request) -> web.Response:
            status, text = render_health(checks, what, verbose="verbose" in request.query)
            return web.Response(status=status, text=text)

        return answer

    async def _metrics_handler(self, _request: web.Request) -> web.Response:
        text = await self._run_on_main_loop(self._endpoints.metrics)
        return web.Response(body=text.encode(), headers={"Content-Type": CONTENT_TYPE})

    async def _version_handler(self, _request: web.Request) -> web.Response:
        return web.Response(text=f"policysched {__version__}\n")

    def _decisions_handler(
        self, look: Callable[[int, str], Json]
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answer(request: web.Request) -> web.Response:
            limit = request.query.get("limit", str(DECISIONS_LIMIT_DEFAULT))
            if not (limit.isascii() and limit.isdigit() and len(limit) <= LIMIT_DIGITS_MAX):
                raise web.HTTPBadRequest(text=f"limit is not a number: {limit}\n")
            decisions = await self._run_on_main_loop(lambda: look(int(limit), request.query.get("pod", "")))
            return _json(decisions)

        return answer

    def _json_handler(self, look: Callable[[], Json]) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answer(_request: web.Request) -> web.Response:
            return _json(await self._run_on_main_loop(look))

        return answer

    async def _run_on_main_loop(self, look: Callable[[], Answer]) -> Answer:
        """Run `look` in the main loop's thread, where its data does not change meanwhile."""

        async def run() -> Answer:
            return look()

        try:
            future = asyncio.run_coroutine_threadsafe(run(), self._main_loop)
            async with asyncio.timeout(MAIN_LOOP_TIMEOUT_S):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            raise web.HTTPServiceUnavailable(text="the main loop is busy; retry later\n") from None


def _json(value: Json) -> web.Response:
    return web.Response(body=orjson.dumps(value) + b"\n", content_type="application/json")

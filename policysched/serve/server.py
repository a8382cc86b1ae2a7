"""The HTTP server and its thread.

    connection limits ──► request rate ──► access ──► route
                                                        ├─ /livez, /readyz: in this thread, from plain attributes
                                                        ├─ /decisions: a snapshot of the main loop, rendered in this thread
                                                        └─ other data: rendered on the main loop, between two decisions

`/livez` and `/readyz` are open to everybody, as kube-scheduler's; reasons of failed checks are not. Readers get at most a
twentieth of the main loop's time, one after another (`main_loop_reader`), and equal requests share an answer
(`shared_documents`); if the loop does not respond in time, the status is 503. `daemon.http_service` starts it;
`serve.prometheus_text` renders `/metrics`.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from aiohttp import web

from policysched import __version__
from policysched.serve.access import (
    USER,
    AccessControl,
    AccessDenied,
    AccessReviewer,
    OpenReviewer,
    TooManyReviews,
    User,
    bearer_token,
    certificate_user,
)
from policysched.serve.connections import Connection, ConnectionAcceptor, ConnectionLimits
from policysched.serve.health import STANDBY_HEADER, Health, render_health
from policysched.serve.http_counters import HttpCounters
from policysched.serve.main_loop_reader import LiveEndpoint, MainLoopReader
from policysched.serve.page_feed import MayListPods, PageFeed
from policysched.serve.page_files import FILES_PATH, HEADERS, PageFiles, is_loopback_host
from policysched.serve.policy_try import PATH as TRY_PATH
from policysched.serve.policy_try import PolicyTryHandler
from policysched.serve.request_rate import RETRY_AFTER_S, RateExceeded, RateLimits, RequestRate
from policysched.serve.status_routes import StatusEndpoints, status_routes
from policysched.serve.tls import RELOAD_INTERVAL_S, ServerTls

ALWAYS_ALLOWED_PATHS = frozenset({"/livez", "/readyz", "/healthz"})
_REASONS_PATH = "/policy"
"""Who may read it sees the reasons of failed checks, which may have names of policies."""
CLIENT_CA_REFRESH_INTERVAL_S = 60.0


class ListenFailed(Exception):
    """The address is in use, or not an address of this machine."""


@dataclass(frozen=True, slots=True)
class HttpServerOptions:
    """Additional routes, access and limits. `open_reviewer` None: everybody may read everything. `body_bytes_max`: larger
    requests get 413. `routes` (of the extender protocol) have no limit on the rate, because they limit what is in flight.
    """

    routes: Sequence[web.RouteDef] = ()
    tls: ServerTls | None = None
    open_reviewer: OpenReviewer | None = None
    body_bytes_max: int = 2**20
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
    rates: RateLimits = field(default_factory=RateLimits)
    counters: HttpCounters = field(default_factory=HttpCounters)


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

    @property
    def is_loopback(self) -> bool:
        return self.host in ("localhost", "::1") or self.host.startswith("127.")


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
        self._main_loop = MainLoopReader(main_loop)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="http", daemon=True)
        self._listening_port: Future[int] = Future()
        self._stop = asyncio.Event()
        self._rate = RequestRate(options.rates)
        self._access: AccessControl | None = None

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
        options, tls = self._options, self._options.tls
        async with AsyncExitStack() as stack:
            runner = web.AppRunner(self._application(), access_log=None, shutdown_timeout=1.0)
            await runner.setup()
            assert runner.server is not None
            acceptor = ConnectionAcceptor(
                runner.server,
                options.connections,
                options.counters,
                lambda: None if tls is None else tls.context,
            )
            stack.callback(acceptor.abort_connections)
            stack.push_async_callback(runner.cleanup)
            try:
                if options.open_reviewer is not None:
                    reviewer = await stack.enter_async_context(options.open_reviewer())
                    self._access = AccessControl(reviewer)
                    if tls is not None:
                        _run_until_exit(stack, _follow_client_ca(tls, reviewer))
                if tls is not None:
                    _run_until_exit(stack, _follow_files(tls))
                # Last: no request is answered before its access can be checked.
                port = acceptor.open(self._address.host, self._address.port)
                stack.callback(acceptor.stop_accepting)
            except Exception as error:  # noqa: BLE001 - `start` raises it
                self._listening_port.set_exception(error)
                return
            self._listening_port.set_result(port)
            await self._stop.wait()

    def _application(self) -> web.Application:
        application = web.Application(client_max_size=self._options.body_bytes_max, middlewares=[self._guard])
        application.on_response_prepare.append(self._mark_standby)
        application.add_routes(
            [
                web.get("/livez", self._health_handler("livez")),
                web.get("/healthz", self._health_handler("livez")),
                web.get("/readyz", self._health_handler("readyz")),
                web.get("/version", self._version_handler),
                *status_routes(self._endpoints, self._main_loop),
            ]
        )
        if self._endpoints.page_feeds:
            files = PageFiles()
            application.add_routes(
                [web.get("/", files.index), web.get(FILES_PATH + "{name:.+}", files.file)]
                + [
                    web.get(path, self._feed_handler(page, share))
                    for path, (page, share) in self._endpoints.page_feeds.items()
                ]
            )
        if self._endpoints.policy_tries is not None:
            tries = PolicyTryHandler(
                self._endpoints.policy_tries, self._main_loop.run, self._may_list_pods_of
            )
            application.add_routes([web.post(TRY_PATH, tries.answer)])
        for route in self._options.routes:
            route.register(application.router)
        return application

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Before each route, and before the answer that there is none."""
        connection = request.protocol
        assert isinstance(connection, Connection)
        connection.request_begun(request.content)
        if request.path in ALWAYS_ALLOWED_PATHS:
            await self._rate.slow_down(connection.address)
            return await handler(request)
        is_extender_call = request.method == "POST" and request.match_info.get("verb") is not None
        is_of_page = request.path == "/" or request.path.startswith("/page/")
        if is_of_page and self._access is None and not is_loopback_host(request.host):
            return web.Response(
                status=403, text="without authentication, the page is served to loopback host names only\n"
            )
        try:
            if not is_extender_call:
                await self._rate.wait_turn(connection.address)
            await self._check_access(request, connection.address, is_extender_call=is_extender_call)
            if not is_extender_call:
                await self._rate.wait_shared_turn()
        except (RateExceeded, TooManyReviews):
            self._options.counters.requests_refused += 1
            return web.Response(
                status=429,
                text="too many requests; retry later\n",
                headers={"Retry-After": str(RETRY_AFTER_S)},
            )
        except AccessDenied as error:
            headers = {"WWW-Authenticate": "Bearer"} if error.status == 401 else None
            return web.Response(status=error.status, text=f"{error}\n", headers=headers)
        return await handler(request)

    async def _check_access(self, request: web.Request, address: str, *, is_extender_call: bool) -> None:
        """Raises AccessDenied, RateExceeded and TooManyReviews. A client with a certificate of the settings' own CA may call the extender:
        kube-scheduler presents a certificate, and cannot send a token."""
        if self._access is None:
            return
        tls, user = self._options.tls, _certificate_user(request)
        if is_extender_call and user is not None and tls is not None and tls.has_client_ca_file:
            request[USER] = user
            return

        async def wait_turn() -> None:
            if is_extender_call:  # a status request has waited already
                await self._rate.wait_turn(address)

        token = bearer_token(request.headers.get("Authorization"))
        try:
            request[USER] = await self._access.check(
                token, user, request.method.lower(), request.path, wait_turn, address
            )
        except AccessDenied:
            await wait_turn()  # the cache answers at once, and a refused client asks again
            raise

    async def _mark_standby(self, _request: web.Request, response: web.StreamResponse) -> None:
        if self._endpoints.is_standby():
            response.headers[STANDBY_HEADER] = "true"

    def _health_handler(self, check: str) -> Callable[[web.Request], Awaitable[web.Response]]:
        is_live = check == "livez"
        checks = self._health.live if is_live else self._health.ready
        warnings = {} if is_live else self._health.warnings

        async def answer(request: web.Request) -> web.Response:
            shows_reasons = await self._shows_reasons(request)
            verbose = "verbose" in request.query
            status, text = render_health(
                checks, check, verbose=verbose, shows_reasons=shows_reasons, warnings=warnings
            )
            return web.Response(status=status, text=text)

        return answer

    async def _shows_reasons(self, request: web.Request) -> bool:
        """A probe has no credentials, and waits for no review."""
        user, token = _certificate_user(request), bearer_token(request.headers.get("Authorization"))
        if self._access is None or (user is None and token is None):
            return self._access is None
        connection = request.protocol
        assert isinstance(connection, Connection)
        wait_turn = partial(self._rate.wait_turn, connection.address)
        try:
            await self._access.check(token, user, "get", _REASONS_PATH, wait_turn, connection.address)
        except (AccessDenied, RateExceeded, TooManyReviews):
            return False
        return True

    async def _version_handler(self, _request: web.Request) -> web.Response:
        return web.Response(text=f"policysched {__version__}\n")

    def _feed_handler(
        self, page: LiveEndpoint, share: float
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        feed = PageFeed(partial(self._main_loop.run_steps, page), share)

        async def answer(request: web.Request) -> web.Response:
            try:
                return await feed.response(request, self._may_list_pods_of(request))
            except web.HTTPException as error:
                error.headers.update(HEADERS)
                raise

        return answer

    def _may_list_pods_of(self, request: web.Request) -> MayListPods:
        async def may_list_pods(namespace: str | None) -> bool:
            return self._access is None or await self._access.may_list_pods(request[USER], namespace)

        return may_list_pods


def _certificate_user(request: web.Request) -> User | None:
    transport = request.transport
    return certificate_user(None if transport is None else transport.get_extra_info("peercert"))


def _run_until_exit(stack: AsyncExitStack, work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.create_task(work)
    stack.callback(task.cancel)


async def _follow_files(tls: ServerTls) -> None:
    """Until cancelled."""
    while True:
        await asyncio.sleep(RELOAD_INTERVAL_S)
        tls.reload_if_changed()


async def _follow_client_ca(tls: ServerTls, reviewer: AccessReviewer) -> None:
    """Until cancelled. An unreadable CA leaves the last one in use."""
    while not tls.has_client_ca_file:
        pem = await reviewer.client_ca()
        if pem is not None:
            tls.use_cluster_client_ca(pem)
        await asyncio.sleep(CLIENT_CA_REFRESH_INTERVAL_S if pem is not None else RELOAD_INTERVAL_S)

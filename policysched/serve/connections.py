"""Accepts connections, limits their number and age, and survives a lack of file descriptors.

    accept ──► handshake ──► idle ◄──────────► busy
                  │           │  first byte of    │  complete response
                  │           │  a request: busy  │
                  └───────────┴──── closed ◄──────┘   each state has a time limit

aiohttp parses HTTP on an accepted connection. It has no limit on connections and none on the time of a response, and
asyncio's own accept loop logs a traceback for each slot of the backlog, every second, while there are no descriptors.

A handshake takes a millisecond of the thread that answers probes, so an address has a limit on new connections a
second, and all together another one. While all together have too many, an address still gets a few: the probes of a
kubelet are answered though hundreds of addresses stay below their limits. Further ones are closed without a handshake.
At the limit of all connections, the oldest one of the addresses that have the most is closed for the new one, whether
or not it is idle: a new one is idle too until its first request is read. So a client that opens many loses its own, and
a probe of the kubelet is answered meanwhile, also if hundreds of addresses have one each.
"""

import asyncio
import errno
import logging
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import StreamReader, web

from policysched.serve.http_counters import HttpCounters
from policysched.serve.request_rate import AddressBuckets, new_bucket

log = logging.getLogger(__name__)

CONNECTIONS_MAX_DEFAULT = 256
_BACKLOG = 128
_SWEEP_INTERVAL_S = 0.5
_NO_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_ACCEPTED_AT_ONCE = 16
_ACCEPT_RETRY_DELAY_S = 1.0
_ACCEPT_RECOVERED_S = 5.0
_ACCEPT_ERROR_DELAY_S = 0.01
_TLS_SHUTDOWN_S = 1.0


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """`header_timeout_s`: from the start of a connection to a complete header (TLS handshake included), and from the
    first to the last byte of a later header. `idle_timeout_s`: without a request. `response_timeout_s`: from a complete
    header to a response that the client has read. kube-scheduler has 32 s, 90 s and no limit.

    `connections_max` is also the maximum number of requests at a time.
    """

    connections_max: int = CONNECTIONS_MAX_DEFAULT
    per_address_per_s: float = 50.0
    """New connections of an address; twice as many at once."""
    total_per_s: float = 200.0
    crowded_per_s: float = 2.0
    """Those of an address while all together have more than their number; a kubelet needs less for its probes."""
    header_timeout_s: float = 10.0
    idle_timeout_s: float = 90.0
    response_timeout_s: float = 30.0
    header_bytes_max: int = 16 * 1024
    header_fields_max: int = 64
    headers_bytes_max: int = 64 * 1024
    """Of all fields of a header together, until it is complete."""


class Connection(web.RequestHandler):
    """aiohttp's protocol of one connection, with the time limit of its state."""

    def __init__(self, server: web.Server, address: str, limits: ConnectionLimits) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type] # as AppRunner passes it
            keepalive_timeout=2 * limits.idle_timeout_s,  # `_sweep` is earlier, and counts
            max_line_size=limits.header_bytes_max,
            max_field_size=limits.header_bytes_max,
            max_headers=limits.header_fields_max,
            lingering_time=1.0,
            auto_decompress=False,  # a megabyte can be a gigabyte, also of a request that is refused
        )
        self.address = address
        self.handshake: asyncio.Task[None] | None = None
        self.on_lost: Callable[[Connection], None] = lambda _: None
        self._limits = limits
        self._deadline_s = time.monotonic() + limits.header_timeout_s
        self._busy = False
        self._header_begun = True
        self._header_bytes = 0
        self._requests_begun = 0
        self._body: StreamReader | None = None

    @property
    def busy(self) -> bool:
        """Whether a request is being answered."""
        return self._busy

    @property
    def deadline_s(self) -> float:
        """When the state has lasted too long, on the monotonic clock."""
        return self._deadline_s

    async def start(self) -> None:
        """Before Python 3.12 the task of a connection starts later, and `abort` can be earlier: aiohttp would raise."""
        if self.connected:
            await super().start()

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        for message, _ in self._messages:  # of what came behind a malformed request
            _forget_traceback(getattr(message, "exc", None))
        self.on_lost(self)

    def data_received(self, data: bytes) -> None:
        if not self._busy and not self._header_begun:
            self._header_begun = True
            self._deadline_s = min(self._deadline_s, time.monotonic() + self._limits.header_timeout_s)
        was_in_header = self._is_in_header
        super().data_received(data)
        if was_in_header and self._is_in_header:
            self._header_bytes += len(data)
            if self._header_bytes > self._limits.headers_bytes_max:
                self.abort()
        else:
            self._header_bytes = 0

    @property
    def _is_in_header(self) -> bool:
        """Whether no request is parsed that has not begun, and the last one has its whole body."""
        return self._request_count == self._requests_begun and (self._body is None or self._body.is_eof())

    def request_begun(self, body: StreamReader) -> None:
        """The header is complete. Called by the first middleware."""
        self._requests_begun += 1
        self._body = body
        self._busy = True
        self._deadline_s = time.monotonic() + self._limits.response_timeout_s

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """aiohttp logs a traceback for each malformed request: a client could fill the log."""
        if status >= 500:
            return super().handle_error(request, status, exc, message)
        _forget_traceback(exc)
        response = web.Response(status=status, text="bad request\n")
        response.force_close()
        return response

    async def finish_response(self, *arguments: Any) -> Any:
        """aiohttp calls it with each response, and it returns when the response is written."""
        try:
            return await super().finish_response(*arguments)
        finally:
            self._busy = self._header_begun = False
            self._deadline_s = time.monotonic() + self._limits.idle_timeout_s

    def abort(self) -> None:
        """Close without waiting for what is not sent yet."""
        if self.handshake is not None and not self.handshake.done():
            self.handshake.cancel()
        elif isinstance(self.transport, asyncio.Transport):
            self.transport.abort()


class ConnectionAcceptor:
    """Serves a `web.Server` on a listening socket. `tls_context` is called for each connection; None: plain HTTP."""

    def __init__(
        self,
        server: web.Server,
        limits: ConnectionLimits,
        counters: HttpCounters,
        tls_context: Callable[[], ssl.SSLContext | None],
    ) -> None:
        self._server = server
        self._limits = limits
        self._counters = counters
        self._tls_context = tls_context
        self._connections: dict[Connection, None] = {}  # the oldest first
        self._rates = AddressBuckets(limits.per_address_per_s)
        self._total_rate = new_bucket(limits.total_per_s)
        self._crowded_rates = AddressBuckets(limits.crowded_per_s)
        self._listener: socket.socket | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def open(self, host: str, port: int) -> int:
        """Listens; returns the port. Raises OSError."""
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = addresses[0]
        listener = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
        listener.setblocking(False)
        self._listener = listener
        self._tasks = [
            asyncio.create_task(self._accept(listener), name="accept"),
            asyncio.create_task(self._sweep(), name="connection timeouts"),
        ]
        bound_port: int = listener.getsockname()[1]
        return bound_port

    def stop_accepting(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._listener is not None:
            self._listener.close()

    def abort_connections(self) -> None:
        for connection in list(self._connections):
            connection.abort()

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        without_descriptors_since_s: float | None = None
        failed_last_s, accepted = 0.0, 0
        while True:
            try:
                client, address = await loop.sock_accept(listener)
            except OSError as error:
                if error.errno not in _NO_DESCRIPTORS:
                    await asyncio.sleep(_ACCEPT_ERROR_DELAY_S)  # mostly a client that has left already
                    continue
                self._counters.accept_failures += 1
                failed_last_s = time.monotonic()
                if without_descriptors_since_s is None:
                    without_descriptors_since_s = failed_last_s
                    log.warning("cannot accept connections; retrying", extra={"error": str(error)})
                self._make_room()
                await asyncio.sleep(_ACCEPT_RETRY_DELAY_S)
                continue
            # Not at once: each idle connection that is closed for another makes room for one.
            recovered = time.monotonic() - failed_last_s >= _ACCEPT_RECOVERED_S
            if without_descriptors_since_s is not None and recovered:
                lasted_s = failed_last_s - without_descriptors_since_s
                log.info("accepting connections again", extra={"after_s": round(lasted_s, 1)})
                without_descriptors_since_s = None
            accepted += 1
            if accepted % _ACCEPTED_AT_ONCE == 0:
                await asyncio.sleep(0)  # `sock_accept` does not yield while connections are waiting
            if self._is_too_fast(str(address[0])):
                self._counters.closed["rate"] += 1
                client.close()
                continue
            at_limit = len(self._connections) >= self._limits.connections_max
            if at_limit and not self._make_room(str(address[0])):
                self._counters.closed["limit"] += 1
                client.close()
                continue
            self._serve(client, str(address[0]))
            await asyncio.sleep(0)

    def _is_too_fast(self, address: str) -> bool:
        now_s = time.monotonic()
        is_crowded = self._total_rate.delay_s(now_s) > 0
        buckets = (
            self._rates.of(address),
            self._crowded_rates.of(address) if is_crowded else self._total_rate,
        )
        if any(bucket.delay_s(now_s) > 0 for bucket in buckets):
            return True
        for bucket in buckets:
            bucket.take(now_s)
        return False

    def _serve(self, client: socket.socket, address: str) -> None:
        connection = Connection(self._server, address, self._limits)
        connection.on_lost = self._forget
        self._connections[connection] = None
        self._counters.connections = len(self._connections)
        connection.handshake = asyncio.create_task(self._handshake(client, connection))

    async def _handshake(self, client: socket.socket, connection: Connection) -> None:
        context = self._tls_context()
        tls: dict[str, Any] = {}
        if context is not None:
            tls = {
                "ssl": context,
                "ssl_handshake_timeout": self._limits.header_timeout_s,
                "ssl_shutdown_timeout": _TLS_SHUTDOWN_S,
            }
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, client, **tls)
        except (OSError, asyncio.CancelledError) as error:  # a failed handshake, a client that left, `abort`
            _forget_traceback(error)
            client.close()
            connection.connection_lost(None)

    def _make_room(self, newcomer: str = "") -> bool:
        """Closes the oldest connection of the addresses with the most; without a newcomer, the oldest idle one. False if there
        is none."""
        by_address = Counter(connection.address for connection in self._connections)
        by_address[newcomer] += bool(newcomer)
        victim = max(
            (connection for connection in self._connections if newcomer or not connection.busy),
            key=lambda connection: by_address[connection.address],
            default=None,
        )
        if victim is None:
            return False
        self._close(victim, "limit")
        return True

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_INTERVAL_S)
            now_s = time.monotonic()
            for connection in [late for late in self._connections if late.deadline_s <= now_s]:
                self._close(connection, "timeout")

    def _close(self, connection: Connection, reason: str) -> None:
        self._counters.closed[reason] += 1
        self._forget(connection)
        connection.abort()

    def _forget(self, connection: Connection) -> None:
        self._connections.pop(connection, None)
        self._counters.connections = len(self._connections)


def _forget_traceback(error: BaseException | None) -> None:
    """Its frames hold the error and the connection with all that it has read. Such a cycle would stay until the next
    collection of garbage, and a client can make thousands of them."""
    while error is not None:
        context = error.__context__
        error.__traceback__ = error.__context__ = error.__cause__ = None
        error = context

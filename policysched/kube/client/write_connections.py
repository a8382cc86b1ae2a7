"""Connections for writes: HTTP/1.1 in one piece. aiohttp's parser reads every response but short ones with a 2xx.

A bind, an event and a status are small requests by the thousand, and aiohttp's client takes twice the CPU time for each
(ADR 81). Lists, watches and requests through a proxy are left to it.

    idle ──send──► exchanging ──response──► idle
      │                └── time-out, cancelled, not HTTP ──┐
      └── closed by the server, idle for too long ─────────┴──► closed

A request that is given up closes its connection: its response would otherwise be taken for that of the next request. So does a
body that is too long: of an error its beginning is enough.
"""

import asyncio
import re
import socket
import ssl
from collections.abc import Callable
from functools import lru_cache, partial
from urllib.parse import quote

from aiohappyeyeballs import start_connection
from aiohttp import StreamReader
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import HttpProcessingError, HttpResponseParser, RawResponseMessage

from policysched.http_errors import system_error_message
from policysched.kube.client.transport import (
    BODY_BYTES_MAX,
    ERROR_BODY_BYTES_MAX,
    HEADER_BYTES_MAX,
    HEADERS_MAX,
    ApiResponse,
)

IDLE_MAX_S = 60.0
"""Less than the API server keeps an idle connection."""
SECOND_ADDRESS_AFTER_S = 0.25
"""When the next address of a name is tried beside one that does not answer."""


_READ_BUFFER_BYTES = 2**16
_PATH_CHARACTERS = "/:@!$&'()*+,;=~%"
"""What a path may have besides letters, digits, `_`, `.` and `-`; `%` since it may be encoded."""
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_./-]*")
"""Of nearly all objects: to see that nothing is to be quoted takes a fifth of the time of `quote`."""


class WriteRefused(Exception):
    """`may_write` forbade it: nothing was written."""


class WriteConnections:
    """A pool of at most `connections_max` connections to one server; further requests wait. `tls` None: plain HTTP.
    `server_hostname`: the name that its certificate must have, if not `host`."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None,
        server_hostname: str | None,
        connections_max: int,
    ) -> None:
        self._host, self._port, self._tls = host, port, tls
        self._server_hostname = (server_hostname or host) if tls is not None else None
        self._permits = asyncio.Semaphore(connections_max)
        self._idle: list[_Connection] = []
        self._is_closed = False

    async def send(
        self, head: bytes, body: bytes, *, timeout_s: float, may_write: Callable[[], bool]
    ) -> ApiResponse:
        """The response to a request in one piece. `may_write` is asked when the connection is there, right before the
        write. Raises WriteRefused, TimeoutError, OSError."""
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + timeout_s
        if self._idle and not self._permits.locked():
            await self._permits.acquire()  # does not wait
            connection = self._usable_idle(loop.time())
        else:
            async with asyncio.timeout_at(ends_s):
                await self._permits.acquire()
            connection = self._usable_idle(loop.time())
        try:
            if connection is None:
                async with asyncio.timeout_at(ends_s):
                    connection = await self._open(loop)
            if not may_write():
                self._release(connection, loop.time())
                raise WriteRefused
            try:
                return await connection.exchange(head + body, ends_s)
            finally:
                self._release(connection, loop.time())
        finally:
            self._permits.release()

    def close(self) -> None:
        """Close idle connections now, and the others when their response is there."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().close()

    def _usable_idle(self, now_s: float) -> "_Connection | None":
        """The one that was used last, so that those beyond the present need grow old."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_reusable and now_s - connection.idle_since_s < IDLE_MAX_S:
                return connection
            connection.close()
        return None

    def _release(self, connection: "_Connection", now_s: float) -> None:
        connection.idle_since_s = now_s
        if connection.is_reusable and not self._is_closed:
            self._idle.append(connection)
            if now_s - self._idle[0].idle_since_s >= IDLE_MAX_S:
                self._idle.pop(0).close()
        else:
            connection.close()

    async def _open(self, loop: asyncio.AbstractEventLoop) -> "_Connection":
        try:
            addresses = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
            opened = await start_connection(addresses, happy_eyeballs_delay=SECOND_ADDRESS_AFTER_S)
        except OSError as error:
            message = f"cannot connect to {self._host}:{self._port}: {system_error_message(error)}"
            raise ConnectionError(message) from error
        _, connection = await loop.create_connection(
            lambda: _Connection(loop), sock=opened, ssl=self._tls, server_hostname=self._server_hostname
        )
        return connection


def request_head(
    method: str, path: str, query: str, content_length: int, headers: tuple[tuple[str, str], ...]
) -> bytes:
    """`query` is URL-encoded. Raises ValueError for a header that would begin another one."""
    if _PLAIN_PATH.fullmatch(path) is None:
        path = quote(path, safe=_PATH_CHARACTERS)
    target = f"{path}?{query}" if query else path
    begin = f"{method} {target} HTTP/1.1\r\nContent-Length: {content_length}\r\n"
    return begin.encode("latin-1") + _header_lines(headers)


@lru_cache(maxsize=64)
def _header_lines(headers: tuple[tuple[str, str], ...]) -> bytes:
    """And the empty line. Nearly all requests have the same few."""
    lines = [f"{name}: {value}" for name, value in headers]
    if any("\r" in line or "\n" in line for line in lines):
        raise ValueError("a header of the request has a line break")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def success_in_one_piece(data: bytes) -> ApiResponse | None:
    """The response to a request that succeeded, if it is whole and as the API server writes them: with one Content-Length
    and nothing else that concerns the connection. Its headers are not read. None: a parser has to look."""
    head, end, body = data.partition(b"\r\n\r\n")
    status = _SUCCESS.match(head)
    if status is None or not end:
        return None
    framing = _FRAMING_HEADERS.findall(head)
    if len(framing) != 1 or not framing[0].isdigit() or int(framing[0]) != len(body):
        return None
    return ApiResponse(int(status[1]), body)


_SUCCESS = re.compile(rb"HTTP/1\.1 (20[0-3]) ")
_FRAMING_HEADERS = re.compile(
    rb"\n(?:content-length:[ \t]*(\d{1,9})(?=\r|\Z)|(?:content-length|transfer-encoding|connection)\b)",
    re.IGNORECASE,
)
"""With a length where it is one."""


class _Connection(BaseProtocol):
    """One exchange at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._responses = self._parser = HttpResponseParser(
            self, loop, _READ_BUFFER_BYTES, max_headers=HEADERS_MAX, max_field_size=HEADER_BYTES_MAX
        )
        self._is_parsing = False  # the parser has a part of the response
        self._unfinished: tuple[RawResponseMessage, StreamReader] | None = None
        self._response: asyncio.Future[ApiResponse] | None = None
        self._ends_s = 0.0  # of the exchange
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_s = 0.0
        self.is_reusable = True
        self.idle_since_s = 0.0

    async def exchange(self, request: bytes, ends_s: float) -> ApiResponse:
        """Raises TimeoutError, OSError."""
        if self.transport is None or not self.is_reusable:
            raise ConnectionResetError("the server closed the connection")
        response: asyncio.Future[ApiResponse] = self._loop.create_future()
        self._response, self._ends_s = response, ends_s
        if self._timer is None or ends_s < self._timer_due_s:
            self._set_timer()
        self.transport.write(request)
        try:
            return await response
        except asyncio.CancelledError:
            self.close()
            raise
        finally:
            self._response = None

    def _set_timer(self) -> None:
        """One timer for many exchanges, as most end long before their time."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due_s = self._ends_s
        self._timer = self._loop.call_at(self._timer_due_s, self._look_at_time)

    def _look_at_time(self) -> None:
        self._timer = None
        if self._response is None:
            return
        if self._ends_s > self._timer_due_s:
            self._set_timer()
        else:
            self._fail(TimeoutError())

    def close(self) -> None:
        self.is_reusable = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.transport is not None:
            self.transport.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self._fail(
            exc if isinstance(exc, OSError) else ConnectionResetError("the server closed the connection")
        )

    def pause_reading(self) -> None:
        """Nothing pauses: a response is taken when it is complete."""

    def resume_reading(self, resume_parser: bool = True) -> None:
        pass

    def data_received(self, data: bytes) -> None:
        if self._response is None or self._response.done():
            self.close()  # nothing was asked
            return
        whole = None if self._is_parsing else success_in_one_piece(data)
        if whole is not None:
            self._response.set_result(whole)
            return
        self._is_parsing = True
        try:
            messages, _, _ = self._responses.feed_data(data)
        except HttpProcessingError as error:
            self._fail(ConnectionError(f"the response is not HTTP: {error.message}"))
            return
        for message, payload in messages:
            if message.code >= 200:  # below: the response follows
                self._unfinished = message, payload
                payload.on_eof(partial(self._complete, message, payload))
        if self._unfinished is not None:
            self._limit_body(*self._unfinished)

    def _limit_body(self, message: RawResponseMessage, body: StreamReader) -> None:
        if body.total_bytes <= (BODY_BYTES_MAX if message.code < 300 else ERROR_BODY_BYTES_MAX):
            return
        if message.code < 300:
            self._fail(ConnectionError(f"the response has more than {BODY_BYTES_MAX} bytes"))
        else:
            self._complete(message, body)
            self.close()

    def _complete(self, message: RawResponseMessage, body: StreamReader) -> None:
        self._is_parsing, self._unfinished = False, None
        self.is_reusable = self.is_reusable and not message.should_close
        if self._response is not None and not self._response.done():
            headers = {name.lower(): value for name, value in message.headers.items()}
            self._response.set_result(ApiResponse(message.code, body.read_nowait(), headers))

    def _fail(self, error: Exception) -> None:
        if self._response is not None and not self._response.done():
            self._response.set_exception(error)
        self.close()

"""The page of a running scheduler on a loopback port, with the user's own credentials towards the scheduler.

Whoever may use the port reads with these credentials. So every path begins with a secret that only the printed URL has, and
only loopback names are answered: other users of the machine and other sites in the browser get nothing. A cookie would not do:
a browser sends it to all ports of the host, which other users can listen on. Only the page's paths are passed on.
"""

import hmac
import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from typing import Any

from policysched.live.connection import ForwardedAnswer, LiveFailed

Ask = Callable[[str, dict[str, str], bytes | None], ForwardedAnswer]

_LOOPBACK_HOSTS = ("127.0.0.1", "localhost")
_ASKED = ("Accept", "Accept-Encoding", "Content-Type", "If-None-Match")
_TRY_PATH = "/page/try"
_LONG_PATHS = (_TRY_PATH, "/page/pod")
_BODY_BYTES_MAX = 2**20
REQUEST_TIMEOUT_S = 20.0
"""For each read of a request: one that does not end holds a thread."""
CONNECTIONS_MAX = 64
"""Each holds a thread, also one that sends a byte now and then. A browser has six."""
_ANSWERED = (
    "Content-Type",
    "Content-Encoding",
    "Content-Security-Policy",
    "X-Content-Type-Options",
    "Referrer-Policy",
    "Cross-Origin-Resource-Policy",
    "Cache-Control",
    "ETag",
    "Vary",
    "Policysched-Time-Ms",
    "Retry-After",
)


class PageProxy(ThreadingHTTPServer):
    """Listens on 127.0.0.1 at once; serves in `serve_forever`. `ask` asks the scheduler one thing at a time; `ask_long` does
    so on another connection, for what may take half a minute: the rest of the page is updated meanwhile. Raises OSError."""

    daemon_threads = True
    request_queue_size = CONNECTIONS_MAX

    def __init__(
        self, port: int, ask: Ask, ask_long: Ask, *, request_timeout_s: float = REQUEST_TIMEOUT_S
    ) -> None:
        self.ask, self.ask_long, self.request_timeout_s = ask, ask_long, request_timeout_s
        self.key = secrets.token_urlsafe(24)
        self._open: dict[socket.socket, None] = {}  # the oldest first
        self._open_lock = Lock()
        super().__init__(("127.0.0.1", port), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{self.key}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        """At the limit the oldest connection makes room."""
        with self._open_lock:
            self._open[request] = None
            if len(self._open) > CONNECTIONS_MAX:
                oldest = next(iter(self._open))
                del self._open[oldest]
                with suppress(OSError):  # its client is gone
                    oldest.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Called on the thread of the connection, at its end."""
        with self._open_lock:
            self._open.pop(request, None)
        super().shutdown_request(request)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: PageProxy

    def setup(self) -> None:
        super().setup()
        self.connection.settimeout(self.server.request_timeout_s)

    def do_GET(self) -> None:
        path = self._admitted_path()
        if path is None:
            return
        if path != "/" and not path.startswith("/page/"):
            self._say(404, "404: this port serves only the page")
        else:
            self._forward(path, None)

    def do_POST(self) -> None:
        """The playground. Other sites cannot send this request: they lack the key, and browsers ask before sending the content type."""
        length = self.headers.get("Content-Length", "")
        self.close_connection = True  # an error leaves the body unread
        path = self._admitted_path()
        if path is None:
            return
        if path != _TRY_PATH:
            self._say(404, "404: this path accepts no POST")
        elif self.headers.get_content_type() != "application/json":
            self._say(415, "send application/json")
        elif not (length.isascii() and length.isdigit() and len(length) < 9):
            self._say(411, "the length of the body is missing")
        elif int(length) > _BODY_BYTES_MAX:
            self._say(413, "the text is too long")
        else:
            self._forward(path, self.rfile.read(int(length)))

    def _admitted_path(self) -> str | None:
        """The path below the key; None after an answer that refuses."""
        key, slash, path = self.path.removeprefix("/").partition("/")
        if self.headers.get("Host", "").rpartition(":")[0] not in _LOOPBACK_HOSTS:
            self._say(403, "only the host names 127.0.0.1 and localhost are accepted")
        elif not slash or not hmac.compare_digest(key.encode(), self.server.key.encode()):
            self._say(403, "open the URL that `policysched page` printed")
        else:
            return f"/{path}"
        return None

    def _forward(self, path: str, body: bytes | None) -> None:
        request_headers = {name: value for name in _ASKED if (value := self.headers.get(name)) is not None}
        ask = self.server.ask_long if path.partition("?")[0] in _LONG_PATHS else self.server.ask
        try:
            answer = ask(path, request_headers, body)
        except LiveFailed as error:
            self._say(502, str(error))
            return
        self.send_response(answer.status)
        for name in _ANSWERED:
            if name in answer.headers:
                self.send_header(name, answer.headers[name])
        if answer.status != 304:
            self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)

    def _say(self, status: int, text: str) -> None:
        body = f"{text}\n".encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the library's name)
        """No log: the URL has the key."""

"""The page of a running scheduler on a loopback port, with the user's own credentials towards the scheduler.

Whoever may use the port reads with these credentials. So it asks for a secret that only the printed URL has, as a
cookie from then on, and answers only to loopback names: other users of the machine and other sites in the browser get
nothing. Only the page's paths are passed on.
"""

import hmac
import secrets
from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from policysched.live.connection import ForwardedAnswer, LiveFailed

Ask = Callable[[str, dict[str, str], bytes | None], ForwardedAnswer]

_COOKIE = "policysched-page"
_LOOPBACK_HOSTS = ("127.0.0.1", "localhost")
_ASKED = ("Accept", "Accept-Encoding", "Content-Type", "If-None-Match")
_TRY_PATH = "/page/try"
_LONG_PATHS = (_TRY_PATH, "/page/pod")
_BODY_BYTES_MAX = 2**20
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

    def __init__(self, port: int, ask: Ask, ask_long: Ask) -> None:
        self.ask, self.ask_long = ask, ask_long
        self.key = secrets.token_urlsafe(24)
        super().__init__(("127.0.0.1", port), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/?key={self.key}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: PageProxy

    def do_GET(self) -> None:
        host = self.headers.get("Host", "").rpartition(":")[0]
        parts = urlsplit(self.path)
        if host not in _LOOPBACK_HOSTS:
            self._say(403, "only the host names 127.0.0.1 and localhost are accepted")
        elif parts.path == "/" and self._is_key(parse_qs(parts.query).get("key", [""])[0]):
            self.send_response(303)
            self.send_header("Set-Cookie", f"{_COOKIE}={self.server.key}; HttpOnly; SameSite=Strict; Path=/")
            self.send_header("Location", "/")
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif not self._is_key(self._cookie()):
            self._say(403, "open the URL that `policysched page` printed")
        elif parts.path != "/" and not parts.path.startswith("/page/"):
            self._say(404, "404: this port serves only the page")
        else:
            self._forward(None)

    def do_POST(self) -> None:
        """The playground. Other sites cannot send this request: browsers do not send them the cookie, and ask before sending the content type."""
        length = self.headers.get("Content-Length", "")
        self.close_connection = True  # an error leaves the body unread
        if self.headers.get("Host", "").rpartition(":")[0] not in _LOOPBACK_HOSTS:
            self._say(403, "only the host names 127.0.0.1 and localhost are accepted")
        elif not self._is_key(self._cookie()):
            self._say(403, "open the URL that `policysched page` printed")
        elif self.path != _TRY_PATH:
            self._say(404, "404: this path accepts no POST")
        elif self.headers.get_content_type() != "application/json":
            self._say(415, "send application/json")
        elif not (length.isascii() and length.isdigit() and len(length) < 9):
            self._say(411, "the length of the body is missing")
        elif int(length) > _BODY_BYTES_MAX:
            self._say(413, "the text is too long")
        else:
            self._forward(self.rfile.read(int(length)))

    def _forward(self, body: bytes | None) -> None:
        request_headers = {name: value for name in _ASKED if (value := self.headers.get(name)) is not None}
        ask = self.server.ask_long if urlsplit(self.path).path in _LONG_PATHS else self.server.ask
        try:
            answer = ask(self.path, request_headers, body)
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

    def _cookie(self) -> str:
        try:
            cookie = SimpleCookie(self.headers.get("Cookie", "")).get(_COOKIE)
        except CookieError:
            return ""
        return "" if cookie is None else cookie.value

    def _is_key(self, text: str) -> bool:
        return hmac.compare_digest(text.encode(), self.server.key.encode())

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

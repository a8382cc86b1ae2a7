"""The files of the page at `/`, from the package, and the headers that keep text of the cluster from running as code."""

import gzip
import hashlib
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

FOLDER = Path(__file__).parent / "page"
FILES_PATH = "/page/files/"

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        # Browsers that know it refuse `innerHTML` and its like, in our files and in the vendored ones.
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",  # asked for again each time, and answered 304
}
_CONTENT_TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
}
_GZIP_BYTES_MIN = 1024
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True, slots=True)
class Document:
    """Bytes that are sent to many, compressed once."""

    body: bytes
    content_type: str
    compressed: bytes | None
    etag: str

    @classmethod
    def of(cls, body: bytes, content_type: str, *, level: int = 1) -> "Document":
        compressed = gzip.compress(body, level, mtime=0) if len(body) >= _GZIP_BYTES_MIN else None
        return cls(body, content_type, compressed, f'"{hashlib.sha256(body).hexdigest()[:32]}"')

    def response(self, request: web.Request) -> web.Response:
        """304 if the client has it, compressed if it can read that."""
        headers = {**HEADERS, "ETag": self.etag, "Vary": "Accept-Encoding"}
        if request.headers.get("If-None-Match") == self.etag:
            return web.Response(status=304, headers=headers)
        body = self.body
        if self.compressed is not None and "gzip" in request.headers.get("Accept-Encoding", ""):
            body, headers["Content-Encoding"] = self.compressed, "gzip"
        return web.Response(body=body, content_type=self.content_type, charset="utf-8", headers=headers)


class PageFiles:
    """The index at `/` and the other files below `/page/files/`, read when the server starts."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._by_path = {
            f"{FILES_PATH}{file.relative_to(folder).as_posix()}": Document.of(
                file.read_bytes(), _CONTENT_TYPES[file.suffix], level=9
            )
            for file in sorted(folder.rglob("*"))
            if file.suffix in _CONTENT_TYPES
        }

    async def index(self, request: web.Request) -> web.Response:
        return self._by_path[f"{FILES_PATH}index.html"].response(request)

    async def file(self, request: web.Request) -> web.Response:
        document = self._by_path.get(request.path)
        if document is None:
            raise web.HTTPNotFound(text="404: the page has no such file\n")
        return document.response(request)


def is_loopback_host(host: str) -> bool:
    """Whether a `Host` header names this machine. A site of another name that resolves to 127.0.0.1 (DNS rebinding) could
    read a port without authentication from the user's browser."""
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    return name in _LOOPBACK_NAMES

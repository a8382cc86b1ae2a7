"""An HTTP server in place of Prometheus: correct, slow, huge, malformed or redirecting responses."""

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web
from aiohttp.test_utils import TestServer

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(slots=True)
class RecordedRequest:
    """One request as received."""

    method: str
    path: str
    headers: dict[str, str]
    query: str


@dataclass(slots=True)
class Pretend:
    """A running server. `answer` may be changed while it runs."""

    answer: Handler
    requests: list[RecordedRequest] = field(default_factory=list)
    url: str = ""

    async def take(self, request: web.Request) -> web.StreamResponse:
        form = await request.post()
        query = str(form.get("query", request.query.get("query", "")))
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.requests.append(RecordedRequest(request.method, request.path, headers, query))
        return await self.answer(request)


def saying(body: bytes, status: int = 200, **headers: str) -> Handler:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(body=body, status=status, headers={"Content-Type": "application/json", **headers})

    return answer


@asynccontextmanager
async def pretending(answer: Handler, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[Pretend]:
    """Listens on a free port of loopback."""
    pretend = Pretend(answer)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", pretend.take)
    server = TestServer(app, scheme="https" if tls is not None else "http")
    await server.start_server(ssl=tls)
    pretend.url = f"{server.scheme}://127.0.0.1:{server.port}"
    try:
        yield pretend
    finally:
        await server.close()

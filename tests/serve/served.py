"""An HTTP server for the length of a scenario, with pages of a few words, and sockets to misuse it."""

import asyncio
import socket
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

from policysched.serve.health import Health
from policysched.serve.server import HttpServerOptions, HttpThread, ListenAddress
from policysched.serve.status_routes import StatusEndpoints

PATIENCE_S = 120.0
DEFAULT_OPTIONS = HttpServerOptions()
WELL = Health(live={"loop": lambda: ""}, ready={"sync": lambda: "", "policies": lambda: ""})
PAGES = StatusEndpoints(
    metrics=lambda: "m 1\n",
    policy=lambda: {"policies": []},
    decisions=lambda limit, pod: lambda: f'{{"decisions":[{limit},"{pod}"]}}\n'.encode(),
    configz=dict,
)


def burn(seconds: float) -> None:
    """Takes that much processor time of this thread."""
    until_s = time.thread_time() + seconds
    while time.thread_time() < until_s:
        pass


def get(port: int, path: str, token: str | None = None, headers: Mapping[str, str] = {}) -> tuple[int, str]:
    """Status and body."""
    own = {} if token is None else {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={**own, **headers})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@asynccontextmanager
async def serving(
    options: HttpServerOptions = DEFAULT_OPTIONS, *, health: Health = WELL, pages: StatusEndpoints = PAGES
) -> AsyncIterator[int]:
    """The port."""
    server = HttpThread(ListenAddress("127.0.0.1", 0), health, pages, asyncio.get_running_loop(), options)
    port = server.start()
    try:
        yield port
    finally:
        await asyncio.to_thread(server.stop)


def served(
    scenario: Callable[[int], Awaitable[None]],
    options: HttpServerOptions = DEFAULT_OPTIONS,
    *,
    health: Health = WELL,
    pages: StatusEndpoints = PAGES,
) -> None:
    async def main() -> None:
        async with serving(options, health=health, pages=pages) as port:
            await scenario(port)

    asyncio.run(main())


def connected(port: int, address: str = "127.0.0.1") -> socket.socket:
    """`address`: of the client."""
    return socket.create_connection(("127.0.0.1", port), PATIENCE_S, source_address=(address, 0))


def is_closed(client: socket.socket) -> bool:
    """Waits until the server closes the connection; False if it sends something."""
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True

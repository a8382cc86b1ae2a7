"""The event loop of the long-running programs: libuv's, where there is one."""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


def run_event_loop(main: Coroutine[Any, Any, Result]) -> Result:
    """As `asyncio.run`. Each bind and each event is a request, and a third of what one costs us is the loop's work."""
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(main)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Makes libuv's loop; None, asyncio's own, where libuv is not."""
    try:
        import uvloop
    except ImportError:  # there is none for Windows
        return None

    class Loop(uvloop.Loop):
        """uvloop's, but a socket that was handed over is let go of.

        libuv closes its descriptor. Where a connection breaks before uvloop has noted whose socket it was (the server
        resets it as the handshake begins), the socket still holds the number, and whenever it is freed it closes that
        descriptor once more: by then another connection's, and requests on it fail without any fault of their own.
        """

        async def create_connection(self, *args: Any, sock: socket.socket | None = None, **more: Any) -> Any:
            try:
                return await super().create_connection(*args, sock=sock, **more)
            finally:
                if sock is not None:
                    sock.detach()

    return Loop

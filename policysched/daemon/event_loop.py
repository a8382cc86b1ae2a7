"""The event loop of the long-running programs: uvloop where it is installed."""

import asyncio
import socket
import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


THREAD_SWITCH_INTERVAL_S = 0.0005
"""The longest time that a busy thread, such as the HTTP server's, keeps the interpreter while this one wants it. A bind
wakes the loop several times, so that Python's 5 ms would add up."""


def run_event_loop(main: Coroutine[Any, Any, Result]) -> Result:
    """Like `asyncio.run`. Every bind and event is a request, and a third of its cost is the event loop."""
    sys.setswitchinterval(THREAD_SWITCH_INTERVAL_S)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(main)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The uvloop factory; None (asyncio's own loop) where uvloop is not installed."""
    try:
        import uvloop
    except ImportError:  # not available on Windows
        return None

    class Loop(uvloop.Loop):
        """uvloop's loop, but detaches a socket that was passed in.

        libuv closes the descriptor. If a connection breaks before uvloop has recorded the socket (the server resets
        it as the handshake begins), the socket object keeps the number and closes that descriptor again when it is
        freed. By then it may belong to another connection, whose requests would fail.
        """

        async def create_connection(self, *args: Any, sock: socket.socket | None = None, **more: Any) -> Any:
            try:
                return await super().create_connection(*args, sock=sock, **more)
            finally:
                if sock is not None:
                    sock.detach()

    return Loop

"""The programs' event loop: a descriptor is closed once, whatever becomes of its connection."""

import asyncio
import contextlib
import os
import socket
import ssl
import struct
from collections.abc import Callable

import uvloop

from policysched.daemon import event_loop

RESET_ON_CLOSE = struct.pack("ii", 1, 0)
Factory = Callable[[], asyncio.AbstractEventLoop]


def test_a_reset_socket_closes_only_its_own_descriptor() -> None:
    made = event_loop.loop_factory()

    assert made is not None
    assert closed_under_another(made) is False


def test_uvloops_own_loop_closes_a_descriptor_twice() -> None:
    """Once it no longer does, ours has nothing to add."""
    assert closed_under_another(uvloop.new_event_loop) is True


def test_a_connection_over_a_socket_that_was_handed_over_carries_bytes() -> None:
    made = event_loop.loop_factory()

    async def echo() -> bytes:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(
            sock=socket.create_connection(server.sockets[0].getsockname())
        )
        writer.write(b"are you there\n")
        heard = await reader.readline()
        writer.close()
        await writer.wait_closed()
        server.close()
        return heard

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        await writer.drain()
        writer.close()

    with asyncio.Runner(loop_factory=made) as runner:
        assert runner.run(echo()) == b"are you there\n"


def closed_under_another(made: Factory) -> bool:
    """Whether the socket of a connection that was reset, once it is freed, closes what took its number."""
    with asyncio.Runner(loop_factory=made) as runner:
        broken = reset_by_its_server()
        number = broken.fileno()
        runner.run(shake_hands(broken))
        other = opened_as(number)
        broken.close()
        del broken
        return not is_open(other)


def opened_as(number: int) -> int:
    """A file of that number, as the next connection would get it."""
    lowest = os.open(os.devnull, os.O_RDONLY)
    if lowest == number:
        return number
    os.dup2(lowest, number)
    os.close(lowest)
    return number


def reset_by_its_server() -> socket.socket:
    with socket.create_server(("127.0.0.1", 0)) as server:
        broken = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        accepted.close()
    return broken


async def shake_hands(broken: socket.socket) -> None:
    with contextlib.suppress(OSError):
        await asyncio.get_running_loop().create_connection(
            asyncio.Protocol, sock=broken, ssl=ssl.create_default_context(), server_hostname="localhost"
        )


def is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    os.close(number)
    return True

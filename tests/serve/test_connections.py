"""Clients that send nothing, too slowly or too much, and a process without file descriptors."""

import asyncio
import contextlib
import gc
import gzip
import socket
import ssl
import subprocess
import sys
import time
from dataclasses import replace
from unittest.mock import patch

import pytest
from aiohttp import web

from policysched.serve import connections
from policysched.serve.connections import Connection, ConnectionLimits
from policysched.serve.http_counters import HttpCounters
from policysched.serve.request_rate import PROBE_DELAY_S, RateExceeded, RateLimits, RequestRate
from policysched.serve.server import HttpServerOptions
from policysched.serve.tls import ServerTls, ServerTlsFiles
from tests.serve.served import PAGES, PATIENCE_S, connected, get, is_closed, served

OTHER_ADDRESS = "127.0.0.2"
REQUEST = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
SHORT = ConnectionLimits(
    connections_max=8, header_timeout_s=0.3, idle_timeout_s=0.3, response_timeout_s=0.6, header_bytes_max=4096
)


def trickle(client: socket.socket) -> None:
    """A header that never ends, a byte at a time, until the server closes the connection."""
    gives_up_s = time.monotonic() + PATIENCE_S
    with contextlib.suppress(OSError):
        client.sendall(REQUEST[:-2])
        while time.monotonic() < gives_up_s:
            client.sendall(b"X")
            time.sleep(0.05)
        raise AssertionError("the connection stays open")


def answered(port: int) -> socket.socket:
    """A connection with a request that was answered. On a busy machine another one may be closed before it is sent."""
    while True:
        client = connected(port)
        with contextlib.suppress(ConnectionError):
            client.sendall(REQUEST)
            if client.recv(12) == b"HTTP/1.1 200":
                client.recv(4096)
                return client
        client.close()


def test_connections_that_send_no_complete_header_are_closed() -> None:
    async def scenario(port: int) -> None:
        silent, slow = connected(port), connected(port)
        idle = await asyncio.to_thread(answered, port)

        await asyncio.to_thread(trickle, slow)
        assert await asyncio.to_thread(is_closed, silent)
        assert await asyncio.to_thread(is_closed, idle)
        assert counters.closed["timeout"] >= 3

    counters = HttpCounters()
    served(scenario, HttpServerOptions(connections=SHORT, counters=counters))


def test_a_client_that_does_not_read_its_response_is_disconnected() -> None:
    async def scenario(port: int) -> None:
        client = connected(port)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.sendall(REQUEST.replace(b"livez", b"metrics"))
        gives_up_s = time.monotonic() + PATIENCE_S
        while (not counters.closed["timeout"] or counters.connections) and time.monotonic() < gives_up_s:
            await asyncio.sleep(0.05)
        assert (counters.closed["timeout"], counters.connections) == (1, 0)

    counters = HttpCounters()
    large = replace(PAGES, metrics=lambda: "m 1\n" * 5_000_000)
    served(scenario, HttpServerOptions(connections=SHORT, counters=counters), pages=large)


def test_a_probe_is_answered_while_one_client_opens_hundreds_of_connections() -> None:
    limits = ConnectionLimits(connections_max=16, per_address_per_s=10_000)
    counters = HttpCounters()

    async def scenario(port: int) -> None:
        clients = [connected(port) for _ in range(150)]
        assert await asyncio.to_thread(get, port, "/livez") == (200, "ok")
        clients += [connected(port) for _ in range(150)]
        assert await asyncio.to_thread(get, port, "/livez") == (200, "ok")
        assert counters.connections <= 16
        gives_up_s = time.monotonic() + PATIENCE_S
        while counters.closed["limit"] < 280 and time.monotonic() < gives_up_s:
            await asyncio.sleep(0.05)  # a busy machine accepts the last ones later
        assert counters.closed["limit"] >= 280
        for client in clients:
            client.close()

    served(scenario, HttpServerOptions(connections=limits, counters=counters))


class HeldRequests:
    """A handler that answers once `end` is set. `count`: the requests that have arrived."""

    def __init__(self) -> None:
        self.end, self.count = asyncio.Event(), 0

    async def wait(self, _: web.Request) -> web.Response:
        self.count += 1
        await self.end.wait()
        return web.Response()


def test_a_probe_is_answered_while_one_client_has_a_request_in_every_connection() -> None:
    limits = ConnectionLimits(connections_max=16)
    counters, held = HttpCounters(), HeldRequests()

    async def scenario(port: int) -> None:
        clients = [connected(port, OTHER_ADDRESS) for _ in range(16)]
        for client in clients:
            client.sendall(REQUEST.replace(b"livez", b"wait"))
        while held.count < 16:
            await asyncio.sleep(0.01)
        for _ in range(3):
            assert await asyncio.to_thread(get, port, "/livez") == (200, "ok")
        assert counters.closed["limit"] == 1, "one made room; what a probe left is free for the next one"

        later = [connected(port, OTHER_ADDRESS) for _ in range(4)]
        for client in clients[:4]:
            assert await asyncio.to_thread(is_closed, client), (
                "the oldest makes room for the next one of its address"
            )
        held.end.set()
        first_bytes = [await asyncio.to_thread(client.recv, 12) for client in clients[4:]]
        assert first_bytes == [b"HTTP/1.1 200"] * 12
        for client in (*clients, *later):
            client.close()

    options = HttpServerOptions(
        routes=[web.get("/wait", held.wait)],
        connections=limits,
        counters=counters,
        rates=RateLimits(1000, 1000),
    )
    served(scenario, options)


def test_a_probe_is_answered_while_as_many_addresses_as_connections_have_a_request_each() -> None:
    """The probe was refused, as no address had more than its own, and in its handshake it was the only idle one."""
    limits = ConnectionLimits(connections_max=16)
    counters, held = HttpCounters(), HeldRequests()

    def busy(port: int, number: int) -> socket.socket:
        client = connected(port, f"127.0.1.{number + 1}")
        client.sendall(REQUEST.replace(b"livez", b"wait"))
        return client

    async def scenario(port: int) -> None:
        clients = [busy(port, number) for number in range(16)]
        while held.count < 16:
            await asyncio.sleep(0.01)
        probe = connected(port, OTHER_ADDRESS)
        clients += [busy(port, number) for number in range(16, 24)]
        while counters.closed["limit"] < 9:
            await asyncio.sleep(0.01)
        probe.sendall(REQUEST)
        assert await asyncio.to_thread(probe.recv, 12) == b"HTTP/1.1 200"
        for client in (*clients, probe):
            client.close()
        held.end.set()

    options = HttpServerOptions(routes=[web.get("/wait", held.wait)], connections=limits, counters=counters)
    served(scenario, options)


def test_an_address_opens_no_more_connections_a_second_than_its_rate() -> None:
    counters = HttpCounters()

    async def scenario(port: int) -> None:
        clients = [connected(port, OTHER_ADDRESS) for _ in range(60)]
        assert await asyncio.to_thread(get, port, "/livez") == (200, "ok")
        assert counters.closed["rate"] >= 40
        assert counters.closed["limit"] == 0
        for client in clients:
            client.close()

    limits = ConnectionLimits(per_address_per_s=0.1)  # so low that it allows a slow machine no more
    served(scenario, HttpServerOptions(connections=limits, counters=counters))


def test_many_addresses_below_their_rates_open_no_more_connections_a_second_than_all_together_may() -> None:
    counters = HttpCounters()

    async def scenario(port: int) -> None:
        began_s = time.monotonic()
        clients = [connected(port, f"127.0.1.{number % 10 + 1}") for number in range(200)]
        assert await asyncio.to_thread(get, port, "/livez") == (200, "ok")
        allowed = 24 + 12 * (time.monotonic() - began_s)
        assert counters.closed["rate"] >= 200 - allowed, "24 at once, and 12 a second"
        assert await asyncio.to_thread(get, port, "/livez") == (200, "ok")
        for client in clients:
            client.close()

    limits = ConnectionLimits(total_per_s=2, crowded_per_s=1)
    served(scenario, HttpServerOptions(connections=limits, counters=counters))


def test_a_header_that_is_too_long_in_total_is_not_kept_until_its_timeout() -> None:
    limits = ConnectionLimits(header_timeout_s=10 * PATIENCE_S)

    async def scenario(port: int) -> None:
        client, decent = connected(port), connected(port)
        with contextlib.suppress(OSError):  # the server may close the connection before the last of them
            for number in range(10):
                client.sendall(b"X%d: " % number + b"x" * 10_000 + b"\r\n" if number else REQUEST[:-2])
        assert await asyncio.to_thread(is_closed, client)

        decent.sendall(
            REQUEST[:-2] + b"".join(b"X%d: " % n + b"x" * 10_000 + b"\r\n" for n in range(5)) + b"\r\n"
        )
        assert await asyncio.to_thread(decent.recv, 12) == b"HTTP/1.1 200"

    served(scenario, HttpServerOptions(connections=limits))


@pytest.mark.parametrize("header", [b"X: " + b"x" * 10_000, b"\r\n".join(b"X%d: x" % n for n in range(500))])
def test_a_header_beyond_its_limits_is_rejected_and_not_logged(
    header: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(port: int) -> None:
        client = connected(port)
        client.sendall(REQUEST[:-2] + header + b"\r\n\r\n")
        assert await asyncio.to_thread(client.recv, 12) == b"HTTP/1.0 400"
        assert caplog.records == []

    served(scenario, HttpServerOptions(connections=ConnectionLimits(header_bytes_max=4096)))


def test_a_compressed_body_is_not_expanded() -> None:
    """Eight clients without credentials kept probes from being answered for three seconds, with a megabyte each."""
    body = gzip.compress(bytes(10_000_000))
    header = (
        f"POST /size HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: {len(body)}\r\n\r\n"
    )

    async def size(request: web.Request) -> web.Response:
        return web.Response(text=str(len(await request.content.read())))

    async def scenario(port: int) -> None:
        client = connected(port)
        client.sendall(header.encode() + body)
        answer = await asyncio.to_thread(client.recv, 4096)
        assert answer.endswith(f"\r\n\r\n{len(body)}".encode())

    served(scenario, HttpServerOptions(routes=[web.post("/size", size)]))


@pytest.mark.parametrize(
    "target",
    [
        b"/\xff",
        b"/%ff",
        b"/%00",
        b"//livez",
        b"/page/files/../../server.py",
        b"/decisions?pod=%ff&limit=%ff",
        b"*",
        b"x:y",
    ],
)
def test_targets_that_are_no_path_of_ours_are_refused_and_not_logged(
    target: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(port: int) -> None:
        client = connected(port)
        client.sendall(REQUEST.replace(b"/livez", target))
        status = await asyncio.to_thread(client.recv, 12)
        assert status.split()[1] in (b"400", b"403", b"404"), status
        assert caplog.records == []

    served(scenario)


WITHOUT_DESCRIPTORS = """
import asyncio, logging, os, resource, socket, sys, time
from policysched.serve.http_counters import HttpCounters
from policysched.serve.server import HttpServerOptions
from tests.serve.served import serving

async def main():
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    counters = HttpCounters()
    async with serving(HttpServerOptions(counters=counters)) as port:
        idle = socket.create_connection(("127.0.0.1", port))
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        clients = [socket.socket() for _ in range(4)]
        held = []
        try:
            while True:
                held.append(os.dup(0))
        except OSError:
            pass
        for client in clients:
            client.connect(("127.0.0.1", port))
        while counters.accept_failures < 3:
            await asyncio.sleep(0.05)
        for number in held:
            os.close(number)
        client.sendall(b"GET /livez HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
        print((await asyncio.to_thread(client.recv, 15)).decode())

asyncio.run(main())
"""


def test_without_file_descriptors_the_log_stays_short_and_connections_are_accepted_later() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_DESCRIPTORS], capture_output=True, text=True, timeout=PATIENCE_S
    )

    assert done.stdout.strip() == "HTTP/1.1 200 OK", done.stderr
    lines = done.stderr.splitlines()
    assert [line for line in lines if "cannot accept connections" in line], done.stderr
    # Though the idle connection makes room for the others, one each second.
    assert len(lines) <= 2, done.stderr


def test_a_connection_that_is_closed_before_its_task_starts_raises_nothing() -> None:
    assert errors_of_a_connection_closed_at_once() == []


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="the task starts with the connection")
def test_planted_start_of_a_closed_connection_is_detected() -> None:
    with patch.object(Connection, "start", web.RequestHandler.start):
        assert errors_of_a_connection_closed_at_once() == ["Task exception was never retrieved"]


def errors_of_a_connection_closed_at_once() -> list[str]:
    """The messages that asyncio would log."""
    messages: list[str] = []

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: messages.append(context["message"]))
        server_end, client_end = socket.socketpair()
        server = web.Server(lambda _: asyncio.sleep(0, web.Response()))
        with client_end:
            connection = Connection(server, "10.0.0.1", SHORT)
            transport, _ = await loop.connect_accepted_socket(asyncio.Protocol, server_end)
            connection.connection_made(transport)
            connection.connection_lost(None)
            transport.close()
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    asyncio.run(scenario())
    gc.collect()
    return messages


REFUSED = {
    "no TLS": REQUEST,
    "two lengths": b"POST /metrics HTTP/1.1\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\nHost: x\r\n\r\n",
    "a header of a megabyte": b"GET /metrics HTTP/1.1\r\nHost: x\r\nX: " + b"x" * (1 << 20),
}


@pytest.mark.parametrize("what", list(REFUSED))
def test_refused_connections_leave_nothing_for_the_garbage_collector(what: str) -> None:
    assert connections_left(what) == 0


@pytest.mark.parametrize("what", list(REFUSED))
def test_planted_traceback_that_is_kept_is_detected(what: str) -> None:
    with patch.object(connections, "_forget_traceback", lambda _: None):
        assert connections_left(what, patience_s=2.0) > 5


def connections_left(what: str, patience_s: float = PATIENCE_S) -> int:
    """How many of ten connections are still in memory, each with what it has read, after at most so long."""
    left: list[int] = []
    tls = ServerTls(ServerTlsFiles())

    def refused(port: int) -> None:
        with contextlib.suppress(OSError), connected(port) as client:
            speaking = client
            if what != "no TLS":
                speaking = ssl._create_unverified_context().wrap_socket(client)
            speaking.sendall(REFUSED[what])
            speaking.recv(100)

    async def scenario(port: int) -> None:
        await asyncio.to_thread(refused, port)
        while count():  # the first one leaves garbage of the modules that it loads
            gc.collect()
            await asyncio.sleep(0.02)
        for _ in range(10):
            await asyncio.to_thread(refused, port)
        gives_up_s = time.monotonic() + patience_s
        while count() and time.monotonic() < gives_up_s:
            await asyncio.sleep(0.02)
        left.append(count())

    def count() -> int:
        return sum(isinstance(kept, Connection) for kept in gc.get_objects())

    gc.disable()
    try:
        served(scenario, HttpServerOptions(tls=tls))
    finally:
        gc.enable()
    return left[0]


def test_requests_above_the_rate_wait_for_their_turn_and_are_refused_if_it_is_far_away() -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(round(seconds, 3))

    async def scenario() -> None:
        rate = RequestRate(RateLimits(per_address_per_s=10, total_per_s=1), lambda: 0.0)
        with patch("policysched.serve.request_rate.asyncio.sleep", sleep):
            for _ in range(25):
                await rate.wait_turn("10.0.0.1")
            assert waits == [0.1, 0.2, 0.3, 0.4, 0.5]
            with pytest.raises(RateExceeded):
                for _ in range(10):
                    await rate.wait_turn("10.0.0.1")
            waits.clear()
            await rate.wait_turn("10.0.0.2")
            await rate.wait_shared_turn()  # refused requests took nothing of it
            assert waits == []

    asyncio.run(scenario())


def test_probes_above_the_rate_are_slower_and_never_refused() -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    async def scenario() -> None:
        rate = RequestRate(RateLimits(per_address_per_s=10), lambda: 0.0)
        with patch("policysched.serve.request_rate.asyncio.sleep", sleep):
            for _ in range(20):
                await rate.slow_down("10.0.0.1")
            assert waits == []
            for _ in range(1000):
                await rate.slow_down("10.0.0.1")
            assert waits == [PROBE_DELAY_S] * 1000
            await rate.slow_down("10.0.0.2")
            await rate.wait_turn("10.0.0.1")  # other requests have a rate of their own
            assert len(waits) == 1000

    asyncio.run(scenario())

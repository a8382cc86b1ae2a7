"""Writes over connections of their own: each request gets its own response, whatever the server and the caller do."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from unittest.mock import patch

import orjson
import pytest

from policysched.kube.client import write_connections
from policysched.kube.client.admission import is_denial_by_admission, message_of_cut_status
from policysched.kube.client.api import AdmissionDenied, ServerError, status_error_from_response
from policysched.kube.client.transport import BODY_BYTES_MAX, ERROR_BODY_BYTES_MAX, ApiResponse
from policysched.kube.client.write_connections import (
    IDLE_MAX_S,
    WriteConnections,
    WriteRefused,
    request_head,
    success_in_one_piece,
)

Answer = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]
Send = Callable[..., Awaitable[ApiResponse]]


class Server:
    """Answers each body with `answer`, and counts the connections that were opened to it."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.opened = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(line for line in head.split(b"\r\n") if line.startswith(b"Content-Length: "))
                await self._answer(await reader.readexactly(int(length[16:])), writer)
        except (asyncio.CancelledError, asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def run(
    answer: Answer,
    scenario: Callable[[Send, WriteConnections, Server], Awaitable[None]],
    *,
    connections_max: int = 4,
) -> None:
    async def main() -> None:
        server = Server(answer)
        listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        connections = WriteConnections(
            "127.0.0.1", port, tls=None, server_hostname=None, connections_max=connections_max
        )

        def send(
            body: bytes, *, timeout_s: float = 60.0, **more: Callable[[], bool]
        ) -> Awaitable[ApiResponse]:
            head = request_head("POST", "/api/x", "", len(body), (("Host", "x"),))
            may_write = more.get("may_write", lambda: True)
            return connections.send(head, body, timeout_s=timeout_s, may_write=may_write)

        try:
            await scenario(send, connections, server)
        finally:
            connections.close()
            listening.close()

    asyncio.run(main())


def response(body: bytes, headers: bytes = b"") -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n%s\r\n%s" % (len(body), headers, body)


async def echo(body: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(response(body))


def test_one_connection_serves_requests_one_after_the_other() -> None:
    async def scenario(send: Send, _: WriteConnections, server: Server) -> None:
        for number in range(5):
            assert (await send(b"%d" % number)).body == b"%d" % number
        assert server.opened == 1

    run(echo, scenario)


def test_concurrent_requests_get_their_own_responses_over_a_limited_number_of_connections() -> None:
    async def answer(body: bytes, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(int(body) % 3 / 1000)
        writer.write(response(body))

    async def scenario(send: Send, _: WriteConnections, server: Server) -> None:
        answers = await asyncio.gather(*(send(b"%d" % number) for number in range(50)))
        assert [answer.body for answer in answers] == [b"%d" % number for number in range(50)]
        assert 1 < server.opened <= 4

    run(answer, scenario)


@pytest.mark.parametrize("how", ["cancelled", "timed out"])
def test_a_late_response_is_never_taken_for_that_of_the_next_request(how: str) -> None:
    assert _second_response_after_one_that_was_given_up(how) == b"second"


def test_planted_reuse_after_a_request_that_was_given_up_is_detected() -> None:
    with patch.object(write_connections._Connection, "close"):
        assert _second_response_after_one_that_was_given_up("cancelled") == b"first"


def _second_response_after_one_that_was_given_up(how: str) -> bytes:
    bodies: list[bytes] = []

    async def scenario(send: Send, _: WriteConnections, server: Server) -> None:
        has_first, may_answer = asyncio.Event(), asyncio.Event()

        async def answer(body: bytes, writer: asyncio.StreamWriter) -> None:
            if body == b"first":
                has_first.set()
                await may_answer.wait()
            writer.write(response(body))

        server._answer = answer
        given_up = asyncio.ensure_future(send(b"first", timeout_s=60.0))
        await has_first.wait()
        if how == "cancelled":
            given_up.cancel()
            with pytest.raises(asyncio.CancelledError):
                await given_up
        else:
            loop = asyncio.get_running_loop()
            later_s = loop.time() + 60.0
            with patch.object(loop, "time", lambda: later_s), pytest.raises(TimeoutError):
                await given_up
        may_answer.set()
        bodies.append((await send(b"second")).body)

    run(echo, scenario, connections_max=1)
    return bodies[0]


def test_an_idle_connection_that_the_server_closed_is_not_used() -> None:
    async def answer(body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(response(body))
        writer.close()

    async def scenario(send: Send, _: WriteConnections, server: Server) -> None:
        await send(b"1")
        await asyncio.sleep(0.05)
        assert (await send(b"2")).body == b"2"
        assert server.opened == 2

    run(answer, scenario)


def test_a_connection_that_is_to_be_closed_is_not_used_again() -> None:
    async def answer(body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(response(body, b"Connection: close\r\n"))

    async def scenario(send: Send, _: WriteConnections, server: Server) -> None:
        await send(b"1")
        await send(b"2")
        assert server.opened == 2

    run(answer, scenario)


def test_a_connection_that_was_idle_for_too_long_is_not_used() -> None:
    async def scenario(send: Send, connections: WriteConnections, server: Server) -> None:
        await send(b"1")
        connections._idle[0].idle_since_s -= IDLE_MAX_S
        await send(b"2")
        assert server.opened == 2

    run(echo, scenario)


def test_a_response_in_pieces_in_chunks_and_after_an_interim_one_is_read_whole() -> None:
    async def answer(body: bytes, writer: asyncio.StreamWriter) -> None:
        text = (
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 409 Conflict\r\nRetry-After: 3\r\nTransfer-Encoding: chunked"
            b"\r\n\r\n2\r\nab\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        )
        for at in range(0, len(text), 7):
            writer.write(text[at : at + 7])
            await writer.drain()
            await asyncio.sleep(0)

    async def scenario(send: Send, _: WriteConnections, server: Server) -> None:
        for _ in range(2):
            answered = await send(b"c" * 100)
            assert (answered.status, answered.body) == (409, b"ab" + b"c" * 100)
            assert answered.headers["retry-after"] == "3"
        assert server.opened == 1

    run(answer, scenario)


def status_response(code: int, message: str) -> bytes:
    body = orjson.dumps(
        {"kind": "Status", "apiVersion": "v1", "metadata": {}, "message": message, "code": code}
    )
    return b"HTTP/1.1 %d X\r\nRetry-After: 7\r\nContent-Length: %d\r\n\r\n%b" % (code, len(body), body)


@pytest.mark.parametrize("code", [401, 409, 500])
def test_of_an_error_the_beginning_is_read_whatever_a_webhook_says(code: int) -> None:
    """A hundred megabytes of each of a dozen binds ended the process, and each took 0.1 s of the main loop."""
    denial, taken = 'admission webhook "x" denied the request: "é\n', list[int]()

    async def answer(body: bytes, writer: asyncio.StreamWriter) -> None:
        if body == b"next":
            writer.write(response(body))
            return
        parts = status_response(code, denial + "é\n" * 10_000_000)
        for begin in range(0, len(parts), 2**20):
            writer.write(parts[begin : begin + 2**20])
            await writer.drain()
            taken.append(begin)

    async def scenario(send: Send, _: WriteConnections, server: Server) -> None:
        for number in (1, 2):
            answered = await send(b"bind")
            assert len(answered.body) <= 4 * ERROR_BODY_BYTES_MAX
            error = status_error_from_response(answered)
            assert (error.status, error.retry_after_s) == (code, 7)
            assert isinstance(error, ServerError if code == 500 else AdmissionDenied)
            assert error.message.startswith(denial)
            assert is_denial_by_admission(answered.body)
            assert (await send(b"next")).body == b"next"
            assert server.opened == number + 1, "what is left of the response is not that of the next request"
        assert len(taken) < 20, "the server sent all of it"

    run(answer, scenario)


def test_a_success_that_is_longer_than_any_object_is_no_response() -> None:
    async def answer(body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(response(b"x" * (BODY_BYTES_MAX + 2**21)))

    async def scenario(send: Send, _: WriteConnections, server: Server) -> None:
        with pytest.raises(ConnectionError, match="more than"):
            await send(b"a")

    run(answer, scenario)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"kind":"Status","message":"a \\"b\\" ', 'a "b" '),
        (b'{"kind":"Status","metadata":{},"message":"\xc3\xa9\xc3', "é"),
        (b'{"kind":"Status","message":"a\\ud83d', "a\\ud83d"),
        (b'{"kind":"Status","message":"a\\', "a"),
        (b'{"kind":"Pod","message":"a', None),
        (b'<html>"message":"a"', None),
        (b'{"kind":"Status","metadata":', None),
    ],
)
def test_the_message_of_a_status_without_its_end(body: bytes, message: str | None) -> None:
    assert message_of_cut_status(body) == message


LONG = b"x" * ERROR_BODY_BYTES_MAX
DENIAL = b'"message":"admission webhook \\"x\\" denied the request: no","code":%d}'


@pytest.mark.parametrize("code", [401, 404, 409, 410, 429])
@pytest.mark.parametrize(
    "before",
    [
        b'"metadata":{},"status":"%b",' % LONG,
        b'"metadata":{"continue":"\\"message\\":\\"no\\" %b"},"status":"Failure",' % LONG[:-1000],
        b'"metadata":{"continue":"metadata.uid %b"},"status":"Failure",' % LONG,
    ],
)
def test_a_denial_is_one_however_much_a_webhook_writes_before_its_message(before: bytes, code: int) -> None:
    """A claim whose deletion was denied with 404 was taken for gone, and a 401 had the credentials reloaded."""
    whole = b'{"kind":"Status","apiVersion":"v1",' + before + DENIAL % code
    body = whole[:ERROR_BODY_BYTES_MAX]

    error = status_error_from_response(ApiResponse(code, body))

    assert isinstance(error, AdmissionDenied)
    assert error.message.startswith('admission webhook "')
    assert "metadata.uid" not in error.message
    assert is_denial_by_admission(body)


@pytest.mark.parametrize("warnings", [["a"] * 4096, ["\U0001f512" * 4096]])
@pytest.mark.parametrize("code", [201, 403])
def test_a_response_may_have_every_warning_that_the_server_sends(code: int, warnings: list[str]) -> None:
    """It was no HTTP: what was answered was sent again, and the server was unreachable in the log and at `/readyz`."""

    async def answer(body: bytes, writer: asyncio.StreamWriter) -> None:
        lines = [f'Warning: 299 - "{warning}"\r\n'.encode() for warning in warnings]
        writer.write(b"HTTP/1.1 %d X\r\n%bContent-Length: 2\r\n" % (code, b"".join(lines)))
        await writer.drain()
        await asyncio.sleep(0.01)
        writer.write(b"\r\n{}")

    async def scenario(send: Send, _: WriteConnections, server: Server) -> None:
        for _number in range(2):
            answered = await send(b"bind")
            assert (answered.status, answered.body) == (code, b"{}")
        assert server.opened == 1

    run(answer, scenario)


def test_a_long_response_is_read_whole() -> None:
    async def answer(body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(response(b"x" * 5_000_000))

    async def scenario(send: Send, _: WriteConnections, server: Server) -> None:
        assert len((await send(b"1")).body) == 5_000_000

    run(answer, scenario)


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (b"", "the server closed the connection"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", "the server closed the connection"),
        (b"SSH-2.0-OpenSSH_9.9\r\n\r\n", "the response is not HTTP"),
    ],
)
def test_half_a_response_and_what_is_not_http_are_errors(sent: bytes, message: str) -> None:
    async def answer(body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(sent)
        writer.close()

    async def scenario(send: Send, connections: WriteConnections, _: Server) -> None:
        with pytest.raises(ConnectionError, match=message):
            await send(b"1")
        assert not connections._idle

    run(answer, scenario)


WHOLE = (
    b"HTTP/1.1 201 Created\r\nContent-Type: application/json\r\n"
    b"Date: Fri, 27 Nov 2026 12:37:50 GMT\r\nContent-Length: 4\r\n\r\nbody"
)


def test_a_short_success_is_read_without_a_parser() -> None:
    assert success_in_one_piece(WHOLE) == ApiResponse(201, b"body")
    assert success_in_one_piece(WHOLE.replace(b"Content-Length: ", b"content-length:")) == ApiResponse(
        201, b"body"
    )
    assert success_in_one_piece(response(b"")) == ApiResponse(200, b"")


@pytest.mark.parametrize(
    "other",
    [
        WHOLE[:-1],
        WHOLE + b"x",
        WHOLE + WHOLE,
        WHOLE[:40],
        b"HTTP/1.1 200 OK\r\nContent-Length: 0",
        WHOLE.replace(b"201", b"409"),
        WHOLE.replace(b"201", b"204"),
        WHOLE.replace(b"201 Created", b"100 Continue"),
        WHOLE.replace(b"1.1", b"1.0"),
        WHOLE.replace(b"Date", b"Connection: close\r\nDate"),
        WHOLE.replace(b"Date", b"connection: close\r\nDate"),
        WHOLE.replace(b"Date", b"Content-Length: 4\r\nDate"),
        WHOLE.replace(b"Date", b"Content-Length: 5\r\nDate"),
        WHOLE.replace(b"Date", b"Transfer-Encoding: chunked\r\nDate"),
        WHOLE.replace(b"Content-Length: 4\r\n", b""),
        WHOLE.replace(b": 4\r\n", b": +4\r\n"),
        WHOLE.replace(b": 4\r\n", b": 4, 4\r\n"),
        WHOLE.replace(b": 4\r\n", b": 4x\r\n"),
        WHOLE.replace(b"\r\n", b"\n"),
    ],
)
def test_every_other_response_is_left_to_the_parser(other: bytes) -> None:
    assert success_in_one_piece(other) is None


def test_a_connection_that_had_a_long_time_to_answer_keeps_the_shorter_one_of_the_next_request() -> None:
    async def scenario(send: Send, _: WriteConnections, server: Server) -> None:
        await send(b"1", timeout_s=60.0)
        server._answer = never
        with pytest.raises(TimeoutError):
            await send(b"2", timeout_s=0.01)

    run(echo, scenario, connections_max=1)


def test_the_time_of_an_answered_request_does_not_end_the_next_one() -> None:
    assert _body_after_the_time_of_the_first_request() == b"2"


def test_planted_time_of_an_answered_request_that_ends_the_next_one_is_detected() -> None:
    def end_any(connection: write_connections._Connection) -> None:
        connection._fail(TimeoutError())

    with patch.object(write_connections._Connection, "_look_at_time", end_any), pytest.raises(TimeoutError):
        _body_after_the_time_of_the_first_request()


def _body_after_the_time_of_the_first_request() -> bytes:
    bodies: list[bytes] = []

    async def scenario(send: Send, connections: WriteConnections, server: Server) -> None:
        await send(b"1", timeout_s=20.0)
        connection = connections._idle[0]

        async def after_the_time(body: bytes, writer: asyncio.StreamWriter) -> None:
            connection._look_at_time()
            writer.write(response(body))

        server._answer = after_the_time
        bodies.append((await send(b"2", timeout_s=60.0)).body)
        assert server.opened == 1

    run(echo, scenario, connections_max=1)
    return bodies[0]


async def never(body: bytes, writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


def test_a_write_that_is_forbidden_leaves_its_connection_to_the_next() -> None:
    bodies: list[bytes] = []

    async def answer(body: bytes, writer: asyncio.StreamWriter) -> None:
        bodies.append(body)
        writer.write(response(body))

    async def scenario(send: Send, _: WriteConnections, server: Server) -> None:
        with pytest.raises(WriteRefused):
            await send(b"1", may_write=lambda: False)
        assert (await send(b"2")).body == b"2"
        assert server.opened == 1 and bodies == [b"2"]

    run(answer, scenario)


def test_a_refused_connection_names_the_server() -> None:
    async def main() -> None:
        with socket.socket() as taken:  # its port is refused, and nobody else gets it
            taken.bind(("127.0.0.1", 0))
            port = taken.getsockname()[1]
            connections = WriteConnections(
                "127.0.0.1", port, tls=None, server_hostname=None, connections_max=1
            )
            for _ in range(2):  # the first one gave its place back
                with pytest.raises(ConnectionError, match=f"cannot connect to 127.0.0.1:{port}: .*refused"):
                    await connections.send(b"", b"", timeout_s=60.0, may_write=lambda: True)

    asyncio.run(main())


def test_a_header_or_path_cannot_begin_another_header() -> None:
    with pytest.raises(ValueError, match="line break"):
        request_head("POST", "/api/x", "", 0, (("Authorization", "Bearer a\r\nX-Other: b"),))
    assert request_head("POST", "/api/a\r\nb é", "q=1", 0, ()).startswith(
        b"POST /api/a%0D%0Ab%20%C3%A9?q=1 HTTP/1.1\r\n"
    )

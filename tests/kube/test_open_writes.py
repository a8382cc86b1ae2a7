"""Which writes may still be carried out, and whose."""

import asyncio
from collections.abc import Callable

import orjson
import pytest

from policysched.kube.client.transport import ApiRequest, ApiResponse, RequestNotSent, TransportError
from policysched.kube.write.open_writes import SERVER_TIMEOUT_S, OpenWrites, WritesClosed
from tests.kube.world import Script, on_virtual_time

TIMEOUT_S = 7.0
DENIED = 'admission webhook "guard.example.com" denied the request: no'
NO_WEBHOOK = (
    'Internal error occurred: failed calling webhook "guard.example.com": failed to call webhook: EOF'
)
TIMED_OUT = b"""{"metadata":{},"status":"Failure","message":"Timeout: request did not complete within the allotted timeout",
"reason":"Timeout","details":{},"code":504}"""
"""As a kube-apiserver writes it: without a kind."""


def write(namespace: str = "web", may_write: Callable[[], bool] | None = lambda: True) -> ApiRequest:
    path = f"/api/v1/namespaces/{namespace}/pods/p/binding"
    return ApiRequest("POST", path, {"timeout": "5s"}, b"{}", timeout_s=TIMEOUT_S, may_write=may_write)


def status(code: int, message: str, reason: str = "InternalError") -> ApiResponse:
    return ApiResponse(
        code, orjson.dumps({"kind": "Status", "code": code, "reason": reason, "message": message})
    )


class Served(Script):
    """Answers after `takes_s`. It asks `may_write` after `waits_s`, as for a connection."""

    def __init__(self, response: ApiResponse | Exception, takes_s: float = 0.0, waits_s: float = 0.0) -> None:
        super().__init__()
        self.response = response
        self.takes_s = takes_s
        self.waits_s = waits_s

    async def request(self, request: ApiRequest) -> ApiResponse:
        await asyncio.sleep(self.waits_s)
        if request.may_write is not None and not request.may_write():
            raise RequestNotSent(request)
        await asyncio.sleep(self.takes_s)
        if isinstance(self.response, Exception):
            raise self.response
        return self.response


async def open_for_s(writes: OpenWrites) -> float:
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    while writes.any_open():
        await asyncio.sleep(0.1)
    return round(loop.time() - began_s, 1)


async def sent(writes: OpenWrites, request: ApiRequest) -> None:
    try:
        await writes.request(request)
    except TransportError:
        return


@pytest.mark.parametrize(
    ("response", "expected_s"),
    [
        (ApiResponse(201, b"{}"), 0.0),
        (status(409, "already bound", "Conflict"), 0.0),
        (status(429, "too many requests", "TooManyRequests"), 0.0),
        (status(500, DENIED), 0.0),
        (status(503, DENIED, "ServiceUnavailable"), 0.0),
        (status(500, NO_WEBHOOK), 0.0),
        (status(500, "etcdserver: request timed out"), 5.0),
        (status(504, "Timeout: request did not complete within requested timeout", "Timeout"), 5.0),
        (ApiResponse(504, TIMED_OUT), 5.0),
        (ApiResponse(502, b"<html>bad gateway</html>"), 11.0),
        (TransportError("reset"), 11.0),
    ],
    ids=lambda value: str(getattr(value, "status", value)),
)
def test_a_write_is_open_until_it_cannot_be_carried_out(
    response: ApiResponse | Exception, expected_s: float
) -> None:
    async def scenario() -> None:
        writes = OpenWrites(Served(response, takes_s=1.0))

        await sent(writes, write())

        assert await open_for_s(writes) == pytest.approx(expected_s, abs=0.11)

    on_virtual_time(scenario)


def test_a_write_that_a_frozen_process_gives_up_late_is_open_from_then_on() -> None:
    """What it had not sent yet leaves when it goes on."""

    async def scenario() -> None:
        writes = OpenWrites(Served(TransportError("timed out"), takes_s=60.0))
        await sent(writes, write())
        assert await open_for_s(writes) == SERVER_TIMEOUT_S

    on_virtual_time(scenario)


def test_a_write_is_open_while_it_is_under_way_and_after_it_was_cancelled() -> None:
    async def scenario() -> None:
        writes = OpenWrites(Served(ApiResponse(201, b"{}"), takes_s=6.0))
        task = asyncio.ensure_future(writes.request(write()))
        await asyncio.sleep(5)
        assert writes.any_open()
        task.cancel()

        assert await open_for_s(writes) == pytest.approx(7.0, abs=0.11)

    on_virtual_time(scenario)


@pytest.mark.parametrize(
    "request_", [ApiRequest("GET", "/api/v1/namespaces/web/pods/p"), write(may_write=lambda: False)]
)
def test_a_read_and_what_did_not_leave_are_not_open(request_: ApiRequest) -> None:
    async def scenario() -> None:
        writes = OpenWrites(Served(TransportError("reset"), takes_s=1.0))

        await sent(writes, request_)

        assert not writes.any_open()

    on_virtual_time(scenario)


def test_what_waits_for_a_connection_when_writes_are_closed_never_leaves() -> None:
    async def scenario() -> None:
        writes = OpenWrites(Served(ApiResponse(201, b"{}"), waits_s=1.0))
        task = asyncio.ensure_future(writes.request(write()))
        await asyncio.sleep(0.5)

        writes.is_closed = True

        with pytest.raises(WritesClosed):
            await task
        assert not writes.any_open()

    on_virtual_time(scenario)


@pytest.mark.parametrize(
    ("response", "takes_s", "is_admitted"),
    [
        (ApiResponse(201, b"{}"), 0.1, True),
        (status(409, "already bound", "Conflict"), 0.1, True),
        (ApiResponse(201, b"{}"), 0.6, False),
        (status(500, NO_WEBHOOK), 0.1, False),
        (status(429, "later", "TooManyRequests"), 0.1, False),
        (TransportError("reset"), 0.1, False),
    ],
)
def test_while_the_process_stops_namespaces_whose_writes_fail_or_are_late_have_no_others(
    response: ApiResponse | Exception, takes_s: float, is_admitted: bool
) -> None:
    async def scenario() -> None:
        inner = Served(response, takes_s)
        writes = OpenWrites(inner)
        await sent(writes, write("evil"))
        assert writes.admits("evil")

        writes.begin_stop()

        assert writes.admits("evil") is is_admitted
        assert writes.admits("web")

    on_virtual_time(scenario)


def test_one_prompt_write_ends_the_trouble_of_a_namespace() -> None:
    async def scenario() -> None:
        inner = Served(TransportError("reset"))
        writes = OpenWrites(inner)
        await sent(writes, write())
        inner.response = ApiResponse(201, b"{}")
        await sent(writes, write())

        writes.begin_stop()

        assert writes.admits("web")

    on_virtual_time(scenario)


def test_writes_without_an_outcome_leave_nothing_behind() -> None:
    async def scenario() -> None:
        writes = OpenWrites(Served(TransportError("reset")))
        for number in range(1000):
            await sent(writes, write(f"n{number}"))
            await asyncio.sleep(1)

        assert len(writes._unknown) <= 13
        assert sum(f"n{number}" in writes._troubled for number in range(1000)) <= 62

    on_virtual_time(scenario)

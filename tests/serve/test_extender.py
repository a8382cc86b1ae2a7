"""The extender's routes over HTTP: what each verb answers where there is no answer, in time or not at all, and TLS."""

import asyncio
import json
import resource
import ssl
import time
import tracemalloc
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import orjson
import pytest
from cryptography import x509

from policysched.serve.access import AccessDecision, OpenReviewer, User
from policysched.serve.extender_routes import (
    ExtenderHttpCall,
    ExtenderResponse,
    PendingResponse,
    extender_routes,
)
from policysched.serve.health import Health
from policysched.serve.server import HttpServerOptions, HttpThread, ListenAddress
from policysched.serve.status_routes import StatusEndpoints
from policysched.serve.tls import BadCertificate, ServerTls, ServerTlsFiles, make_self_signed_pem
from tests.controlplane.certificates import Authority, KeyPair, openssl_missing
from tests.missing_programs import leave_out

PATIENCE_S = 120.0
"""What is answered at once is answered within it also on a busy machine."""

PAGES = StatusEndpoints(metrics=lambda: "", policy=dict, decisions=None, configz=dict)
WELL = Health(live={}, ready={})


class FakeHandlers:
    """Answers with what it was asked; the verb preempt waits until it is no longer `held`, bind breaks."""

    response_timeout_s = PATIENCE_S
    requests_max = 8
    body_bytes_max = 2**20
    values_max = 1000

    def __init__(self) -> None:
        self.noted: list[tuple[str, str]] = []
        self.begun, self.held = asyncio.Event(), asyncio.Event()
        self.worked_on = 0
        self.clients: list[str] = []

    def parse(self, call: ExtenderHttpCall) -> PendingResponse | ExtenderResponse:
        self.clients.append(call.client)

        async def work() -> ExtenderResponse:
            self.worked_on += 1
            if call.verb == "preempt":
                self.begun.set()
                await self.held.wait()
            assert call.verb != "bind", "a bug of ours"
            return ExtenderResponse(
                200, {"policy": call.policy, **call.options, "bytes": len(call.body)}, "answered"
            )

        return ExtenderResponse(400, "bad\n", "bad") if call.body == b"bad" else work

    def timeout_response(self, call: ExtenderHttpCall) -> ExtenderResponse:
        return ExtenderResponse(503, f"{call.verb} is late\n", "late")

    def too_large_response(self, call: ExtenderHttpCall, limit: str) -> ExtenderResponse:
        return ExtenderResponse(413, f"{limit}\n", "bad")

    def record(self, call: ExtenderHttpCall, reply: ExtenderResponse, seconds: float) -> None:
        assert seconds >= 0
        self.noted.append((call.verb, reply.outcome))


def post(url: str, body: bytes | Iterator[bytes], context: ssl.SSLContext | None = None) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, data=body, timeout=PATIENCE_S, context=context) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def served(
    scenario: Callable[[int, FakeHandlers], Awaitable[None]],
    *,
    tls: ServerTls | None = None,
    open_reviewer: OpenReviewer | None = None,
    handlers: FakeHandlers | None = None,
) -> None:
    async def main(handlers: FakeHandlers) -> None:
        loop = asyncio.get_running_loop()
        extras = HttpServerOptions(
            routes=extender_routes(handlers, loop), tls=tls, open_reviewer=open_reviewer
        )
        server = HttpThread(ListenAddress("127.0.0.1", 0), WELL, PAGES, loop, extras)
        port = server.start()
        try:
            await scenario(port, handlers)
        finally:
            await asyncio.to_thread(server.stop)

    asyncio.run(main(handlers or FakeHandlers()))


def test_the_path_has_the_policy_and_the_verb() -> None:
    async def scenario(port: int, handlers: FakeHandlers) -> None:
        base = f"http://127.0.0.1:{port}"
        status, text = await asyncio.to_thread(
            post, f"{base}/net-aware/filter?scale=candidates", b"x" * 70_000
        )
        assert (status, json.loads(text)) == (
            200,
            {"policy": "net-aware", "scale": "candidates", "bytes": 70_000},
        )
        assert (await asyncio.to_thread(post, f"{base}/net-aware/filters", b""))[0] == 404
        assert (await asyncio.to_thread(post, f"{base}/filter", b""))[0] == 404
        assert await asyncio.to_thread(post, f"{base}/net-aware/filter", b"bad") == (400, "bad\n")
        assert handlers.noted == [("filter", "answered"), ("filter", "bad")]

    served(scenario)


def test_a_request_beyond_its_time_budget_gets_a_timeout_response() -> None:
    async def scenario(port: int, handlers: FakeHandlers) -> None:
        handlers.response_timeout_s = 0.2
        answer = await asyncio.to_thread(post, f"http://127.0.0.1:{port}/p/preempt", b"{}")
        assert answer == (503, "preempt is late\n")
        assert handlers.noted == [("preempt", "late")]

    served(scenario)


def test_a_busy_main_loop_causes_a_timeout_response() -> None:
    async def scenario(port: int, handlers: FakeHandlers) -> None:
        handlers.response_timeout_s = 0.2
        with ThreadPoolExecutor() as threads:
            asking = threads.submit(post, f"http://127.0.0.1:{port}/p/filter", b"{}")
            gives_up_s = time.monotonic() + PATIENCE_S
            while not asking.done() and time.monotonic() < gives_up_s:
                sum(range(1000))  # and nothing else runs on this loop
            assert asking.done()
            assert asking.result() == (503, "filter is late\n")
        assert handlers.noted == [("filter", "late")]

    served(scenario)


def test_an_internal_error_is_status_500_and_the_next_request_succeeds() -> None:
    async def scenario(port: int, handlers: FakeHandlers) -> None:
        base = f"http://127.0.0.1:{port}/p"
        assert (await asyncio.to_thread(post, f"{base}/bind", b"{}"))[0] == 500
        assert (await asyncio.to_thread(post, f"{base}/filter", b"{}"))[0] == 200
        assert handlers.worked_on == 2

    served(scenario)


@pytest.mark.parametrize("length", [True, False])
def test_a_body_beyond_the_size_limit_is_rejected(*, length: bool) -> None:
    async def scenario(port: int, handlers: FakeHandlers) -> None:
        handlers.body_bytes_max = 65_536
        base, body = f"http://127.0.0.1:{port}/p/filter", b"x" * 70_000
        answer = await asyncio.to_thread(post, base, body if length else iter([body[:40_000], body[40_000:]]))
        assert answer == (413, "the body has more than 65536 bytes\n")
        assert handlers.worked_on == 0

    served(scenario)


def test_a_body_of_many_small_values_is_rejected_while_it_arrives() -> None:
    """57 MiB of nested lists became 1.9 GB."""

    async def scenario(port: int, handlers: FakeHandlers) -> None:
        lists = b"[" + b"[[]]," * 10_000_000 + b"[]]"
        handlers.body_bytes_max = len(lists)
        resource_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        answer = await asyncio.to_thread(post, f"http://127.0.0.1:{port}/p/filter", lists)
        assert answer == (413, "the body has more than 1000 values\n")
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - resource_before < 20 * 1024
        assert handlers.worked_on == 0

    served(scenario)


NESTED = {
    "lists": b"[" * 900 + b"]" * 900,
    "objects": b'{"a":' * 900 + b"0" + b"}" * 900,
    "small objects": b'{"a":{}}',
    "objects with keys of their own": b"".join(b'{"%x":' % key for key in range(900)) + b"0" + b"}" * 900,
    "numbers": b"123456.5",
}


@pytest.mark.parametrize("unit", NESTED.values(), ids=NESTED.keys())
def test_the_memory_of_a_parsed_body_is_bounded_by_its_values(unit: bytes) -> None:
    """Against the limit of values, which so bounds the memory: 3,000,000 of at most 100 bytes."""
    handlers = FakeHandlers()
    handlers.body_bytes_max, handlers.values_max = 2**24, 20_000
    bytes_each: list[float] = []

    def parse(call: ExtenderHttpCall) -> ExtenderResponse:
        tracemalloc.start()
        value = orjson.loads(call.body)
        bytes_each.append(tracemalloc.get_traced_memory()[0] / handlers.values_max)
        tracemalloc.stop()
        return ExtenderResponse(200, len(value), "answered")

    handlers.parse = parse  # type: ignore[assignment, method-assign]

    async def scenario(port: int, _: FakeHandlers) -> None:
        url, low, high = f"http://127.0.0.1:{port}/p/filter", 1, handlers.values_max
        while low < high:  # the largest count of units that is accepted
            middle = (low + high + 1) // 2
            body = b"[" + b",".join([unit] * middle) + b"]"
            status, _text = await asyncio.to_thread(post, url, body)
            assert status in (200, 413)
            low, high = (middle, high) if status == 200 else (low, middle - 1)

    served(scenario, handlers=handlers)
    assert 15 < max(bytes_each) < 100


def test_the_bodies_of_all_requests_have_a_limit_together() -> None:
    async def scenario(port: int, handlers: FakeHandlers) -> None:
        handlers.body_bytes_max, base = 10_000, f"http://127.0.0.1:{port}/p"
        held = [
            asyncio.create_task(asyncio.to_thread(post, f"{base}/preempt", b"x" * 9_000)) for _ in range(2)
        ]
        while handlers.worked_on < 2:
            await asyncio.sleep(0.01)

        refused = await asyncio.to_thread(post, f"{base}/filter", b"x" * 9_000)
        handlers.held.set()
        await asyncio.gather(*held)

        assert refused == (503, "policysched extender: the requests in flight are too large; retry later\n")
        assert (await asyncio.to_thread(post, f"{base}/filter", b"x" * 9_000))[0] == 200

    served(scenario)


def test_a_request_beyond_the_limit_gets_retry_after_and_the_next_succeeds() -> None:
    async def scenario(port: int, handlers: FakeHandlers) -> None:
        handlers.requests_max = 1
        base = f"http://127.0.0.1:{port}/p"
        under_way = asyncio.create_task(asyncio.to_thread(post, f"{base}/preempt", b"{}"))
        await handlers.begun.wait()

        with pytest.raises(urllib.error.HTTPError) as refused:
            await asyncio.to_thread(urllib.request.urlopen, f"{base}/filter", b"x" * 500_000, PATIENCE_S)
        handlers.held.set()
        first = await under_way
        after = await asyncio.to_thread(post, f"{base}/filter", b"{}")

        assert (refused.value.code, refused.value.headers["Retry-After"]) == (503, "1")
        assert (
            refused.value.read()
            == b"policysched extender: too many requests in flight (limit 1); retry later\n"
        )
        assert (first[0], after[0]) == (200, 200)
        assert handlers.noted == [("filter", "busy"), ("preempt", "answered"), ("filter", "answered")]

    served(scenario)


def test_probes_are_answered_at_the_connection_limit() -> None:
    async def scenario(port: int, handlers: FakeHandlers) -> None:
        handlers.requests_max = 0
        url = f"http://127.0.0.1:{port}"

        assert (await asyncio.to_thread(post, f"{url}/p/filter", b"{}"))[0] == 503
        with await asyncio.to_thread(urllib.request.urlopen, f"{url}/livez", None, PATIENCE_S) as answer:
            assert answer.status == 200

    served(scenario)


def test_a_client_that_stops_sending_is_disconnected_after_the_budget() -> None:
    async def scenario(port: int, handlers: FakeHandlers) -> None:
        handlers.response_timeout_s, handlers.requests_max = 0.2, 1
        reader, writer = await asyncio.open_connection("127.0.0.1", port)

        writer.write(b"POST /p/filter HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf")
        status = await reader.readline()
        handlers.response_timeout_s = PATIENCE_S
        after = await asyncio.to_thread(post, f"http://127.0.0.1:{port}/p/filter", b"{}")

        assert status == b"HTTP/1.1 503 Service Unavailable\r\n"
        assert after[0] == 200
        assert handlers.noted == [("filter", "late"), ("filter", "answered")]
        writer.close()

    served(scenario)


# ── TLS ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    if reason := openssl_missing():
        leave_out("control-plane", reason)
    return Authority(tmp_path_factory.mktemp("tls"))


def trusting(authority: Authority, client: KeyPair | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.certificate))
    if client is not None:
        context.load_cert_chain(client.certificate, client.key)
    return context


class NobodyMay:
    """Reviews of a cluster that knows no token."""

    async def review_token(self, token: str) -> User | None:
        return None

    async def review_access(self, user: User, verb: str, path: str) -> AccessDecision:
        return AccessDecision(False, f"not {user.name}")

    async def client_ca(self) -> str | None:
        return ""


@asynccontextmanager
async def nobody_may() -> AsyncIterator[NobodyMay]:
    yield NobodyMay()


def test_a_client_with_a_certificate_of_the_settings_authority_may_call_the_extender(
    authority: Authority, tmp_path: Path
) -> None:
    serving, client = authority.serving(), authority.client("kube-scheduler")
    (tmp_path / "other").mkdir()
    foreign = Authority(tmp_path / "other").client("kube-scheduler")
    tls = ServerTls(ServerTlsFiles(serving.certificate, serving.key, authority.certificate))

    async def scenario(port: int, handlers: FakeHandlers) -> None:
        url = f"https://127.0.0.1:{port}"
        with_one = await asyncio.to_thread(post, f"{url}/p/filter", b"{}", trusting(authority, client))
        without = await asyncio.to_thread(post, f"{url}/p/filter", b"{}", trusting(authority))
        assert with_one[0] == 200
        assert without == (
            403,
            'user "system:anonymous" cannot post path "/p/filter": not system:anonymous\n',
        )
        with pytest.raises(OSError):
            await asyncio.to_thread(post, f"{url}/p/filter", b"{}", trusting(authority, foreign))
        assert handlers.worked_on == 1
        assert handlers.clients == ["kube-scheduler"]
        status = urllib.request.Request(f"{url}/metrics")
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(status, timeout=PATIENCE_S, context=trusting(authority, client))
        probe = urllib.request.Request(f"{url}/livez")
        with urllib.request.urlopen(probe, timeout=PATIENCE_S, context=trusting(authority)) as answer:
            assert answer.status == 200

    served(scenario, tls=tls, open_reviewer=nobody_may)


def test_refused_calls_of_the_extender_wait_for_their_turn() -> None:
    async def scenario(port: int, handlers: FakeHandlers) -> None:
        calls = b"POST /p/filter HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}" * 200
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        began_s = time.monotonic()
        writer.write(calls)
        answers = bytearray()
        while answers.count(b"HTTP/1.1 403") < 60:
            answers += await reader.read(2**16)
        allowed = 40 + 20 * (time.monotonic() - began_s)
        writer.close()
        assert answers.count(b"HTTP/1.1 403") <= allowed + 1, "20 a second, and a burst of 40"
        assert handlers.worked_on == 0

    served(scenario, open_reviewer=nobody_may)


def test_without_files_the_certificate_is_self_signed() -> None:
    async def scenario(port: int, handlers: FakeHandlers) -> None:
        pem = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port))
        trusting_it = ssl.create_default_context(cadata=pem)
        status, _ = await asyncio.to_thread(post, f"https://127.0.0.1:{port}/p/filter", b"{}", trusting_it)
        assert (status, handlers.worked_on) == (200, 1)
        assert handlers.clients == ["127.0.0.1"]

    served(scenario, tls=ServerTls(ServerTlsFiles()))


def test_a_self_signed_certificate_is_renewed_before_it_expires_while_the_server_runs() -> None:
    now = datetime.now(UTC) - timedelta(days=300)
    tls = ServerTls(ServerTlsFiles(), now=lambda: now)
    tls.use_cluster_client_ca(
        make_self_signed_pem("ca", now).decode().partition("-----END PRIVATE KEY-----")[2]
    )

    async def scenario(port: int, handlers: FakeHandlers) -> None:
        nonlocal now

        def shown() -> str:
            return ssl.get_server_certificate(("127.0.0.1", port))

        first = await asyncio.to_thread(shown)
        now += timedelta(days=290)
        tls.reload_if_changed()
        assert await asyncio.to_thread(shown) == first
        now += timedelta(days=10)
        tls.reload_if_changed()
        second = await asyncio.to_thread(shown)
        assert second != first
        assert expiry(second) - expiry(first) == timedelta(days=300)
        assert tls.context.verify_mode is ssl.CERT_OPTIONAL, "the authority of clients is kept"
        trusting_it = ssl.create_default_context(cadata=second)
        url = f"https://127.0.0.1:{port}/p/filter"
        assert (await asyncio.to_thread(post, url, b"{}", trusting_it))[0] == 200

    served(scenario, tls=tls)


def expiry(pem: str) -> datetime:
    return x509.load_pem_x509_certificate(pem.encode()).not_valid_after_utc


def test_a_renewed_certificate_is_reloaded_and_an_incomplete_one_is_not(
    authority: Authority, tmp_path: Path
) -> None:
    first = authority.serving()
    files = ServerTlsFiles(tmp_path / "tls.crt", tmp_path / "tls.key")
    files.certificate.write_bytes(first.certificate.read_bytes())
    files.key.write_bytes(first.key.read_bytes())
    tls = ServerTls(files)
    second = authority.serving()

    async def scenario(port: int, _desk: FakeHandlers) -> None:
        def shown() -> str:
            return ssl.get_server_certificate(("127.0.0.1", port))

        before = await asyncio.to_thread(shown)
        files.certificate.write_bytes(second.certificate.read_bytes() + b"\n")
        tls.reload_if_changed()
        halfway = await asyncio.to_thread(shown)
        files.key.write_bytes(second.key.read_bytes())
        tls.reload_if_changed()
        after = await asyncio.to_thread(shown)
        assert before == halfway != after

    served(scenario, tls=tls)


def test_invalid_certificate_files_are_rejected_at_startup(authority: Authority, tmp_path: Path) -> None:
    serving = authority.serving()
    with pytest.raises(BadCertificate, match="No such file"):
        ServerTls(ServerTlsFiles(tmp_path / "none.crt", serving.key))
    with pytest.raises(BadCertificate, match=r"serving\.key"):
        ServerTls(ServerTlsFiles(serving.key, serving.key))
    with pytest.raises(BadCertificate, match=r"serving\.key"):
        ServerTls(ServerTlsFiles(serving.certificate, serving.key, serving.key))

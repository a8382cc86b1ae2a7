"""The extender's routes over HTTP: what each verb answers where there is no answer, in time or not at all, and TLS."""

import asyncio
import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from policysched.serve.extender_routes import (
    ExtenderHttpCall,
    ExtenderResponse,
    PendingResponse,
    extender_routes,
)
from policysched.serve.health import Health
from policysched.serve.server import HttpServerOptions, HttpThread, ListenAddress, StatusEndpoints
from policysched.serve.tls import BadCertificate, ServerTls, ServerTlsFiles
from tests.controlplane.certificates import Authority, KeyPair, openssl_missing

PATIENCE_S = 120.0
"""What is answered at once is answered within it also on a busy machine."""

PAGES = StatusEndpoints(metrics=lambda: "", policy=dict, decisions=None, configz=dict)
WELL = Health(live={}, ready={})


class Desk:
    """Answers with what it was asked; the verb preempt waits until it is no longer `held`, bind breaks."""

    budget_s = PATIENCE_S
    requests_max = 8

    def __init__(self) -> None:
        self.noted: list[tuple[str, str]] = []
        self.begun, self.held = asyncio.Event(), asyncio.Event()
        self.worked_on = 0

    def parse(self, call: ExtenderHttpCall) -> PendingResponse | ExtenderResponse:
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

    def record(self, call: ExtenderHttpCall, reply: ExtenderResponse, seconds: float) -> None:
        assert seconds >= 0
        self.noted.append((call.verb, reply.outcome))


def post(url: str, body: bytes, context: ssl.SSLContext | None = None) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, data=body, timeout=PATIENCE_S, context=context) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def served(
    scenario: Callable[[int, Desk], Awaitable[None]],
    *,
    tls: ssl.SSLContext | None = None,
    certificates: bool = False,
    body_bytes_max: int = 2**20,
) -> None:
    async def main() -> None:
        desk, loop = Desk(), asyncio.get_running_loop()
        routes = extender_routes(desk, loop, require_client_certificate=certificates)
        extras = HttpServerOptions(routes=routes, tls=tls, body_bytes_max=body_bytes_max)
        server = HttpThread(ListenAddress("127.0.0.1", 0), WELL, PAGES, loop, extras)
        port = server.start()
        try:
            await scenario(port, desk)
        finally:
            await asyncio.to_thread(server.stop)

    asyncio.run(main())


def test_the_path_has_the_policy_and_the_verb() -> None:
    async def scenario(port: int, desk: Desk) -> None:
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
        assert desk.noted == [("filter", "answered"), ("filter", "bad")]

    served(scenario)


def test_a_request_beyond_its_time_budget_gets_a_timeout_response() -> None:
    async def scenario(port: int, desk: Desk) -> None:
        desk.budget_s = 0.2
        answer = await asyncio.to_thread(post, f"http://127.0.0.1:{port}/p/preempt", b"{}")
        assert answer == (503, "preempt is late\n")
        assert desk.noted == [("preempt", "late")]

    served(scenario)


def test_a_busy_main_loop_causes_a_timeout_response() -> None:
    async def scenario(port: int, desk: Desk) -> None:
        desk.budget_s = 0.2
        with ThreadPoolExecutor() as threads:
            asking = threads.submit(post, f"http://127.0.0.1:{port}/p/filter", b"{}")
            gives_up_s = time.monotonic() + PATIENCE_S
            while not asking.done() and time.monotonic() < gives_up_s:
                sum(range(1000))  # and nothing else runs on this loop
            assert asking.done()
            assert asking.result() == (503, "filter is late\n")
        assert desk.noted == [("filter", "late")]

    served(scenario)


def test_an_internal_error_is_status_500_and_the_next_request_succeeds() -> None:
    async def scenario(port: int, desk: Desk) -> None:
        base = f"http://127.0.0.1:{port}/p"
        assert (await asyncio.to_thread(post, f"{base}/bind", b"{}"))[0] == 500
        assert (await asyncio.to_thread(post, f"{base}/filter", b"{}"))[0] == 200
        assert desk.worked_on == 2

    served(scenario)


def test_a_request_beyond_the_size_limit_is_rejected() -> None:
    async def scenario(port: int, desk: Desk) -> None:
        base = f"http://127.0.0.1:{port}/p/filter"
        assert (await asyncio.to_thread(post, base, b"x" * 70_000))[0] == 413
        assert desk.worked_on == 0

    served(scenario, body_bytes_max=65_536)


def test_a_request_beyond_the_limit_gets_retry_after_and_the_next_succeeds() -> None:
    async def scenario(port: int, desk: Desk) -> None:
        desk.requests_max = 1
        base = f"http://127.0.0.1:{port}/p"
        under_way = asyncio.create_task(asyncio.to_thread(post, f"{base}/preempt", b"{}"))
        await desk.begun.wait()

        with pytest.raises(urllib.error.HTTPError) as refused:
            await asyncio.to_thread(urllib.request.urlopen, f"{base}/filter", b"x" * 500_000, PATIENCE_S)
        desk.held.set()
        first = await under_way
        after = await asyncio.to_thread(post, f"{base}/filter", b"{}")

        assert (refused.value.code, refused.value.headers["Retry-After"]) == (503, "1")
        assert (
            refused.value.read()
            == b"policysched extender: too many requests in flight (limit 1); retry later\n"
        )
        assert (first[0], after[0]) == (200, 200)
        assert desk.noted == [("filter", "busy"), ("preempt", "answered"), ("filter", "answered")]

    served(scenario)


def test_probes_are_answered_at_the_connection_limit() -> None:
    async def scenario(port: int, desk: Desk) -> None:
        desk.requests_max = 0
        url = f"http://127.0.0.1:{port}"

        assert (await asyncio.to_thread(post, f"{url}/p/filter", b"{}"))[0] == 503
        with await asyncio.to_thread(urllib.request.urlopen, f"{url}/livez", None, PATIENCE_S) as answer:
            assert answer.status == 200

    served(scenario)


def test_a_client_that_stops_sending_is_disconnected_after_the_budget() -> None:
    async def scenario(port: int, desk: Desk) -> None:
        desk.budget_s, desk.requests_max = 0.2, 1
        reader, writer = await asyncio.open_connection("127.0.0.1", port)

        writer.write(b"POST /p/filter HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf")
        status = await reader.readline()
        desk.budget_s = PATIENCE_S
        after = await asyncio.to_thread(post, f"http://127.0.0.1:{port}/p/filter", b"{}")

        assert status == b"HTTP/1.1 503 Service Unavailable\r\n"
        assert after[0] == 200
        assert desk.noted == [("filter", "late"), ("filter", "answered")]
        writer.close()

    served(scenario)


# ── TLS ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    if openssl_missing():
        pytest.skip(openssl_missing() or "")
    return Authority(tmp_path_factory.mktemp("tls"))


def trusting(authority: Authority, client: KeyPair | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.certificate))
    if client is not None:
        context.load_cert_chain(client.certificate, client.key)
    return context


def test_a_client_without_a_required_certificate_is_rejected(authority: Authority) -> None:
    serving, client = authority.serving(), authority.client("kube-scheduler")
    tls = ServerTls(ServerTlsFiles(serving.certificate, serving.key, authority.certificate))

    async def scenario(port: int, desk: Desk) -> None:
        url = f"https://127.0.0.1:{port}"
        with_one = await asyncio.to_thread(post, f"{url}/p/filter", b"{}", trusting(authority, client))
        without = await asyncio.to_thread(post, f"{url}/p/filter", b"{}", trusting(authority))
        assert with_one[0] == 200
        assert without == (403, "a client certificate is required\n")
        assert desk.worked_on == 1
        probe = urllib.request.Request(f"{url}/livez")
        with urllib.request.urlopen(probe, timeout=PATIENCE_S, context=trusting(authority)) as answer:
            assert answer.status == 200

    served(scenario, tls=tls.context, certificates=True)


def test_a_renewed_certificate_is_reloaded_and_an_incomplete_one_is_not(
    authority: Authority, tmp_path: Path
) -> None:
    first = authority.serving()
    files = ServerTlsFiles(tmp_path / "tls.crt", tmp_path / "tls.key")
    files.certificate.write_bytes(first.certificate.read_bytes())
    files.key.write_bytes(first.key.read_bytes())
    tls = ServerTls(files)
    second = authority.serving()

    async def scenario(port: int, _desk: Desk) -> None:
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

    served(scenario, tls=tls.context)


def test_invalid_certificate_files_are_rejected_at_startup(authority: Authority, tmp_path: Path) -> None:
    serving = authority.serving()
    with pytest.raises(BadCertificate, match="No such file"):
        ServerTls(ServerTlsFiles(tmp_path / "none.crt", serving.key))
    with pytest.raises(BadCertificate, match=r"serving\.key"):
        ServerTls(ServerTlsFiles(serving.key, serving.key))
    with pytest.raises(BadCertificate, match=r"serving\.key"):
        ServerTls(ServerTlsFiles(serving.certificate, serving.key, serving.key))

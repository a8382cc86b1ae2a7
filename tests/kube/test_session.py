"""The real transport: credentials, TLS, compression and time-outs, against small servers on the loopback interface."""

import asyncio
import base64
import gzip
import json
import re
import stat
import tempfile
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from aiohttp import web

from policysched.kube.client import session as session_module
from policysched.kube.client.api import AdmissionDenied, ApiClient
from policysched.kube.client.session import (
    READ_BUFFER_BYTES,
    BadKubeconfig,
    ConnectionSettings,
    HttpTransport,
    connect,
)
from policysched.kube.client.transport import (
    METADATA_ONLY,
    AnswerTooLong,
    ApiRequest,
    RequestNotSent,
    TransportError,
)
from policysched.serve.tls import make_self_signed_pem

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def kubeconfig(folder: Path, url: str, user: dict[str, Any] | None = None, **cluster: Any) -> Path:
    path = folder / "kubeconfig"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": url, **cluster}}],
        "users": [{"name": "u", "user": user or {}}],
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "here",
    }
    path.write_text(json.dumps(config))
    return path


def with_server(
    handler: Handler,
    folder: Path,
    scenario: Callable[[HttpTransport], Awaitable[None]],
    *,
    connections_max: int = 96,
    **user: Any,
) -> None:
    async def main() -> None:
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", handler)
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            settings = ConnectionSettings(kubeconfig(folder, url, user), connections_max=connections_max)
            async with await connect(settings) as session:
                await scenario(session)
        finally:
            await runner.cleanup()

    asyncio.run(main())


def test_a_request_takes_no_other_thread_and_no_netrc_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at an address that is not loopback, where the environment's proxies apply."""
    netrc = tmp_path / "netrc"
    netrc.write_text("default login somebody password else\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    tokens: list[str] = []

    async def handler(request: web.Request) -> web.Response:
        tokens.append(request.headers["Authorization"])
        return web.Response(body=b"{}")

    async def scenario(session: HttpTransport) -> None:
        with patch.object(
            asyncio.get_running_loop(), "run_in_executor", side_effect=AssertionError("a thread is used")
        ):
            assert (await session.request(ApiRequest("POST", "/api/v1/x", body=b"{}"))).status == 200

    with patch.object(session_module, "_is_loopback", return_value=False):
        with_server(handler, tmp_path, scenario, token="a-token")
    assert tokens == ["Bearer a-token"]


def test_a_request_is_sent_unchanged_and_its_response_is_decompressed(tmp_path: Path) -> None:
    requests: list[Any] = []

    async def handler(request: web.Request) -> web.Response:
        requests.append(
            (request.method, request.path, dict(request.query), await request.read(), request.content_type)
        )
        assert "gzip" in request.headers["Accept-Encoding"]
        return web.Response(
            body=gzip.compress(b'{"a":1}'), headers={"Content-Encoding": "gzip", "Retry-After": "3"}
        )

    async def scenario(session: HttpTransport) -> None:
        request = ApiRequest(
            "PATCH",
            "/api/v1/x",
            {"fieldSelector": "metadata.name=a&b/c d"},
            b"[]",
            "application/json-patch+json",
        )
        answer = await session.request(request)

        assert (answer.status, answer.body) == (200, b'{"a":1}')
        assert answer.headers["retry-after"] == "3"

    with_server(handler, tmp_path, scenario)
    assert requests == [
        (
            "PATCH",
            "/api/v1/x",
            {"fieldSelector": "metadata.name=a&b/c d"},
            b"[]",
            "application/json-patch+json",
        )
    ]


def test_every_status_is_a_response_and_a_lost_connection_is_an_error(tmp_path: Path) -> None:
    async def handler(request: web.Request) -> web.Response:
        if request.path == "/hangs":
            await asyncio.sleep(60)
        if request.path == "/breaks":
            assert request.transport is not None
            request.transport.abort()
        return web.Response(status=503, text="no")

    async def scenario(session: HttpTransport) -> None:
        assert (await session.request(ApiRequest("GET", "/no"))).status == 503
        with pytest.raises(TransportError, match="GET /hangs"):
            await session.request(ApiRequest("GET", "/hangs", timeout_s=0.2))
        with pytest.raises(TransportError, match="POST /breaks"):
            await session.request(ApiRequest("POST", "/breaks", body=b"{}"))

    with_server(handler, tmp_path, scenario)


def test_an_answer_that_is_too_long_is_not_read_to_its_end(tmp_path: Path) -> None:
    """Its bytes count, not those that were sent: the API server compresses lists."""
    written = 0

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal written
        answer = web.StreamResponse()
        answer.enable_compression(web.ContentCoding.gzip)
        await answer.prepare(request)
        while True:
            await answer.write(bytes(2**20))
            written += 2**20

    async def scenario(session: HttpTransport) -> None:
        with pytest.raises(AnswerTooLong, match="GET /pods: the answer is longer than 1000000 bytes"):
            await session.request(ApiRequest("GET", "/pods", answer_bytes_max=1_000_000))

    with_server(handler, tmp_path, scenario)
    assert written < 2**30


def test_an_unreachable_server_is_an_error(tmp_path: Path) -> None:
    async def main() -> None:
        async with await connect(ConnectionSettings(kubeconfig(tmp_path, "http://127.0.0.1:1"))) as session:
            with pytest.raises(TransportError):
                await session.request(ApiRequest("GET", "/api"))
            with pytest.raises(TransportError):
                async with session.stream(ApiRequest("GET", "/api")):
                    pass

    asyncio.run(main())


def test_a_watch_is_streamed_and_its_interruption_is_an_error(tmp_path: Path) -> None:
    go_on = asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(b'{"type":')
        await go_on.wait()
        await answer.write(b'"ADDED"')
        assert request.transport is not None
        request.transport.abort()
        return answer

    async def scenario(session: HttpTransport) -> None:
        async with session.stream(ApiRequest("GET", "/watch")) as stream:
            assert await anext(stream.chunks) == b'{"type":'
            go_on.set()
            with pytest.raises(TransportError, match="the stream was interrupted"):
                while True:
                    await anext(stream.chunks)

    with_server(handler, tmp_path, scenario)


def test_a_megabyte_of_a_watch_is_read_while_its_reader_is_busy(tmp_path: Path) -> None:
    """So that the line of a large pod does not take a pass of the event loop for each part of it."""
    assert len(first_chunk(tmp_path)) > READ_BUFFER_BYTES


def test_planted_small_buffer_is_detected(tmp_path: Path) -> None:
    with patch.object(session_module, "READ_BUFFER_BYTES", 2**16):
        assert len(first_chunk(tmp_path)) < READ_BUFFER_BYTES


def first_chunk(folder: Path) -> bytes:
    chunks: list[bytes] = []
    sent_bytes, part = [0], b"x" * 65_536

    async def handler(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        while sent_bytes[0] < 64 * READ_BUFFER_BYTES:  # until the client reads no more
            await answer.write(part)
            sent_bytes[0] += len(part)
        return answer

    async def scenario(session: HttpTransport) -> None:
        async with session.stream(ApiRequest("GET", "/watch")) as stream:
            before = -1
            while sent_bytes[0] != before:
                before = sent_bytes[0]
                await asyncio.sleep(0.3)
            chunks.append(await anext(stream.chunks))

    with_server(handler, folder, scenario)
    return chunks[0]


def test_a_rotated_token_file_is_read_again_after_status_401(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old")
    valid = "old"

    async def handler(request: web.Request) -> web.Response:
        return web.Response(status=200 if request.headers["Authorization"] == f"Bearer {valid}" else 401)

    async def scenario(session: HttpTransport) -> None:
        nonlocal valid
        assert (await session.request(ApiRequest("GET", "/"))).status == 200
        valid = "new"
        assert (await session.request(ApiRequest("GET", "/"))).status == 401
        token.write_text("new")

        assert (await session.request(ApiRequest("GET", "/"))).status == 200
        async with session.stream(ApiRequest("GET", "/")) as stream:
            assert stream.status == 200

    with_server(handler, tmp_path, scenario, tokenFile=str(token))


@pytest.mark.parametrize(
    "message",
    [
        'admission webhook "pods.example.com" denied the request: Unauthorized',
        "pods \"web\" is forbidden: ValidatingAdmissionPolicy 'none' with binding 'none' denied request: no",
    ],
)
def test_status_401_of_a_webhook_is_no_reason_to_reload_credentials(tmp_path: Path, message: str) -> None:
    """Each time, all connections for writes would be opened anew."""
    requests = 0

    async def handler(request: web.Request) -> web.Response:
        nonlocal requests
        requests += 1
        return web.json_response({"kind": "Status", "code": 401, "message": message}, status=401)

    async def scenario(session: HttpTransport) -> None:
        connections = session._writes
        with pytest.raises(AdmissionDenied, match=re.escape(message)):
            await ApiClient(session, may_write=lambda: True).create("/api/v1/namespaces/a/pods/b/binding", {})
        assert session._writes is connections

    with_server(handler, tmp_path, scenario)
    assert requests == 1


def test_an_exec_plugin_runs_again_when_its_credential_is_refused(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    plugin = tmp_path / "plugin"
    plugin.write_text(
        f"#!/bin/sh\necho x >> {runs}\n"
        'echo "{\\"apiVersion\\":\\"client.authentication.k8s.io/v1\\",\\"kind\\":\\"ExecCredential\\",'
        f'\\"status\\":{{\\"token\\":\\"t$(wc -l < {runs})\\"}}}}"\n'
    )
    plugin.chmod(plugin.stat().st_mode | stat.S_IXUSR)

    async def handler(request: web.Request) -> web.Response:
        return web.Response(status=200 if request.headers["Authorization"] == "Bearer t2" else 401)

    async def scenario(session: HttpTransport) -> None:
        answers = await asyncio.gather(*(session.request(ApiRequest("GET", "/")) for _ in range(5)))

        assert [answer.status for answer in answers] == [200] * 5
        assert len(runs.read_text().split()) == 2

    with_server(
        handler,
        tmp_path,
        scenario,
        exec={"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin)},
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"users": [{"name": "u", "user": {"exec": {"apiVersion": "v1", "command": "/bin/false"}}}]},
            "/bin/false returned no credentials",
        ),
        ({"current-context": "there"}, "there"),
        ({"clusters": []}, "clusters"),
        (
            {
                "clusters": [
                    {"name": "c", "cluster": {"server": "https://x", "certificate-authority": "/nowhere"}}
                ]
            },
            "/nowhere",
        ),
        ({"contexts": None}, "contexts"),
    ],
)
def test_an_unusable_kubeconfig_is_reported_in_one_line(
    change: dict[str, Any], words: str, tmp_path: Path
) -> None:
    path = kubeconfig(tmp_path, "http://127.0.0.1:1")
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))

    with pytest.raises(BadKubeconfig) as error:
        asyncio.run(connect(ConnectionSettings(path)))

    assert str(error.value).startswith(f"{path}: ")
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_the_named_context_is_used(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path, "http://127.0.0.1:1")
    config = json.loads(path.read_text())
    config["clusters"].append({"name": "other", "cluster": {"server": "http://127.0.0.1:2"}})
    config["contexts"].append({"name": "there", "context": {"cluster": "other", "user": "u"}})
    path.write_text(json.dumps(config))

    session = asyncio.run(connect(ConnectionSettings(path, context="there")))

    assert session.host == "http://127.0.0.1:2"


@pytest.mark.parametrize(
    ("text", "words"),
    [("- a\n- b\n", "a list"), ("token", "a string"), ("", "nothing"), ("7", "a scalar")],
)
def test_a_file_that_is_not_a_kubeconfig_is_reported(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)

    with pytest.raises(BadKubeconfig) as error:
        asyncio.run(connect(ConnectionSettings(path)))

    assert str(error.value) == f"{path}: not a kubeconfig file: expected a YAML map, got {words}"


# ── leadership is checked at the write ───────────────────────────────────────────────────────────────────────────────


def test_a_request_that_waited_for_a_connection_is_not_written_once_it_may_not_be(tmp_path: Path) -> None:
    """As in a leader that is frozen meanwhile: the check before the request is long past."""
    received: list[tuple[str, bytes]] = []
    may_write = True

    async def handler(request: web.Request) -> web.Response:
        received.append((request.path, await request.read()))
        await asyncio.sleep(0.1)
        return web.Response(text="{}")

    async def scenario(session: HttpTransport) -> None:
        nonlocal may_write
        before = ApiRequest("POST", "/api/first", body=b"1", may_write=lambda: True)
        first = asyncio.create_task(session.request(before))
        await asyncio.sleep(0.05)
        bind = ApiRequest("POST", "/api/bind", body=b"2", may_write=lambda: may_write)
        waiting = asyncio.create_task(session.request(bind))
        await asyncio.sleep(0)

        may_write = False
        await first
        with pytest.raises(RequestNotSent):
            await waiting

        may_write = True
        assert (await session.request(bind)).status == 200

    with_server(handler, tmp_path, scenario, connections_max=1)
    assert received == [("/api/first", b"1"), ("/api/bind", b"2")]


def test_a_request_that_may_be_written_is_checked_right_before_its_write(tmp_path: Path) -> None:
    checks: list[int] = []
    received: list[bytes] = []

    async def handler(request: web.Request) -> web.Response:
        received.append(await request.read())
        return web.Response(text="{}")

    def may_write() -> bool:
        checks.append(len(received))
        return True

    async def scenario(session: HttpTransport) -> None:
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            answer = await session.request(
                ApiRequest(method, "/api/x", body=method.encode(), may_write=may_write)
            )
            assert answer.status == 200

    with_server(handler, tmp_path, scenario)
    assert received == [b"POST", b"PUT", b"PATCH", b"DELETE"]
    assert checks == [0, 1, 2, 3]


def test_certificates_in_a_kubeconfig_need_no_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pem = make_self_signed_pem("localhost", datetime.now(UTC))
    data = base64.b64encode(pem).decode()
    user = {"client-certificate-data": data, "client-key-data": data}
    path = kubeconfig(tmp_path, "https://127.0.0.1:1", user, **{"certificate-authority-data": data})
    monkeypatch.setattr(tempfile, "tempdir", "/no/such/folder")

    opened = asyncio.run(connect(ConnectionSettings(path)))

    assert opened.host == "https://127.0.0.1:1"


@pytest.mark.parametrize("may_write", [None, lambda: True], ids=["read", "fenced write"])
def test_an_answer_without_the_object_is_requested_by_its_media_type(
    tmp_path: Path, may_write: Callable[[], bool] | None
) -> None:
    accepted: list[str] = []

    async def handler(request: web.Request) -> web.Response:
        accepted.extend(request.headers.getall("Accept"))
        return web.Response(body=b"{}")

    async def scenario(session: HttpTransport) -> None:
        await session.request(ApiRequest("GET", "/api/v1/x", may_write=may_write))
        await session.request(
            ApiRequest("PATCH", "/api/v1/x", body=b"[]", may_write=may_write, accept=METADATA_ONLY)
        )

    with_server(handler, tmp_path, scenario)
    assert accepted == ["application/json", METADATA_ONLY]

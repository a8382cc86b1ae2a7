"""HTTP requests to Prometheus over a real connection: credentials, TLS, and failures."""

import asyncio
import gzip
import logging
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from policysched.metric_sources import prometheus_transport as server_module
from policysched.metric_sources.poll_status import PollError
from policysched.metric_sources.prometheus_transport import (
    BasicAuth,
    HttpConnectionPool,
    PrometheusHttpTransport,
    PrometheusSettings,
    PrometheusTls,
)
from tests.controlplane.certificates import Authority, KeyPair
from tests.metric_sources.builders import vector
from tests.metric_sources.fake_prometheus import Handler, Pretend, pretending, saying

GOOD = vector(({"instance": "a"}, 1))


def asking(
    answer: Handler,
    action: Callable[[Pretend, PrometheusHttpTransport], Awaitable[None]],
    *,
    server_tls: ssl.SSLContext | None = None,
    path: str = "",
    **settings: Any,
) -> None:
    async def scenario() -> None:
        async with (
            pretending(answer, tls=server_tls) as pretend,
            HttpConnectionPool("policysched/test") as pool,
        ):
            given = PrometheusSettings(**{"url": pretend.url + path, "timeout_s": 5.0, **settings})
            await action(pretend, PrometheusHttpTransport(given, pool))

    asyncio.run(scenario())


def failure(answer: Handler, query: str = "up", **more: Any) -> PollError:
    """The error that the query ends with."""
    errors: list[PollError] = []

    async def action(_: Pretend, server: PrometheusHttpTransport) -> None:
        with pytest.raises(PollError) as error:
            await server.query(query)
        errors.append(error.value)

    asking(answer, action, **more)
    return errors[0]


def test_a_query_is_posted_to_the_api_under_the_path_of_the_url() -> None:
    async def action(pretend: Pretend, server: PrometheusHttpTransport) -> None:
        assert await server.query('rate(x{device="eth0"}[2m]) + 1') == GOOD
        (request,) = pretend.requests
        assert (request.method, request.path) == ("POST", "/team-a/prometheus/api/v1/query")
        assert request.query == 'rate(x{device="eth0"}[2m]) + 1'
        assert request.headers["user-agent"] == "policysched/test"
        assert "authorization" not in request.headers

    asking(saying(GOOD), action, path="/team-a/prometheus/")


def test_after_status_405_queries_use_get() -> None:
    async def only_get(request: web.Request) -> web.StreamResponse:
        return web.Response(status=405) if request.method == "POST" else web.Response(body=GOOD)

    async def action(pretend: Pretend, server: PrometheusHttpTransport) -> None:
        assert await server.query("a+b") == await server.query("a+b") == GOOD
        assert [(request.method, request.query) for request in pretend.requests] == [
            ("POST", "a+b"),
            ("GET", "a+b"),
            ("GET", "a+b"),
        ]

    asking(only_get, action)


def test_queries_share_connections() -> None:
    ports: set[object] = set()

    async def note(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        ports.add(request.transport.get_extra_info("peername"))
        return web.Response(body=GOOD)

    async def action(_: Pretend, server: PrometheusHttpTransport) -> None:
        for _again in range(5):
            await server.query("up")

    asking(note, action)

    assert len(ports) == 1


# ── credentials ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_rotated_token_is_sent(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")

    async def action(pretend: Pretend, server: PrometheusHttpTransport) -> None:
        await server.query("up")
        token.write_text("second\n")
        await server.query("up")
        assert [request.headers["authorization"] for request in pretend.requests] == [
            "Bearer first",
            "Bearer second",
        ]

    asking(saying(GOOD), action, bearer_token_file=token)


def test_basic_auth_and_further_headers_are_sent(tmp_path: Path) -> None:
    password, key = tmp_path / "password", tmp_path / "key"
    password.write_text("päss:word")
    key.write_text("k3y")

    async def action(pretend: Pretend, server: PrometheusHttpTransport) -> None:
        await server.query("up")
        headers = pretend.requests[0].headers
        assert headers["authorization"] == "Basic bWU6cMOkc3M6d29yZA=="  # me:päss:word
        assert (headers["x-scope-orgid"], headers["x-api-key"]) == ("team-a", "k3y")

    asking(
        saying(GOOD),
        action,
        basic_auth=BasicAuth("me", password),
        headers={"X-Scope-OrgID": "team-a"},
        header_files={"X-API-Key": key},
    )


def test_a_query_uses_the_proxy_and_its_credentials(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("open")

    async def scenario() -> None:
        async with pretending(saying(GOOD)) as proxy, HttpConnectionPool("test") as pool:
            settings = PrometheusSettings(
                "http://prometheus.example:9090", proxy=proxy.url, proxy_auth=BasicAuth("me", password)
            )
            assert await PrometheusHttpTransport(settings, pool).query("up") == GOOD
            headers = proxy.requests[0].headers
            assert headers["host"] == "prometheus.example:9090"
            assert headers["proxy-authorization"] == "Basic bWU6b3Blbg=="  # me:open

    asyncio.run(scenario())


@pytest.mark.parametrize("contents", [None, "", "two\nlines", "\x00", b"\xff\xfe"])
def test_unusable_credentials_are_reported_without_their_content(
    contents: str | bytes | None, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    if contents is not None:
        token.write_bytes(contents if isinstance(contents, bytes) else contents.encode())

    error = failure(saying(GOOD), bearer_token_file=token)

    assert error.kind == "credentials"
    assert str(error).startswith(f"{token}: ")
    assert "two" not in str(error)


def echo_of_secrets(tmp_path: Path) -> str:
    """Everything that is reported about a server that repeats our credentials in its error."""
    token, key = tmp_path / "token", tmp_path / "key"
    token.write_text("hunter2-token")
    key.write_text("hunter3-key")

    async def echo(request: web.Request) -> web.StreamResponse:
        echo = f"you sent {request.headers['Authorization']} and {request.headers['X-Key']} and {request.headers['X-Org']}"
        return web.json_response({"status": "error", "error": echo}, status=401)

    error = failure(
        echo, bearer_token_file=token, header_files={"X-Key": key}, headers={"X-Org": "hunter4-org"}
    )
    assert error.kind == "credentials"
    return str(error)


def test_credentials_echoed_by_a_server_are_not_logged(tmp_path: Path) -> None:
    assert echo_of_secrets(tmp_path) == "the server returned 401: you sent Bearer *** and *** and ***"


def test_planted_secret_in_a_message_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module._RequestCredentials, "redact", lambda _, text: text)

    with pytest.raises(AssertionError):
        test_credentials_echoed_by_a_server_are_not_logged(tmp_path)


# ── TLS ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("stranger"))


def serving(authority: Authority, *, wants_client: Authority | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    pair: KeyPair = authority.serving()
    context.load_cert_chain(pair.certificate, pair.key)
    if wants_client is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(wants_client.certificate)
    return context


async def just_asks(_: Pretend, server: PrometheusHttpTransport) -> None:
    assert await server.query("up") == GOOD


def test_a_server_is_verified_with_the_authority_of_the_settings(authority: Authority) -> None:
    tls = PrometheusTls(ca_file=authority.certificate)

    asking(saying(GOOD), just_asks, server_tls=serving(authority), tls=tls)


@pytest.mark.parametrize("given", ["the system's authorities", "a stranger", "another name"])
def test_tls_is_verified(given: str, authority: Authority, stranger: Authority) -> None:
    tls = {
        "the system's authorities": PrometheusTls(),
        "a stranger": PrometheusTls(ca_file=stranger.certificate),
        "another name": PrometheusTls(ca_file=authority.certificate, server_name="prometheus.example"),
    }[given]

    error = failure(saying(GOOD), server_tls=serving(authority), tls=tls)

    assert error.kind == "tls"


def test_verification_is_disabled_only_explicitly(authority: Authority) -> None:
    asking(saying(GOOD), just_asks, server_tls=serving(authority), tls=PrometheusTls(verify=False))


def test_the_client_certificate_is_sent(authority: Authority) -> None:
    pair = authority.client("policysched")
    trusted = PrometheusTls(ca_file=authority.certificate)
    known = PrometheusTls(ca_file=authority.certificate, cert_file=pair.certificate, key_file=pair.key)
    server = serving(authority, wants_client=authority)

    asking(saying(GOOD), just_asks, server_tls=server, tls=known)
    error = failure(saying(GOOD), server_tls=server, tls=trusted)

    assert error.kind in ("tls", "unreachable")


def test_a_replaced_authority_file_is_reloaded(
    authority: Authority, stranger: Authority, tmp_path: Path
) -> None:
    ca_file = tmp_path / "ca.crt"
    ca_file.write_bytes(stranger.certificate.read_bytes())

    async def action(_: Pretend, server: PrometheusHttpTransport) -> None:
        with pytest.raises(PollError):
            await server.query("up")
        fresh = tmp_path / "fresh"
        fresh.write_bytes(authority.certificate.read_bytes())
        fresh.replace(ca_file)
        assert await server.query("up") == GOOD

    asking(saying(GOOD), action, server_tls=serving(authority), tls=PrometheusTls(ca_file=ca_file))


def test_unreadable_certificates_are_reported_with_their_path(authority: Authority, tmp_path: Path) -> None:
    error = failure(
        saying(GOOD), server_tls=serving(authority), tls=PrometheusTls(ca_file=tmp_path / "none.crt")
    )

    assert (error.kind, str(error)) == ("tls", f"{tmp_path / 'none.crt'}: No such file or directory")


# ── failures ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        (302, "redirect", "the server returned 302; redirects are not followed"),
        (400, "query", "the server returned 400: bad_data: no such function"),
        (401, "credentials", "the server returned 401: bad_data: no such function"),
        (403, "credentials", "the server returned 403: bad_data: no such function"),
        (404, "status", "the server returned 404: bad_data: no such function"),
        (422, "query", "the server returned 422: bad_data: no such function"),
        (429, "status", "the server returned 429: bad_data: no such function"),
        (503, "status", "the server returned 503: bad_data: no such function"),
    ],
)
def test_a_status_other_than_200_is_an_error_of_its_kind(status: int, kind: str, words: str) -> None:
    body = b'{"status":"error","errorType":"bad_data","error":"no such function"}'

    error = failure(saying(body, status, Location="http://127.0.0.1:1/"))

    assert (error.kind, str(error)) == (kind, words)


def test_credentials_are_not_sent_to_a_redirect_target(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret")

    async def scenario() -> None:
        async with pretending(saying(GOOD)) as thief, HttpConnectionPool("test") as pool:
            async with pretending(saying(b"", 307, Location=thief.url)) as gateway:
                settings = PrometheusSettings(gateway.url, bearer_token_file=token)
                with pytest.raises(PollError, match="redirects are not followed"):
                    await PrometheusHttpTransport(settings, pool).query("up")
            assert thief.requests == []

    asyncio.run(scenario())


def test_a_response_beyond_the_size_limit_is_not_read_to_its_end_even_if_compressed() -> None:
    packed = gzip.compress(b" " * 50_000_000)

    plain = failure(saying(b"x" * 5000), response_bytes_max=4096)
    zipped = failure(saying(packed, **{"Content-Encoding": "gzip"}), response_bytes_max=4096)

    assert plain.kind == zipped.kind == "too_large"
    assert "4,096 bytes" in str(plain)


def test_a_server_that_hangs_or_sends_slowly_times_out() -> None:
    async def hangs(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(60)
        raise AssertionError("it was waited for")

    async def drips(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        for _ in range(1000):
            await answer.write(b" ")
            await asyncio.sleep(0.05)
        return answer

    for handler in (hangs, drips):
        error = failure(handler, timeout_s=0.3)
        assert (error.kind, str(error)) == ("timeout", "no complete response within 0.3 s")


def test_a_broken_connection_is_reported_as_unreachable() -> None:
    async def cut(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Length": "1000"})
        await answer.prepare(request)
        await answer.write(b"{")
        assert request.transport is not None
        request.transport.close()
        return answer

    assert failure(cut).kind == "unreachable"


def test_a_refused_connection_is_reported_as_unreachable() -> None:
    error = failure(saying(GOOD), url="http://127.0.0.1:1")

    assert (error.kind, str(error)) == ("unreachable", "cannot connect to 127.0.0.1:1: Connection refused")


def test_the_transport_itself_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "policysched"):
        failure(saying(b"", 500))

    assert [record for record in caplog.records if record.name.startswith("policysched")] == []

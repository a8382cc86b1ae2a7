"""Asking somebody else's extender, as they were written in many years: what is understood, and what is no answer."""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from policysched.kube.extender import client
from policysched.kube.extender.client import (
    BadExtenderSettings,
    ExtenderCallFailed,
    ExtenderClient,
    ExtenderEndpoint,
    ExtenderTls,
)
from policysched.serve.tls import ServerTls, ServerTlsFiles
from policysched.text.sanitize import sanitize_line
from tests.builders import node_manifest, pod_manifest
from tests.controlplane.certificates import Authority, openssl_missing

POD = pod_manifest("web")
Answering = Callable[[dict[str, Any]], web.Response]


def answers(
    handler: Answering, scenario: Callable[[ExtenderClient], Awaitable[None]], **peer: Any
) -> list[dict[str, Any]]:
    """Runs a scenario against a server that answers both verbs so; what it was sent."""
    sent: list[dict[str, Any]] = []
    tls = peer.pop("serving", None)

    async def main() -> None:
        async def answer(request: web.Request) -> web.Response:
            sent.append(await request.json())
            return handler(sent[-1])

        application = web.Application(client_max_size=2**24)
        application.add_routes([web.post("/scheduler/f", answer), web.post("/scheduler/p", answer)])
        runner = web.AppRunner(application)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
        await site.start()
        scheme = "http" if tls is None else "https"
        url = f"{scheme}://127.0.0.1:{runner.addresses[0][1]}/scheduler/"
        async with aiohttp.ClientSession() as session:
            await scenario(
                ExtenderClient(ExtenderEndpoint("gpu", url, filter="f", prioritize="p", **peer), session)
            )
        await runner.cleanup()

    asyncio.run(main())
    return sent


def filtered(answer: object, *, nodes: tuple[str, ...] = ("a", "b", "c"), **peer: Any) -> Any:
    """What a filter call makes of this answer: passed, then words by node, then those that evicting does not cure."""
    outcome: list[Any] = []

    async def scenario(client: ExtenderClient) -> None:
        response = await client.filter(POD, nodes, {})
        hopeless = {node for node, no in response.rejected.items() if not no.resolvable}
        outcome.extend(
            [response.passed, {node: no.message for node, no in response.rejected.items()}, hopeless]
        )

    answers(lambda _: web.json_response(answer), scenario, **peer)
    return tuple(outcome)


def scored(answer: object, *, nodes: tuple[str, ...] = ("a", "b")) -> dict[str, int]:
    scores: dict[str, int] = {}

    async def scenario(client: ExtenderClient) -> None:
        scores.update(await client.prioritize(POD, nodes, {}))

    answers(lambda _: web.json_response(answer), scenario)
    return scores


SILENT = "node(s) rejected by extender gpu without a reason"


def test_field_names_are_sent_capitalised_and_read_in_any_case() -> None:
    async def scenario(client: ExtenderClient) -> None:
        result = await client.filter(POD, ("a", "b"), {})
        assert (result.passed, result.rejected["a"].message) == (("b",), "no")

    sent = answers(lambda _: web.json_response({"nodenames": ["b"], "failednodes": {"a": "no"}}), scenario)

    assert sent == [{"Pod": POD, "Nodes": None, "NodeNames": ["a", "b"]}]


def test_an_extender_without_a_node_cache_gets_node_objects_and_may_return_them() -> None:
    whole = {name: node_manifest(name) for name in ("a", "b", "c")}

    async def scenario(client: ExtenderClient) -> None:
        result = await client.filter(POD, ("a", "b"), whole)
        assert result.passed == ("b",)

    sent = answers(
        lambda body: web.json_response({"Nodes": {"items": body["Nodes"]["items"][1:]}}),
        scenario,
        send_node_objects=True,
    )

    assert [item["metadata"]["name"] for item in sent[0]["Nodes"]["items"]] == ["a", "b"]
    assert sent[0]["NodeNames"] is None


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"NodeNames": ["a", "c"]}, (("a", "c"), {"b": SILENT}, set())),  # as kube-safe-scheduler drops
        ({"NodeNames": [], "FailedNodes": {"a": "x"}}, ((), {"a": "x", "b": SILENT, "c": SILENT}, set())),
        ({"Nodes": {"items": None}}, ((), {"a": SILENT, "b": SILENT, "c": SILENT}, set())),
        (
            {"NodeNames": None, "FailedNodes": {"a": "x", "b": "y", "c": "z"}},
            ((), {"a": "x", "b": "y", "c": "z"}, set()),
        ),
        (
            {"NodeNames": ["a", "b", "c"], "FailedAndUnresolvableNodes": {"b": "never"}, "Error": ""},
            (("a", "c"), {"b": "never"}, {"b"}),
        ),
        ({"NodeNames": ["a"], "FailedNodes": {"b": "x\n" * 500, "stranger": "y"}, "c": 1}, None),
    ],
)
def test_variants_of_filter_responses_are_accepted(answer: object, expected: object) -> None:
    result = filtered(answer)

    if expected is not None:
        assert result == expected
    else:
        passed, refused, _ = result
        assert passed == ("a",)
        assert set(refused) == {"b", "c"}
        assert len(refused["b"]) == 200 and "\n" not in refused["b"]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({}, "lists neither passed nor failed nodes"),
        ([], "is not an object"),
        (None, "is not an object"),
        ({"NodeNames": ["a"], "Error": "out of order"}, "f failed: out of order"),
        ({"NodeNames": ["a", "stranger"]}, "the response names unknown node stranger"),
        ({"NodeNames": [1]}, "has no name"),
        ({"NodeNames": "a"}, "has no name"),
        ({"Nodes": [1]}, "Nodes is not a list"),
        ({"Nodes": {"items": [{}]}}, "has no name"),
        ({"FailedNodes": ["a"]}, "FailedNodes is not a map"),
    ],
)
def test_an_invalid_filter_response_is_reported_with_the_extenders_name(answer: object, words: str) -> None:
    with pytest.raises(ExtenderCallFailed, match=f"extender gpu: .*{words}"):
        filtered(answer)


@pytest.mark.parametrize("field", ["Error", "FailedNodes"])
def test_a_message_nested_too_deeply_to_print_is_shown_as_a_list(field: str) -> None:
    deep = "[" * 1015 + "]" * 1015
    words = deep if field == "Error" else f'{{"a": {deep}}}'
    messages: list[str] = []

    async def scenario(client: ExtenderClient) -> None:
        try:
            messages.append((await client.filter(POD, ("a",), {})).rejected["a"].message)
        except ExtenderCallFailed as error:
            messages.append(str(error))

    answers(lambda _: web.Response(text=f'{{"{field}": {words}}}'), scenario)

    assert messages in (["a list"], ["extender gpu: f failed: a list"])


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ([{"Host": "a", "Score": 10}, {"host": "b", "score": 0}], {"a": 10, "b": 0}),
        ([{"Host": "a", "Score": 11}, {"Host": "b", "Score": -1}], {}),
        ([{"Host": "a", "Score": 7.5}, {"Host": "b", "Score": True}], {}),
        ([{"Host": "a", "Score": 1}, {"Host": "a", "Score": 2}, {"Host": "b", "Score": 3}], {"b": 3}),
        ([{"Host": "stranger", "Score": 5}, {"Score": 5}, {"Host": "a"}], {}),
        ([], {}),
        (None, {}),
    ],
)
def test_a_score_out_of_range_or_given_twice_is_missing(answer: object, expected: dict[str, int]) -> None:
    assert scored(answer) == expected


@pytest.mark.parametrize("answer", [{}, "x", [1], 5])
def test_a_response_that_is_not_a_list_of_scores_fails(answer: object) -> None:
    with pytest.raises(ExtenderCallFailed, match="not a list of scores"):
        scored(answer)


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        (lambda _: web.Response(status=500), "status 500"),
        (lambda _: web.Response(status=404, text="no route"), "status 404"),
        (lambda _: web.Response(status=302, headers={"Location": "http://elsewhere/"}), "status 302"),
        (lambda _: web.Response(text="<html>"), "is not JSON"),
        (lambda _: web.Response(body=b"\xff\xfe"), "is not JSON"),
        (lambda _: web.Response(text=""), "is not JSON"),
    ],
)
def test_a_response_that_is_not_valid_json_with_status_200_fails(handler: Answering, words: str) -> None:
    async def scenario(client: ExtenderClient) -> None:
        with pytest.raises(ExtenderCallFailed, match=f"extender gpu: .*{words}"):
            await client.filter(POD, ("a",), {})

    answers(handler, scenario)


def raw(behaviour: Callable[[asyncio.StreamWriter], Awaitable[None]], *, timeout_s: float = 120.0) -> str:
    """What is said of a peer that does this with a connection after it has read the head of the request."""

    async def main() -> str:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            await behaviour(writer)
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with aiohttp.ClientSession() as session:
            client = ExtenderClient(ExtenderEndpoint("gpu", url, filter="f", timeout_s=timeout_s), session)
            with pytest.raises(ExtenderCallFailed) as caught:
                await client.filter(POD, ("a",), {})
        server.close()
        return str(caught.value)

    return asyncio.run(main())


async def cut(writer: asyncio.StreamWriter) -> None:
    """As a Go server does whose handler panics."""
    writer.transport.abort()


async def half(writer: asyncio.StreamWriter) -> None:
    writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"NodeNames":')


async def nonsense(writer: asyncio.StreamWriter) -> None:
    writer.write(b"SSH-2.0-OpenSSH\r\n\r\n")


async def silence(_writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(5)


async def drip(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
    for _ in range(50):
        writer.write(b" ")
        await asyncio.sleep(0.1)


async def endless(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
    while not writer.is_closing():
        writer.write(b" " * 65_536)
        await writer.drain()


def test_a_response_beyond_the_size_limit_is_not_read_to_its_end() -> None:
    message = raw(endless)

    assert message == "extender gpu: f: the response exceeds 1,052,672 bytes for 1 nodes"


def test_a_response_of_too_many_values_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists of three bytes each, below the size limit, took seconds of the event loop at 5,000 nodes."""
    monkeypatch.setattr(client.orjson, "loads", pytest.fail)
    lists = b'{"NodeNames": [' + b"[]," * 20_000 + b"[]]}"

    async def scenario(extender: ExtenderClient) -> None:
        with pytest.raises(ExtenderCallFailed, match="the response has more than 10,032 values for 1 nodes"):
            await extender.filter(POD, ("a",), {})

    answers(lambda _: web.Response(body=lists), scenario)


def test_a_large_response_is_decoded_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """And reasons of nodes that were not asked about are not read."""
    nodes, sanitized = [f"node-{number}" for number in range(100)], list[bool]()

    def noting(text: Any) -> str:
        sanitized.append(threading.current_thread() is threading.main_thread())
        return sanitize_line(text)

    monkeypatch.setattr(client, "sanitize_line", noting)
    failed = dict.fromkeys((*nodes, *(f"other-{number}" for number in range(100))), "\x07" * 1000)

    async def scenario(extender: ExtenderClient) -> None:
        assert len((await extender.filter(POD, nodes, {})).rejected) == 100

    answers(lambda _: web.json_response({"FailedNodes": failed}), scenario)

    assert not any(sanitized)
    assert 100 <= len(sanitized) <= 200


def test_the_size_limit_grows_with_the_node_objects_sent() -> None:
    large = node_manifest("a") | {"status": {"images": [{"names": ["x" * 3_000_000]}]}}
    passed: list[str] = []

    async def scenario(client: ExtenderClient) -> None:
        passed.extend((await client.filter(POD, ("a",), {"a": large})).passed)

    answers(lambda body: web.json_response({"Nodes": body["Nodes"]}), scenario, send_node_objects=True)

    assert passed == ["a"]


@pytest.mark.parametrize("behaviour", [cut, half, nonsense])
def test_a_broken_connection_fails_the_call(behaviour: Any) -> None:
    assert raw(behaviour).startswith("extender gpu: f: ")


@pytest.mark.parametrize("behaviour", [silence, drip])
def test_a_response_slower_than_the_timeout_fails_the_call(behaviour: Any) -> None:
    assert raw(behaviour, timeout_s=0.3) == "extender gpu: f timed out after 0.3 s"


def test_a_refused_connection_fails_the_call() -> None:
    async def main() -> None:
        async with aiohttp.ClientSession() as session:
            client = ExtenderClient(ExtenderEndpoint("gpu", "http://127.0.0.1:1", filter="f"), session)
            with pytest.raises(ExtenderCallFailed, match="extender gpu: f: "):
                await client.filter(POD, ("a",), {})

    asyncio.run(main())


# ── TLS ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_mutual_tls_verifies_the_extender_and_sends_the_client_certificate(tmp_path: Path) -> None:
    assert not openssl_missing(), "this test makes certificates"
    authority, other = Authority(tmp_path), Authority(folder_in(tmp_path, "other"))
    serving, client = authority.serving(), authority.client("policysched")
    context = ServerTls(ServerTlsFiles(serving.certificate, serving.key, authority.certificate)).context
    own = {"certificate": client.certificate, "key": client.key}

    async def passes(asking: ExtenderClient) -> None:
        assert (await asking.filter(POD, ("a",), {})).passed == ("a",)

    async def fails(asking: ExtenderClient) -> None:
        with pytest.raises(ExtenderCallFailed, match=r"(?i)certificate|not valid|mismatch"):
            await asking.filter(POD, ("a",), {})

    cases = [
        (ExtenderTls(ca=authority.certificate, **own), passes),
        (ExtenderTls(ca=other.certificate, **own), fails),
        (ExtenderTls(), fails),
        (ExtenderTls(insecure=True), passes),
        (ExtenderTls(ca=authority.certificate, server_name="localhost"), passes),
        (ExtenderTls(ca=authority.certificate, server_name="elsewhere"), fails),
    ]
    for tls, scenario in cases:
        answers(lambda _: web.json_response({"NodeNames": ["a"]}), scenario, tls=tls, serving=context)


def folder_in(folder: Path, name: str) -> Path:
    (folder / name).mkdir()
    return folder / name


def test_unreadable_certificates_are_rejected_at_startup(tmp_path: Path) -> None:
    async def main() -> None:
        async with aiohttp.ClientSession() as session:
            with pytest.raises(BadExtenderSettings, match=r"extenders\.gpu\.tls: No such file"):
                ExtenderClient(
                    ExtenderEndpoint("gpu", "https://x", filter="f", tls=ExtenderTls(ca=tmp_path / "no")),
                    session,
                )

    asyncio.run(main())


def test_requests_are_json_that_go_decodes() -> None:
    async def scenario(client: ExtenderClient) -> None:
        await client.filter(POD, ("a",), {})

    (sent,) = answers(lambda _: web.json_response({"NodeNames": ["a"]}), scenario)

    assert json.loads(json.dumps(sent))["Pod"]["metadata"]["name"] == "web"


@pytest.mark.parametrize(
    "url", ["http://", "https://:443", "http://[::1/x", "http://h:99999", "http://a..b", "http://a b"]
)
def test_an_invalid_url_is_rejected_at_startup(url: str) -> None:
    async def main() -> None:
        async with aiohttp.ClientSession() as session:
            with pytest.raises(BadExtenderSettings, match=r"extenders\.gpu\.url: "):
                ExtenderClient(ExtenderEndpoint("gpu", url, filter="f"), session)

    asyncio.run(main())

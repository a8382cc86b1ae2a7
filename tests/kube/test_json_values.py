"""JSON that the API server stores and the parser refuses ends no watch and no list."""

import asyncio
import gc
import json
import threading
from collections.abc import AsyncIterator
from random import Random
from typing import cast

import orjson
import pytest

from policysched.kube.client import json_values
from policysched.kube.client.api import ApiClient
from policysched.kube.client.json_values import parse_json, read_json
from policysched.kube.client.transport import ApiRequest, ApiResponse, Transport
from policysched.kube.client.watch_lines import watch_events
from policysched.kube.decode.devices import decode_resource_claim
from policysched.kube.decode.errors import MalformedObject
from tests.devices import DRIVER, claim_manifest, given

LEVELS = 3_000
DEEP = {
    "levels of maps": b'{"a":' * 1_500 + b"1" + b"}" * 1_500,
    "levels of lists": b'{"a":' + b"[" * LEVELS + b"]" * LEVELS + b"}",
}
PARAMETERS = {
    **DEEP,
    "half of a surrogate pair": rb'{"a":"\ud800"}',
    "the other half, behind a backslash": rb'{"a":"\\ud83d\udc00"}',
    "no UTF-8": b'{"a":"\xff"}',
}
"""Each is at most 10 KiB, and Go's parser takes it."""


def claim(name: str, parameters: bytes = b"{}") -> bytes:
    manifest = claim_manifest(name, config=[{"opaque": {"driver": DRIVER, "parameters": "PARAMETERS"}}])
    return json.dumps(manifest).encode().replace(b'"PARAMETERS"', parameters)


@pytest.mark.parametrize("kind", PARAMETERS)
def test_a_watch_goes_on_after_such_an_object(kind: str) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for obj in (claim("hostile", PARAMETERS[kind]), claim("later")):
            yield b'{"type":"ADDED","object":%b}\n' % obj

    async def names() -> list[str]:
        return [event.object["metadata"]["name"] async for event in watch_events(chunks(), 1.0)]

    assert asyncio.run(names()) == ["hostile", "later"]


@pytest.mark.parametrize("kind", PARAMETERS)
def test_a_list_with_such_an_object_is_complete(kind: str) -> None:
    class Server:
        async def request(self, _request: ApiRequest) -> ApiResponse:
            items = b",".join((claim("hostile", PARAMETERS[kind]), claim("other")))
            return ApiResponse(200, b'{"metadata":{"resourceVersion":"7"},"items":[%b]}' % items)

    async def names() -> list[str]:
        pages = ApiClient(cast(Transport, Server())).pages("/claims", {}, page_size=0)
        return [item["metadata"]["name"] async for page in pages for item in page.items]

    assert asyncio.run(names()) == ["hostile", "other"]


@pytest.mark.parametrize("kind", DEEP)
def test_an_object_that_was_not_read_whole_is_malformed(kind: str) -> None:
    with pytest.raises(MalformedObject):
        decode_resource_claim(parse_json(claim("hostile", PARAMETERS[kind])))


@pytest.mark.parametrize("parameters", [*DEEP.values(), b'{"a":' * 300 + b"1" + b"}" * 300])
def test_the_devices_of_such_a_claim_are_used_once_another_scheduler_has_allocated_it(
    parameters: bytes,
) -> None:
    config = [{"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": "PARAMETERS"}}]
    status = given("gpu-0")
    status["allocation"]["devices"]["config"] = config
    manifest = claim_manifest("hostile", status=status, config=[{"opaque": config[0]["opaque"]}])
    hostile = parse_json(json.dumps(manifest).encode().replace(b'"PARAMETERS"', parameters))

    allocation = decode_resource_claim(hostile).allocation

    assert allocation is not None
    assert [use.device.device for use in allocation.devices] == ["gpu-0"]


def test_what_is_no_unicode_is_read_as_go_reads_it() -> None:
    text = rb'{"a":"\ud800","b":"\\ud83d\udc00","c":"\ud83d\ude00 \\\\ud800","d":"\ud800\ud83d\ude00"}'

    assert parse_json(text) == {"a": "�", "b": "\\ud83d�", "c": "😀 \\\\ud800", "d": "�😀"}
    assert parse_json(b'{"a":"\xff"}') == {"a": "�"}


@pytest.mark.parametrize("seed", range(40))
def test_a_text_is_read_as_another_parser_reads_it(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it is cut into pieces."""
    monkeypatch.setattr(json_values, "_CHUNK_BYTES", seed % 4)
    random = Random(seed)
    parts = [r"\ud83d", r"\ude00", r"\\", r"\"", ",", "u", "x", "[", r"\ud83d\ude00"]
    strings = [f'"{"".join(random.choices(parts, k=random.randrange(9)))}"' for _ in range(30)]
    text = f'{{"a":[{",".join(strings)}],"b":"\\ud800"}}'

    with_halves = (each.encode("utf-16-le", "surrogatepass") for each in json.loads(text)["a"])
    assert parse_json(text.encode())["a"] == [each.decode("utf-16-le", "replace") for each in with_halves]


def test_a_list_is_repaired_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A namespace can hold claims of many megabytes, each of which takes 0.25 s."""
    threads = list[int]()
    repaired = json_values._repaired
    monkeypatch.setattr(
        json_values, "_repaired", lambda text: (threads.append(threading.get_ident()), repaired(text))[1]
    )

    body = asyncio.run(json_values.read_json(claim("hostile", PARAMETERS["levels of lists"])))

    assert body["metadata"]["name"] == "hostile"
    assert len(threads) == 1 and threads[0] != threading.get_ident()


def test_brackets_in_strings_are_no_levels() -> None:
    text = b'{"text":"%b\\"[","bad":"\\ud800"}' % (b"[{" * LEVELS)

    assert parse_json(text) == {"text": "[{" * LEVELS + '"[', "bad": "�"}


@pytest.mark.parametrize("text", [b"", b"{", b'{"a":1]', b"<html>", b"[" * 100_000, b'{"a":"\xff'])
def test_what_is_no_json_has_the_error_of_the_parser(text: bytes) -> None:
    with pytest.raises(orjson.JSONDecodeError):
        parse_json(text)


def test_no_garbage_is_collected_while_a_page_is_parsed() -> None:
    """Collections visited all that was parsed so far: half of the time."""
    begun: list[str] = []
    body = orjson.dumps([{"labels": {"a": "b"}} for _ in range(100_000)])

    async def scenario() -> None:
        gc.collect()
        gc.callbacks.append(note)
        try:
            await read_json(body)
        finally:
            gc.callbacks.remove(note)

    def note(phase: str, _: object) -> None:
        begun.append(phase)

    asyncio.run(scenario())
    assert begun.count("start") <= 1, "that which was due before"

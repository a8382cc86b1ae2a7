"""A long page of a list is parsed in parts, whatever its objects contain."""

import asyncio
from collections.abc import Mapping
from random import Random
from typing import Any, cast
from unittest.mock import patch

import orjson
import pytest

from policysched.kube.client import list_parts
from policysched.kube.client.api import ApiClient, InvalidResponse, ListPage
from policysched.kube.client.transport import AnswerTooLong, ApiRequest, ApiResponse, Transport

PART_BYTES = 2_000
SEPARATOR = '},{"metadata":{'
TYPED = {"kind": "ResourceClaimList", "apiVersion": "v1", "metadata": {"resourceVersion": "7"}, "items": []}
UNSTRUCTURED = {"apiVersion": "a/v1", "items": [], "kind": "List", "metadata": {"resourceVersion": "7"}}
"""The API server sorts the keys of objects whose types it does not know."""


class Server:
    """Answers with the body each time, unless it is longer than the request admits. It ignores `limit`."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.limits: list[str | None] = []

    async def request(self, request: ApiRequest) -> ApiResponse:
        self.limits.append(request.params.get("limit"))
        if request.answer_bytes_max is not None and len(self.body) > request.answer_bytes_max:
            raise AnswerTooLong(request)
        return ApiResponse(200, self.body)


async def parts_of(body: bytes) -> list[ListPage]:
    pages = ApiClient(cast(Transport, Server(body))).pages("/claims", {}, page_size=500)
    with patch.object(list_parts, "PART_BYTES", PART_BYTES):
        return [page async for page in pages]


def listed(items: list[Any], envelope: Mapping[str, Any] = TYPED) -> bytes:
    return orjson.dumps({**envelope, "items": items})


def claim(name: str, parameters: object = None, **kind: str) -> dict[str, Any]:
    return {**kind, "metadata": {"name": name}, "spec": {"parameters": parameters}}


@pytest.mark.parametrize("envelope", [TYPED, UNSTRUCTURED])
def test_each_part_has_few_objects_and_together_they_are_the_list(envelope: Mapping[str, Any]) -> None:
    kind = {"apiVersion": "a/v1", "kind": "Claim"} if envelope is UNSTRUCTURED else {}
    owners = [{"apiVersion": "a/v1", "kind": "Claim", "name": "owner"}] * 3
    items = [claim(f"c{number}", owners, **kind) for number in range(500)]

    parts = asyncio.run(parts_of(listed(items, envelope)))

    assert [item for part in parts for item in part.items] == items
    assert {part.resource_version for part in parts} == {"7"}
    assert max(len(part.items) for part in parts) <= PART_BYTES // len(orjson.dumps(items[0])) + 1


def test_other_tasks_run_between_two_parts() -> None:
    async def scenario() -> tuple[int, int]:
        passes = 0

        async def other() -> None:
            nonlocal passes
            while True:
                await asyncio.sleep(0)
                passes += 1

        task = asyncio.create_task(other())
        parts = await parts_of(listed([claim(f"c{number}") for number in range(500)]))
        task.cancel()
        return passes, len(parts)

    passes, count = asyncio.run(scenario())
    assert passes >= count - 1 > 10


@pytest.mark.parametrize("seed", range(40))
def test_what_looks_like_the_begin_of_an_object_inside_of_another_cuts_nothing(seed: int) -> None:
    """A tenant writes the parameters of a claim as it likes."""
    random = Random(seed)
    fake = [{"metadata": {"a": [{"metadata": {"b": SEPARATOR + "]}{["}}] * 3}}]
    items = [
        claim(f"c{number}", random.choice([None, "x" * 30, fake * random.randrange(200), {"a": fake}]))
        for number in range(60)
    ]

    parts = asyncio.run(parts_of(listed(items)))

    assert [item for part in parts for item in part.items] == items
    assert len(parts) > 5
    longest = max(len(orjson.dumps(item)) for item in items)
    assert max(len(orjson.dumps(part.items)) for part in parts) <= PART_BYTES + 2 * longest


def test_an_object_that_has_to_be_repaired_does_so_in_its_part() -> None:
    items = [claim(f"c{number}", "HALF" if number == 30 else None) for number in range(200)]
    body = listed(items).replace(b"HALF", rb"\ud800")

    parts = asyncio.run(parts_of(body))

    names = [item["metadata"]["name"] for part in parts for item in part.items]
    assert names == [f"c{number}" for number in range(200)]
    assert len(parts) > 3


def test_a_list_that_is_broken_is_an_error() -> None:
    body = listed([claim(f"c{number}") for number in range(200)]).replace(b'"c150"', b'"c150"]')

    with pytest.raises(InvalidResponse, match="GET /claims: the answer is not JSON"):
        asyncio.run(parts_of(body))


def test_a_server_that_ignores_the_limit_is_asked_for_less_until_it_is_one_object() -> None:
    async def scenario() -> list[ListPage]:
        pages = ApiClient(cast(Transport, server)).pages("/claims", {}, page_size=500)
        with patch("policysched.kube.client.api.PAGE_BYTES_MAX", 1_000):
            return [page async for page in pages]

    server = Server(listed([claim(f"c{number}") for number in range(200)]))
    (page,) = asyncio.run(scenario())

    assert len(page.items) == 200
    assert server.limits == ["500", "62", "7", "1"]

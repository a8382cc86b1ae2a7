"""Equal requests for the status endpoints share an answer, as old as its cost allows."""

import asyncio
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from policysched.serve import shared_documents, status_routes
from policysched.serve.connections import ConnectionLimits
from policysched.serve.main_loop_reader import LiveStep, NoSuchEndpoint
from policysched.serve.request_rate import RateLimits
from policysched.serve.server import HttpServerOptions
from policysched.serve.shared_documents import Outside, Rest, SharedDocuments
from policysched.serve.status_routes import DOCUMENT_SHARE, StatusEndpoints
from tests.serve.served import PAGES, burn, get, served
from tests.serve.test_page_feed import SECURED

READERS = 50
TOOK_S = 0.003


def test_a_burst_needs_no_rest_and_then_each_piece_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    rest = Rest(0.05, burst_s=0.1)

    def wait_after_work() -> float:
        rest.after(0.02)
        return max(0.0, rest.until_s - now_s)

    assert [round(wait_after_work(), 6) for _ in range(7)] == [0.0, 0.0, 0.0, 0.0, 0.0, 0.4, 0.8]
    now_s += 0.8 + 0.4  # rested for one piece
    assert [round(wait_after_work(), 6) for _ in range(2)] == [0.0, 0.4]
    now_s += 1e6
    assert [round(wait_after_work(), 6) for _ in range(6)] == [0.0, 0.0, 0.0, 0.0, 0.0, 0.4]


MANY = HttpServerOptions(connections=ConnectionLimits(per_address_per_s=1e6), rates=RateLimits(1e6, 1e6))


def expensive() -> tuple[StatusEndpoints, list[int]]:
    """Each document takes TOOK_S, and how many were made."""
    made = [0]

    def value() -> dict[str, object]:
        made[0] += 1
        burn(TOOK_S)
        return {}

    def live(_query: Mapping[str, str]) -> Iterator[LiveStep]:
        yield None
        yield value()

    def rendered_beside(_limit: int, _pod: str) -> Callable[[], bytes]:
        return lambda: str(value()).encode()

    return StatusEndpoints(
        metrics=lambda: str(value()),
        policy=value,
        decisions=rendered_beside,
        configz=value,
        quotas=value,
        live_endpoints={"/pending": live},
    ), made


@pytest.mark.parametrize("path", ["/metrics", "/policy", "/configz", "/quotas", "/decisions", "/pending"])
def test_documents_for_fifty_equal_readers_are_made_as_often_as_their_cost_allows(path: str) -> None:
    pages, made = expensive()
    queries = [""] if path in ("/pending", "/decisions") else ["", "?a=1", "?a=2", "?b=1"]

    async def scenario(port: int) -> None:
        with ThreadPoolExecutor(READERS) as threads:
            loop, began_s = asyncio.get_running_loop(), time.monotonic()
            paths = [f"{path}{queries[number % len(queries)]}" for number in range(4 * READERS)]
            asked = [loop.run_in_executor(threads, get, port, each) for each in paths]
            assert {status for status, _ in await asyncio.gather(*asked)} == {200}
            assert 1 <= made[0] <= 1 + (time.monotonic() - began_s) * DOCUMENT_SHARE / TOOK_S

    served(scenario, MANY, pages=pages)


def test_a_rare_reader_sees_a_change_made_just_before_the_request() -> None:
    value = ["old"]

    async def scenario(port: int) -> None:
        assert await asyncio.to_thread(get, port, "/metrics") == (200, "old")
        await asyncio.sleep(0.5)
        value[0] = "new"
        assert await asyncio.to_thread(get, port, "/metrics") == (200, "new")

    served(scenario, pages=replace(PAGES, metrics=lambda: value[0]))


def test_requests_while_a_document_is_made_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_routes, "DOCUMENT_SHARE", 1e6)  # so none of them gets it because of a rest
    made = [0]

    async def other_work() -> None:
        await asyncio.sleep(1.0)

    def live(_query: Mapping[str, str]) -> Iterator[LiveStep]:
        made[0] += 1
        yield other_work
        yield {"made": made[0]}

    async def scenario(port: int) -> None:
        answers = await asyncio.gather(*(asyncio.to_thread(get, port, "/pending") for _ in range(5)))
        assert answers == [(200, '{"made":1}\n')] * 5

    served(scenario, pages=replace(PAGES, live_endpoints={"/pending": live}))


@pytest.mark.parametrize(
    "path", ["/pending", "/explain?pod=a", "/queue?limit=1", "/page/pods", "/page/nodes?by=cpu"]
)
def test_an_unknown_parameter_makes_no_document_of_its_own(path: str) -> None:
    """With `?x=1`, `?x=2` and so on each request was another document, made one after another."""
    made = [0]

    def live(_query: Mapping[str, str]) -> Iterator[LiveStep]:
        made[0] += 1
        yield {}

    async def scenario(port: int) -> None:
        separator = "&" if "?" in path else "?"
        answers = [await asyncio.to_thread(get, port, f"{path}{separator}x={n}") for n in range(3)]
        assert {status for status, _ in answers} == {400} and "unknown parameter `x`" in answers[0][1]
        assert made == [0]
        assert (await asyncio.to_thread(get, port, path))[0] == 200

    name = path.partition("?")[0]
    pages = {"page_feeds": {name: (live, 0.5)}} if "page" in name else {"live_endpoints": {name: live}}
    served(scenario, MANY, pages=replace(PAGES, **pages))


def test_errors_are_not_shared() -> None:
    problems = [NoSuchEndpoint("no such pod"), ValueError("a bug")]

    def live(_query: Mapping[str, str]) -> Iterator[LiveStep]:
        if problems:
            burn(0.05)  # a document with this cost would be kept for a second
            raise problems.pop(0)
        yield {}

    async def scenario(port: int) -> None:
        answers = [await asyncio.to_thread(get, port, "/explain?pod=a/b") for _ in range(3)]
        assert [status for status, _ in answers] == [404, 500, 200]

    served(scenario, pages=replace(PAGES, live_endpoints={"/explain": live}))


def test_access_to_a_shared_document_is_checked_for_each_request() -> None:
    async def scenario(port: int) -> None:
        for name, status in (("ada", 200), ("eve", 403), ("ada", 200)):
            assert (await asyncio.to_thread(get, port, "/policy", name))[0] == status

    served(scenario, SECURED, pages=expensive()[0])


class Body:
    pass


CLIENT: Any = SimpleNamespace(transport=object())
GONE: Any = SimpleNamespace(transport=None)


@pytest.mark.parametrize(
    ("size", "kept"), [(1, shared_documents.DOCUMENTS_MAX), (2**20, 4), (shared_documents.BYTES_MAX + 1, 1)]
)
def test_documents_of_many_queries_fill_a_bounded_memory(size: int, kept: int) -> None:
    made: weakref.WeakSet[Body] = weakref.WeakSet()

    async def make(_outside: Outside) -> tuple[Body, float, int]:
        body = Body()
        made.add(body)
        return body, 1.0, size

    async def scenario() -> None:
        documents = SharedDocuments[Body](0.05)
        for number in range(50):
            await documents.current(CLIENT, (("pod", str(number)),), make)
        assert len(made) == kept

    asyncio.run(scenario())


def test_nothing_is_made_for_a_client_that_has_left() -> None:
    async def make(_outside: Outside) -> tuple[Body, float, int]:
        raise AssertionError

    with pytest.raises(web.HTTPServiceUnavailable):
        asyncio.run(SharedDocuments[Body](0.05).current(GONE, (), make))


@pytest.mark.parametrize("path", ["/explain", "/page/pod"])
def test_a_document_that_waits_for_a_process_leaves_its_turn_to_others(path: str) -> None:
    """The proposals for a gang take up to 8 s, in which nobody had the explanation of another pod."""
    began, may_end = threading.Event(), threading.Event()
    made = list[str]()

    async def wait() -> None:
        began.set()
        await asyncio.to_thread(may_end.wait, 60)

    def explain(query: Mapping[str, str]) -> Iterator[LiveStep]:
        if query["pod"] == "gang":
            yield wait
        made.append(query["pod"])
        yield {"of": query["pod"]}

    async def scenario(port: int) -> None:
        def asked(pod: str) -> asyncio.Future[tuple[int, str]]:
            return asyncio.ensure_future(asyncio.to_thread(get, port, f"{path}?pod={pod}"))

        slow = [asked("gang")]
        await asyncio.to_thread(began.wait, 60)
        slow.append(asked("gang"))
        assert (await asked("single"))[1].strip() == '{"of":"single"}'
        may_end.set()
        assert {body.strip() for _, body in await asyncio.gather(*slow)} == {'{"of":"gang"}'}
        assert made == ["single", "gang"]  # the second reader of the gang shares the first one's

    pages = replace(PAGES, live_endpoints={"/explain": explain}, page_feeds={"/page/pod": (explain, 0.5)})
    served(scenario, MANY, pages=pages)


def test_a_reader_who_leaves_while_he_waits_outside_takes_no_turn_with_him() -> None:
    async def waits(outside: Outside) -> tuple[Body, float, int]:
        await outside(asyncio.sleep(60))
        raise AssertionError

    async def makes(_outside: Outside) -> tuple[Body, float, int]:
        await asyncio.sleep(0.01)
        return Body(), 0.0, 1

    async def scenario() -> None:
        documents = SharedDocuments[Body](1.0)
        left = asyncio.ensure_future(documents.current(CLIENT, (("pod", "gang"),), waits))
        await asyncio.sleep(0)
        one = asyncio.ensure_future(documents.current(CLIENT, (("pod", "one"),), makes))
        await asyncio.sleep(0)
        left.cancel()
        other = documents.current(CLIENT, (("pod", "gang"),), makes)
        assert len({id(each) for each in await asyncio.wait_for(asyncio.gather(one, other), 60)}) == 2
        assert not documents._lock.locked()

    asyncio.run(scenario())

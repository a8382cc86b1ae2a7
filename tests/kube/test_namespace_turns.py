"""Commands of namespaces that wait for webhooks, beside those of others."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from policysched.kube.write.namespace_turns import (
    SLOW_FOR_S,
    SLOW_SHARE,
    UNKNOWN_PLACES,
    NamespaceTurns,
    send_in_turn,
)
from tests.kube.world import on_virtual_time, running, until

WORKERS = 8


class Bench:
    """Commands are their namespaces. Those of `hanging` repeat requests of 7 s, those of `late` take 4.9 s, others 10 ms. `begun`
    and `ended` have both."""

    def __init__(self) -> None:
        self.turns: NamespaceTurns[str] = NamespaceTurns(WORKERS)
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.requests = 0
        self.released = asyncio.Event()
        self.is_hanging = False
        self.is_refusing = False

    def put(self, *namespaces: str) -> None:
        for namespace in namespaces:
            self.turns.put(namespace, namespace)

    async def carry_out(self, namespace: str) -> None:
        self.begun.append(namespace)
        if namespace.startswith("hanging") or (self.is_hanging and namespace != "other"):
            while not self.released.is_set():
                await send_in_turn(lambda: self.request(7.0))
        elif namespace.startswith("late"):
            await send_in_turn(lambda: self.request(4.9))
        elif namespace.startswith("changing") and self.begun.count(namespace) % WORKERS not in (1, 2):
            await send_in_turn(lambda: self.request(1.1))
        else:
            await send_in_turn(lambda: self.request(0.01))
            while self.is_refusing:
                await asyncio.sleep(0.3)
                await send_in_turn(lambda: self.request(0.01))
        self.ended.append(namespace)

    async def request(self, takes_s: float) -> None:
        self.requests += 1
        try:
            async with asyncio.timeout(takes_s):
                await self.released.wait()
        except TimeoutError:
            pass
        finally:
            self.requests -= 1

    async def assert_others_find_places(self, during_s: float) -> None:
        loop = asyncio.get_running_loop()
        ends_s, count = loop.time() + during_s, 0
        while loop.time() < ends_s:
            self.put("other")
            count += 1
            await until(lambda count=count: self.ended.count("other") == count, "a place", within_s=0.05)  # type: ignore[misc]
            await asyncio.sleep(0.27)


def scene(body: Callable[[Bench], Awaitable[None]]) -> None:
    async def scenario() -> None:
        bench = Bench()
        async with running(bench.turns.run(bench.carry_out)):
            await body(bench)

    on_virtual_time(scenario)


def test_commands_that_never_end_take_no_place_of_others() -> None:
    async def body(bench: Bench) -> None:
        bench.put(*["hanging"] * 100)
        await asyncio.sleep(10)
        bench.put(*["other"] * 100)
        await until(lambda: len(bench.ended) == 100, "all commands of the other one", within_s=0.3)
        assert len(bench.begun) - 100 == SLOW_SHARE

    scene(body)


def test_a_namespace_that_becomes_slow_leaves_places() -> None:
    async def body(bench: Bench) -> None:
        bench.put(*["prompt until now"] * 100)
        await until(lambda: len(bench.ended) > 50, "its first commands", within_s=0.3)
        bench.is_hanging = True
        await asyncio.sleep(0.1)
        bench.put("other")
        await until(lambda: "other" in bench.ended, "a place that it leaves", within_s=0.1)
        assert len(bench.begun) - len(bench.ended) == WORKERS * 3 // 4

    scene(body)


def test_of_many_namespaces_whose_commands_never_end_few_begin() -> None:
    async def body(bench: Bench) -> None:
        names = [f"hanging {index}" for index in range(12)]
        bench.put(*names * 10)
        await asyncio.sleep(30)
        bench.put("other")
        await until(lambda: "other" in bench.ended, "the other one's command", within_s=0.1)
        assert len(bench.begun) == SLOW_SHARE * len(names) + 1
        assert set(bench.begun) == {*names, "other"}

    scene(body)


@pytest.mark.parametrize("kind", ["hanging", "late"])
def test_others_find_places_beside_any_number_of_slow_namespaces(kind: str) -> None:
    """Also after SLOW_FOR_S, when most commands of those have only waited. A late one never repeats a request."""

    async def body(bench: Bench) -> None:
        bench.put(*[f"{kind} {index}" for index in range(40)] * 100)
        await asyncio.sleep(12)
        await bench.assert_others_find_places(during_s=150)
        assert bench.requests <= WORKERS, "so many connections wait for webhooks"
        assert {*bench.begun} == {*(f"{kind} {index}" for index in range(40)), "other"}

    scene(body)


def test_others_find_places_while_any_number_of_namespaces_begin_to_hang_at_once() -> None:
    async def body(bench: Bench) -> None:
        bench.put("other")
        await until(lambda: bench.ended, "its prompt command")
        for wave in range(3):
            bench.ended.clear()
            bench.put(*[f"hanging {wave} {index}" for index in range(200)] * 10)
            await bench.assert_others_find_places(during_s=9)
            assert bench.requests <= (UNKNOWN_PLACES + 2) * WORKERS, "so many connections wait for webhooks"

    scene(body)


def test_a_new_namespace_finds_a_place_beside_dozens_that_begin_to_hang_at_once() -> None:
    async def body(bench: Bench) -> None:
        bench.put(*[f"hanging {index}" for index in range(30)] * 10)  # before, two of each, eight a second
        await asyncio.sleep(0.1)
        bench.put("other")
        await until(lambda: bench.ended, "its command", within_s=0.05)

    scene(body)


def test_others_wait_for_no_hanging_request_after_an_outage_of_the_server() -> None:
    """All who repeat requests meanwhile are slow afterwards: they waited for two minutes beside forty that hang."""

    async def body(bench: Bench) -> None:
        bench.put("other", *[f"hanging {index}" for index in range(40)] * 4)
        await asyncio.sleep(30)
        bench.is_refusing = True
        bench.put("other")
        await asyncio.sleep(3)
        assert bench.ended == ["other"]
        bench.is_refusing = False
        await until(lambda: len(bench.ended) == 2, "its end", within_s=0.35)
        bench.begun.clear()
        bench.ended.clear()
        await bench.assert_others_find_places(during_s=9)
        assert bench.requests <= (UNKNOWN_PLACES + 2) * WORKERS

    scene(body)


def test_others_find_places_beside_namespaces_that_are_prompt_now_and_then() -> None:
    async def body(bench: Bench) -> None:
        bench.put(*["changing 1", "changing 2"] * 1000)
        await asyncio.sleep(3)
        await bench.assert_others_find_places(during_s=50)
        assert bench.begun.count("changing 1") > 100

    scene(body)


def test_a_command_that_waits_for_slow_ones_of_others_is_not_slow_itself() -> None:
    async def body(bench: Bench) -> None:
        bench.put(*["changing"] * 3)
        await until(lambda: bench.ended.count("changing") == 3, "its slow command")
        bench.put(*[f"hanging {index}" for index in range(40)])
        await asyncio.sleep(SLOW_FOR_S)
        bench.begun.clear()
        bench.put("changing")
        await until(lambda: bench.ended.count("changing") == 4, "its prompt command")
        bench.put("changing")
        await until(lambda: bench.ended.count("changing") == 5, "a place", within_s=0.05)

    scene(body)


def test_a_namespace_that_was_slow_has_few_commands_at_a_time_until_one_is_prompt() -> None:
    async def body(bench: Bench) -> None:
        bench.put("hanging")
        await asyncio.sleep(2)
        bench.released.set()
        await until(lambda: bench.ended, "the slow command")
        bench.released.clear()
        bench.put(*["hanging"] * 10)
        await asyncio.sleep(0.5)
        assert len(bench.begun) == 1 + SLOW_SHARE
        bench.released.set()
        await until(lambda: len(bench.ended) == 11, "the others, once two were prompt", within_s=0.1)

    scene(body)


def test_nothing_is_remembered_of_namespaces_without_commands() -> None:
    async def body(bench: Bench) -> None:
        bench.put("hanging", "other")
        await asyncio.sleep(2)
        bench.released.set()
        await asyncio.sleep(SLOW_FOR_S + 1)
        bench.put("other")
        await until(lambda: not len(bench.turns), "a command that ends later")
        assert not bench.turns._namespaces
        assert len(bench.turns) == bench.turns._known.taken == bench.turns._unknown.taken == 0

    scene(body)

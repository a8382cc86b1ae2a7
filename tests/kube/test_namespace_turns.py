"""Commands of namespaces that wait for webhooks, beside those of others."""

import asyncio
from collections.abc import Awaitable, Callable

from policysched.kube.write.namespace_turns import SLOW_FOR_S, SLOW_MAX, UNKNOWN_SHARE, NamespaceTurns
from tests.kube.world import on_virtual_time, running, until

WORKERS = 8


class Bench:
    """Commands are their namespaces. Those of `hanging` never end, others take 10 ms. `begun` and `ended` have both."""

    def __init__(self) -> None:
        self.turns: NamespaceTurns[str] = NamespaceTurns(WORKERS)
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.released = asyncio.Event()
        self.is_hanging = False

    def put(self, *namespaces: str) -> None:
        for namespace in namespaces:
            self.turns.put(namespace, namespace)

    async def carry_out(self, namespace: str) -> None:
        self.begun.append(namespace)
        if namespace.startswith("hanging") or (self.is_hanging and namespace != "other"):
            await self.released.wait()
        else:
            await asyncio.sleep(0.01)
        self.ended.append(namespace)


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
        assert len(bench.begun) - 100 == UNKNOWN_SHARE

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
        assert len(bench.begun) <= SLOW_MAX + WORKERS
        assert set(bench.begun) == {*names, "other"}

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
        assert len(bench.begun) == 1 + UNKNOWN_SHARE
        bench.released.set()
        await until(lambda: len(bench.ended) == 11, "the others, once two were prompt", within_s=0.1)

    scene(body)


def test_nothing_is_remembered_of_namespaces_without_commands() -> None:
    async def body(bench: Bench) -> None:
        bench.put("hanging", "other")
        await asyncio.sleep(2)
        bench.released.set()
        await asyncio.sleep(SLOW_FOR_S + 1)
        assert not bench.turns._namespaces
        assert len(bench.turns) == bench.turns._prompt == bench.turns._slow == 0

    scene(body)

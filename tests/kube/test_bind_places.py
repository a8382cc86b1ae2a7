"""How long a healthy namespace waits beside any number of others that hang, fail, or are slow."""

import asyncio
from collections.abc import Callable
from unittest.mock import patch

import orjson
import pytest

from policysched.kube.client.transport import ApiRequest, ApiResponse
from policysched.kube.write.bind_places import BindPlaces
from policysched.scheduler.commands import Bind
from policysched.scheduler.events import BindConfirmed
from tests.builders import pod_manifest
from tests.kube.test_bind import DENIED, WEBHOOK_DOWN, Binding, Server, bind, commands, elapsed_until_bound
from tests.kube.world import on_virtual_time, running, until

BOUND = ApiResponse(201, b"{}", {})


def hanging(seconds: float, answer: ApiResponse = WEBHOOK_DOWN) -> Server:
    """All binds take so long, but those of namespaces that are named good."""
    return Server(lambda name: None if name.startswith("good") else answer, hangs_s=seconds)


def one(namespace: str, name: str) -> Bind:
    return bind(pod_manifest(name, namespace=namespace, uid=f"{namespace}-{name}"))


async def longest_wait_s(binding: Binding, namespace: Callable[[int], str], *, times: int) -> float:
    """Of one bind after the other, ten a second."""
    longest_s = 0.0
    for number in range(times):
        command = one(namespace(number), f"w{number}")
        longest_s = max(longest_s, await elapsed_until_bound(binding, [command]))
        await asyncio.sleep(0.1)
    return longest_s


async def new_ones_beside_hanging(count: int) -> float:
    binding = Binding(server := hanging(7.0))
    most = 0
    async with running(binding.binder.run()):
        for number in range(count):
            for command in commands(f"bad{number}", 3):
                binding.binder.put(command)
        longest_s = await longest_wait_s(binding, lambda number: f"good{number}", times=150)
        most = sum(server.active_most[f"bad{number}"] > 0 for number in range(count))
        assert len(server.active) <= 96, "twice the workers"
    assert most == count, "each has its turn"
    return longest_s


@pytest.mark.parametrize("count", [33, 100, 1000])
def test_a_new_namespace_waits_for_less_than_a_second_beside_any_number_that_hang(count: int) -> None:
    """The places of those without an answer were taken for the 7 s of a request, and a thousand had their turns before."""

    async def scenario() -> None:
        assert await new_ones_beside_hanging(count) < 0.6

    on_virtual_time(scenario)


def test_hanging_requests_that_are_never_given_up_are_caught() -> None:
    """The planted bug: what is surplus stays open for all its time."""

    async def scenario() -> None:
        assert await new_ones_beside_hanging(1000) < 0.6

    with patch.object(BindPlaces, "has_surplus", False), pytest.raises(AssertionError):
        on_virtual_time(scenario)


def test_a_new_namespace_finds_a_worker_when_each_has_a_request_that_hangs() -> None:
    """Nobody waited when they began to hang. Then only a worker without a request was woken for a new bind, and there was none."""

    async def scenario() -> None:
        binding = Binding(server := hanging(7.0))
        async with running(binding.binder.run()):
            for number in range(96):
                binding.binder.put(one(f"bad{number}", "web"))
                await asyncio.sleep(0.02)
            await asyncio.sleep(1.0)
            assert len(server.active) == 96
            assert await elapsed_until_bound(binding, [one("good", "web")]) < 0.1

    on_virtual_time(scenario)


def test_fifty_new_namespaces_a_second_that_hang_keep_no_new_one_waiting() -> None:
    async def scenario() -> None:
        binding = Binding(server := hanging(5.0))

        async def attack() -> None:
            for number in range(3_000):
                binding.binder.put(one(f"bad{number}", "web"))
                await asyncio.sleep(0.02)

        async with running(binding.binder.run(), attack()):
            assert await longest_wait_s(binding, lambda number: f"good{number}", times=150) < 0.6
            assert len(server.active) <= 96

    on_virtual_time(scenario)


def test_namespaces_that_take_almost_too_long_leave_places_to_new_ones() -> None:
    """Thirty whose binds take 0.45 s had all workers and the spare ones, two each, as long as they had binds."""

    async def scenario() -> None:
        binding = Binding(hanging(0.45, BOUND))
        async with running(binding.binder.run()):
            for number in range(30):
                for command in commands(f"nearly{number}", 200):
                    binding.binder.put(command)
            await asyncio.sleep(2.0)
            assert await longest_wait_s(binding, lambda number: f"good{number}", times=100) < 0.6

    on_virtual_time(scenario)


def test_the_retry_of_a_healthy_namespace_does_not_wait_for_those_that_hang() -> None:
    """It waited for its turn among all that hang: for half a minute beside fifty of them."""

    async def scenario() -> None:
        failed = set[str]()

        def answer(namespace: str) -> ApiResponse | None:
            server.hangs_s = 7.0 if namespace.startswith("bad") else 0.02
            if namespace.startswith("good") and namespace in failed:
                return None
            failed.add(namespace)
            return WEBHOOK_DOWN

        binding = Binding(server := Server(answer))
        async with running(binding.binder.run()):
            for number in range(100):
                for command in commands(f"bad{number}", 3):
                    binding.binder.put(command)
            assert await longest_wait_s(binding, lambda number: f"good{number}", times=100) < 1.0

    on_virtual_time(scenario)


@pytest.mark.parametrize(("hangs_s", "answer"), [(4.0, BOUND), (5.0, WEBHOOK_DOWN), (0.02, WEBHOOK_DOWN)])
def test_a_new_pod_is_not_behind_hundreds_of_its_namespace_that_are_slow_or_fail(
    hangs_s: float, answer: ApiResponse
) -> None:
    """A webhook concerns some pods of a namespace: after a start, 200 first attempts were before each new one for a minute."""

    async def scenario() -> None:
        class SomePods(Server):
            async def request(self, request: ApiRequest) -> ApiResponse:
                healthy = request.path.split("/")[6].startswith("w")
                return await (well if healthy else ill).request(request)

        well, ill = Server(lambda _: None), Server(lambda _: answer, hangs_s=hangs_s)
        binding = Binding(SomePods(lambda _: None))
        async with running(binding.binder.run()):
            for command in commands("mixed", 200):
                binding.binder.put(command)
            await asyncio.sleep(2.0)
            assert await elapsed_until_bound(binding, [one("mixed", "web")]) < 6.0

    on_virtual_time(scenario)


def test_a_namespace_that_answers_after_a_second_is_bound_beside_new_ones_that_never_do() -> None:
    """The youngest requests were given up, so half of its own: they waited for minutes among those that hang."""

    async def scenario() -> None:
        class Mixed(Server):
            async def request(self, request: ApiRequest) -> ApiResponse:
                return await (slow if "/slow" in request.path else ill).request(request)

        slow, ill = hanging(1.0, BOUND), hanging(5.0)
        binding = Binding(Mixed(lambda _: None))

        async def attack() -> None:
            for number in range(2_000):
                binding.binder.put(one(f"bad{number}", "web"))
                await asyncio.sleep(0.04)

        async with running(binding.binder.run(), attack()):
            await asyncio.sleep(8.0)
            assert await longest_wait_s(binding, lambda number: f"slow{number}", times=30) < 2.0

    on_virtual_time(scenario)


def test_binds_whose_requests_are_given_up_are_sent_again_with_all_their_time() -> None:
    async def scenario() -> None:
        binding = Binding(server := hanging(1.0, BOUND))
        binds = [one(f"slow{number}", "web") for number in range(150)]
        async with running(binding.binder.run()):
            for command in binds:
                binding.binder.put(command)
            await until(lambda: len(binding.outcomes) == 150, "all outcomes")
        assert all(isinstance(outcome, BindConfirmed) for outcome in binding.outcomes.values())
        assert binding.binder.counts.retried > 0, "some are given up"
        assert len(server.paths) == 150 + binding.binder.counts.retried

    on_virtual_time(scenario)


def test_a_refusal_after_a_request_that_was_given_up_is_not_final() -> None:
    """The first request may still be carried out: the pod is read when it cannot."""

    async def scenario() -> None:
        class BoundLater(Server):
            async def request(self, request: ApiRequest) -> ApiResponse:
                if request.method == "GET":
                    namespace, name = request.path.split("/")[4:7:2]
                    pod = pod_manifest(name, namespace=namespace, uid=f"{namespace}-{name}", node="a")
                    return ApiResponse(200, orjson.dumps(pod), {})
                self.hangs_s = 0.02 if request.path in self.paths else 5.0
                return await super().request(request)

        binding = Binding(BoundLater(lambda _: DENIED))
        loop = asyncio.get_running_loop()
        ended_s = dict[str, float]()
        binds = [one(f"bad{number}", "web") for number in range(150)]
        began_s = loop.time()
        async with running(binding.binder.run()):
            for command in binds:
                binding.binder.put(command)
            while len(binding.outcomes) < 150:
                await asyncio.sleep(0.1)
                for uid in binding.outcomes:
                    ended_s.setdefault(uid, loop.time() - began_s)
                assert loop.time() - began_s < 120.0
        confirmed = [uid for uid, outcome in binding.outcomes.items() if isinstance(outcome, BindConfirmed)]
        assert len(confirmed) == binding.binder.counts.retried > 0
        assert min(ended_s[uid] for uid in confirmed) > 12.0

    on_virtual_time(scenario)

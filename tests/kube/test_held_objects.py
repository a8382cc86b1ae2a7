"""A reflector that holds what it reads until it is released, as that of a standby."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

from policysched.kube.client.transport import JSON, ApiRequest, ApiResponse, ApiStream, TransportError
from policysched.kube.watch import large_objects, reflector
from policysched.kube.watch.known_objects import KnownObjects
from policysched.kube.watch.reflector import CHANGED_MAX, Reflector
from policysched.kube.watch.resources import DEVICE_RESOURCES, PODS
from policysched.sandbox.transport import MemoryTransport
from policysched.scheduler.events import PodUpdated
from tests.kube.test_large_objects import Beside, labelled, labels, true_labels
from tests.kube.test_reflector import STORMY, ReflectorHarness, names, truth
from tests.kube.world import World, on_virtual_time, running, until


class SilentWatches(MemoryTransport):
    """From `silent` on, open watches of pods deliver nothing, and do not break. `requests`: those that are not watches."""

    def __init__(self, world: World) -> None:
        super().__init__(world.server)
        self.silent = asyncio.Event()
        self.requests: list[ApiRequest] = []

    def lists(self) -> list[ApiRequest]:
        return [each for each in self.requests if each.accept == JSON and "fieldSelector" not in each.params]

    async def request(self, request: ApiRequest) -> ApiResponse:
        self.requests.append(request)
        await asyncio.sleep(0.02)
        return await super().request(request)

    @asynccontextmanager
    async def stream(self, request: ApiRequest) -> AsyncIterator[ApiStream]:
        goes_silent = request.path == PODS.path and not self.silent.is_set()
        async with super().stream(request) as stream:
            chunks = self._until_silent(stream.chunks) if goes_silent else stream.chunks
            yield ApiStream(stream.status, stream.headers, chunks)

    async def _until_silent(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for chunk in chunks:
            if self.silent.is_set():
                await asyncio.Event().wait()
            yield chunk


def test_nothing_is_emitted_until_the_release_and_then_each_object_once() -> None:
    async def scenario() -> None:
        world = World()
        for name in ("stays", "changes", "goes"):
            world.add_pod(name)
        transport = SilentWatches(world)
        harness = ReflectorHarness(transport, holds=True)
        async with running(harness.reflector.run()):
            await until(lambda: harness.listed, "the list")
            for number in range(5):
                world.local.update("pods", world.pod("changes"), partial(labelled, number))
            world.local.delete("pods", world.pod("goes"), grace_period_s=0)
            world.add_pod("comes")
            await asyncio.sleep(1)
            assert harness.events == []
            assert harness.reflector.objects_known == 3

            harness.reflector.release()

            assert names(harness.events) == ["+changes", "+stays", "+comes"]
            await until(lambda: harness.listed == 2, "the confirmation")
            assert len(harness.events) == 3, "no version is emitted twice"
            assert labels(harness) == true_labels(world)
            assert len(transport.lists()) == 1
            world.add_pod("later")
            await until(lambda: harness.state() == truth(world), "the watch to go on")

    on_virtual_time(scenario)


def test_what_a_silent_watch_has_not_delivered_is_read_before_the_confirmation() -> None:
    silence(CHANGED_MAX // 2)


def test_what_changed_for_many_objects_is_listed() -> None:
    assert silence(CHANGED_MAX + 1) == 2


def silence(changed: int) -> int:
    """Returns how many whole lists were read."""
    lists = 0

    async def scenario() -> None:
        nonlocal lists
        world = World()
        for number in range(2 * CHANGED_MAX):
            world.add_pod(f"p{number}")
        transport = SilentWatches(world)
        harness = ReflectorHarness(transport, holds=True)
        async with running(harness.reflector.run()):
            await until(lambda: harness.listed, "the list")
            transport.silent.set()
            for number in range(changed):
                world.local.update("pods", world.pod(f"p{number}"), partial(labelled, number))
            world.local.delete("pods", world.pod("p150"), grace_period_s=0)
            world.local.delete("pods", world.pod("p151"), grace_period_s=0)
            world.add_pod("p151")
            await asyncio.sleep(1)

            harness.reflector.release()
            await until(lambda: harness.listed == 2, "the confirmation")

            assert harness.state() == truth(world)
            assert labels(harness) == true_labels(world)
            lists = len(transport.lists())

    on_virtual_time(scenario)
    return lists


def test_planted_release_without_a_confirmation_is_detected() -> None:
    def confirmed(self: Any) -> None:
        self._known.release()
        self._on_listed()

    with patch.object(Reflector, "release", confirmed), pytest.raises(AssertionError):
        silence(1)


def test_a_release_before_the_first_list_is_complete_lists_again() -> None:
    async def scenario() -> None:
        world = World()
        for number in range(9):
            world.add_pod(f"p{number}")
        transport = SilentWatches(world)
        harness = ReflectorHarness(transport, holds=True, page_size=3)
        async with running(harness.reflector.run()):
            await until(lambda: harness.reflector.objects_known >= 3, "a page")
            assert not harness.listed
            world.local.delete("pods", world.pod("p0"), grace_period_s=0)

            harness.reflector.release()
            await until(lambda: harness.listed, "the list")

            assert harness.state() == truth(world)
            assert harness.listed == 1

    on_virtual_time(scenario)


class ReleasedMeanwhile(SilentWatches):
    """The reflector is released some steps of the event loop after the answer to the second page."""

    def __init__(self, world: World, steps: int) -> None:
        super().__init__(world)
        self.release: Callable[[], None] = lambda: None
        self._steps = steps
        self.requests_before: list[ApiRequest] = []

    async def request(self, request: ApiRequest) -> ApiResponse:
        answer = await super().request(request)
        if len(self.requests) == 2:
            self._pass(self._steps)
        return answer

    def _pass(self, steps: int) -> None:
        if steps:
            asyncio.get_running_loop().call_soon(self._pass, steps - 1)
        else:
            self.requests_before = list(self.requests)
            self.release()


@pytest.mark.parametrize("steps", range(1, 6))
def test_what_was_requested_before_the_release_confirms_nothing(steps: int) -> None:
    async def scenario() -> None:
        world = World()
        for number in range(9):
            world.add_pod(f"p{number}")
        transport = ReleasedMeanwhile(world, steps)
        harness = ReflectorHarness(transport, holds=True, page_size=5)
        listed_before = 0

        def release() -> None:
            nonlocal listed_before
            listed_before = harness.listed
            harness.reflector.release()

        transport.release = release
        async with running(harness.reflector.run()):
            await until(
                lambda: harness.listed > listed_before and transport.requests_before, "the confirmation"
            )
            assert len(transport.requests) > len(transport.requests_before)
            assert harness.state() == truth(world)

    on_virtual_time(scenario)


class Interrupted(SilentWatches):
    """A request that is cancelled fails instead, as one that times out at the same time may."""

    async def request(self, request: ApiRequest) -> ApiResponse:
        try:
            return await super().request(request)
        except asyncio.CancelledError:
            raise TransportError("timed out") from None


def test_a_release_whose_interruption_is_lost_is_confirmed() -> None:
    async def scenario() -> None:
        world = World()
        world.add_pod("web")
        transport = Interrupted(world)
        harness = ReflectorHarness(transport, holds=True)
        async with running(harness.reflector.run()):
            await until(lambda: transport.requests, "the request of the list")
            harness.reflector.release()
            await until(lambda: harness.listed, "the confirmation")
            assert harness.state() == truth(world)

    on_virtual_time(scenario)


class Unserved(SilentWatches):
    """From `ends` on, the server does not serve claims of devices any more."""

    ends = False

    async def request(self, request: ApiRequest) -> ApiResponse:
        if self.ends:
            return ApiResponse(404, b"{}", {})
        return await super().request(request)


def test_a_kind_that_ended_while_this_process_was_a_standby_delays_no_takeover() -> None:
    async def scenario() -> None:
        transport = Unserved(World())
        (claims, *_) = DEVICE_RESOURCES
        harness = ReflectorHarness(transport, claims, holds=True)
        async with running(harness.reflector.run()):
            await until(lambda: harness.listed, "the list")
            transport.ends = True

            harness.reflector.release()
            await until(lambda: harness.listed == 2, "the confirmation", within_s=60)

            transport.ends = False
            lists = harness.reflector.lists_total
            await asyncio.sleep(60)
            assert (harness.listed, harness.reflector.lists_total) == (2, lists)

    on_virtual_time(scenario)


def test_a_malformed_version_is_held_as_the_one_before() -> None:
    async def scenario() -> None:
        world = World()
        world.add_pod("web", node="a", cpu="2")
        harness = ReflectorHarness(world.transport(), holds=True)

        def spoil(obj: dict[str, Any]) -> dict[str, Any]:
            (container,) = obj["spec"]["containers"]
            spoilt = {**container, "resources": {"requests": {"cpu": "many"}}}
            return {**obj, "spec": {**obj["spec"], "containers": [spoilt]}}

        async with running(harness.reflector.run()):
            await until(lambda: harness.listed, "the list")
            key = ("default", "web")
            stored = world.server.store.get(world.server.kind("pods").stored_as, key)
            assert stored is not None
            world.server.store.put(world.server.kind("pods").stored_as, key, spoil(stored.obj))
            await until(lambda: harness.malformed, "the malformed version")

            harness.reflector.release()

            (event,) = harness.events
            assert isinstance(event, PodUpdated)
            assert event.pod.pod.requests["cpu"] == 2000

    on_virtual_time(scenario)


@pytest.mark.parametrize("seed", range(8))
def test_over_a_faulty_transport_a_released_reflector_converges_to_the_server(seed: int) -> None:
    on_virtual_time(lambda: churn(seed))


@pytest.mark.parametrize("seed", range(8))
def test_large_objects_that_wait_at_the_release_are_counted_by_the_confirmation(seed: int) -> None:
    with (
        patch.object(reflector, "LARGE_LINE_BYTES", 0),
        patch.object(large_objects, "LARGE_LINE_BYTES", 0),
    ):
        on_virtual_time(lambda: churn(seed, run_beside=True))


def test_planted_deletion_that_stays_held_is_detected() -> None:
    def forgetful(self: KnownObjects[Any], key: str, version: int) -> None:
        self._tombstones[key] = version

    with patch.object(KnownObjects, "delete", forgetful), pytest.raises(AssertionError):
        for seed in range(8):
            on_virtual_time(lambda seed=seed: churn(seed))


async def churn(seed: int, *, run_beside: bool = False) -> None:
    """Pods on nodes come, change and go. The release is somewhere in it. What is known once it is confirmed is no older than it."""
    world, dice = World(history_changes_max=30), Random(seed)
    harness = ReflectorHarness(
        world.transport(STORMY, seed),
        PODS,
        run_beside=Beside(lambda: dice.random() * 2) if run_beside else None,
        holds=True,
        page_size=40,
        watch_min_s=1,
        watch_max_s=3,
        page_timeout_s=1,
    )
    released_at = dice.randrange(120)
    async with running(harness.reflector.run()):
        for number in range(120):
            alive = list(world.local.list("pods"))
            match dice.randrange(3) if alive else 0:
                case 0:
                    world.add_pod(f"p{number}", node="a")
                case 1:
                    world.local.delete("pods", dice.choice(alive), grace_period_s=0)
                case _:
                    world.local.update("pods", dice.choice(alive), partial(labelled, number))
            if number == released_at:
                assert harness.events == []
                harness.listed = 0
                harness.reflector.release()
                at_release = true_labels(world)
                await until(lambda: harness.listed, "the confirmation")
                assert labels(harness) == at_release, "the confirmation is complete"
            await asyncio.sleep(dice.random() * 0.2)
        await until(
            lambda: harness.state() == truth(world) and labels(harness) == true_labels(world), "the truth"
        )

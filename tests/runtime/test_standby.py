"""A standby reads the cluster before it leads, writes nothing, and decides on what the server has once it leads."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from policysched.config.settings import Settings, read_settings
from policysched.daemon.process import ExitReason
from policysched.kube.client.transport import ApiRequest, ApiResponse
from policysched.kube.watch import resources
from policysched.runtime.scheduler_app import SchedulerApp
from tests.kube.test_held_objects import SilentWatches
from tests.kube.world import World, on_virtual_time, until
from tests.runtime.test_scheduler_app import (
    PLAIN,
    app_on,
    bound,
    differences,
    elected,
    overcommitted,
    put_policies,
)


async def leader_and_standby(
    world: World, settings: Settings | None = None
) -> tuple[SchedulerApp, SchedulerApp, SilentWatches, list["asyncio.Task[ExitReason]"]]:
    """`one` leads, and `two` has read what it reads. The transport is that of `two`, without its Lease."""
    leader = app_on(world, world.transport(), elected(world, world.transport(), "one"), "one")
    transport = SilentWatches(world)
    standby = app_on(world, transport, elected(world, world.transport(), "two"), "two", settings)
    runs = [asyncio.create_task(leader.run())]
    await until(lambda: leader.synced, "the leader")
    runs.append(asyncio.create_task(standby.run()))
    await until(lambda: standby.leadership.holder == "one", "a look at the Lease")
    await until(lambda: not standby.standby_problem, "the cache of the standby")
    return leader, standby, transport, runs


async def end(*runs: "asyncio.Task[ExitReason]") -> None:
    for run in runs:
        run.cancel()
    await asyncio.gather(*runs, return_exceptions=True)


def counted_decodes(decoded: list[str]) -> Any:
    decode: Callable[..., Any] = resources.decode_pod_update

    def counted(obj: Any, *more: Any, **named: Any) -> Any:
        decoded.append(obj["metadata"]["name"])
        return decode(obj, *more, **named)

    return patch.object(resources, "decode_pod_update", counted)


def test_a_standby_takes_over_without_a_list_and_without_decoding_a_pod_again() -> None:
    decoded: list[str] = []

    async def scenario() -> None:
        world = World()
        put_policies(world, main=PLAIN)
        world.add_node("a", cpu="4")
        for number in range(5):
            world.add_pod(f"p{number}", node="a", cpu="100m")
        waits = world.add_pod("waits", cpu="3600m")
        leader, standby, transport, runs = await leader_and_standby(world)
        await until(lambda: "waits" in decoded, "the pod")
        assert standby.scheduler.cache.pods == {}, "the core begins with nothing"
        before, lists = list(decoded), len(transport.lists())
        decoded.clear()

        leader.request_stop()
        await runs[0]
        await until(lambda: standby.synced, "the takeover")
        assert differences(world, standby) == []
        assert waits["metadata"]["uid"] in standby.scheduler.cache.pods
        world.local.delete("pods", world.pod("p0"), grace_period_s=0)
        await until(lambda: world.node_of("waits") == "a", "a decision")

        assert sorted(set(before)) == ["p0", "p1", "p2", "p3", "p4", "waits"]
        assert not set(decoded) & {"p1", "p2", "p3", "p4"}
        again = [each.path for each in transport.lists()[lists:]]
        assert not any(path.endswith(("/pods", "/nodes", "/services")) for path in again), again
        await end(*runs)

    with counted_decodes(decoded):
        on_virtual_time(scenario)


def test_a_standby_writes_nothing() -> None:
    async def scenario() -> None:
        world = World()
        put_policies(world, main=PLAIN)
        world.add_node("a")
        leader, standby, transport, runs = await leader_and_standby(world)
        for number in range(10):
            world.add_pod(f"p{number}", cpu="10m")
        await until(lambda: bound(world) == 10, "the leader")
        await asyncio.sleep(30)

        assert {request.method for request in transport.requests} == {"GET"}
        assert len(standby.scheduler.decisions) == 0
        assert standby.unavailable_reason is not None
        leader.request_stop()
        standby.request_stop()
        assert await asyncio.gather(*runs) == [ExitReason.STOPPED, ExitReason.STOPPED]

    on_virtual_time(scenario)


def test_with_delay_cache_until_active_a_standby_reads_nothing() -> None:
    async def scenario() -> None:
        world = World()
        put_policies(world, main=PLAIN)
        world.add_node("a")
        settings = replace(
            read_settings(None, {}, {"policies": "kube-system/policies"}), delay_cache_until_active=True
        )
        leader, _, transport, runs = await leader_and_standby(world, settings)
        await asyncio.sleep(30)
        assert transport.requests == []

        leader.request_stop()
        await runs[0]
        world.add_pod("web", cpu="10m")
        await until(lambda: bound(world) == 1, "the takeover")
        await end(*runs)

    on_virtual_time(scenario)


def test_what_the_previous_leader_bound_counts_although_the_watches_of_the_standby_are_silent() -> None:
    took_over_in_silence()


def test_planted_takeover_without_a_confirmation_overfills_a_node() -> None:
    def confirmed(self: Any) -> None:
        self._known.release()
        self._on_listed()

    with (
        patch("policysched.kube.watch.reflector.Reflector.release", confirmed),
        pytest.raises(AssertionError, match="overfull"),
    ):
        took_over_in_silence()


def in_the_zone(node: dict[str, Any]) -> dict[str, Any]:
    meta = node["metadata"]
    return {**node, "metadata": {**meta, "labels": {**meta.get("labels", {}), "zone": "later"}}}


def took_over_in_silence() -> None:
    async def scenario() -> None:
        world = World()
        put_policies(world, main=PLAIN)
        world.add_node("b", cpu="1")
        world.add_pod("gone", cpu="1", node="b")
        world.add_pod("second", cpu="3", node_selector={"zone": "later"})
        _, standby, transport, runs = await leader_and_standby(world)
        transport.silent.set()
        world.local.delete("pods", world.pod("gone"), grace_period_s=0)
        world.add_node("a", cpu="4")
        world.add_pod("first", cpu="3")
        await until(lambda: world.node_of("first") == "a", "a bind of the leader")
        runs[0].cancel()  # as kill -9
        (node,) = (each for each in world.local.list("nodes") if each["metadata"]["name"] == "a")
        world.local.update("nodes", node, in_the_zone)

        await until(lambda: standby.synced, "the takeover")
        await asyncio.sleep(30)

        assert overcommitted(world) == [], "overfull"
        assert bound(world) == 1
        assert differences(world, standby) == []
        await end(*runs)

    on_virtual_time(scenario)


class Unauthorized(SilentWatches):
    """The server stops to serve pods while `refuses`."""

    refuses = False

    async def request(self, request: ApiRequest) -> ApiResponse:
        if self.refuses and request.path == "/api/v1/pods":
            return ApiResponse(500, b"{}", {})
        return await super().request(request)


def test_nothing_is_decided_until_each_kind_is_confirmed() -> None:
    async def scenario() -> None:
        world = World()
        put_policies(world, main=PLAIN)
        world.add_node("a", cpu="4")
        with patch(f"{__name__}.SilentWatches", Unauthorized):
            leader, standby, transport, runs = await leader_and_standby(world)
        assert isinstance(transport, Unauthorized)
        transport.refuses = True
        leader.request_stop()
        await runs[0]
        world.add_pod("web", cpu="1")
        await asyncio.sleep(20)
        assert not standby.synced
        assert world.node_of("web") is None
        transport.refuses = False

        await until(lambda: world.node_of("web") == "a", "the takeover")
        await end(*runs)

    on_virtual_time(scenario)

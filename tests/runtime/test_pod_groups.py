"""PodGroups over the API server in memory: found when they appear, lost when they go, and their status written."""

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from policysched.cluster.cache_differences import find_cache_differences
from policysched.config.settings import read_settings
from policysched.daemon.app import Runtime
from policysched.kube.decode import core_objects
from policysched.kube.decode.pods import decode_pod
from policysched.kube.watch.reflector import Reflector
from policysched.model.pod_groups import GROUP_ANNOTATION, GROUP_LABEL
from policysched.runtime.leadership import NoLeaderElection
from policysched.runtime.scheduler_app import SchedulerApp
from policysched.sandbox.apiserver.kinds import OLDER_POD_GROUP_KINDS, POD_GROUP_KINDS, ResourceKind
from policysched.sandbox.faults import FaultRates
from tests.inline import check_inline
from tests.kube.world import World, on_virtual_time, running, until

POLICY = "policy test version 1\nfilter node_resources_fit\ninclude pod_groups\n"
KUBERNETES, _, SCHEDULER_PLUGINS, VOLCANO = POD_GROUP_KINDS


def app_on(world: World, fault_rates: FaultRates | None = None) -> SchedulerApp:
    data = {"test.policy": POLICY}
    world.local.create("configmaps", "kube-system", {"metadata": {"name": "policies"}, "data": data})
    return SchedulerApp(
        read_settings(None, {}, {"policies": "kube-system/policies"}),
        Runtime(
            transport=world.transport(fault_rates, seed=3),
            check_texts=check_inline,
            now_ns=world.now_ns,
            monotonic_s=world.loop.time,
            random=Random,
            identity="one",
        ),
        NoLeaderElection(),
    )


def create_group(world: World, kind: ResourceKind, name: str = "train", least: int = 2) -> None:
    spec = {"schedulingPolicy": {"gang": {"minCount": least}}, "minMember": least}
    world.server.registry.create(kind, "default", {"metadata": {"name": name}, "spec": spec})


def group(world: World, kind: ResourceKind, name: str = "train") -> dict[str, Any]:
    entry = world.server.store.get(kind.stored_as, ("default", name))
    assert entry is not None, f"no PodGroup {name}"
    return entry.obj


def condition(world: World, kind: ResourceKind) -> tuple[str, str] | None:
    """The type and status of the only condition."""
    conditions = group(world, kind).get("status", {}).get("conditions", [])
    assert len(conditions) <= 1, conditions
    return (conditions[0]["type"], conditions[0]["status"]) if conditions else None


def add_members(world: World, *names: str, **more: Any) -> None:
    for name in names:
        spec = more or {"spec": {"schedulingGroup": {"podGroupName": "train"}}}
        world.add_pod(name, cpu="1", **spec)


def all_bound(world: World, *names: str) -> Callable[[], bool]:
    return lambda: all(world.node_of(name) for name in names)


def scheduled_message(world: World, name: str) -> str:
    conditions = world.pod(name).get("status", {}).get("conditions", [])
    return next((c.get("message", "") for c in conditions if c["type"] == "PodScheduled"), "")


@pytest.mark.parametrize(
    ("kinds", "kind", "expected"),
    [
        (POD_GROUP_KINDS, KUBERNETES, "PodGroupInitiallyScheduled"),
        (OLDER_POD_GROUP_KINDS, OLDER_POD_GROUP_KINDS[0], "PodGroupScheduled"),
    ],
    ids=["v1beta1", "v1alpha2"],
)
def test_a_group_starts_whole_and_its_condition_shows_it(
    kinds: tuple[ResourceKind, ...], kind: ResourceKind, expected: str
) -> None:
    async def scenario() -> None:
        world = World(extra_kinds=kinds)
        world.add_node("a", cpu="1")
        app = app_on(world)
        async with running(app.run()):
            create_group(world, kind)
            add_members(world, "w0", "w1")
            await until(lambda: condition(world, kind) == (expected, "False"), "the reason")
            assert not world.node_of("w0") and not world.node_of("w1")
            world.add_node("b", cpu="1")
            await until(lambda: condition(world, kind) == (expected, "True"), "the gang to be scheduled")
            assert all_bound(world, "w0", "w1")()
            app.request_stop()

    on_virtual_time(scenario)


@pytest.mark.parametrize(
    ("kind", "more", "phase"),
    [
        (SCHEDULER_PLUGINS, {"labels": {GROUP_LABEL: "train"}}, "Scheduling"),
        (VOLCANO, {"annotations": {GROUP_ANNOTATION: "train"}}, "Running"),
    ],
    ids=["scheduler-plugins", "volcano"],
)
def test_a_custom_resource_that_is_installed_later_is_found(
    kind: ResourceKind, more: dict[str, Any], phase: str
) -> None:
    async def scenario() -> None:
        world = World()
        world.add_node("a", cpu="2")
        app = app_on(world)
        async with running(app.run()):
            add_members(world, "w0", "w1", **more)
            await until(lambda: "does not serve them" in scheduled_message(world, "w0"), "the reason")
            world.server.serve((kind,))
            create_group(world, kind)
            await until(all_bound(world, "w0", "w1"), "the gang to be bound")
            await until(lambda: group(world, kind).get("status", {}).get("phase") == phase, "the phase")
            app.request_stop()

    on_virtual_time(scenario)


def test_an_api_server_that_is_upgraded_is_read_in_the_version_that_it_serves() -> None:
    async def scenario() -> None:
        world = World(extra_kinds=OLDER_POD_GROUP_KINDS)
        world.add_node("a", cpu="1")
        app = app_on(world)
        async with running(app.run()):
            create_group(world, KUBERNETES)
            add_members(world, "w0", "w1")
            await until(lambda: condition(world, KUBERNETES) is not None, "the first condition")
            world.server.serve(POD_GROUP_KINDS)
            world.server.cut_watches()
            served = app.scheduler.cache.pod_groups.served
            await until(lambda: served.get("scheduling.k8s.io") == "v1beta1", "the newer version")
            world.add_node("b", cpu="1")
            await until(all_bound(world, "w0", "w1"), "the gang to be bound")
            app.request_stop()

    on_virtual_time(scenario)


def test_pods_wait_while_the_api_is_gone_and_start_when_it_is_back() -> None:
    async def scenario() -> None:
        world = World(extra_kinds=POD_GROUP_KINDS)
        app = app_on(world)
        async with running(app.run()):
            create_group(world, KUBERNETES)
            add_members(world, "w0", "w1")
            await until(lambda: condition(world, KUBERNETES) is not None, "the group to be known")
            world.server.serve(())
            world.server.cut_watches()
            await until(lambda: "does not serve them" in scheduled_message(world, "w0"), "the reason")
            world.add_node("a", cpu="9")
            add_members(world, "w2")
            await until(lambda: "does not serve them" in scheduled_message(world, "w2"), "the reason")
            assert not any(world.node_of(name) for name in ("w0", "w1", "w2"))
            world.server.serve(POD_GROUP_KINDS)
            await until(all_bound(world, "w0", "w1", "w2"), "the gang to be bound")
            app.request_stop()

    on_virtual_time(scenario)


def test_a_missing_answer_in_between_is_not_the_end_of_an_api() -> None:
    async def scenario() -> None:
        world = World(extra_kinds=POD_GROUP_KINDS)
        world.add_node("a", cpu="1")
        app = app_on(world)
        async with running(app.run()):
            create_group(world, KUBERNETES)
            add_members(world, "w0", "w1")
            await until(lambda: condition(world, KUBERNETES) is not None, "the group to be known")
            world.server.serve(())
            world.server.cut_watches()
            await asyncio.sleep(0.3)
            world.server.serve(POD_GROUP_KINDS)
            world.add_node("b", cpu="1")
            await until(all_bound(world, "w0", "w1"), "the gang to be bound")
            notes = [event["message"] for event in world.local.list("events") if "message" in event]
            assert notes and not any("does not serve them" in note for note in notes)
            app.request_stop()

    on_virtual_time(scenario)


@pytest.mark.parametrize("seed", range(3))
def test_on_a_faulty_network_a_group_is_bound_whole_and_the_cache_is_the_servers(seed: int) -> None:
    async def scenario() -> None:
        stormy = FaultRates(
            latency_s=0.01,
            latency_spread_s=0.1,
            lost_before_share=0.1,
            lost_after_share=0.1,
            watch_lifetime_s=3.0,
            truncated_line_share=0.3,
        )
        world = World(extra_kinds=POD_GROUP_KINDS, seed=seed)
        world.add_node("a", cpu="3")
        app = app_on(world, stormy)
        async with running(app.run()):
            for name in ("w0", "w1", "w2"):
                add_members(world, name)
            create_group(world, KUBERNETES, least=3)
            expected = ("PodGroupInitiallyScheduled", "True")
            await until(lambda: condition(world, KUBERNETES) == expected, "the condition", within_s=600)
            pods = [decode_pod(pod) for pod in world.local.list("pods")]
            nodes = [core_objects.decode_node(node) for node in world.local.list("nodes")]

            def differences() -> list[str]:
                return find_cache_differences(app.scheduler.cache, pods=pods, nodes=nodes)

            await until(lambda: not differences(), "the watch to catch up", within_s=600)
            app.request_stop()

    on_virtual_time(scenario)


def test_a_status_is_written_once_for_each_change() -> None:
    async def scenario() -> None:
        world = World(extra_kinds=POD_GROUP_KINDS)
        world.add_node("a", cpu="2")
        app = app_on(world)
        async with running(app.run()):
            create_group(world, KUBERNETES)
            add_members(world, "w0", "w1")
            await until(lambda: condition(world, KUBERNETES) is not None, "the condition")
            version = group(world, KUBERNETES)["metadata"]["resourceVersion"]
            for name in ("w0", "w1"):
                world.local.set_status("pods", world.pod(name), phase="Running")
            deadline_s = world.loop.time() + 60
            await until(lambda: world.loop.time() > deadline_s, "a minute")
            assert group(world, KUBERNETES)["metadata"]["resourceVersion"] == version
            app.request_stop()

    on_virtual_time(scenario)


def test_planted_bug_an_api_that_ends_is_not_noticed_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Reflector._on_not_served

    async def deaf(self: Reflector[Any], error: Any) -> None:
        if self._version:
            await self._back_off(error)
        else:
            await original(self, error)

    monkeypatch.setattr(Reflector, "_on_not_served", deaf)

    with pytest.raises(AssertionError, match="in vain for the reason"):
        test_pods_wait_while_the_api_is_gone_and_start_when_it_is_back()

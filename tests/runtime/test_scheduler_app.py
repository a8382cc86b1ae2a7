"""The composition that `run` runs, on virtual time: from its first lists to a clean stop, with two of it, and in a storm."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from policysched.cluster.cache_differences import find_cache_differences
from policysched.config.settings import Settings, read_settings
from policysched.daemon.app import Runtime
from policysched.daemon.failed_objects import FailedObjects
from policysched.daemon.policy_checker import CheckTexts
from policysched.daemon.process import ExitReason
from policysched.daemon.status_documents import policy_document
from policysched.kube.client.api import ApiClient
from policysched.kube.decode import core_objects
from policysched.kube.decode.pods import decode_pod
from policysched.kube.leader_election import LeaderElector, LeaseSettings
from policysched.model.identifiers import PodUid
from policysched.runtime.leadership import Leadership, NoLeaderElection
from policysched.runtime.scheduler_app import SchedulerApp
from policysched.runtime.self_check import compare_with_server
from policysched.sandbox.apiserver.kinds import ResourceKind
from policysched.sandbox.faults import FaultRates
from policysched.sandbox.transport import MemoryTransport
from policysched.scheduler.commands import Command
from policysched.scheduler.events import Event, NodeUpdated
from policysched.schemas import findings
from tests.builders import node, pod_manifest
from tests.devices import claim_manifest, claiming, class_manifest, gpu, new, slice_manifest
from tests.hostile import HOSTILE_SPECS
from tests.inline import EventLoopLeaderElection, check_inline
from tests.kube.world import Failing, World, on_virtual_time, running, until

PLAIN = "policy test version 1\ninclude kube_default\n"
WHOLE_GANGS = """policy test version 1
input group: string = pod.labels["group"] optional
input least: int = pod.labels["least"] default 1 invalid default
gang by group { min = least }
filter node_resources_fit
preemption { victims = any }
"""
STORMY = FaultRates(
    latency_s=0.01,
    latency_spread_s=0.1,
    lost_before_share=0.1,
    lost_after_share=0.1,
    late_share=0.05,
    duplicate_share=0.05,
    watch_lifetime_s=3.0,
    truncated_line_share=0.5,
    split_share=0.2,
)


def put_policies(world: World, **texts: str) -> None:
    data = {f"{name}.policy": text for name, text in texts.items()}
    world.local.create("configmaps", "kube-system", {"metadata": {"name": "policies"}, "data": data})


def app_on(
    world: World,
    transport: MemoryTransport,
    leadership: Leadership | None = None,
    name: str = "one",
    settings: Settings | None = None,
    check_texts: CheckTexts = check_inline,
    failed_objects: FailedObjects | None = None,
) -> SchedulerApp:
    return SchedulerApp(
        settings or read_settings(None, {}, {"policies": "kube-system/policies"}),
        Runtime(
            transport=transport,
            check_texts=check_texts,
            now_ns=world.now_ns,
            monotonic_s=world.loop.time,
            random=lambda stream: Random(f"{name}/{stream}"),
            identity=name,
        ),
        leadership or NoLeaderElection(),
        failed_objects=failed_objects,
    )


def elected(world: World, transport: MemoryTransport, name: str) -> EventLoopLeaderElection:
    return EventLoopLeaderElection(
        LeaderElector(
            ApiClient(transport),
            LeaseSettings(),
            identity=name,
            monotonic_s=world.loop.time,
            now_ns=world.now_ns,
            random=Random(name),
        )
    )


def differences(world: World, app: SchedulerApp) -> list[str]:
    """What the app's cache has otherwise than the server."""
    return find_cache_differences(
        app.scheduler.cache,
        pods=[decode_pod(pod) for pod in world.local.list("pods")],
        nodes=[core_objects.decode_node(node) for node in world.local.list("nodes")],
    )


def overcommitted(world: World) -> list[str]:
    """Nodes on which more cpu is requested than they have, from the server's objects alone."""
    used: dict[str, int] = {}
    for pod in world.local.list("pods"):
        observed = decode_pod(pod)
        if observed.node is not None and not observed.finished:
            used[observed.node] = used.get(observed.node, 0) + observed.pod.requests.get("cpu", 0)
    room = {
        node["metadata"]["name"]: core_objects.decode_node(node).allocatable["cpu"]
        for node in world.local.list("nodes")
    }
    return [name for name, cpu in used.items() if cpu > room[name]]


def bound(world: World) -> int:
    return sum(1 for pod in world.local.list("pods") if pod["spec"].get("nodeName"))


@pytest.mark.parametrize("reason", [ExitReason.STOPPED, ExitReason.CLOCK_STEPPED])
def test_pending_pods_are_bound_and_a_shutdown_ends_with_all_binds_answered_and_reported(
    reason: ExitReason,
) -> None:
    async def scenario() -> None:
        world = World()
        put_policies(world, main=PLAIN)
        world.add_node("a", pods="40")
        for number in range(50):
            world.add_pod(f"p{number}", cpu="10m")
        app = app_on(world, world.transport(FaultRates(latency_s=0.05)))
        run = asyncio.ensure_future(app.run())
        await until(lambda: app.binder.in_flight > 10, "binds in flight")

        app.request_stop(reason)
        outcome = await run

        assert outcome is reason
        assert app.binder.in_flight == 0
        events = [event for event in world.local.list("events") if event["reason"] == "Scheduled"]
        assert len(events) == bound(world) > 10

    on_virtual_time(scenario)


async def app_without_answers(
    world: World, settings: Settings | None = None
) -> tuple[SchedulerApp, asyncio.Future[ExitReason]]:
    """Elected, about to decide, and from now on no answer reaches it but those about its Lease."""
    transport = world.transport(FaultRates())
    app = app_on(world, transport, elected(world, world.transport(), "one"), settings=settings)
    run = asyncio.ensure_future(app.run())
    await until(lambda: app.scheduler.synced and app.leadership.decides_in_s() < 0.1, "the first decision")
    assert transport._faults is not None
    transport._faults.rates = FaultRates(lost_before_share=1.0)
    return app, run


def test_a_shutdown_releases_the_lease_once_unanswered_binds_cannot_be_carried_out() -> None:
    async def scenario() -> None:
        world = World()
        put_policies(world, main=PLAIN)
        world.add_node("a")
        world.add_pod("web")
        app, run = await app_without_answers(world)
        await until(lambda: app.binder.in_flight, "a bind in flight")
        asked_s = world.loop.time()

        app.request_stop()
        await run

        assert 11.9 <= world.loop.time() - asked_s < 12.1
        (lease,) = world.local.list("leases")
        assert lease["spec"]["holderIdentity"] == ""

    on_virtual_time(scenario)


def test_a_shutdown_that_may_not_take_that_long_keeps_the_lease() -> None:
    async def scenario() -> None:
        world = World()
        put_policies(world, main=PLAIN)
        world.add_node("a")
        world.add_pod("web")
        settings = read_settings(None, {}, {"policies": "kube-system/policies"})
        app, run = await app_without_answers(world, replace(settings, shutdown_timeout_s=5.0))
        await until(lambda: app.binder.in_flight, "a bind in flight")
        asked_s = world.loop.time()

        app.request_stop()
        await run

        assert 5 <= world.loop.time() - asked_s < 5.1
        (lease,) = world.local.list("leases")
        assert lease["spec"]["holderIdentity"] == "one"

    on_virtual_time(scenario)


def test_a_shutdown_keeps_the_lease_while_devices_may_still_be_allocated() -> None:
    """A webhook of the claim's namespace can keep the request under way until the next leader has given them to another claim."""

    async def scenario() -> None:
        world = World()
        put_policies(world, main=PLAIN)
        world.add_node("a")
        world.local.create("deviceclasses", "", new(class_manifest()))
        world.local.create("resourceslices", "", new(slice_manifest("a", gpu("g0"))))
        world.local.create("resourceclaims", "default", new(claim_manifest("c")))
        world.add_pod("web", spec=claiming("c"))
        app, run = await app_without_answers(world)
        await until(lambda: app.prebind_writer.in_flight, "an allocation in flight")

        app.request_stop()
        await asyncio.sleep(11.9)
        (lease,) = world.local.list("leases")
        assert lease["spec"]["holderIdentity"] == "one"
        await run

        assert app.binder.in_flight == 0
        (lease,) = world.local.list("leases")
        assert lease["spec"]["holderIdentity"] == ""

    on_virtual_time(scenario)


def full_of_low_pods(world: World, *, nodes: int) -> None:
    put_policies(world, main=WHOLE_GANGS)
    for number in range(nodes):
        world.add_node(f"n{number}", cpu="4")
        world.add_pod(f"low{number}", cpu="3", node=f"n{number}", scheduler="other")


def add_gang(world: World, count: int) -> None:
    world.local.create("priorityclasses", "", {"metadata": {"name": "high"}, "value": 100})
    for number in range(count):
        manifest = pod_manifest(f"g{number}", cpu="3", labels={"group": "g", "least": str(count)})
        del manifest["metadata"]["uid"], manifest["status"], manifest["spec"]["priority"]
        manifest["spec"]["priorityClassName"] = "high"
        world.local.create("pods", "default", manifest)


def midway(monkeypatch: pytest.MonkeyPatch, app: SchedulerApp, then: Callable[[], object]) -> None:
    """Let the app think in the smallest steps, and something happen in the midst of its first long decision."""
    core, decide = app.scheduler._core, app.scheduler.decide
    core.limits = replace(core.limits, attempt_step_cost_max=1)
    steps = 0

    def watched(now_ns: int) -> list[Command]:
        nonlocal steps
        commands = decide(now_ns)
        steps += app.scheduler.attempt_in_progress
        if steps == 20:
            then()
        return commands

    monkeypatch.setattr(app.scheduler, "decide", watched)


def test_what_arrives_during_a_long_decision_is_applied_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    applied: dict[str, bool] = {}

    async def scenario() -> None:
        world = World()
        full_of_low_pods(world, nodes=60)
        app = app_on(world, world.transport())
        handle = app.scheduler.handle

        def watched(event: Event, now_ns: int) -> list[Command]:
            if event == late:
                applied["in the midst"] = app.scheduler.attempt_in_progress
                applied["after those who go are known"] = bool(app.scheduler.cache.nominated)
            return handle(event, now_ns)

        late = NodeUpdated(node("late"))
        monkeypatch.setattr(app.scheduler, "handle", watched)
        midway(monkeypatch, app, lambda: app._inbox.append(late))
        run = asyncio.ensure_future(app.run())
        await until(lambda: app.scheduler.synced, "the first lists")
        add_gang(world, 50)
        await until(lambda: applied, "the late node")

        app.request_stop()
        await run

    on_virtual_time(scenario)
    assert applied == {"in the midst": False, "after those who go are known": True}


def test_a_stop_during_a_long_decision_leaves_everybody_where_he_was(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        world = World()
        full_of_low_pods(world, nodes=60)
        app = app_on(world, world.transport())
        midway(monkeypatch, app, app.request_stop)
        run = asyncio.ensure_future(app.run())
        await until(lambda: app.scheduler.synced, "the first lists")
        add_gang(world, 50)

        assert await run is ExitReason.STOPPED
        assert not app.scheduler.attempt_in_progress
        assert app.scheduler.check() == []
        assert bound(world) == 60
        assert not any(pod["metadata"].get("deletionTimestamp") for pod in world.local.list("pods"))
        assert not any(pod["status"].get("nominatedNodeName") for pod in world.local.list("pods"))

    on_virtual_time(scenario)


def test_with_no_policy_to_run_it_ends() -> None:
    async def scenario() -> None:
        world = World()
        put_policies(world, main="policy test version 1\nfilter x require y\n")

        assert await app_on(world, world.transport()).run() is ExitReason.NOTHING_TO_RUN

    on_virtual_time(scenario)


def test_a_leader_that_loses_the_lease_exits_and_binds_nothing_more() -> None:
    async def scenario() -> None:
        world = World()
        put_policies(world, main=PLAIN)
        world.add_node("a")
        transport, lease_transport = world.transport(), world.transport()
        app = app_on(world, transport, elected(world, lease_transport, "one"))
        run = asyncio.ensure_future(app.run())
        await until(lambda: app.leadership.may_decide() and app.scheduler.synced, "it to decide")

        lease_transport.refuse_for(60)
        await asyncio.sleep(10.1)
        world.add_pod("late")
        outcome = await run
        await asyncio.sleep(30)

        assert outcome is ExitReason.LOST_LEASE
        assert world.node_of("late") is None

    on_virtual_time(scenario)


def test_a_leader_that_dies_in_mid_burst_is_followed_and_no_pod_is_lost() -> None:
    async def scenario() -> None:
        world = World()
        put_policies(world, main=PLAIN)
        for number in range(4):
            world.add_node(f"n{number}", cpu="10")
        for number in range(60):
            world.add_pod(f"p{number}", cpu="600m")
        transports = [
            world.transport(FaultRates(latency_s=0.05, latency_spread_s=2.0), seed) for seed in range(4)
        ]
        apps = [
            app_on(world, transports[n], elected(world, transports[n + 2], f"app{n}"), f"app{n}")
            for n in range(2)
        ]
        runs = [asyncio.ensure_future(app.run()) for app in apps]
        await until(lambda: any(app.binder.counts.confirmed > 3 for app in apps), "a burst")
        dead = 0 if apps[0].binder.counts.confirmed else 1

        runs[dead].cancel()
        await asyncio.sleep(1)
        (lease,) = world.local.list("leases")
        assert lease["spec"]["holderIdentity"] == f"app{dead}", "as after kill -9, nothing is released"

        await until(lambda: bound(world) == 60, "all pods to be bound", within_s=200)
        await asyncio.sleep(60)
        runs[1 - dead].cancel()
        await asyncio.gather(*runs, return_exceptions=True)

        assert overcommitted(world) == []

    on_virtual_time(scenario)


def test_with_the_check_enabled_a_lost_change_of_the_cache_is_detected() -> None:
    async def scenario() -> None:
        world = World()
        put_policies(world, main=PLAIN)
        world.add_node("a")
        pod = world.add_pod("web")
        app = app_on(world, world.transport())
        async with running(app.run()):
            await until(lambda: world.node_of("web"), "the pod to be bound")
            await asyncio.sleep(1)
            assert await compare_with_server(app.scheduler, world.api(), app.counted_names) == []

            app.scheduler.cache.drop_pod(
                PodUid(pod["metadata"]["uid"])
            )  # the planted bug: a change that got lost
            differences = await compare_with_server(app.scheduler, world.api(), app.counted_names)

        assert any("missing from the cache" in difference for difference in differences)

    on_virtual_time(scenario)


def test_a_pod_that_no_cluster_decides_about_is_kept_without_its_items_and_equals_the_server() -> None:
    async def scenario() -> None:
        world = World()
        put_policies(world, main=PLAIN)
        world.add_node("a")
        pod = world.add_pod("big", spec=HOSTILE_SPECS["tolerations"](2_500))
        app = app_on(world, world.transport())
        async with running(app.run()):
            kept = app.scheduler.cache.pods
            await until(lambda: pod["metadata"]["uid"] in kept, "the pod to be seen")
            await asyncio.sleep(1)
            assert kept[pod["metadata"]["uid"]].pod.tolerations == ()
            assert await compare_with_server(app.scheduler, world.api(), app.counted_names) == []

    on_virtual_time(scenario)


@pytest.mark.parametrize("seed", range(3))
def test_under_faults_no_node_is_overcommitted_and_at_rest_the_cache_equals_the_server(seed: int) -> None:
    async def scenario() -> None:
        world, rng = World(history_changes_max=200), Random(seed)
        put_policies(world, main=PLAIN)
        for number in range(3):
            world.add_node(f"n{number}", cpu="4")
        transport = world.transport(STORMY, seed)
        app = app_on(world, transport)
        async with running(app.run()):
            for number in range(80):
                alive: list[dict[str, Any]] = list(world.local.list("pods"))
                if len(alive) > 15 or (alive and rng.random() < 0.3):
                    world.local.delete("pods", rng.choice(alive), grace_period_s=0)
                else:
                    world.add_pod(f"p{number}", cpu=rng.choice(["500m", "1", "2"]))
                await asyncio.sleep(rng.random())
                assert overcommitted(world) == []
            assert transport._faults is not None
            transport._faults.disable()
            await until(
                lambda: app.scheduler.programs() and not app.binder.in_flight and not differences(world, app),
                "quiet under a policy",
                within_s=400,
            )
            await until(lambda: bound(world), "the first pod to be bound")
            assert app.scheduler.check() == []

    on_virtual_time(scenario)


def test_a_server_that_answers_500_to_half_the_requests_costs_no_pod_and_no_leadership() -> None:
    async def scenario() -> None:
        world = World()
        put_policies(world, main=PLAIN)
        for number in range(3):
            world.add_node(f"n{number}", cpu="40")
        transport, lease_transport = Failing(world, 0.5, 1), Failing(world, 0.5, 2)
        app = app_on(world, transport, elected(world, lease_transport, "one"))
        async with running(app.run()):
            for number in range(60):
                world.add_pod(f"p{number}", cpu="1")
                await asyncio.sleep(5)

            await until(lambda: bound(world) == 60, "all pods to be bound")
            await until(lambda: len(scheduled(world)) == 60, "all to be said")
            assert overcommitted(world) == []
            assert app.leadership.may_decide()
        assert transport.requests.count("POST") > 60 + 60 + 30, "binds and events were repeated"

    on_virtual_time(scenario)


def scheduled(world: World) -> set[str]:
    """The pods that are said to be scheduled."""
    return {
        event["involvedObject"]["uid"]
        for event in world.local.list("events")
        if event["reason"] == "Scheduled"
    }


def test_values_for_parameters_come_from_the_configmap_and_from_the_settings() -> None:
    text = (
        "policy test version 1\ninclude kube_default\nparam most: int = 5 range 0..9\nparam least: int = 1\n"
    )
    text += "filter crowded require node.pods < most and node.pods >= least\n"

    async def scenario() -> None:
        world = World()
        data = {"main.policy": text, "test.params.yaml": "most: 3\nleast: 0\n"}
        world.local.create("configmaps", "kube-system", {"metadata": {"name": "policies"}, "data": data})
        given = {"policies": "kube-system/policies", "params": {"test": {"most": 2}}}
        app = app_on(world, world.transport(), settings=read_settings(None, {}, given))
        run = asyncio.ensure_future(app.run())
        await until(lambda: bool(app.scheduler.programs()), "the policy")

        (page,) = policy_document(app.scheduler, str(app.settings.policies))["policies"]

        assert page["params"] == {"most": "2", "least": "0"}
        app.request_stop()
        await run

    on_virtual_time(scenario)


CARDS = """policy test version 1
include kube_default
record card { health: string  memory: bytes = "freeMemory" unit "MiB" }
input cards: list<card> = node.objects["scv"] at "status.cardList" default [] invalid reject "odd cards"
filter card require any(cards where card.health == "Healthy" and card.memory >= 4Gi) says "no card"
"""
SCVS = ResourceKind(
    "scvs", "Scv", group="core.run-linux.com", namespaced=False, has_status=True, subresources=("status",)
)


def scv(name: str, memory_mib: int) -> dict[str, Any]:
    card = {"health": "Healthy", "freeMemory": memory_mib}
    return {"metadata": {"name": name}, "status": {"cardList": [card]}}


def with_cards() -> Settings:
    kind = {"group": "core.run-linux.com", "version": "v1", "resource": "scvs"}
    return read_settings(None, {}, {"policies": "kube-system/policies", "node_objects": {"scv": kind}})


def test_a_custom_resource_of_a_node_decides_and_its_change_requeues_waiting_pods() -> None:
    async def scenario() -> None:
        world = World(extra_kinds=(SCVS,))
        put_policies(world, main=CARDS)
        for name in ("small", "grows"):
            world.add_node(name)
            world.local.create("scvs", "", scv(name, 1024))
        world.add_pod("web", cpu="10m")
        app = app_on(world, world.transport(), settings=with_cards())
        run = asyncio.ensure_future(app.run())
        nodes = app.scheduler.cache.nodes
        await until(lambda: len(nodes) == 2 and all(node.objects for node in nodes.values()), "the cards")
        await until(lambda: len(app.scheduler.decisions) > 0, "an attempt")
        assert bound(world) == 0

        world.local.set_status("scvs", scv("grows", 1024), **scv("grows", 8192)["status"])
        await until(lambda: bound(world) == 1, "the pod on its card")

        (web,) = world.local.list("pods")
        assert web["spec"]["nodeName"] == "grows"
        app.request_stop()
        await run

    on_virtual_time(scenario)


def test_a_kind_that_the_server_does_not_serve_keeps_nothing_else_from_running() -> None:
    async def scenario() -> None:
        world = World()
        put_policies(world, main=PLAIN)
        world.add_node("a")
        world.add_pod("web", cpu="10m")
        app = app_on(world, world.transport(), settings=with_cards())
        run = asyncio.ensure_future(app.run())

        await until(lambda: bound(world) == 1, "the pod")

        app.request_stop()
        await run

    on_virtual_time(scenario)


def test_the_pages_of_a_standby_name_the_leader() -> None:
    async def scenario() -> None:
        world = World()
        put_policies(world, main=PLAIN)
        leader = app_on(world, world.transport(), elected(world, world.transport(), "one"), "one")
        second = app_on(world, world.transport(), elected(world, world.transport(), "two"), "two")
        runs = [asyncio.ensure_future(leader.run())]
        await until(lambda: bool(leader.scheduler.programs()), "the policy")
        runs.append(asyncio.ensure_future(second.run()))
        await until(lambda: second.leadership.holder == "one", "a look at the Lease")

        page = policy_document(
            second.scheduler, str(second.settings.policies), note=second.unavailable_reason
        )

        assert (
            page["note"]
            == "this replica does not lead and has no policies, pods or decisions; the leader is one"
        )
        assert findings("policy", page) == []
        assert leader.unavailable_reason is None
        for app in (second, leader):
            app.request_stop()
        await asyncio.gather(*runs)

    on_virtual_time(scenario)

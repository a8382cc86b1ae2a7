"""Scenarios that seeds have found or cover too rarely: small worlds in which they happen every time."""

import asyncio
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from policysched.daemon.last_good_store import LastGoodStore
from policysched.daemon.process import ExitReason
from policysched.runtime.leadership import NoLeaderElection
from policysched.runtime.scheduler_app import SchedulerApp
from policysched.sandbox.faults import NO_FAULTS, FaultInjector
from policysched.scheduler.kubelet_rejections import KubeletRejections
from tests.simulation.policy_texts import ALPHA
from tests.simulation.replica import Replica
from tests.simulation.scenario import BETA, GAMMA, DelayedBindTransport, Scenario, play, play_unchanged
from tests.simulation.scenarios_leaders import (
    a_late_bind_competes_with_an_urgent_pod,
    a_late_bind_competes_with_an_urgent_pod_after_a_stop,
    a_policy_breaks_and_the_leader_is_killed,
)

# ── a leader is killed while its bind is in flight ────────────────────────────────────────────────────────────────────────


def test_a_new_leader_decides_only_after_the_binds_of_the_former_one() -> None:
    world = play_unchanged(a_late_bind_competes_with_an_urgent_pod)

    assert world.nodes_by_pod() == {"slow": "a", "rival": None}
    assert world.problems == []


def test_a_new_leader_decides_only_after_the_binds_of_one_that_was_stopped() -> None:
    world = play_unchanged(a_late_bind_competes_with_an_urgent_pod_after_a_stop)

    assert world.nodes_by_pod() == {"slow": "a", "rival": None}
    assert world.problems == []


# ── a pod of the same name ─────────────────────────────────────────────────────────────────────────────────────────────


async def _a_pod_is_recreated_during_its_bind(world: Scenario) -> None:
    world.policies(beta=BETA)
    world.node("a", cpu="4")
    world.start("leader")
    assert world.transport is not None
    world.transport.late.add("web")
    world.pod("web", cpu="1")
    await world.until(lambda: world.decided("web"), "the first decision")

    pod = world.local.get("pods", "default", "web")
    assert pod is not None
    world.local.delete("pods", pod, grace_period_s=0)
    world.pod("web", cpu="1", gates=["example.com/wait"])
    pod = world.local.get("pods", "default", "web")
    assert pod is not None
    await asyncio.sleep(3.0)
    world.local.update("pods", pod, lambda pod: {**pod, "spec": {**pod["spec"], "schedulingGates": []}})
    world.local.set_status("nodes", next(iter(world.local.list("nodes"))), allocatable={"cpu": "0"})
    await asyncio.sleep(20.0)


def test_a_bind_of_a_deleted_pod_does_not_place_a_new_pod_of_the_same_name() -> None:
    world = play(_a_pod_is_recreated_during_its_bind)

    assert world.nodes_by_pod() == {"web": None}
    assert world.problems == []


# ── a partially bound gang ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_gang_that_a_killed_leader_placed_partially_is_completed_by_the_next() -> None:
    async def script(world: Scenario) -> None:
        world.policies(gamma=GAMMA)
        for name in ("a", "b"):
            world.node(name, cpu="1")
        leader = world.start("leader")
        assert world.transport is not None
        world.transport.lost.add("two")
        for name in ("one", "two"):
            world.pod(name, cpu="1", scheduler="gamma", labels={"group": "pair", "least": "2"})
        await world.until(lambda: world.nodes_by_pod()["one"], "the first member")

        leader.kill()
        world.transport.lost.clear()
        await asyncio.sleep(40.0)

    world = play(script)

    assert sorted(world.nodes_by_pod().values(), key=str) == ["a", "b"]
    assert world.problems == []


# ── a kubelet runs pods that the API server does not show ─────────────────────────────────────────────────────────────────


async def _a_job_beside_a_hidden_pod(world: Scenario) -> None:
    """Each failed pod is replaced at once, as by a ReplicaSet, for five minutes."""
    world.policies(beta=BETA)
    world.node("a", cpu="4")
    world.kubelet.start_static_pod("a", _hidden("3500m"), mirror_after_s=200.0)
    world.start("leader")
    await world.until(lambda: world.replicas[0].leads, "the leader")
    for number in range(3000):
        world.pod(f"job-{number}", cpu="1")
        await asyncio.sleep(0.1)
        await world.until(
            lambda at=number: _failed(world, at) or world.loop.time() > 300, "its end", within_s=300
        )  # type: ignore[misc]
        if world.loop.time() > 300:
            return


def _hidden(cpu: str) -> dict[str, Any]:
    container = {"name": "c", "image": "app:1", "resources": {"requests": {"cpu": cpu}}}
    metadata = {"name": "hidden", "namespace": "kube-system"}
    return {"metadata": metadata, "spec": {"schedulerName": "somebody-else", "containers": [container]}}


def _failed(world: Scenario, number: int) -> bool:
    pod = world.local.get("pods", "default", f"job-{number}")
    return pod is not None and pod["status"].get("reason") == "OutOfcpu"


def rejection_count(world: Scenario) -> int:
    return sum(pod["status"].get("reason") == "OutOfcpu" for pod in world.local.list("pods"))


def test_a_node_with_a_hidden_pod_gets_few_pods_until_the_pod_is_visible() -> None:
    world = play(_a_job_beside_a_hidden_pod)

    # Capacity is held for 10 s, 20 s and then at most 40 s; after 200 s the pod is visible.
    assert 3 <= rejection_count(world) <= 7
    assert world.trace_count("hidden") >= 1
    assert world.problems == []


def test_without_capacity_holds_every_new_pod_goes_to_the_full_node() -> None:
    with patch.object(KubeletRejections, "_pods_of", lambda *_: ()):
        world = play(_a_job_beside_a_hidden_pod)

    assert rejection_count(world) > 100


def test_after_a_kubelet_rejection_pods_go_to_nodes_with_room() -> None:
    async def script(world: Scenario) -> None:
        world.policies(beta=BETA)
        world.node("a", cpu="4")
        world.kubelet.start_static_pod("a", _hidden("3500m"), mirror_after_s=1000.0)
        world.start("leader")
        world.pod("job-0", cpu="1")
        await world.until(lambda: _failed(world, 0), "the rejection")
        world.node("b", cpu="2")
        for number in (1, 2):
            world.pod(f"job-{number}", cpu="1")
        await world.until(lambda: world.nodes_by_pod()["job-2"], "the others to be bound")

    world = play(script)

    assert world.nodes_by_pod() == {"job-0": "a", "job-1": "b", "job-2": "b"}
    assert world.problems == []


def test_pods_that_no_kubelet_accepts_do_not_close_the_cluster() -> None:
    """Bare pods of one tenant for Windows, each as large as a node; then a critical pod and a plain one elsewhere."""

    async def script(world: Scenario) -> None:
        world.policies(beta=BETA)
        for name in ("a", "b", "c", "d"):
            world.node(name, cpu="8")
        world.start("leader")
        for number in range(4):
            world.pod(f"windows-{number}", cpu="7900m", os="windows")
        await world.until(
            lambda: (
                sum(pod["status"].get("reason") == "PodOSNotSupported" for pod in world.local.list("pods"))
                == 4
            ),
            "the rejections",
        )
        world.pod("critical", cpu="7900m", urgent=True)
        world.pod("plain", cpu="7900m")
        await world.until(
            lambda: world.nodes_by_pod()["critical"] and world.nodes_by_pod()["plain"],
            "the binds",
            within_s=5.0,
        )

    world = play(script)

    assert world.problems == []


# ── a broken policy across a restart ───────────────────────────────────────────────────────────────────────────────────


def test_after_a_restart_with_a_broken_policy_the_last_known_good_text_is_active() -> None:
    world = play_unchanged(a_policy_breaks_and_the_leader_is_killed)

    assert world.nodes_by_pod() == {"before": "a", "after": "a"}
    assert world.trace_count("NOTHING_TO_RUN") == 0
    assert world.problems == []


def test_without_a_saved_text_a_restart_with_a_broken_policy_finds_nothing_to_run() -> None:
    with patch.object(LastGoodStore, "save_policies", lambda *_: None):
        world = play(a_policy_breaks_and_the_leader_is_killed)

    assert world.nodes_by_pod()["after"] is None
    assert world.trace_count("NOTHING_TO_RUN") > 0


# ── a Lease lost during a bind ──────────────────────────────────────────────────────────────────────────────────────


class _Lapsed(NoLeaderElection):
    """Its Lease has expired and it does not know yet: no request may be sent."""

    def __init__(self) -> None:
        self.released_with_nothing_in_flight: bool | None = None
        self.lapsed = False

    def leads(self) -> bool:
        return not self.lapsed

    async def stop(self, *, nothing_in_flight: bool) -> None:
        self.released_with_nothing_in_flight = nothing_in_flight


def test_a_leader_that_lost_its_lease_does_not_release_it_with_binds_in_flight() -> None:
    leadership = _Lapsed()
    outcomes: list[ExitReason] = []

    async def script(world: Scenario) -> None:
        world.policies(beta=BETA)
        world.node("a", cpu="4")
        replica = Replica("leader", world, FaultInjector(NO_FAULTS, world.random_stream("leader")))
        replica._transport = transport = DelayedBindTransport(replica._transport)
        replica._process_transport._inner = transport
        usual = replica._app("leader-1")
        app = SchedulerApp(usual.settings, usual.runtime, leadership)
        transport.lost.add("web")
        world.pod("web", cpu="1")
        running = asyncio.create_task(app.run())
        await world.until(lambda: app.binder.in_flight, "the first bind")

        leadership.lapsed = True
        outcomes.append(await running)

    play(script)

    assert outcomes == [ExitReason.LOST_LEASE]
    assert leadership.released_with_nothing_in_flight is False


# ── rest while samples keep arriving ─────────────────────────────────────────────────────────────────────────────────────


def test_a_cluster_is_at_rest_although_samples_keep_waking_pods_of_an_overdrawn_namespace() -> None:
    backing_off = set[int]()

    async def script(world: Scenario) -> None:
        world.profile = replace(world.profile, decisions_cost=True)
        world.policies(alpha=ALPHA)
        for name in ("a", "b", "c"):
            world.node(name, cpu="1")
        leader = world.start("leader")
        for number in range(6):
            world.pod(f"large-{number}", cpu=f"{2 + number}", scheduler="alpha")
            await asyncio.sleep(1.7)
        world.restore_metrics()
        await asyncio.sleep(40.0)
        for _ in range(10):
            await world.check_at_rest(3.0)
            assert leader.app is not None
            backing_off.add(leader.app.scheduler.pending_counts()["backoff"])

    world = play(script)

    assert world.problems == []
    assert max(backing_off) > 0

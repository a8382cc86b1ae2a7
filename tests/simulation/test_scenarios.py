"""What seeds have found, or were looking for, told as stories: small worlds in which it happens every time."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from policysched.app.leading import Alone
from policysched.app.policy_feed import LastGood
from policysched.app.scheduler_app import Outcome, SchedulerApp
from policysched.kube.lease import Elector
from policysched.kube.transport import ApiRequest, ApiResponse, ApiStream, TransportError
from policysched.schedule.rejections import Rejections
from policysched.sim.faults import CALM, Faults
from policysched.sim.loop import run_virtual
from policysched.sim.transport import MemoryTransport
from policysched.sim.weather import Weather
from tests.simulation.replica import POLICIES, Replica
from tests.simulation.world import World, compiled
from tests.words import node_manifest, pod_manifest

BETA = """\
policy beta version 1
filter node_unschedulable
filter node_resources_fit
score node_resources_fit weight 1
"""
GAMMA = """\
policy gamma version 1
input group: string = pod.labels["group"] optional
input least: int = pod.labels["least"] default 1 invalid reject "least must be a number"
gang by group {
  min = least
}
filter node_resources_fit
"""


def still() -> Weather:
    """Nothing happens but what the story tells."""
    return Weather(
        roads=CALM,
        storm_s=0.0,
        deeds={},
        deed_every_s=1.0,
        nodes=0,
        pods=0,
        pods_max=0,
        replicas=1,
        second_from_s=0.0,
        second_until_s=0.0,
        lease_duration_s=5.0,
        history_changes_max=10_000,
        foreign_every_s=None,
        deleted_in_flight_share=0.0,
        killed_in_flight_share=0.0,
        metric_answer_s=2.0,
        metric_outage_share=0.0,
        extender_answer_s=0.1,
        extender_outage_share=0.0,
        lease_roads_calm=True,
        cramped=False,
    )


class Held:
    """A road on which the first bind of each pod named in `late` arrives when whoever sent it has given up, and each
    of a pod named in `lost` never."""

    def __init__(self, inner: MemoryTransport) -> None:
        self._inner = inner
        self.refuse_for = inner.refuse_for
        self.late: set[str] = set()
        self.lost: set[str] = set()

    async def request(self, request: ApiRequest) -> ApiResponse:
        pod = request.path.split("/")[-2] if request.path.endswith("/binding") else ""
        if pod in self.late | self.lost:
            await asyncio.sleep(request.timeout_s)
            if pod in self.late:
                self.late.remove(pod)
                await self._inner.request(request)
            raise TransportError("no answer")
        return await self._inner.request(request)

    def stream(self, request: ApiRequest) -> AbstractAsyncContextManager[ApiStream]:
        return self._inner.stream(request)


class Story(World):
    """A world in which only what the test says happens."""

    def __init__(self) -> None:
        super().__init__(0, still())
        self._kubelet = asyncio.create_task(self.kubelet.run())
        self._lives: list[asyncio.Task[None]] = []
        self.road: Held | None = None

    def policies(self, **texts: str) -> None:
        data = {f"{name}.policy": text for name, text in texts.items()}
        programs = (one.program for one in compiled(data).checked.values())
        self._good_hashes |= {program.sha256 for program in programs if program is not None}
        found = self.local.get("configmaps", POLICIES.namespace, POLICIES.name)
        if found is None:
            body = {"metadata": {"name": POLICIES.name}, "data": data}
            self.local.create("configmaps", POLICIES.namespace, body)
        else:
            self.local.change("configmaps", found, lambda one: {**one, "data": data})

    def node(self, name: str, **more: Any) -> None:
        manifest = node_manifest(name, **more)
        del manifest["metadata"]["uid"]
        self.local.create("nodes", "", manifest)

    def pod(self, name: str, **more: Any) -> None:
        urgent = {"spec": {"priorityClassName": "system-node-critical"}} if more.pop("urgent", False) else {}
        manifest = pod_manifest(name, **{"scheduler": "beta", **urgent, **more})
        del manifest["metadata"]["uid"], manifest["status"], manifest["spec"]["priority"]
        self.local.create("pods", "default", manifest)

    def start(self, name: str) -> Replica:
        replica = Replica(name, self, Faults(CALM, self.dice(name)))
        replica._transport = self.road = Held(replica._transport)  # type: ignore[assignment]
        self.replicas.append(replica)
        self._lives.append(asyncio.create_task(replica.run()))
        return replica

    def where(self) -> dict[str, str | None]:
        return {pod["metadata"]["name"]: pod["spec"].get("nodeName") for pod in self.local.list("pods")}

    async def until(self, look: Callable[[], object], what: str, *, within_s: float = 60.0) -> None:
        ends_s = self.loop.time() + within_s
        while not look():
            assert self.loop.time() < ends_s, f"waited {within_s:g} s in vain for {what}\n" + "\n".join(
                self.trace[-30:]
            )
            await asyncio.sleep(0.02)

    def decided(self, pod: str) -> bool:
        return any(f"decides default/{pod} to" in line for line in self.trace)

    def happened(self, words: str) -> int:
        return sum(words in line for line in self.trace)

    async def end(self) -> None:
        await self._end([*self._lives, self._kubelet])


def told(story: Callable[[Story], Any]) -> Story:
    """Tell it on virtual time; the world afterwards."""
    worlds: list[Story] = []

    async def main() -> None:
        world = Story()
        worlds.append(world)
        try:
            await story(world)
        finally:
            await world.end()

    run_virtual(main())
    return worlds[0]


# ── a leader dies while its bind is on the road ────────────────────────────────────────────────────────────────────────


async def _a_late_bind_and_a_rival(world: Story) -> None:
    world.policies(beta=BETA + "preemption never\n")  # the rival is urgent
    world.node("a", cpu="1")
    leader = world.start("leader")
    assert world.road is not None
    world.road.late.add("slow")
    world.pod("slow", cpu="1")
    await world.until(lambda: world.decided("slow"), "the first decision")
    await asyncio.sleep(0.05)

    leader.kill()
    world.pod("rival", cpu="1", urgent=True)
    await asyncio.sleep(40.0)


def test_a_new_leader_decides_only_after_what_the_dead_one_sent_has_landed() -> None:
    world = told(_a_late_bind_and_a_rival)

    assert world.where() == {"slow": "a", "rival": None}
    assert world.wrong == []


def test_a_new_leader_that_does_not_wait_for_the_dead_ones_binds_is_found_out() -> None:
    acquired = Elector._acquired

    def at_once(self: Elector, sent_s: float, *, settle_s: float) -> None:
        acquired(self, sent_s, settle_s=0.0)

    with patch.object(Elector, "_acquired", at_once):
        world = told(_a_late_bind_and_a_rival)

    assert any("a holds 2000 of cpu" in words for words in world.wrong)


# ── a pod by the same name ─────────────────────────────────────────────────────────────────────────────────────────────


async def _made_anew_in_flight(world: Story) -> None:
    world.policies(beta=BETA)
    world.node("a", cpu="4")
    world.start("leader")
    assert world.road is not None
    world.road.late.add("web")
    world.pod("web", cpu="1")
    await world.until(lambda: world.decided("web"), "the first decision")

    pod = world.local.get("pods", "default", "web")
    assert pod is not None
    world.local.delete("pods", pod, grace_period_s=0)
    world.pod("web", cpu="1", gates=["example.com/wait"])
    pod = world.local.get("pods", "default", "web")
    assert pod is not None
    await asyncio.sleep(3.0)
    world.local.change("pods", pod, lambda one: {**one, "spec": {**one["spec"], "schedulingGates": []}})
    world.local.set_status("nodes", next(iter(world.local.list("nodes"))), allocatable={"cpu": "0"})
    await asyncio.sleep(20.0)


def test_a_bind_of_a_pod_that_is_gone_does_not_place_another_one_of_its_name() -> None:
    world = told(_made_anew_in_flight)

    assert world.where() == {"web": None}
    assert world.wrong == []


# ── half a gang ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_gang_that_a_dead_leader_placed_in_part_is_completed_by_the_next() -> None:
    async def story(world: Story) -> None:
        world.policies(gamma=GAMMA)
        for name in ("a", "b"):
            world.node(name, cpu="1")
        leader = world.start("leader")
        assert world.road is not None
        world.road.lost.add("two")
        for name in ("one", "two"):
            world.pod(name, cpu="1", scheduler="gamma", labels={"group": "pair", "least": "2"})
        await world.until(lambda: world.where()["one"], "the first member")

        leader.kill()
        world.road.lost.clear()
        await asyncio.sleep(40.0)

    world = told(story)

    assert sorted(world.where().values(), key=str) == ["a", "b"]
    assert world.wrong == []


# ── a kubelet that runs more than the API server shows ─────────────────────────────────────────────────────────────────


async def _a_job_beside_what_nobody_sees(world: Story) -> None:
    """What fails is made anew at once, as a ReplicaSet does it, for five minutes."""
    world.policies(beta=BETA)
    world.node("a", cpu="4")
    world.kubelet.start_static("a", _hidden("3500m"), mirror_after_s=200.0)
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


def _failed(world: Story, number: int) -> bool:
    pod = world.local.get("pods", "default", f"job-{number}")
    return pod is not None and pod["status"].get("reason") == "OutOfcpu"


def rejections(world: Story) -> int:
    return sum(one["status"].get("reason") == "OutOfcpu" for one in world.local.list("pods"))


def test_a_node_that_is_fuller_than_it_looks_gets_a_pod_now_and_then_until_it_is_seen_why() -> None:
    world = told(_a_job_beside_what_nobody_sees)

    # Held back for 10 s, 20 s and then 40 s at most, and after 200 s the pod is shown.
    assert 3 <= rejections(world) <= 7
    assert world.happened("hidden") >= 1
    assert world.wrong == []


def test_without_the_correction_pods_are_thrown_at_the_full_node_as_fast_as_they_are_made() -> None:
    with patch.object(Rejections, "_held", lambda *_: {}):
        world = told(_a_job_beside_what_nobody_sees)

    assert rejections(world) > 100


def test_after_one_rejection_pods_go_where_there_is_room() -> None:
    async def story(world: Story) -> None:
        world.policies(beta=BETA)
        world.node("a", cpu="4")
        world.kubelet.start_static("a", _hidden("3500m"), mirror_after_s=1000.0)
        world.start("leader")
        world.pod("job-0", cpu="1")
        await world.until(lambda: _failed(world, 0), "the rejection")
        world.node("b", cpu="2")
        for number in (1, 2):
            world.pod(f"job-{number}", cpu="1")
        await world.until(lambda: world.where()["job-2"], "the others to be bound")

    world = told(story)

    assert world.where() == {"job-0": "a", "job-1": "b", "job-2": "b"}
    assert world.wrong == []


# ── a broken policy across a restart ───────────────────────────────────────────────────────────────────────────────────


async def _broken_and_restarted(world: Story) -> None:
    world.policies(beta=BETA)
    world.node("a", cpu="4")
    leader = world.start("leader")
    world.pod("before", cpu="1")
    await world.until(lambda: world.where()["before"], "the first bind")
    await asyncio.sleep(2.0)

    world.policies(beta=BETA.replace("filter node_resources_fit", "filter node_resources_fitt"))
    await asyncio.sleep(2.0)
    leader.kill()
    world.pod("after", cpu="1")
    await asyncio.sleep(40.0)


def test_after_a_restart_with_a_broken_policy_the_last_known_good_one_decides() -> None:
    world = told(_broken_and_restarted)

    assert world.where() == {"before": "a", "after": "a"}
    assert world.happened("NOTHING_TO_RUN") == 0
    assert world.wrong == []


def test_a_last_known_good_text_that_is_not_kept_is_missed_after_the_restart() -> None:
    with patch.object(LastGood, "keep", lambda *_: None):
        world = told(_broken_and_restarted)

    assert world.where()["after"] is None
    assert world.happened("NOTHING_TO_RUN") > 0


# ── a leadership lost in mid-bind ──────────────────────────────────────────────────────────────────────────────────────


class _Lapsed(Alone):
    """Its Lease has run out, and it does not know yet: nothing may be sent."""

    def __init__(self) -> None:
        self.said_nothing_in_flight: bool | None = None
        self.lapsed = False

    def leads(self) -> bool:
        return not self.lapsed

    async def stop(self, *, nothing_in_flight: bool) -> None:
        self.said_nothing_in_flight = nothing_in_flight


def test_who_lost_the_lease_never_says_that_nothing_is_in_flight() -> None:
    leadership = _Lapsed()
    outcomes: list[Outcome] = []

    async def story(world: Story) -> None:
        world.policies(beta=BETA)
        world.node("a", cpu="4")
        replica = Replica("leader", world, Faults(CALM, world.dice("leader")))
        replica._transport = road = Held(replica._transport)  # type: ignore[assignment]
        replica._road._inner = road
        usual = replica._app("leader-1")
        app = SchedulerApp(usual.settings, replace(usual.runtime, leadership=leadership))
        road.lost.add("web")
        world.pod("web", cpu="1")
        running = asyncio.create_task(app.run())
        await world.until(lambda: app.binder.in_flight, "the first bind")

        leadership.lapsed = True
        outcomes.append(await running)

    told(story)

    assert outcomes == [Outcome.LOST_LEASE]
    assert leadership.said_nothing_in_flight is False

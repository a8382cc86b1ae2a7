"""Small worlds in which only what a story tells happens, played by the simulation's own machinery: one replica or several, roads without
faults, no dice."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

from policysched.kube.client.transport import ApiRequest, ApiResponse, ApiStream, TransportError
from policysched.sandbox.faults import NO_FAULTS, FaultInjector
from policysched.sandbox.transport import MemoryTransport
from policysched.scheduler.scheduler import Scheduler
from tests.builders import node_manifest, pod_manifest
from tests.simulation.fault_profile import FaultProfile
from tests.simulation.replica import POLICIES, Replica
from tests.simulation.virtual_time import run_virtual
from tests.simulation.world import World, compiled

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


def still() -> FaultProfile:
    """Nothing happens but what the story tells."""
    return FaultProfile(
        network_faults=NO_FAULTS,
        fault_phase_s=0.0,
        action_weights={},
        action_interval_s=1.0,
        nodes=0,
        pods=0,
        pods_max=0,
        replicas=1,
        second_replica_from_s=0.0,
        second_replica_until_s=0.0,
        lease_duration_s=5.0,
        history_changes_max=10_000,
        foreign_bind_interval_s=None,
        deleted_in_flight_share=0.0,
        killed_in_flight_share=0.0,
        metric_latency_s=2.0,
        metric_outage_share=0.0,
        extender_latency_s=0.1,
        extender_outage_share=0.0,
        lease_connection_reliable=True,
        small_nodes=False,
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
        programs = (one.program for one in compiled(data).sources.values())
        self._good_hashes |= {program.sha256 for program in programs if program is not None}
        found = self.local.get("configmaps", POLICIES.namespace, POLICIES.name)
        if found is None:
            body = {"metadata": {"name": POLICIES.name}, "data": data}
            self.local.create("configmaps", POLICIES.namespace, body)
        else:
            self.local.update("configmaps", found, lambda one: {**one, "data": data})

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
        replica = Replica(name, self, FaultInjector(NO_FAULTS, self.dice(name)))
        replica._transport = self.road = Held(replica._transport)  # type: ignore[assignment]
        self.replicas.append(replica)
        self._lives.append(asyncio.create_task(replica.run()))
        return replica

    def metrics_go_out(self) -> None:
        """For who starts from now on, until they are back."""
        self.weather = replace(self.weather, metric_outage_share=1.0)

    def metrics_are_back(self) -> None:
        self._calm.append(True)

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

    async def look(self, after_s: float = 30.0) -> None:
        """What is not as it must be at rest, once so much time has passed, is said."""
        await asyncio.sleep(after_s)
        for words in self._not_at_rest():
            self.fail(f"at rest: {words}")

    def _states_at_rest(self, scheduler: Scheduler) -> list[str]:
        found = self.local.get("configmaps", POLICIES.namespace, POLICIES.name)
        assert found is not None, "a story without policies"
        return super()._states_at_rest(scheduler) if "epsilon.policy" in found["data"] else []

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

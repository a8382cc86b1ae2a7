"""Scripted scenarios on the simulation's own machinery: one or several replicas, a network without
faults, and no random actions.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import orjson

from policysched.kube.client.transport import (
    ApiRequest,
    ApiResponse,
    ApiStream,
    Transport,
    TransportError,
)
from policysched.sandbox.faults import NO_FAULTS, FaultInjector
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


def quiet_profile() -> FaultProfile:
    """No faults and no random actions."""
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


class DelayedBindTransport:
    """A transport on which the first bind of each pod in `late` arrives after its timeout, and
    binds of pods in `lost` never arrive. Those of pods in `refused` are answered with 403, and deletes of those in `kept`.
    """

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.late: set[str] = set()
        self.lost: set[str] = set()
        self.refused: set[str] = set()
        self.kept: set[str] = set()

    async def request(self, request: ApiRequest) -> ApiResponse:
        pod = request.path.split("/")[-2] if request.path.endswith("/binding") else ""
        is_kept = request.method == "DELETE" and request.path.split("/")[-1] in self.kept
        if pod in self.refused or is_kept:
            message = {"kind": "Status", "reason": "Forbidden", "message": "denied by a webhook"}
            return ApiResponse(403, orjson.dumps(message))
        if pod in self.late | self.lost:
            await asyncio.sleep(request.timeout_s)
            if pod in self.late:
                self.late.remove(pod)
                await self._inner.request(request)
            raise TransportError("no answer")
        return await self._inner.request(request)

    def stream(self, request: ApiRequest) -> AbstractAsyncContextManager[ApiStream]:
        return self._inner.stream(request)


class Scenario(World):
    """A world controlled by a script."""

    def __init__(self) -> None:
        super().__init__(0, quiet_profile())
        self._kubelet = asyncio.create_task(self.kubelet.run())
        self._replica_tasks: list[asyncio.Task[None]] = []
        self.transport: DelayedBindTransport | None = None

    def policies(self, **texts: str) -> None:
        data = {f"{name}.policy": text for name, text in texts.items()}
        sources = compiled(data).sources.values()
        programs = [source.program for source in sources if source.program is not None]
        self._good_hashes |= {program.sha256 for program in programs}
        self.safety_checker.reclaiming_schedulers = [program.name for program in programs if program.quotas]
        config_map = self.local.get("configmaps", POLICIES.namespace, POLICIES.name)
        if config_map is None:
            body = {"metadata": {"name": POLICIES.name}, "data": data}
            self.local.create("configmaps", POLICIES.namespace, body)
        else:
            self.local.update("configmaps", config_map, lambda config_map: {**config_map, "data": data})

    def node(self, name: str, **more: Any) -> None:
        manifest = node_manifest(name, **more)
        del manifest["metadata"]["uid"]
        self.local.create("nodes", "", manifest)

    def pod(self, name: str, **more: Any) -> None:
        urgent = {"spec": {"priorityClassName": "system-node-critical"}} if more.pop("urgent", False) else {}
        system = more.pop("os", None)
        manifest = pod_manifest(name, **{"scheduler": "beta", **urgent, **more})
        if system is not None:
            manifest["spec"]["os"] = {"name": system}
        del manifest["metadata"]["uid"], manifest["status"], manifest["spec"]["priority"]
        self.local.create("pods", manifest["metadata"]["namespace"], manifest)

    def start(self, name: str) -> Replica:
        replica = Replica(name, self, FaultInjector(NO_FAULTS, self.random_stream(name)))
        replica._transport = self.transport = DelayedBindTransport(replica._transport)
        self.replicas.append(replica)
        self._replica_tasks.append(asyncio.create_task(replica.run()))
        return replica

    def fail_metrics(self) -> None:
        """Remove all samples, for replicas started from now on, until `restore_metrics`."""
        self.profile = replace(self.profile, metric_outage_share=1.0)

    def restore_metrics(self) -> None:
        self._recovering.append(True)

    def nodes_by_pod(self) -> dict[str, str | None]:
        return {pod["metadata"]["name"]: pod["spec"].get("nodeName") for pod in self.local.list("pods")}

    async def until(self, condition: Callable[[], object], what: str, *, within_s: float = 60.0) -> None:
        ends_s = self.loop.time() + within_s
        while not condition():
            assert self.loop.time() < ends_s, f"no {what} within {within_s:g} s\n" + "\n".join(
                self.trace[-30:]
            )
            await asyncio.sleep(0.02)

    def decided(self, pod: str) -> bool:
        return any(f"decides default/{pod} to" in line for line in self.trace)

    def trace_count(self, text: str) -> int:
        """The number of lines of the trace that contain the text."""
        return sum(text in line for line in self.trace)

    async def check_at_rest(self, after_s: float = 30.0) -> None:
        """Wait, then report every violated liveness invariant."""
        await asyncio.sleep(after_s)
        for words in self._rest_problems():
            self.fail(f"at rest: {words}")

    def _state_problems(self, scheduler: Scheduler) -> list[str]:
        config_map = self.local.get("configmaps", POLICIES.namespace, POLICIES.name)
        assert config_map is not None, "a scenario without policies"
        return super()._state_problems(scheduler) if "epsilon.policy" in config_map["data"] else []

    async def end(self) -> None:
        await self._end([*self._replica_tasks, self._kubelet])


Script = Callable[[Scenario], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class ScenarioBug:
    """A bug planted in a scenario: for each of the `messages`, patterns, some checker reports it.

    Without the bug no checker reports anything. `component` is where the bug is planted; a bug of
    the sandbox is planted where no bug of policysched can violate the invariant.
    """

    plant: Callable[[], AbstractContextManager[Any]]
    script: Script
    messages: tuple[str, ...]
    component: str = "policysched"


@cache
def play_unchanged(script: Script) -> Scenario:
    """The scenario without a bug; several tests read the same run."""
    return play(script)


def play(script: Script) -> Scenario:
    """Run a scenario on virtual time. Returns it after its end."""
    worlds: list[Scenario] = []

    async def main() -> None:
        world = Scenario()
        worlds.append(world)
        try:
            await script(world)
        finally:
            await world.end()

    run_virtual(main())
    return worlds[0]

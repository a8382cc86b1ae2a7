"""Safety of the API server's objects: at each change of a pod, and after the last fault.

Shares no code with policysched: it counts thousandths of a core from the server's own watch.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass

import aiohttp
import orjson

from tests.controlplane.api import Json
from tests.e2e.chaos.fair_clock import FairClock
from tests.e2e.chaos.workload import Admin, Plan


@dataclass(frozen=True)
class PodState:
    """A pod as stored in the server."""

    name: str
    node: str
    cpu_milli: int
    gang: str


class Broken(Exception):
    """A check failed; the message says which."""


class SafetyChecker:
    """`follow` runs concurrently and raises `Broken` at the change that violates a property."""

    def __init__(self, admin: Admin, planned: Plan, *, binds_may_be_refused: bool = False) -> None:
        self._admin = admin
        self._planned = planned
        self._binds_may_be_refused = binds_may_be_refused
        self._pods: dict[str, PodState] = {}
        self._bound_to: dict[str, str] = {}

    async def follow(self) -> None:
        """Check each change until cancelled."""
        version = (await self._admin.pods())["metadata"]["resourceVersion"]
        path = f"{self._admin.namespace}/pods?watch=1&resourceVersion={version}&timeoutSeconds=3600"
        async with self._admin.session.get(f"{self._admin.url}{path}") as answer:
            answer.raise_for_status()
            rest = b""
            async for chunk in answer.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    self._check(orjson.loads(line))
        raise aiohttp.ClientError("the checker's own watch ended")

    def _check(self, change: Json) -> None:
        uid = change["object"]["metadata"]["uid"]
        if change["type"] == "DELETED":
            self._pods.pop(uid, None)
            return
        now = self._pods[uid] = pod_state(change["object"])
        if not now.node:
            return
        if self._bound_to.setdefault(uid, now.node) != now.node:
            raise Broken(f"{now.name} was on {self._bound_to[uid]} and is on {now.node}")
        if now.node not in self._planned.nodes:
            raise Broken(f"{now.name} is on {now.node}, which its nodeSelector forbids")
        if self._free(list(self._pods.values()))[now.node] < 0:
            node_pods = {pod.name: pod.cpu_milli for pod in self._pods.values() if pod.node == now.node}
            raise Broken(f"{now.node} has {self._planned.nodes[now.node]}m and holds {node_pods}")

    def _free(self, pods: list[PodState]) -> dict[str, int]:
        used: Counter[str] = Counter()
        for pod in pods:
            used[pod.node] += pod.cpu_milli
        return {node: cpu_milli - used[node] for node, cpu_milli in self._planned.nodes.items()}

    async def settled(self, within_s: float, clock: FairClock) -> None:
        """Wait until a fresh list shows nothing left to do. Raises `Broken` with the rest when time is up."""
        ends_s, left = clock.now_s + within_s, ["nothing was looked at"]
        while left:
            if clock.now_s > ends_s:
                raise Broken(f"{within_s:g} s after the last fault: {'; '.join(left)}")
            await asyncio.sleep(0.25)
            left = self.unfinished([pod_state(pod) for pod in (await self._admin.pods())["items"]])

    def unfinished(self, pods: list[PodState]) -> list[str]:
        """A sentence for each pod or gang that waits although it fits, and for each partly bound gang. After a refused
        bind the policy keeps the bound members (`on_bind_failure`), and other pods may have taken what the rest needs.
        """
        free = self._free(pods)
        problems = [
            f"{pod.name} ({pod.cpu_milli}m) waits, though there is {free}"
            for pod in pods
            if not pod.gang and not pod.node and max(free.values()) >= pod.cpu_milli
        ]
        for gang, size, cpu_milli, _ in self._planned.gangs:
            bound = sum(1 for pod in pods if pod.gang == gang and pod.node)
            fits = sum(left // cpu_milli for left in free.values() if left > 0) >= size - bound
            if 0 < bound < size and (fits or not self._binds_may_be_refused):
                problems.append(f"{bound} of the {size} of {gang} are bound")
            if bound == 0 and fits:
                problems.append(f"{gang} ({size} times {cpu_milli}m) waits, though there is {free}")
        return problems


def pod_state(pod: Json) -> PodState:
    requests = pod["spec"]["containers"][0]["resources"]["requests"]["cpu"]
    cpu_milli = int(requests.removesuffix("m")) if requests.endswith("m") else 1000 * int(requests)
    meta = pod["metadata"]
    return PodState(
        meta["name"], pod["spec"].get("nodeName", ""), cpu_milli, meta.get("labels", {}).get("podGroup", "")
    )

"""What a seed's namespace and pool of nodes hold: more pods than fit, gangs among them, some deleted on the way."""

import asyncio
from dataclasses import dataclass
from random import Random

import aiohttp
import orjson

from tests.controlplane.api import Json
from tests.controlplane.objects import pod, ready_node

FIRST = "first"
POLICY = """policy {name} version 1

input pod_group: string = pod.labels["podGroup"] optional
input members: int = pod.labels["members"] default 1 invalid reject "members must be a whole number"

gang by pod_group {{
  min = max(1, members)
  timeout = 10m
  on_timeout = requeue
}}

include kube_default
"""


@dataclass(frozen=True)
class Plan:
    """Everything that a seed will do, in thousandths of a core and in seconds from the start. `plain` and `gangs` have
    (name, cpu, when) and (name, members, cpu, when); a gang's members come one after the other. `deleted` are plain ones by
    how long after their creation."""

    nodes: dict[str, int]
    plain: list[tuple[str, int, float]]
    gangs: list[tuple[str, int, int, float]]
    deleted: dict[str, float]
    faults_s: float


def plan(seed: int) -> Plan:
    dice = Random(f"workload {seed}")
    faults_s = dice.uniform(2.0, 4.0)
    nodes = {f"s{seed}-{letter}": dice.choice((1000, 2000)) for letter in "abc"}
    plain = [
        (f"plain-{number:02}", dice.choice((100, 200, 300, 500)), dice.uniform(0, faults_s))
        for number in range(24)
    ]
    gangs = [
        (f"gang-{number}", dice.choice((2, 3, 4)), dice.choice((400, 700, 900)), dice.uniform(0, faults_s))
        for number in range(3)
    ]
    deleted = {name: dice.uniform(0.1, 1.5) for name, _, _ in plain if dice.random() < 0.3}
    return Plan(nodes, plain, gangs, deleted, faults_s)


class Admin:
    """The cluster's admin, on a good road."""

    def __init__(self, session: aiohttp.ClientSession, url: str, seed: int) -> None:
        self.session = session
        self.url = url
        self.name = f"s{seed}"
        self.namespace = f"/api/v1/namespaces/{self.name}"

    async def furnish(self, planned: Plan) -> None:
        """Namespace, policy, nodes, and a pod by which to tell that policysched is at work."""
        await self.send("POST", "/api/v1/namespaces", {"metadata": {"name": self.name}})
        await self.send("POST", f"{self.namespace}/serviceaccounts", {"metadata": {"name": "default"}})
        policies = {"metadata": {"name": "policies"}, "data": {"main.policy": POLICY.format(name=self.name)}}
        await self.send("POST", f"{self.namespace}/configmaps", policies)
        for name, cpu_milli in planned.nodes.items():
            made = ready_node(name, cpu=f"{cpu_milli}m", labels={"pool": self.name})
            await self.send("POST", "/api/v1/nodes", made)
            await self.send("PATCH", f"/api/v1/nodes/{name}", {"spec": {"taints": []}})
        await self._create(FIRST, 100, 0.0, {})

    async def at_work(self) -> bool:
        """Whether somebody has bound the first pod."""
        return "nodeName" in (await self.send("GET", f"{self.namespace}/pods/{FIRST}"))["spec"]

    async def work(self, planned: Plan) -> None:
        """Create and delete in time; returns when all of that is done."""
        deeds = [self._live(name, cpu, at_s, planned.deleted.get(name)) for name, cpu, at_s in planned.plain]
        for gang, members, cpu, at_s in planned.gangs:
            labels = {"podGroup": gang, "members": str(members)}
            deeds += [self._create(f"{gang}-{i}", cpu, at_s + 0.05 * i, labels) for i in range(members)]
        await asyncio.gather(*deeds)

    async def _live(self, name: str, cpu_milli: int, at_s: float, deleted_after_s: float | None) -> None:
        await self._create(name, cpu_milli, at_s, {})
        if deleted_after_s is not None:
            await asyncio.sleep(deleted_after_s)
            await self.send("DELETE", f"{self.namespace}/pods/{name}", {"gracePeriodSeconds": 0})

    async def _create(self, name: str, cpu_milli: int, at_s: float, labels: dict[str, str]) -> None:
        await asyncio.sleep(at_s)
        made = pod(
            name, cpu=f"{cpu_milli}m", memory="1Mi", schedulerName=self.name, nodeSelector={"pool": self.name}
        )
        made["metadata"]["labels"] = labels
        await self.send("POST", f"{self.namespace}/pods", made)

    async def pods(self) -> Json:
        """The whole list: its items and its version."""
        return await self.send("GET", f"{self.namespace}/pods")

    async def clear_away(self, planned: Plan) -> None:
        for one in (await self.pods())["items"]:
            path = f"{self.namespace}/pods/{one['metadata']['name']}"
            await self.send("DELETE", path, {"gracePeriodSeconds": 0})
        for name in planned.nodes:
            await self.send("DELETE", f"/api/v1/nodes/{name}")

    async def send(self, method: str, path: str, body: Json | None = None) -> Json:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        async with self.session.request(
            method,
            f"{self.url}{path}",
            data=orjson.dumps(body) if body is not None else None,
            headers={"Content-Type": kind},
        ) as answer:
            text = await answer.read()
            assert answer.status < 300, f"{method} {path}: {answer.status} {text[:300]!r}"
            found: Json = orjson.loads(text)
            return found

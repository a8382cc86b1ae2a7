"""The workload of a seed: more pods than fit, some in gangs, some deleted while it runs."""

import asyncio
from dataclasses import dataclass
from itertools import count
from random import Random

import aiohttp
import orjson

from tests.controlplane.api import Json
from tests.controlplane.objects import pod as pod_manifest
from tests.controlplane.objects import ready_node
from tests.e2e.chaos.fault_profile import profile_of

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

DISCONNECTED = 0
REPEATED = (429, 500, 503, 504, DISCONNECTED)
REPEATS_MAX = 10


@dataclass(frozen=True)
class Plan:
    """All actions of a seed, in thousandths of a core and seconds from the start. `plain`: (name, cpu,
    time); `gangs`: (name, members, cpu, time), members are created one after the other. `deleted`:
    delay after the creation of a plain pod. One plain pod is among those of which every write fails, if the seed has
    such.
    """

    nodes: dict[str, int]
    plain: list[tuple[str, int, float]]
    gangs: list[tuple[str, int, int, float]]
    deleted: dict[str, float]
    faults_s: float


def plan(seed: int) -> Plan:
    rng = Random(f"workload {seed}")
    faults_s = rng.uniform(2.0, 4.0)
    nodes = {f"s{seed}-{letter}": rng.choice((1000, 2000)) for letter in "abc"}
    plain = [
        (f"plain-{number:02}", rng.choice((100, 200, 300, 500)), rng.uniform(0, faults_s))
        for number in range(24)
    ]
    gangs = [
        (f"gang-{number}", rng.choice((2, 3, 4)), rng.choice((400, 700, 900)), rng.uniform(0, faults_s))
        for number in range(3)
    ]
    deleted = {name: rng.uniform(0.1, 1.5) for name, _, _ in plain if rng.random() < 0.3}
    profile = profile_of(seed)
    if profile.failing_pods_share:
        names = (f"failing-{number}" for number in count())
        failing = next(name for name in names if profile.fails(f"/api/v1/namespaces/s{seed}/pods/{name}"))
        plain.append((failing, 100, 0.0))
    return Plan(nodes, plain, gangs, deleted, faults_s)


class Admin:
    """The cluster's admin, connected without faults."""

    def __init__(self, session: aiohttp.ClientSession, url: str, seed: int) -> None:
        self.session = session
        self.url = url
        self.name = f"s{seed}"
        self.namespace = f"/api/v1/namespaces/{self.name}"

    async def set_up(self, planned: Plan) -> None:
        """Create the namespace, the policy, the nodes, and a first pod that shows that policysched works."""
        await self.send("POST", "/api/v1/namespaces", {"metadata": {"name": self.name}})
        await self.send("POST", f"{self.namespace}/serviceaccounts", {"metadata": {"name": "default"}})
        policies = {"metadata": {"name": "policies"}, "data": {"main.policy": POLICY.format(name=self.name)}}
        await self.send("POST", f"{self.namespace}/configmaps", policies)
        for name, cpu_milli in planned.nodes.items():
            node = ready_node(name, cpu=f"{cpu_milli}m", labels={"pool": self.name})
            await self.send("POST", "/api/v1/nodes", node)
            await self.send("PATCH", f"/api/v1/nodes/{name}", {"spec": {"taints": []}})
        await self._create(FIRST, 100, 0.0, {})

    async def is_running(self) -> bool:
        """Whether the first pod is bound."""
        return "nodeName" in (await self.send("GET", f"{self.namespace}/pods/{FIRST}"))["spec"]

    async def work(self, planned: Plan) -> None:
        """Create and delete pods at their times; returns when all of it is done."""
        actions = [
            self._live(name, cpu, at_s, planned.deleted.get(name)) for name, cpu, at_s in planned.plain
        ]
        for gang, members, cpu, at_s in planned.gangs:
            labels = {"podGroup": gang, "members": str(members)}
            actions += [self._create(f"{gang}-{i}", cpu, at_s + 0.05 * i, labels) for i in range(members)]
        await asyncio.gather(*actions)

    async def create_small_pod(self, name: str) -> None:
        """It requests no CPU, so that it fits on a full node."""
        await self._create(name, 0, 0.0, {})

    async def _live(self, name: str, cpu_milli: int, at_s: float, deleted_after_s: float | None) -> None:
        await self._create(name, cpu_milli, at_s, {})
        if deleted_after_s is not None:
            await asyncio.sleep(deleted_after_s)
            await self.send("DELETE", f"{self.namespace}/pods/{name}", {"gracePeriodSeconds": 0})

    async def _create(self, name: str, cpu_milli: int, at_s: float, labels: dict[str, str]) -> None:
        await asyncio.sleep(at_s)
        manifest = pod_manifest(
            name, cpu=f"{cpu_milli}m", memory="1Mi", schedulerName=self.name, nodeSelector={"pool": self.name}
        )
        manifest["metadata"]["labels"] = labels
        await self.send("POST", f"{self.namespace}/pods", manifest)

    async def make_room(self) -> None:
        """Delete half of the plain pods that are bound."""
        pods = [
            pod["metadata"]["name"] for pod in (await self.pods())["items"] if pod["spec"].get("nodeName")
        ]
        for name in sorted(name for name in pods if name.startswith("plain-"))[::2]:
            await self.send("DELETE", f"{self.namespace}/pods/{name}", {"gracePeriodSeconds": 0})

    async def pods(self) -> Json:
        """The pod list, with its resource version."""
        return await self.send("GET", f"{self.namespace}/pods")

    async def clean_up(self, planned: Plan) -> None:
        for pod in (await self.pods())["items"]:
            path = f"{self.namespace}/pods/{pod['metadata']['name']}"
            await self.send("DELETE", path, {"gracePeriodSeconds": 0})
        for name in planned.nodes:
            await self.send("DELETE", f"/api/v1/nodes/{name}")

    async def send(self, method: str, path: str, body: Json | None = None) -> Json:
        """Repeated while the server answers that it could not: a machine that stood still for a minute times out requests
        of the server to etcd, which may have been carried out."""
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        for attempt in count():
            try:
                async with self.session.request(
                    method,
                    f"{self.url}{path}",
                    data=orjson.dumps(body) if body is not None else None,
                    headers={"Content-Type": kind},
                ) as answer:
                    text, status = await answer.read(), answer.status
            except aiohttp.ClientConnectionError:
                text, status = b"", DISCONNECTED
            if is_done(method, status, is_repeated=attempt > 0):
                body_read: Json = orjson.loads(text)
                return body_read
            assert status in REPEATED and attempt < REPEATS_MAX, f"{method} {path}: {status} {text[:300]!r}"
            await asyncio.sleep(1.0)
        raise AssertionError("`count` does not end")


def is_done(method: str, status: int, *, is_repeated: bool) -> bool:
    """Whether the answer says that the request is carried out: by it, or by one before it whose answer was an error."""
    return 200 <= status < 300 or (is_repeated and (method, status) in (("POST", 409), ("DELETE", 404)))

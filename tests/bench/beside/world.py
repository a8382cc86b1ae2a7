"""Nodes and pending pods by the thousand, created and deleted over one connection pool."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

import aiohttp
import orjson

from tests.bench.beside.workloads import GANG_SIZES, HOSTILE_PODS, PLACED_BEFORE, WORKLOADS, label
from tests.controlplane.api import Json
from tests.controlplane.certificates import KeyPair
from tests.controlplane.objects import pod, ready_node

AT_ONCE = 32
ZONES = 3
POD_GROUPS_VERSION = "scheduling.k8s.io/v1beta1"
PODS = "/api/v1/namespaces/default/pods"


class World:
    """As the cluster's admin."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session = session
        self.url = url
        self._rounds = 0

    async def add_nodes(self, count: int) -> None:
        """Create nodes with 32 cores, 64 GiB and 110 pods each, in three zones."""

        async def add(number: int) -> None:
            name = f"node-{number:05}"
            zone = {"topology.kubernetes.io/zone": f"zone-{number % ZONES}"}
            made = ready_node(name, cpu="32", memory="64Gi", labels=zone)
            await self._send("POST", "/api/v1/nodes", made)
            # Admission taints each new node as not ready, and no node controller removes the taint
            # here.
            await self._send("PATCH", f"/api/v1/nodes/{name}", {"spec": {"taints": []}})

        await _each(range(count), add)

    async def add_pods(self, count: int, *, scheduler: str, workload: str) -> None:
        """Create pods with 100m and 64 MiB each, and the fields of the workload."""
        besides = WORKLOADS[workload]
        groups = await self._add_pod_groups(count, workload)
        for number in range(HOSTILE_PODS if workload in PLACED_BEFORE else 0):
            spec = PLACED_BEFORE[workload]()
            hostile = pod(f"hostile-{number}", nodeName=f"node-{number:05}", **spec)
            await self._send("POST", PODS, hostile)

        async def add(number: int) -> None:
            made = pod(f"bench-{number:05}", schedulerName=scheduler, **besides(number))
            made["metadata"]["labels"] = {"group": label(number)}
            if groups:
                made["spec"]["schedulingGroup"] = {"podGroupName": groups[number // GANG_SIZES[workload]]}
            await self._send("POST", PODS, made)

        await _each(range(count), add)

    async def _add_pod_groups(self, count: int, workload: str) -> list[str]:
        """Create a PodGroup for each `GANG_SIZES` pods, under new names in each round; the last one may be smaller."""
        size = GANG_SIZES.get(workload)
        if size is None:
            return []
        self._rounds += 1
        path = f"/apis/{POD_GROUPS_VERSION}/namespaces/default/podgroups"
        sizes = [min(size, count - start) for start in range(0, count, size)]
        names = [f"gang-{self._rounds}-{number}" for number in range(len(sizes))]
        for name, least in zip(names, sizes, strict=True):
            spec = {"schedulingPolicy": {"gang": {"minCount": least}}}
            group = {
                "apiVersion": POD_GROUPS_VERSION,
                "kind": "PodGroup",
                "metadata": {"name": name},
                "spec": spec,
            }
            await self._send("POST", path, group)
        return names

    async def delete_pods(self) -> None:
        names = [item["metadata"]["name"] for item in (await self.get(PODS))["items"]]

        async def delete(name: str) -> None:
            await self._send("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0})

        await _each(names, delete)

    async def get(self, path: str) -> Json:
        async with self.session.get(f"{self.url}{path}") as answer:
            answer.raise_for_status()
            answered: Json = orjson.loads(await answer.read())
            return answered

    async def version(self) -> str:
        """The current resource version, to start a watch from."""
        listed = await self.get(f"{PODS}?limit=1")
        version: str = listed["metadata"]["resourceVersion"]
        return version

    async def _send(self, method: str, path: str, body: Json) -> None:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        async with self.session.request(
            method, f"{self.url}{path}", data=orjson.dumps(body), headers={"Content-Type": kind}
        ) as answer:
            text = await answer.read()
            assert answer.status < 300, f"{method} {path}: {answer.status} {text[:300]!r}"


class Reachable(Protocol):
    """A control plane, or what another process needs to reach it."""

    @property
    def url(self) -> str: ...

    @property
    def authority_path(self) -> Path: ...

    @property
    def admin(self) -> KeyPair: ...


@asynccontextmanager
async def world(control_plane: Reachable) -> AsyncIterator[World]:
    tls = ssl.create_default_context(cafile=str(control_plane.authority_path))
    tls.load_cert_chain(control_plane.admin.certificate, control_plane.admin.key)
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=tls, limit=AT_ONCE + 4),
        timeout=aiohttp.ClientTimeout(total=None),
        read_bufsize=2**20,
    ) as session:
        yield World(session, control_plane.url)


async def _each(objects: Iterable[int] | Iterable[str], action: Callable[..., Awaitable[None]]) -> None:
    left = iter(objects)

    async def work() -> None:
        for name in left:
            await action(name)

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))

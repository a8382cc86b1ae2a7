"""The friendly tenant: a plain pod at regular intervals, each timed from its creation to its bind.

The clock of a pod starts when its creation is sent and stops when a watch of the tenant's own shows it bound. A pod that
is not bound in time counts with the time that it waited, so that a starved tenant does not look fast. If kube-scheduler runs
beside, every other pod is for it: it has none of the hostile tenant's pods.
"""

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import aiohttp

from tests.bench.beside.world import World
from tests.controlplane.objects import pod
from tests.soak.hostile.latencies import Latency

NAMESPACE = "friendly"
BOUND_WITHIN_S = 60.0


class FriendlyTenant:
    """Its pods are for these schedulers in turns."""

    def __init__(self, world: World, schedulers: Sequence[str], interval_s: float) -> None:
        self._world = world
        self._schedulers = schedulers
        self._interval_s = interval_s
        self._path = f"{world.url}/api/v1/namespaces/{NAMESPACE}/pods"
        self._bound: dict[str, asyncio.Future[float]] = {}
        self._created_count = 0

    async def latencies_s(self, span_s: float) -> dict[str, dict[str, Latency]]:
        """Create pods for so long, and wait for the last of them. By scheduler and pod."""
        ends_s = time.monotonic() + span_s
        started: dict[str, list[asyncio.Task[tuple[str, Latency]]]] = {name: [] for name in self._schedulers}
        async with self._watching():
            for scheduler in itertools.cycle(self._schedulers):
                if (now_s := time.monotonic()) >= ends_s:
                    break
                started[scheduler].append(asyncio.create_task(self._latency_s(scheduler)))
                await asyncio.sleep(max(0.0, now_s + self._interval_s - time.monotonic()))
            return {name: dict(await asyncio.gather(*tasks)) for name, tasks in started.items()}

    async def _latency_s(self, scheduler: str) -> tuple[str, Latency]:
        self._created_count += 1
        name = f"plain-{self._created_count:06}"
        bound = self._bound[name] = asyncio.get_running_loop().create_future()
        sent_s = time.monotonic()
        made = pod(name, cpu="10m", memory="8Mi", schedulerName=scheduler)
        async with self._world.session.post(self._path, json=made) as answer:
            answer.raise_for_status()
        created_s = time.monotonic() - sent_s
        try:
            async with asyncio.timeout(BOUND_WITHIN_S):
                bound_s = await bound - sent_s
        except TimeoutError:
            bound_s = BOUND_WITHIN_S
        async with self._world.session.delete(f"{self._path}/{name}", json={"gracePeriodSeconds": 0}):
            pass
        return name, Latency(created_s, bound_s)

    @asynccontextmanager
    async def _watching(self) -> AsyncIterator[None]:
        async with self._world.session.get(f"{self._path}?limit=1") as answer:
            version = (await answer.json())["metadata"]["resourceVersion"]
        task = asyncio.create_task(self._watch(version))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _watch(self, version: str) -> None:
        query = f"watch=1&fieldSelector=spec.nodeName%21%3D&resourceVersion={version}&timeoutSeconds=36000"
        async with self._world.session.get(
            f"{self._path}?{query}", timeout=aiohttp.ClientTimeout(total=None)
        ) as answer:
            answer.raise_for_status()
            async for line in answer.content:
                event = json.loads(line)
                waiting = self._bound.get(event["object"]["metadata"].get("name", ""))
                if event["type"] == "ADDED" and waiting is not None and not waiting.done():
                    waiting.set_result(time.monotonic())

"""What must hold of the API server's objects: at each change of a pod, and once the road is good again.

It shares no code with policysched: it counts thousandths of a core by itself, from the server's own watch."""

import asyncio
from collections import Counter
from dataclasses import dataclass

import aiohttp
import orjson

from tests.controlplane.api import Json
from tests.e2e.chaos.fair_clock import FairClock
from tests.e2e.chaos.workload import Admin, Plan


@dataclass(frozen=True)
class Seen:
    """A pod as the server has it."""

    name: str
    node: str
    cpu_milli: int
    gang: str


class Broken(Exception):
    """Something that must hold does not: the sentence says what."""


class Watchman:
    """`follow` runs beside everything else and raises `Broken` at the change that breaks something."""

    def __init__(self, admin: Admin, planned: Plan) -> None:
        self._admin = admin
        self._planned = planned
        self._pods: dict[str, Seen] = {}
        self._bound_to: dict[str, str] = {}

    async def follow(self) -> None:
        """Until cancelled."""
        version = (await self._admin.pods())["metadata"]["resourceVersion"]
        path = f"{self._admin.namespace}/pods?watch=1&resourceVersion={version}&timeoutSeconds=3600"
        async with self._admin.session.get(f"{self._admin.url}{path}") as answer:
            answer.raise_for_status()
            rest = b""
            async for chunk in answer.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    self._take(orjson.loads(line))
        raise aiohttp.ClientError("the watchman's own watch ended")

    def _take(self, change: Json) -> None:
        uid = change["object"]["metadata"]["uid"]
        if change["type"] == "DELETED":
            self._pods.pop(uid, None)
            return
        now = self._pods[uid] = seen(change["object"])
        if not now.node:
            return
        if self._bound_to.setdefault(uid, now.node) != now.node:
            raise Broken(f"{now.name} was on {self._bound_to[uid]} and is on {now.node}")
        if now.node not in self._planned.nodes:
            raise Broken(f"{now.name} is on {now.node}, which its nodeSelector forbids")
        if self._free(list(self._pods.values()))[now.node] < 0:
            there = {one.name: one.cpu_milli for one in self._pods.values() if one.node == now.node}
            raise Broken(f"{now.node} has {self._planned.nodes[now.node]}m and holds {there}")

    def _free(self, pods: list[Seen]) -> dict[str, int]:
        used: Counter[str] = Counter()
        for one in pods:
            used[one.node] += one.cpu_milli
        return {node: cpu_milli - used[node] for node, cpu_milli in self._planned.nodes.items()}

    async def settled(self, within_s: float, clock: FairClock) -> None:
        """Wait until nothing is left to do, by a fresh list. Raises `Broken` with what is, when time is up."""
        ends_s, left = clock.now_s + within_s, ["nothing was looked at"]
        while left:
            if clock.now_s > ends_s:
                raise Broken(f"{within_s:g} s after the last fault: {'; '.join(left)}")
            await asyncio.sleep(0.25)
            left = self.unfinished([seen(one) for one in (await self._admin.pods())["items"]])

    def unfinished(self, pods: list[Seen]) -> list[str]:
        """One sentence for each pod or gang that waits though it fits, and each gang of which only a part is bound."""
        free = self._free(pods)
        found = [
            f"{one.name} ({one.cpu_milli}m) waits, though there is {free}"
            for one in pods
            if not one.gang and not one.node and max(free.values()) >= one.cpu_milli
        ]
        for gang, size, cpu_milli, _ in self._planned.gangs:
            bound = sum(1 for one in pods if one.gang == gang and one.node)
            if 0 < bound < size:
                found.append(f"{bound} of the {size} of {gang} are bound")
            if bound == 0 and sum(left // cpu_milli for left in free.values() if left > 0) >= size:
                found.append(f"{gang} ({size} times {cpu_milli}m) waits, though there is {free}")
        return found


def seen(one: Json) -> Seen:
    requests = one["spec"]["containers"][0]["resources"]["requests"]["cpu"]
    cpu_milli = int(requests.removesuffix("m")) if requests.endswith("m") else 1000 * int(requests)
    meta = one["metadata"]
    return Seen(
        meta["name"], one["spec"].get("nodeName", ""), cpu_milli, meta.get("labels", {}).get("podGroup", "")
    )

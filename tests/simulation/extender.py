"""An extender for the simulation: it refuses some nodes for some pods, likes others, and does not always answer.

What it thinks of a pod on a node depends on the two alone, so that everybody can know it afterwards. Only the connection
is pretended: the scheduler's own protocol, its asking in turn and its answers are at work before it.
"""

import asyncio
from random import Random
from typing import Any, cast
from zlib import crc32

import aiohttp
import orjson

from policysched.kube.extender.client import ExtenderClient, ExtenderEndpoint
from tests.simulation.fault_profile import FaultProfile
from tests.simulation.texts import EXTENDER

PEER = ExtenderEndpoint(
    EXTENDER, "http://topology.test", filter="filter", prioritize="prioritize", timeout_s=3.0, at_once=2
)
_NO_ANSWERS: tuple[Any, ...] = ([], {}, {"NodeNames": ["of-another-cluster"]}, {"Error": "out of memory"})


def vetoes(pod_uid: str, node: str) -> bool:
    """Whether it refuses the node for the pod."""
    return crc32(f"{pod_uid}/{node}".encode()) % 4 == 0


class PretendExtender(ExtenderClient):
    """`calm` not empty: it answers well from then on."""

    def __init__(self, dice: Random, weather: FaultProfile, calm: list[bool]) -> None:
        super().__init__(PEER, cast("aiohttp.ClientSession", None))
        self._dice, self._weather, self._calm = dice, weather, calm

    async def _call(self, verb: str, body: bytes, nodes: int) -> Any:
        del nodes
        await asyncio.sleep(self._dice.uniform(0, self._weather.extender_latency_s))
        if not self._calm and self._dice.random() < self._weather.extender_outage_share:
            if self._dice.random() < 0.5:
                raise self._call_failed(f"{verb}: the connection was refused")
            return self._dice.choice(_NO_ANSWERS)
        asked = orjson.loads(body)
        uid, nodes = asked["Pod"]["metadata"]["uid"], asked["NodeNames"]
        if verb == "prioritize":
            return [{"Host": node, "Score": crc32(f"{node}/{uid}".encode()) % 11} for node in nodes]
        return {
            "NodeNames": [node for node in nodes if not vetoes(uid, node)],
            "FailedNodes": {node: "has the wrong neighbours" for node in nodes if vetoes(uid, node)},
        }

"""An extender for the simulation: it rejects some nodes, scores others, and sometimes does not answer.

Its answer depends only on the pod and the node, so that checkers can compute it. Only the
connection is replaced: the scheduler's own protocol runs in front of it.
"""

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any, cast
from zlib import crc32

import aiohttp
import orjson

from policysched.kube.extender.client import ExtenderClient, ExtenderEndpoint, Result
from tests.simulation.fault_profile import FaultProfile
from tests.simulation.policy_texts import EXTENDER

PEER = ExtenderEndpoint(
    EXTENDER,
    "http://topology.test",
    filter="filter",
    prioritize="prioritize",
    timeout_s=3.0,
    concurrent_calls_max=2,
)
_INVALID_RESPONSES: tuple[Any, ...] = (
    [],
    {},
    {"NodeNames": ["of-another-cluster"]},
    {"Error": "out of memory"},
)


def vetoes(pod_uid: str, node: str) -> bool:
    """Whether the extender rejects the node for the pod."""
    return crc32(f"{pod_uid}/{node}".encode()) % 4 == 0


class FakeExtender(ExtenderClient):
    """Once `recovering` is not empty, every call is answered."""

    def __init__(self, random: Random, profile: FaultProfile, recovering: list[bool]) -> None:
        super().__init__(PEER, cast("aiohttp.ClientSession", None))
        self._random, self._profile, self._recovering = random, profile, recovering

    async def _call(self, verb: str, body: bytes, nodes: int, decode: Callable[[Any], Result]) -> Result:
        del nodes
        return decode(await self._response(verb, body))

    async def _response(self, verb: str, body: bytes) -> Any:
        await asyncio.sleep(self._random.uniform(0, self._profile.extender_latency_s))
        if not self._recovering and self._random.random() < self._profile.extender_outage_share:
            if self._random.random() < 0.5:
                raise self._call_failed(f"{verb}: the connection was refused")
            return self._random.choice(_INVALID_RESPONSES)
        args = orjson.loads(body)
        uid, nodes = args["Pod"]["metadata"]["uid"], args["NodeNames"]
        if verb == "prioritize":
            return [{"Host": node, "Score": crc32(f"{node}/{uid}".encode()) % 11} for node in nodes]
        return {
            "NodeNames": [node for node in nodes if not vetoes(uid, node)],
            "FailedNodes": {node: "has the wrong neighbours" for node in nodes if vetoes(uid, node)},
        }

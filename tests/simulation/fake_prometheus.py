"""A Prometheus for the simulation: changing values, missing and duplicate series, and invalid responses.

Only the transport is replaced: the product's own polling, joins and unit conversion run behind it.
One metric has a load for each node, the other the traffic between the pods of a gang, pending ones
included.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations
from random import Random
from typing import Any
from zlib import crc32

import orjson

from policysched.metric_sources.poll_status import PollError, SourcePollStatus
from policysched.metric_sources.polling import PollingSource
from policysched.metric_sources.prometheus import PrometheusQueryClient
from policysched.metric_sources.router import ConfiguredSource, SampleSourceRouter
from policysched.sandbox.apiserver.server import ApiServer
from policysched.sandbox.local_client import LocalClient
from tests.simulation.fault_profile import FaultProfile

Series = list[dict[str, Any]]

FLOWS = "flows"
"""The query for the traffic between pods; every other query returns the load of nodes."""

_VALUES = (0.1, 0.35, 0.5, 0.7, 0.95)
_FLOWS = ("0", "1e6", "3e7", "4e7", "6e7", "1.2e8")
"""Bytes per second."""

_INVALID_RESPONSES = (
    b"<html>502</html>",
    b"",
    b'{"status":"success","data":{"resultType":"scalar","result":[1,"2"]}}',
)


@dataclass(slots=True)
class FakePrometheus:
    """Once `recovering` is not empty, every query has a valid response."""

    server: ApiServer
    random: Random
    profile: FaultProfile
    recovering: list[bool]

    async def query(self, query: str) -> bytes:
        await asyncio.sleep(self.random.uniform(0, self.profile.metric_latency_s))
        if not self.recovering and self.random.random() < self.profile.metric_outage_share:
            return self._invalid_response()
        series = self._flows() if query == FLOWS else self._loads()
        warnings = ["a store is unavailable"] if self.random.random() < 0.1 else []
        data = {"resultType": "vector", "result": series}
        return orjson.dumps({"status": "success", "data": data, "warnings": warnings})

    def _invalid_response(self) -> bytes:
        drawn = self.random.randrange(len(_INVALID_RESPONSES) + 1)
        if drawn == len(_INVALID_RESPONSES):
            raise PollError("unreachable", "the connection was refused")
        return _INVALID_RESPONSES[drawn]

    # ── loads of nodes ─────────────────────────────────────────────────────────────────────────────────────────────

    def _loads(self) -> Series:
        series = [sample for node in LocalClient(self.server).list("nodes") for sample in self._load(node)]
        return [*series, {"metric": {"node": "of-another-cluster"}, "value": [0, "0.1"]}]

    def _load(self, node: dict[str, Any]) -> Series:
        name = node["metadata"]["name"]
        metric = {"node": name, "instance": f"{name}:9100"}
        return self._told(metric, str(self.random.choice(_VALUES)))

    # ── flows between pods ─────────────────────────────────────────────────────────────────────────────────────────

    def _flows(self) -> Series:
        """Most pairs of a gang have a flow, in one direction or both; their names decide the amount."""
        pairs = (pair for gang in self._gangs() for pair in permutations(gang, 2))
        return [
            sample for pair in pairs if crc32("/".join(pair).encode()) % 3 for sample in self._flow(*pair)
        ]

    def _gangs(self) -> Iterator[list[str]]:
        """The `namespace/name` of the members, for each gang."""
        gangs: dict[tuple[str, str], list[str]] = {}
        for pod in LocalClient(self.server).list("pods"):
            metadata = pod["metadata"]
            group = (metadata.get("labels") or {}).get("group")
            if group is not None:
                gangs.setdefault((metadata["namespace"], group), []).append(
                    f"{metadata['namespace']}/{metadata['name']}"
                )
        yield from gangs.values()

    def _flow(self, first: str, two: str) -> Series:
        (space, pod), (peer_space, peer) = first.split("/"), two.split("/")
        metric = {"namespace": space, "pod": pod, "peer_namespace": peer_space, "peer_pod": peer}
        drawn = crc32(f"{first} {two}".encode()) if self.recovering else self.random.getrandbits(16)
        return self._told(metric, _FLOWS[drawn % len(_FLOWS)])

    def _told(self, metric: dict[str, str], value: str) -> Series:
        """One series as a rule; sometimes none, a duplicate or NaN, until the faults are over."""
        sample, drawn = {"metric": metric, "value": [0, value]}, self.random.random()
        if self.recovering or drawn < 0.85:
            return [sample]
        if drawn < 0.90:
            return [sample, {**sample, "value": [0, "0.1"]}]
        return [{**sample, "value": [0, "NaN"]}] if drawn < 0.93 else []


def sources(transport: FakePrometheus, now_ns: Any, random: Random) -> SampleSourceRouter:
    poll_status = SourcePollStatus("prometheus")
    asker = PrometheusQueryClient(transport, now_ns=now_ns)
    polled = PollingSource(asker, poll_status, now_ns=now_ns, random=random)
    return SampleSourceRouter({"prometheus": ConfiguredSource("prometheus", polled, poll_status)})

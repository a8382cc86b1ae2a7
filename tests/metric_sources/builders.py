"""Builders for tests of sources: a metric in one line, a Prometheus response, and a transport with
given answers.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import orjson

from policysched.lang.check import check_text
from policysched.lang.ir.declarations import Metric
from policysched.metric_sources.poll_status import PollError, SourcePollStatus
from policysched.metric_sources.polling import PollingSource
from policysched.metric_sources.prometheus import RESPONSE_BYTES_MAX, PrometheusQueryClient
from policysched.metric_sources.source import DeclaredMetrics, SampleConsumer
from policysched.model.identifiers import NodeName
from policysched.model.nodes import Node
from policysched.scheduler.events import SamplesArrived
from tests.builders import node

Series = tuple[Mapping[str, str], object]


def metric(
    name: str = "net_rx",
    type_: str = "bandwidth",
    *,
    query: str = "rx",
    unit: str = "B/s",
    join: str = "instance",
    every: str = "15s",
    stale: str = "90s",
    more: str = "",
) -> Metric:
    """A metric as a policy declares it."""
    return checked_metric(
        f"""metric {name}: {type_} {{
  query = "{query}"
  unit = "{unit}"
  join = {join}
  every = {every}
  stale = {stale}
  {more}
}}
""",
        name,
    )


def checked_metric(text: str, name: str) -> Metric:
    checked = check_text(f"policy test version 1\n{text}\ninclude kube_default\n")
    assert checked.program is not None, checked.diagnostics
    return checked.program.metrics[name]


def vector(*series: Series, at_s: float = 1000.0, **more: Any) -> bytes:
    """A response with status 200: series as (labels, value)."""
    result = [{"metric": dict(labels), "value": [at_s, str(value)]} for labels, value in series]
    data = {"resultType": "vector", "result": result}
    return orjson.dumps({"status": "success", "data": data, **more})


def by_instance(values: Mapping[str, object], **more: Any) -> bytes:
    return vector(*(({"instance": name}, value) for name, value in values.items()), **more)


class PretendTransport:
    """`answers` by query: bytes, or an exception to raise. `requests` has (time, query)."""

    def __init__(self, answers: Mapping[str, bytes | PollError]) -> None:
        self.answers = dict(answers)
        self.requests: list[tuple[float, str]] = []
        self.takes_s = 0.0

    async def query(self, query: str) -> bytes:
        self.requests.append((asyncio.get_running_loop().time(), query))
        await asyncio.sleep(self.takes_s)
        answer = self.answers[query]
        if isinstance(answer, PollError):
            raise answer
        return answer


class Listener:
    """A customer that records what it receives. `wanted` may be changed."""

    def __init__(self, wanted: DeclaredMetrics, nodes: Sequence[Node] = ()) -> None:
        self.wanted: DeclaredMetrics = wanted
        self.nodes: dict[NodeName, Node] = {node.name: node for node in nodes}
        self.got: list[SamplesArrived] = []

    def customer(self) -> SampleConsumer:
        return SampleConsumer(lambda: self.wanted, lambda: self.nodes, self.got.append)

    def last(self, policy: str = "test", name: str = "net_rx") -> dict[str, float]:
        """Values by node of the latest samples."""
        arrived = [arrival for arrival in self.got if (arrival.policy, arrival.metric) == (policy, name)]
        return {str(node): sample.value for node, sample in arrived[-1].samples.values.items()}


def prometheus(
    transport: PretendTransport,
    poll_status: SourcePollStatus | None = None,
    seed: int = 1,
    response_bytes_max: int = RESPONSE_BYTES_MAX,
) -> PollingSource[Any]:
    """The clock of the running loop."""
    now_ns = loop_now_ns()
    return PollingSource(
        PrometheusQueryClient(transport, now_ns=now_ns, response_bytes_max=response_bytes_max),
        poll_status or SourcePollStatus("prom"),
        now_ns=now_ns,
        random=Random(seed),
    )


def loop_now_ns() -> Callable[[], int]:
    loop = asyncio.get_running_loop()
    return lambda: int((1000 + loop.time()) * 1e9)


def node_at(name: str, *addresses: str, **labels: str) -> Node:
    """A node with these addresses."""
    from dataclasses import replace

    at = node(name)
    named = {key.replace("__", "/").replace("_", "."): value for key, value in labels.items()}
    return replace(at, addresses=addresses, labels={**at.labels, **named})

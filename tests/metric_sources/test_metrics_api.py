"""Samples from the metrics.k8s.io API: quantities in the metric's unit, with the API's timestamps."""

import asyncio
from typing import Any

import orjson
import pytest

from policysched.metric_sources.metrics_api import MetricsApiQueryClient
from policysched.metric_sources.poll_status import PollError
from policysched.metric_sources.polling import QueryResult
from policysched.metric_sources.source import convert_samples
from policysched.model.identifiers import NodeName
from tests.builders import node
from tests.metric_sources.builders import metric

NOW_NS = 1_795_273_200 * 10**9  # 2026-11-21T15:00:00Z
CPU = metric("cpu_used", "cpu", query="cpu", unit="cores", join="node")
MEMORY = metric("memory_used", "bytes", query="memory", unit="MiB", join="node")


def item(
    name: str, cpu: Any = "250m", memory: Any = "1Gi", timestamp: Any = "2026-11-21T14:59:30Z"
) -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "timestamp": timestamp,
        "window": "20s",
        "usage": {"cpu": cpu, "memory": memory},
    }


def ask(body: bytes, of: Any = CPU) -> QueryResult:
    async def fetch() -> bytes:
        return body

    asker = MetricsApiQueryClient(fetch, now_ns=lambda: NOW_NS)
    nodes = {NodeName(name): node(name) for name in ("a", "b", "c")}
    return asyncio.run(asker.fetch(asker.query_for(of), lambda: nodes))


def listed(*items: Any) -> bytes:
    return orjson.dumps({"kind": "NodeMetricsList", "items": list(items)})


def test_usage_is_converted_to_the_declared_type() -> None:
    body = listed(item("a", "123456789n", "1536Ki"), item("b", "2", "1G"))

    cpu, memory = convert_samples(CPU, ask(body).raw), convert_samples(MEMORY, ask(body, MEMORY).raw)

    assert {name: value.value for name, value in cpu.values.items()} == {"a": 123, "b": 2000}
    assert {name: value.value for name, value in memory.values.items()} == {"a": 1536 * 1024, "b": 10**9}
    assert {(NOW_NS - value.at_ns) / 1e9 for value in cpu.values.values()} == {30}


def test_malformed_items_and_unknown_nodes_are_counted() -> None:
    broken = [
        None,
        {},
        item("a", cpu=7),
        item("a", cpu="much"),
        item("a", timestamp="soon"),
        item("a", timestamp=3),
    ]

    measured = ask(listed(*broken, item("elsewhere"), item("c", cpu="1")))

    assert measured.raw.values == {"c": 1.0}
    assert (measured.unreadable, measured.unmatched) == (len(broken), 1)


@pytest.mark.parametrize("body", [b"", b"no", b"[]", b"{}", b'{"items": {}}'])
def test_a_response_that_is_not_a_list_is_malformed(body: bytes) -> None:
    with pytest.raises(PollError) as error:
        ask(body)

    assert error.value.kind == "malformed"


def test_a_metric_that_the_api_does_not_serve_is_rejected() -> None:
    async def fetch() -> bytes:
        raise AssertionError("nothing is to be asked")

    asker = MetricsApiQueryClient(fetch, now_ns=lambda: NOW_NS)
    messages = {
        reason
        for text in (
            CPU,
            metric("disk", "bytes", query="disk", unit="B", join="node"),
            metric("share", "ratio", query="cpu", unit="1", join="node"),
            metric("used", "cpu", query="cpu", unit="cores", join="instance"),
            metric("dated", "cpu", query="cpu", unit="cores", join="node", more='sampled_at = "x"'),
        )
        if (reason := asker.unsupported_reason(text))
    }

    assert len(messages) == 4
    assert 'the metrics API has "cpu" and "memory", not `disk`' in messages
    assert "the metrics API's cpu is of type cpu, not ratio" in messages

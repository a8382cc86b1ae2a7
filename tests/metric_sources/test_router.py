"""Each metric is routed to the source that it names; a metric that no source serves gets a reason."""

import asyncio
from pathlib import Path

import pytest

from policysched.lang.ir.declarations import Metric
from policysched.metric_sources.file import FileSampleSource
from policysched.metric_sources.poll_status import SourcePollStatus
from policysched.metric_sources.router import ConfiguredSource, SampleSourceRouter, unserved_metrics
from policysched.metric_sources.source import SampleConsumer
from tests.kube.world import on_virtual_time, running
from tests.metric_sources.builders import (
    Listener,
    PretendTransport,
    by_instance,
    loop_now_ns,
    metric,
    node_at,
    prometheus,
)

A = node_at("a")


class Nothing:
    """A source without samples that supports every metric except those with the query `odd`."""

    async def run(self, consumer: SampleConsumer) -> None:
        await asyncio.get_running_loop().create_future()

    def unsupported_reason(self, metric: Metric) -> str | None:
        return "that is odd" if metric.query == "odd" else None


def named(*names: str, default: str | None = None) -> SampleSourceRouter:
    return SampleSourceRouter(
        {name: ConfiguredSource("prometheus", Nothing(), SourcePollStatus(name)) for name in names}, default
    )


def of(source: str | None = None, query: str = "rx") -> Metric:
    return metric(query=query, more=f'source = "{source}"' if source else "")


@pytest.mark.parametrize(
    ("sources", "metric", "reason"),
    [
        (named("prom"), of(), None),
        (named("prom"), of("prom"), None),
        (named("a", "b", default="b"), of(), None),
        (named(), of(), "the settings have no metric source"),
        (named("b", "a"), of(), "it names no source and the settings have several: a, b"),
        (named("a", "b"), of("c"), "the settings have no source `c`"),
        (named("a"), of("c"), "the settings have no source `c`"),
        (named("a"), of(query="odd"), "source `a`: that is odd"),
    ],
)
def test_a_metric_is_routed_to_its_source_or_rejected_with_a_reason(
    sources: SampleSourceRouter, metric: Metric, reason: str | None
) -> None:
    assert sources.unserved_reason(metric) == reason


def test_metrics_without_a_source_are_reported_with_the_reason() -> None:
    wanted = {"two": {"net_rx": of("b")}, "one": {"net_rx": of("a"), "other": of("gone")}}

    assert unserved_metrics(wanted, named("a", "b").unserved_reason) == {
        ("one", "other"): "the settings have no source `gone`"
    }


def test_each_source_gets_only_its_own_metrics_and_an_override_file_takes_precedence(
    tmp_path: Path,
) -> None:
    path = tmp_path / "samples.yaml"
    path.write_text("over: {a: 7}\n")
    listener = Listener(
        {
            "test": {
                "near": metric("near", more='source = "one"'),
                "far": metric("far", query="tx", more='source = "two"'),
                "over": metric("over", query="odd"),
            }
        },
        [A],
    )
    first, two = (
        PretendTransport({"rx": by_instance({"a": 1})}),
        PretendTransport({"tx": by_instance({"a": 2})}),
    )
    changes: list[SampleSourceRouter] = []

    async def scenario() -> None:
        books = SourcePollStatus("one"), SourcePollStatus("two"), SourcePollStatus("--metrics")
        file = FileSampleSource(path, books[2], now_ns=loop_now_ns())
        sources = SampleSourceRouter(
            {
                "one": ConfiguredSource("prometheus", prometheus(first, books[0]), books[0]),
                "two": ConfiguredSource("prometheus", prometheus(two, books[1]), books[1]),
            },
            override=(file, books[2]),
        )
        changes.append(sources)
        async with running(sources.run(listener.customer())):
            await asyncio.sleep(3)

    on_virtual_time(scenario)

    assert {query for _, query in first.requests} == {"rx"}
    assert {query for _, query in two.requests} == {"tx"}
    assert [listener.last(name=name) for name in ("near", "far", "over")] == [{"a": 8}, {"a": 16}, {"a": 56}]
    poll_status = changes[0].status_of(("test", "far"))
    assert poll_status is not None and poll_status.source == "two"
    assert unserved_metrics(listener.wanted, changes[0].unserved_reason) == {}

"""Samples from a real Prometheus and real node exporters, with a server that stops, hangs, returns
and rejects queries.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random

import pytest

from policysched.lang.ir.declarations import Metric
from policysched.metric_sources.largest_pairs import NAMESPACE_LABEL, largest_series
from policysched.metric_sources.poll_status import SourcePollStatus
from policysched.metric_sources.polling import PollingSource
from policysched.metric_sources.prometheus import PrometheusQueryClient
from policysched.metric_sources.prometheus_transport import (
    HttpConnectionPool,
    PrometheusHttpTransport,
    PrometheusSettings,
)
from tests.controlplane.waiting import PATIENCE_S, wait_for
from tests.metric_sources.builders import Listener, checked_metric, metric, node_at
from tests.prometheus.monitoring import LONG_RATE, RATE, SAMPLED_AT, Monitoring
from tests.prometheus.programs import Missing, find_programs

BUSY_BYTES_PER_S = 4_000_000


@dataclass(slots=True)
class Seen:
    """The samples and the poll status that a scheduler would have for a metric polled every second."""

    listener: Listener
    poll_status: SourcePollStatus = field(default_factory=lambda: SourcePollStatus("real"))

    async def until(self, look: Callable[[], object], what: str, *, within_s: float = PATIENCE_S) -> None:
        ends_s = time.monotonic() + within_s
        while not look():
            assert time.monotonic() < ends_s, f"no {what} within {within_s:g} s; {self.poll_status.failures}"
            await asyncio.sleep(0.05)

    def fresh(self) -> dict[str, float]:
        return self.listener.last() if self.listener.got else {}

    @property
    def failure(self) -> str | None:
        failure = self.poll_status.failures.get(("test", "net_rx"))
        return None if failure is None else failure.kind


def polling(
    monitoring: Monitoring,
    action: Callable[[Seen], Awaitable[None]],
    query: str = RATE,
    more: str = "",
    of: Metric | None = None,
) -> None:
    declared = of or metric(query=query, every="1s", stale="5s", more=more)
    nodes = [node_at(name, monitoring.address(name)) for name in ("a", "b")]
    polled = Seen(Listener({"test": {"net_rx": declared}}, nodes))

    async def scenario() -> None:
        async with HttpConnectionPool("policysched/test") as pool:
            server = PrometheusHttpTransport(PrometheusSettings(monitoring.url, timeout_s=1.0), pool)
            asker = PrometheusQueryClient(server, now_ns=time.time_ns)
            source = PollingSource(asker, polled.poll_status, now_ns=time.time_ns, random=Random(1))
            run = asyncio.ensure_future(source.run(polled.listener.customer()))
            try:
                await action(polled)
                assert not run.done(), "the source keeps polling after failures"
            finally:
                run.cancel()
                await asyncio.gather(run, return_exceptions=True)

    asyncio.run(scenario())


def test_traffic_is_measured_on_its_node_and_follows_the_traffic(monitoring: Monitoring) -> None:
    monitoring.send("a", bytes_per_s=BUSY_BYTES_PER_S)

    async def action(polled: Seen) -> None:
        def busy(name: str, other: str) -> bool:
            """Values are in bits per second, and differ by node."""
            rates, expected = polled.fresh(), 8 * BUSY_BYTES_PER_S
            return len(rates) == 2 and 0.5 * expected < rates[name] < 1.5 * expected and rates[other] < 1000

        await polled.until(lambda: busy("a", other="b"), "traffic on a alone")

        monitoring.send("a", bytes_per_s=0)
        monitoring.send("b", bytes_per_s=BUSY_BYTES_PER_S)
        await polled.until(lambda: busy("b", other="a"), "traffic on b alone")

    polling(monitoring, action)


def test_a_prometheus_that_hangs_stops_and_returns_is_reported_each_time(monitoring: Monitoring) -> None:
    async def action(polled: Seen) -> None:
        await polled.until(lambda: len(polled.fresh()) == 2, "samples of both")

        monitoring.pause()
        await polled.until(lambda: polled.failure == "timeout", "a time-out")
        count = len(polled.listener.got)
        monitoring.resume()
        await polled.until(
            lambda: polled.failure is None and len(polled.listener.got) > count, "samples again"
        )

        monitoring.stop()
        await polled.until(lambda: polled.failure == "unreachable", "a refused connection")
        count = len(polled.listener.got)
        await asyncio.to_thread(monitoring.start)
        await polled.until(
            lambda: polled.failure is None and len(polled.listener.got) > count and len(polled.fresh()) == 2,
            "samples after a restart",
        )

    polling(monitoring, action)


@pytest.mark.parametrize(
    ("query", "kind"),
    [
        ("sum by (instance", "query"),
        ("no_such_function(up)", "query"),
        ("1 + 1", "wrong_type"),
        ("up[5m]", "wrong_type"),
    ],
)
def test_a_rejected_query_is_distinguished_from_one_of_another_type(
    monitoring: Monitoring, query: str, kind: str
) -> None:
    async def action(polled: Seen) -> None:
        await polled.until(lambda: polled.failure == kind, f"failure of the kind {kind}")
        assert polled.listener.got == []

    polling(monitoring, action, query)


def test_nodes_with_two_series_are_excluded_and_counted(monitoring: Monitoring) -> None:
    async def action(polled: Seen) -> None:
        def twins() -> bool:
            return any(
                poll.duplicated == 2 and poll.nodes == 0 for poll in polled.poll_status.last_good.values()
            )

        await polled.until(twins, "both nodes to be left out")

    two_series = "label_replace(up, 'twin', '1', '', '') or label_replace(up, 'twin', '2', '', '')"
    polling(monitoring, action, two_series)


def test_sampled_at_detects_the_stale_rate_of_a_dead_exporter(monitoring: Monitoring) -> None:
    async def action(polled: Seen) -> None:
        await polled.until(lambda: set(polled.fresh()) == {"a", "b"}, "samples of both")
        monitoring.exporters["a"].kill()
        await polled.until(lambda: set(polled.fresh()) == {"b"}, "the samples of b alone")

    polling(monitoring, action, LONG_RATE, f'sampled_at = "{SAMPLED_AT}"')

    assert {series["metric"]["instance"] for series in monitoring.ask(LONG_RATE)} == {
        "10.64.0.1:9100",
        "10.64.0.2:9100",
    }, "the query without sampled_at still has it"


def test_counters_between_pods_become_pairs_and_outlive_their_exporter(monitoring: Monitoring) -> None:
    """Two hosts count the same flows at both ends, as exporters on nodes do; then a host and its
    pods are removed.
    """
    first, two = ("shop", "db-0"), ("shop", "db-1")
    query = "max by (source, destination) (rate(pod_flow_bytes_total[15s]))"
    joins = 'from = ["source"]  to = ["destination"]'
    metric = checked_metric(
        f'metric net_rx: bandwidth {{ query = "{query}"  unit = "B/s"  {joins}  every = 1s  stale = 5s }}',
        "net_rx",
    )
    began_s = time.monotonic()

    def count() -> None:
        gone_s = time.monotonic() - began_s
        for name in ("a", "b"):
            flows = {("shop/db-0", "shop/db-1"): 1e6 * gone_s, ("shop/db-1", "shop/db-0"): 5e5 * gone_s}
            monitoring.flows(name, flows)

    async def action(polled: Seen) -> None:
        def rate(poll: int) -> float:
            count()
            peers = polled.listener.got[poll].samples.pairs.get(first, {}) if polled.listener.got else {}
            return peers.get(two) or 0.0

        await polled.until(lambda: 0.8 * 12e6 < rate(-1) < 1.2 * 12e6, "both directions, each counted once")
        monitoring.exporters["a"].kill()
        monitoring.exporters["b"].kill()
        polls = len(polled.listener.got)
        await polled.until(
            lambda: len(polled.listener.got) > polls + 1, "a poll from after the exporters' end"
        )
        assert rate(polls + 1) > 1e6, "the range query still has them"

    polling(monitoring, action, of=metric)


def test_of_each_namespace_the_largest_series_are_asked_for(monitoring: Monitoring) -> None:
    names = [f"noisy/p-{number}" for number in range(4)]
    flows = {(one, two): 1.0 + names.index(one) + 4 * names.index(two) for one in names for two in names}
    monitoring.flows("a", {**flows, ("shop/db-0", "shop/db-1"): 1.0})
    query = "max by (source, destination) (pod_flow_bytes_total)  # a comment"

    def asked() -> list[tuple[str, float]]:
        series = monitoring.ask(largest_series(query, "source", 2))
        return sorted((each["metric"][NAMESPACE_LABEL], float(each["value"][1])) for each in series)

    wait_for(lambda: len(asked()) == 3, "the flows of both namespaces")

    assert asked() == [("noisy", 15.0), ("noisy", 16.0), ("shop", 1.0)]


# ── the fixture ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_missing_programs_are_reported_with_how_to_install_them() -> None:
    programs = find_programs(path="/nowhere")

    assert programs == Missing(
        "no real Prometheus: prometheus and prometheus-node-exporter not on the PATH "
        "(apt-get install prometheus prometheus-node-exporter)"
    )

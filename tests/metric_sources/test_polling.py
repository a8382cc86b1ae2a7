"""Polling on virtual time: shared queries, intervals, backoff and units; duplicate, stale and
non-numeric values are missing.
"""

import asyncio
import logging
from itertools import pairwise
from typing import Any

import pytest

from policysched.lang.ir.declarations import Metric
from policysched.metric_sources import polling
from policysched.metric_sources import prometheus as prometheus_module
from policysched.metric_sources import source as source_module
from policysched.metric_sources.poll_status import PollError, SourcePollStatus
from policysched.metric_sources.polling import RETRY_MAX_S
from policysched.metric_sources.prometheus import PrometheusQueryClient
from policysched.metric_sources.source import RawSamples
from policysched.model.identifiers import NodeName
from policysched.scheduler.events import SamplesArrived
from tests.kube.world import on_virtual_time, running
from tests.metric_sources.builders import (
    Listener,
    PretendTransport,
    by_instance,
    metric,
    node_at,
    prometheus,
    vector,
)

A, B = node_at("a", "10.0.0.1"), node_at("b", "10.0.0.2")


def one_poll(
    listener: Listener,
    transport: PretendTransport,
    poll_status: SourcePollStatus | None = None,
    *,
    for_s: float = 3.0,
) -> None:
    async def scenario() -> None:
        async with running(prometheus(transport, poll_status).run(listener.customer())):
            await asyncio.sleep(for_s)

    on_virtual_time(scenario)


def wanting(*metrics: object) -> dict[str, dict[str, object]]:
    return {"test": {metric.name: metric for metric in metrics}}  # type: ignore[attr-defined]


def test_values_are_converted_to_the_type_that_the_policy_declares() -> None:
    listener = Listener(wanting(metric(unit="MB/s")), [A, B])

    one_poll(listener, PretendTransport({"rx": by_instance({"10.0.0.1:9100": 2, "10.0.0.2:9100": "1e1"})}))

    assert listener.last() == {"a": 16e6, "b": 80e6}


def test_planted_unit_conversion_that_is_skipped_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "unit_factor", lambda *_: 1)

    with pytest.raises(AssertionError):
        test_values_are_converted_to_the_type_that_the_policy_declares()


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "-5", "much"])
def test_a_value_that_does_not_fit_the_type_is_missing(value: str) -> None:
    listener, poll_status = Listener(wanting(metric()), [A, B]), SourcePollStatus("prom")

    one_poll(listener, PretendTransport({"rx": by_instance({"a": value, "b": 1})}), poll_status)

    assert listener.last() == {"b": 8}
    assert (
        poll_status.last_good["test", "net_rx"].nodes,
        poll_status.last_good["test", "net_rx"].invalid,
    ) == (1, 1)


def doubled() -> tuple[Listener, SourcePollStatus]:
    listener, poll_status = Listener(wanting(metric()), [A, B]), SourcePollStatus("prom")
    series = [({"instance": "a", "device": device}, 1) for device in ("eth0", "eth1", "eth2")]
    one_poll(listener, PretendTransport({"rx": vector(*series, ({"instance": "b"}, 2))}), poll_status)
    return listener, poll_status


def test_a_node_with_duplicate_series_has_no_sample() -> None:
    listener, poll_status = doubled()

    assert listener.last() == {"b": 16}
    assert poll_status.last_good["test", "net_rx"].duplicated == 1


def test_planted_duplicate_series_that_counts_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: the last series wins, as in a plain dictionary."""

    def last_wins(series: list[object], joiner: object, joined: object) -> None:
        for series_ in series:
            read = prometheus_module.parse_series(series_)
            assert read is not None
            for name in joiner.nodes_of(read.labels):  # type: ignore[attr-defined]
                joined.values[name] = read.value  # type: ignore[attr-defined]

    monkeypatch.setattr(prometheus_module, "_join_batch", last_wins)

    with pytest.raises(AssertionError):
        test_a_node_with_duplicate_series_has_no_sample()


def test_series_of_unknown_nodes_are_counted() -> None:
    listener, poll_status = Listener(wanting(metric()), [A]), SourcePollStatus("prom")

    one_poll(
        listener,
        PretendTransport({"rx": by_instance({"a": 1, "elsewhere:9100": 5, "10.9.9.9:1": 5})}),
        poll_status,
    )

    assert (listener.last(), poll_status.last_good["test", "net_rx"].unmatched) == ({"a": 8}, 2)


# ── sample times ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("part", ["fetch", "convert"])
def test_what_an_answer_raises_is_a_failure_of_its_metric_alone(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch, convert = PrometheusQueryClient.fetch, polling._convert_samples

    async def planted_fetch(client: Any, query: Any, nodes: Any) -> Any:
        if part == "fetch" and query.query == "bad":
            raise OverflowError("planted")
        return await fetch(client, query, nodes)

    async def planted_convert(bad: Metric, raw: Any) -> Any:
        if part == "convert" and bad.name == "bad":
            raise OverflowError("planted")
        return await convert(bad, raw)

    monkeypatch.setattr(PrometheusQueryClient, "fetch", planted_fetch)
    monkeypatch.setattr(polling, "_convert_samples", planted_convert)
    listener = Listener(wanting(metric(), metric("bad", query="bad")), [A])
    answer, status = by_instance({"a": 1}), SourcePollStatus("main")

    one_poll(listener, PretendTransport({"rx": answer, "bad": answer}), status, for_s=30.0)

    assert {event.metric for event in listener.got} == {"net_rx"}
    assert "OverflowError: planted" in status.failures["test", "bad"].message
    assert status.failures.keys() == {("test", "bad")}


def test_a_sample_has_the_time_at_which_its_query_was_sent() -> None:
    listener, transport = Listener(wanting(metric()), [A]), PretendTransport({"rx": by_instance({"a": 1})})
    transport.takes_s = 5.0

    one_poll(listener, transport, for_s=8.0)

    sent_s, samples = transport.requests[0][0], listener.got[0].samples
    assert samples.polled_ns == samples.values[NodeName("a")].at_ns == int((1000 + sent_s) * 1e9)


def sampled_at(*, age_s: float, server_ahead_s: float = 0.0) -> float:
    """The age of the single sample, in seconds before its poll, as a second query reports it."""
    evaluated_s = 5000.0 + server_ahead_s
    dated = metric(more='sampled_at = "when"')
    listener = Listener(wanting(dated), [A, B])
    transport = PretendTransport(
        {
            "rx": by_instance({"a": 1, "b": 2}, at_s=evaluated_s),
            "when": by_instance({"a": evaluated_s - age_s, "b": "NaN"}, at_s=evaluated_s),
        }
    )
    one_poll(listener, transport)
    samples = listener.got[0].samples
    assert set(samples.values) == {"a"}, "what has no time is missing"
    return (samples.polled_ns - samples.values[NodeName("a")].at_ns) / 1e9


def test_sampled_at_gives_the_age_of_a_sample_independent_of_the_servers_clock() -> None:
    assert sampled_at(age_s=40) == pytest.approx(40)
    assert sampled_at(age_s=40, server_ahead_s=3600) == pytest.approx(40)
    assert sampled_at(age_s=-30) == 0


def test_a_sampled_at_in_the_future_ages_from_its_first_observation() -> None:
    clock = [1000 * 10**9]
    dated = metric(more='sampled_at = "when"')
    transport = PretendTransport(
        {"rx": by_instance({"a": 1}, at_s=5000), "when": by_instance({"a": 5600}, at_s=5000)}
    )
    asker = PrometheusQueryClient(transport, now_ns=lambda: clock[0])
    nodes = {node.name: node for node in (A, B)}

    async def times() -> list[int]:
        ages = []
        for _ in range(3):
            measured = await asker.fetch(asker.query_for(dated), lambda: nodes)
            assert isinstance(measured.raw, RawSamples)
            ages.append(measured.raw.sampled_ns["a"] // 10**9)
            clock[0] += 60 * 10**9
        return ages

    assert asyncio.run(times()) == [1000, 1000, 1000]


def test_planted_dead_target_that_counts_as_fresh_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: the evaluation time is taken for the sample time."""
    monkeypatch.setattr(
        prometheus_module,
        "_times_ns",
        lambda dated, _, sight: {node: sight.now_ns for node in dated.values if node == "a"},
    )

    with pytest.raises(AssertionError):
        test_sampled_at_gives_the_age_of_a_sample_independent_of_the_servers_clock()


def test_a_poll_succeeds_only_if_both_of_its_queries_do() -> None:
    dated = metric(more='sampled_at = "when"')
    listener, poll_status = Listener(wanting(dated), [A]), SourcePollStatus("prom")

    one_poll(
        listener,
        PretendTransport({"rx": by_instance({"a": 1}), "when": PollError("query", "no")}),
        poll_status,
    )

    assert listener.got == []
    assert poll_status.failures["test", "net_rx"].kind == "query"


# ── intervals ──────────────────────────────────────────────────────────────────────────────────────────────────────


def asked_times(transport: PretendTransport, query: str = "rx") -> list[float]:
    return [at_s for at_s, asked in transport.requests if asked == query]


def gaps(times: list[float]) -> list[float]:
    return [after - before for before, after in pairwise(times)]


def test_a_query_is_sent_at_once_and_then_slightly_more_often_than_its_interval() -> None:
    listener, transport = (
        Listener(wanting(metric(every="10s")), [A]),
        PretendTransport({"rx": by_instance({"a": 1})}),
    )

    one_poll(listener, transport, for_s=100)

    times = asked_times(transport)
    assert times[0] <= 1
    assert 9 <= min(gaps(times)) <= max(gaps(times)) <= 10
    assert len(set(gaps(times))) > 5, "drawn, not fixed"


def test_policies_with_the_same_query_share_a_poll_in_their_own_units() -> None:
    listener = Listener(
        {
            "one": {"net_rx": metric(unit="B/s")},
            "two": {"rx": metric("rx", unit="MB/s", every="10s"), "again": metric("again", unit="B/s")},
        },
        [A],
    )
    transport = PretendTransport({"rx": by_instance({"a": 1})})

    one_poll(listener, transport, for_s=8)

    assert len(transport.requests) == 1
    assert listener.last("one", "net_rx") == listener.last("two", "again") == {"a": 8}
    assert listener.last("two", "rx") == {"a": 8e6}


def test_a_new_policy_gets_the_last_response_at_once() -> None:
    listener, transport = Listener(wanting(metric()), [A]), PretendTransport({"rx": by_instance({"a": 1})})

    async def scenario() -> None:
        async with running(prometheus(transport).run(listener.customer())):
            await asyncio.sleep(3)
            listener.wanted = {"test": {"net_rx": metric()}, "late": {"net_rx": metric(unit="kB/s")}}
            await asyncio.sleep(1.5)

    on_virtual_time(scenario)

    assert len(transport.requests) == 1
    assert listener.last("late") == {"a": 8000}


def test_a_query_that_no_policy_uses_is_not_sent() -> None:
    listener, transport = (
        Listener(wanting(metric(every="2s", stale="9s")), [A]),
        PretendTransport({"rx": by_instance({"a": 1})}),
    )
    poll_status = SourcePollStatus("prom")

    async def scenario() -> None:
        async with running(prometheus(transport, poll_status).run(listener.customer())):
            await asyncio.sleep(3)
            listener.wanted = {}
            await asyncio.sleep(1.1)
            count = len(transport.requests)
            assert count > 0
            await asyncio.sleep(60)
            assert len(transport.requests) == count

    on_virtual_time(scenario)

    assert poll_status.last_good == {}


def test_a_slow_server_does_not_make_queries_pile_up() -> None:
    listener, transport = (
        Listener(wanting(metric(every="2s", stale="9s")), [A]),
        PretendTransport({"rx": by_instance({"a": 1})}),
    )
    transport.takes_s = 9.0

    one_poll(listener, transport, for_s=60)

    assert len(gaps(asked_times(transport))) >= 4
    assert min(gaps(asked_times(transport))) >= 9


# ── failures ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_failures_are_counted_logged_once_and_retried_with_backoff(
    caplog: pytest.LogCaptureFixture,
) -> None:
    listener, poll_status = Listener(wanting(metric(every="5s")), [A]), SourcePollStatus("prom")
    transport = PretendTransport({"rx": PollError("timeout", "no complete response within 10 s")})

    async def scenario() -> None:
        async with running(prometheus(transport, poll_status).run(listener.customer())):
            await asyncio.sleep(600)
            transport.answers["rx"] = by_instance({"a": 1})
            await asyncio.sleep(RETRY_MAX_S + 1)

    with caplog.at_level(logging.INFO, "policysched.metric_sources.poll_status"):
        on_virtual_time(scenario)

    waits = gaps(asked_times(transport))
    assert [round(wait / 5) for wait in waits[:4]] == [1, 2, 4, 8]
    assert max(waits) <= RETRY_MAX_S
    assert set(poll_status.polls_by_outcome) == {"ok", "timeout"}
    assert sum(poll_status.polls_by_outcome.values()) == len(transport.requests)
    assert [(record.levelname, getattr(record, "source")) for record in caplog.records] == [  # noqa: B009
        ("WARNING", "prom"),
        ("INFO", "prom"),
    ]
    assert (poll_status.failures, listener.last()) == ({}, {"a": 8})


def test_nothing_is_delivered_while_a_server_fails() -> None:
    listener, transport = (
        Listener(wanting(metric(every="5s")), [A]),
        PretendTransport({"rx": by_instance({"a": 1})}),
    )

    async def scenario() -> None:
        async with running(prometheus(transport).run(listener.customer())):
            await asyncio.sleep(3)
            transport.answers["rx"] = PollError("unreachable", "refused")
            count, asked = len(listener.got), len(transport.requests)
            assert count > 0
            await asyncio.sleep(300)
            assert len(transport.requests) > asked
            assert len(listener.got) == count

    on_virtual_time(scenario)


def test_a_partial_response_counts_and_its_warning_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    listener, poll_status = Listener(wanting(metric(every="5s")), [A, B]), SourcePollStatus("prom")
    transport = PretendTransport({"rx": by_instance({"a": 1}, warnings=["store b is unavailable"])})

    with caplog.at_level(logging.INFO, "policysched.metric_sources.poll_status"):
        one_poll(listener, transport, poll_status, for_s=60)

    assert listener.last() == {"a": 8}
    assert poll_status.last_good["test", "net_rx"].warnings == ("store b is unavailable",)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_samples_in_a_unit_that_the_policy_no_longer_uses_are_not_delivered() -> None:
    listener, transport = (
        Listener(wanting(metric(unit="B/s")), [A]),
        PretendTransport({"rx": by_instance({"a": 1})}),
    )
    transport.takes_s = 2.0

    async def scenario() -> None:
        async with running(prometheus(transport).run(listener.customer())):
            await asyncio.sleep(2.0)
            listener.wanted = wanting(metric(unit="MB/s"))  # type: ignore[assignment]
            await asyncio.sleep(3.0)

    on_virtual_time(scenario)

    values = [
        arrival.samples.values[NodeName("a")].value
        for arrival in listener.got
        if isinstance(arrival, SamplesArrived)
    ]
    assert values and set(values) == {8e6}

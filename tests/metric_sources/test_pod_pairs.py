"""Samples of pairs of pods, from Prometheus and from files: both directions are one pair, and
unusable values differ from missing ones.
"""

import asyncio
import re
import sys
from collections.abc import Callable

import pytest

from policysched.cluster.metric_samples import PairEndpoint, PairSamples
from policysched.lang.ir.declarations import Metric
from policysched.metric_sources import pod_pairs as pairs_module
from policysched.metric_sources.annotations import unsupported_reason as why_not_annotations
from policysched.metric_sources.file import convert_file_metric
from policysched.metric_sources.metrics_api import unsupported_reason as why_not_metrics_api
from policysched.metric_sources.pod_pairs import parse_pair
from policysched.metric_sources.poll_status import PollError, SourcePollStatus
from tests.kube.world import on_virtual_time, running
from tests.metric_sources.builders import (
    Listener,
    PretendTransport,
    Series,
    checked_metric,
    prometheus,
    vector,
)

A, B, C = ("ml", "train-0"), ("ml", "train-1"), ("ml", "train-2")


def talk(joins: str = 'from = ["ns", "pod"]  to = ["peer_ns", "peer_pod"]', unit: str = "B/s") -> Metric:
    return checked_metric(
        f'metric talk: bandwidth {{ query = "flows"  unit = "{unit}"  {joins}  every = 15s  stale = 90s }}',
        "talk",
    )


def between(sender: PairEndpoint, receiver: PairEndpoint) -> dict[str, str]:
    return {"ns": sender[0], "pod": sender[1], "peer_ns": receiver[0], "peer_pod": receiver[1]}


def polled(
    *series: Series, metric: Metric | None = None, poll_status: SourcePollStatus | None = None
) -> PairSamples:
    listener = Listener({"test": {"talk": metric or talk()}})
    transport = PretendTransport({"flows": vector(*series)})

    async def scenario() -> None:
        async with running(prometheus(transport, poll_status).run(listener.customer())):
            await asyncio.sleep(3.0)

    on_virtual_time(scenario)
    samples = listener.got[-1].samples
    assert samples.values == {}
    return samples.pairs


def test_both_directions_of_a_pair_are_summed_in_the_base_unit() -> None:
    pairs = polled((between(A, B), 1000), (between(B, A), 500), (between(B, C), 1))

    assert pairs == {A: {B: 12_000.0}, B: {A: 12_000.0, C: 8.0}, C: {B: 8.0}}


def test_a_single_label_may_name_the_namespace_and_the_pod() -> None:
    metric = talk('from = ["source"]  to = ["destination"]')

    pairs = polled(({"source": "ml/train-0", "destination": "ml/train-1"}, 1), metric=metric)

    assert pairs == {A: {B: 8.0}, B: {A: 8.0}}


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-5"])
def test_a_pair_with_an_invalid_value_is_known_without_a_value(value: str) -> None:
    poll_status = SourcePollStatus("prom")

    pairs = polled((between(A, B), value), (between(B, A), 7), (between(B, C), 1), poll_status=poll_status)

    assert pairs[A] == {B: None}
    assert pairs[B] == {A: None, C: 8.0}
    assert (poll_status.last_good["test", "talk"].nodes, poll_status.last_good["test", "talk"].invalid) == (
        3,
        1,
    )


def a_doubled_pair() -> tuple[PairSamples, SourcePollStatus]:
    poll_status = SourcePollStatus("prom")
    series = [({**between(A, B), "device": device}, 1) for device in ("eth0", "eth1", "eth2")]
    return polled(*series, (between(B, C), 1), poll_status=poll_status), poll_status


def test_a_pair_with_duplicate_series_has_no_value() -> None:
    pairs, poll_status = a_doubled_pair()

    assert pairs[A] == {B: None}
    assert poll_status.last_good["test", "talk"].duplicated == 1


def test_planted_duplicate_pair_that_counts_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    def last_wins(self: pairs_module.PairSeriesJoin, labels: dict[str, str], value: float) -> None:
        self.values[(labels["ns"], labels["pod"]), (labels["peer_ns"], labels["peer_pod"])] = value

    monkeypatch.setattr(pairs_module.PairSeriesJoin, "add_series", last_wins)

    with pytest.raises(AssertionError):
        test_a_pair_with_duplicate_series_has_no_value()


def test_a_series_without_two_pods_belongs_to_no_pair() -> None:
    poll_status = SourcePollStatus("prom")
    outside = {"ns": "ml", "pod": "train-0", "peer_ns": "", "peer_pod": ""}

    pairs = polled(
        (outside, 1), ({"ns": "ml", "pod": "train-0"}, 1), (between(A, B), 1), poll_status=poll_status
    )

    assert pairs == {A: {B: 8.0}, B: {A: 8.0}}
    assert poll_status.last_good["test", "talk"].unmatched == 2


def test_policies_with_other_units_share_the_response() -> None:
    listener = Listener({"test": {"talk": talk()}, "other": {"talk": talk(unit="kbps")}})
    transport = PretendTransport({"flows": vector((between(A, B), 1))})

    async def scenario() -> None:
        async with running(prometheus(transport).run(listener.customer())):
            await asyncio.sleep(3.0)

    on_virtual_time(scenario)

    assert len(transport.requests) == 1
    assert {arrival.policy: arrival.samples.pairs[A] for arrival in listener.got} == {
        "test": {B: 8.0},
        "other": {B: 1000.0},
    }


def test_thousands_of_pairs_take_the_event_loop_in_small_pieces_whatever_the_number_of_policies() -> None:
    """A pod per node that talks to all others makes them; every policy on the base of a library has the metric."""
    listener = Listener({f"team-{number}": {"talk": talk()} for number in range(20)})
    pods = [("ml", f"train-{number}") for number in range(80)]
    flows = vector(*((between(sender, receiver), 1) for sender in pods for receiver in pods))
    pieces = [0]

    def count(_frame: object, event: str, _argument: object) -> None:
        pieces[-1] += event in ("call", "c_call")

    async def measure_until_delivered() -> None:
        sys.setprofile(count)
        try:
            while len(listener.got) < 20:
                pieces.append(0)
                await asyncio.sleep(0)
        finally:
            sys.setprofile(None)

    class MeasuredTransport(PretendTransport):
        async def query(self, query: str) -> bytes:
            self.measuring = asyncio.ensure_future(measure_until_delivered())
            return await super().query(query)

    async def scenario() -> None:
        async with running(prometheus(MeasuredTransport({"flows": flows})).run(listener.customer())):
            await asyncio.sleep(3.0)

    on_virtual_time(scenario)

    assert len(listener.got) == 20
    assert max(pieces) < 20_000 < sum(pieces) / 10, "calls of functions"


# ── more series than a response may have ───────────────────────────────────────────────────────────────────────────


BYTES_MAX = 100_000


class BoundedServer(PretendTransport):
    """Evaluates `topk` as Prometheus does, and refuses larger responses. `tests/prometheus` sends the query to a real one."""

    def __init__(self, *series: Series) -> None:
        super().__init__({})
        self.series = series

    async def query(self, query: str) -> bytes:
        self.requests.append((asyncio.get_running_loop().time(), query))
        series = self.series
        if top := re.match(r"topk by \(policysched_namespace\) \((\d+),", query):
            by_namespace: dict[str, list[Series]] = {}
            for labels, value in series:
                named = {**labels, "policysched_namespace": labels["ns"]}
                by_namespace.setdefault(labels["ns"], []).append((named, value))
            series = tuple(
                one
                for some in by_namespace.values()
                for one in sorted(some, key=lambda each: -float(str(each[1])))[: int(top[1])]
            )
        body = vector(*series)
        if len(body) > BYTES_MAX:
            raise PollError("too_large", f"the response exceeds {BYTES_MAX:,} bytes")
        return body

    def asked(self) -> list[str]:
        """`all`, or how many of each namespace."""
        counts = [re.search(r"\((\d+),", query) for _, query in self.requests]
        return ["all" if count is None else count[1] for count in counts]


def all_talk(namespace: str, pods: int) -> list[Series]:
    names = [(namespace, f"p{number}") for number in range(pods)]
    return [(between(sender, receiver), 1) for sender in names for receiver in names if sender != receiver]


def polls_of(
    server: BoundedServer, poll_status: SourcePollStatus, then: Callable[[], object] = lambda: None
) -> list[PairSamples]:
    """For a minute, and `then` for another one."""
    listener = Listener({"test": {"talk": talk()}})

    async def scenario() -> None:
        source = prometheus(server, poll_status, response_bytes_max=BYTES_MAX)
        async with running(source.run(listener.customer())):
            await asyncio.sleep(60.0)
            then()
            await asyncio.sleep(60.0)

    on_virtual_time(scenario)
    return [arrival.samples.pairs for arrival in listener.got]


def test_pods_that_all_talk_to_each_other_cost_no_other_namespace_its_samples() -> None:
    poll_status = SourcePollStatus("prom")
    server = BoundedServer(*all_talk("tenant", 60), (between(A, B), 1000), (between(B, A), 500))

    polls = polls_of(server, poll_status)

    assert len(polls) >= 7 and all(pairs[A] == {B: 12_000.0} for pairs in polls)
    assert all(0 < sum(map(len, pairs.values())) <= 2 * 252 for pairs in polls)
    assert server.asked() == ["all", "1000", *["250"] * len(polls)]
    assert poll_status.last_good["test", "talk"].warnings == (
        "all series are too many bytes: only the 250 largest ones of tenant count",
    )


def test_all_series_are_asked_for_again_when_they_fit() -> None:
    poll_status = SourcePollStatus("prom")
    server = BoundedServer(*all_talk("tenant", 60), (between(A, B), 1000))

    def end() -> None:
        server.series = server.series[-1:]
        server.requests.clear()

    polls = polls_of(server, poll_status, end)

    assert server.asked()[:4] == ["250", "1000", "all", "all"]
    assert polls[-1] == {A: {B: 8_000.0}, B: {A: 8_000.0}}
    assert poll_status.last_good["test", "talk"].warnings == ()


def test_more_namespaces_than_fit_with_the_fewest_series_fail_the_poll() -> None:
    poll_status = SourcePollStatus("prom")
    server = BoundedServer(*(series for number in range(1_000) for series in all_talk(f"n{number}", 2)))

    assert polls_of(server, poll_status) == []

    assert poll_status.failures["test", "talk"].kind == "too_large"
    assert server.asked()[:6] == ["all", "1000", "250", "62", "15", "3"]


def test_a_file_names_two_pods_with_an_arrow() -> None:
    values: dict[str, float | str] = {
        "ml/train-0 -> ml/train-1": "3Mbps",
        "ml/train-1->ml/train-2": 125,
        "ml/train-2 -> ml/train-0": "often",
        "train-0 -> train-1": 1,
    }

    converted = convert_file_metric(talk(), values, (), 7)

    assert converted.samples.polled_ns == 7
    assert converted.samples.pairs == {A: {B: 3e6, C: None}, B: {A: 3e6, C: 1000.0}, C: {B: 1000.0, A: None}}
    assert (converted.invalid, converted.unknown_nodes) == (2, ())
    assert converted.invalid_message == (
        "metric talk: not a bandwidth, so missing: `often` (ml/train-2 -> ml/train-0); "
        "metric talk: not a pair of pods (`namespace/name -> namespace/name`): `train-0 -> train-1`"
    )


@pytest.mark.parametrize("key", ["a/b", "a/b -> c", "a/b -> c/d/e", "/b -> c/d", "a/b c/d", "-> a/b"])
def test_text_that_does_not_name_two_pods_is_not_a_pair(key: str) -> None:
    assert parse_pair(key) is None


def test_sources_without_pod_pairs_reject_pair_metrics() -> None:
    assert why_not_annotations(talk()) == "annotations do not support metrics between pods"
    assert why_not_metrics_api(talk()) == "the metrics API does not support metrics between pods"

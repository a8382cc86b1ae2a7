"""Series are joined to nodes by name, by address in every notation, or by a label; a series that
matches two nodes is dropped.
"""

import asyncio
from dataclasses import replace

import pytest

from policysched.metric_sources import series_join
from policysched.metric_sources.polling import QueryResult
from policysched.metric_sources.prometheus import PrometheusQuery, PrometheusQueryClient
from policysched.metric_sources.series_join import SeriesJoiner, instance_host
from policysched.model.identifiers import NodeName
from policysched.model.nodes import Node
from tests.evaluate.test_hostile import calls_of
from tests.metric_sources.builders import PretendTransport, node_at, vector


def nodes(*several: Node) -> dict[NodeName, Node]:
    return {node.name: node for node in several}


def joined(joiner: SeriesJoiner, **labels: str) -> list[str]:
    return sorted(joiner.nodes_of(labels))


@pytest.mark.parametrize(
    "instance",
    [
        "worker-1",
        "worker-1:9100",
        "WORKER-1:9100",
        "10.0.0.1",
        "10.0.0.1:9100",
        "203.0.113.7:9100",
        "[fd00::1]:9100",
        "[fd00:0:0:0::1]:9100",
        "fd00::1",
        "worker-1.example.com:9100",
        "worker-1.example.com.",
        "host-label:9100",
    ],
)
def test_an_instance_is_any_name_or_address_of_the_node_with_or_without_a_port(instance: str) -> None:
    joiner = SeriesJoiner("instance")
    addresses = ("10.0.0.1", "203.0.113.7", "fd00::0:1", "worker-1.example.com")
    worker = node_at("worker-1", *addresses)
    worker = replace(worker, labels={**worker.labels, "kubernetes.io/hostname": "host-label"})
    joiner.update_nodes(nodes(worker, node_at("worker-11", "10.0.0.11", "fd00::11")))

    assert joined(joiner, instance=instance) == ["worker-1"]


@pytest.mark.parametrize(
    "instance", ["worker-2", "10.0.0.12:9100", "", ":9100", "[]:9100", "[fd00::2]", "::::", "[10.0.0"]
)
def test_an_instance_that_is_not_a_known_node_joins_nothing(instance: str) -> None:
    joiner = SeriesJoiner("instance")
    joiner.update_nodes(nodes(node_at("worker-1", "10.0.0.1", "fd00::1")))

    assert joined(joiner, instance=instance) == []


def test_an_address_of_two_nodes_joins_neither() -> None:
    joiner = SeriesJoiner("instance")
    joiner.update_nodes(nodes(node_at("a", "10.0.0.1"), node_at("b", "10.0.0.1")))

    assert joined(joiner, instance="10.0.0.1:9100") == []
    assert joined(joiner, instance="a:9100") == ["a"]


def test_the_node_label_is_the_exact_node_name() -> None:
    joiner = SeriesJoiner("node")
    joiner.update_nodes(nodes(node_at("a", "10.0.0.1")))

    assert (joined(joiner, node="a"), joined(joiner, node="A"), joined(joiner, instance="a")) == (
        ["a"],
        [],
        [],
    )


def test_a_label_value_of_several_nodes_joins_each_of_them() -> None:
    joiner = SeriesJoiner(("rack", "example.com/rack"))
    in_rack = {"example_com__rack": "r1"}
    joiner.update_nodes(nodes(node_at("a", **in_rack), node_at("b", **in_rack), node_at("c")))

    assert joined(joiner, rack="r1") == ["a", "b"]
    assert joined(joiner, rack="r2") == []
    assert joined(joiner) == []


def test_thousands_of_series_of_one_label_do_not_visit_its_nodes_each_time() -> None:
    """Whoever can add series to a source could otherwise take the event loop for seconds."""
    in_rack = {"example_com__rack": "r1"}
    racked = nodes(*[node_at(f"n{number}", **in_rack) for number in range(200)])
    transport = PretendTransport({"q": vector(*[({"rack": "r1"}, number) for number in range(400)])})
    client = PrometheusQueryClient(transport, now_ns=lambda: 1)
    query = PrometheusQuery("q", None, ("rack", "example.com/rack"))
    results: list[QueryResult] = []

    calls = calls_of(lambda: results.append(asyncio.run(client.fetch(query, lambda: racked))))

    assert (results[0].duplicated, results[0].raw.values) == (200, {})
    assert calls < 30_000


def test_added_changed_and_deleted_nodes_are_followed() -> None:
    joiner = SeriesJoiner("instance")
    a, b = node_at("a", "10.0.0.1"), node_at("b", "10.0.0.2")
    joiner.update_nodes(nodes(a, b))
    joiner.update_nodes(nodes(a, b))

    joiner.update_nodes(nodes(replace(a, addresses=("10.0.0.9",)), b))
    assert [joined(joiner, instance=f"10.0.0.{last}") for last in (1, 2, 9)] == [[], ["b"], ["a"]]

    joiner.update_nodes(nodes(node_at("c", "10.0.0.2")))
    assert [joined(joiner, instance=f"10.0.0.{last}") for last in (1, 2, 9)] == [[], ["c"], []]


def test_a_label_that_is_not_a_string_joins_nothing() -> None:
    joiner = SeriesJoiner("instance")
    joiner.update_nodes(nodes(node_at("a")))

    assert list(joiner.nodes_of({"instance": ["a"]})) == []


def test_planted_host_that_keeps_its_port_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: addresses are compared as texts."""
    monkeypatch.setattr(series_join, "instance_host", lambda instance: instance)

    with pytest.raises(AssertionError):
        test_an_instance_is_any_name_or_address_of_the_node_with_or_without_a_port("10.0.0.1:9100")


def test_planted_join_with_the_first_of_two_nodes_is_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = SeriesJoiner.nodes_of
    monkeypatch.setattr(SeriesJoiner, "nodes_of", lambda self, labels: list(original(_any(self), labels))[:1])

    with pytest.raises(AssertionError):
        test_an_address_of_two_nodes_joins_neither()


def _any(joiner: SeriesJoiner) -> SeriesJoiner:
    """The planted bug: an address shared by two nodes is accepted."""
    other = SeriesJoiner(("instance", "x"))
    other._owners = dict(joiner._owners)
    other._owners |= {f"{key}:9100": owners for key, owners in joiner._owners.items()}
    return other


def test_the_host_is_parsed_from_an_instance() -> None:
    assert [instance_host(instance) for instance in ("a:1", "[fd00::1]:1", "fd00::1:9100", "a")] == [
        "a",
        "fd00::1",
        "fd00::1:9100",
        "a",
    ]


def test_unused_joins_keep_no_nodes() -> None:
    asker = PrometheusQueryClient(PretendTransport({"rx": vector()}), now_ns=lambda: 0)
    joined = nodes(node_at("a"))

    for number in range(100):
        question = PrometheusQuery("rx", None, ("host", f"label-{number}"))
        asyncio.run(asker.fetch(question, lambda: joined))

    assert len(asker._joiners) < 20
    assert ("host", "label-99") in asker._joiners

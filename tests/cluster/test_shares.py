"""Namespace shares follow every placement and report changed namespaces."""

import pytest

from policysched.cluster.cache import ClusterCache
from policysched.cluster.namespace_shares import _CHANGES_KEPT_MAX, HypotheticalShares, NamespaceShares
from tests.builders import node, placed, pod, world


def shares_of(cache: ClusterCache, namespace: str) -> tuple[float, float]:
    return cache.shares.share_of(namespace, "cpu"), cache.shares.share_of(namespace, "memory")


def test_a_share_is_the_requests_of_placed_pods_relative_to_all_nodes() -> None:
    cache = world(
        [node("a", cpu="6", memory="8Gi"), node("b", cpu="2", memory="8Gi")],
        [placed(pod("one", namespace="team", cpu="1", memory="4Gi"), "a")],
    )

    cache.assume(pod("two", namespace="team", cpu="1"), "b")

    assert shares_of(cache, "team") == (0.25, 0.25)
    assert shares_of(cache, "elsewhere") == (0.0, 0.0)


def test_a_share_shrinks_when_pods_are_removed() -> None:
    cache = world([node("a", cpu="4")], [placed(pod("one", namespace="team", cpu="1"), "a")])

    cache.drop_pod(pod("one", namespace="team").uid)

    assert shares_of(cache, "team") == (0.0, 0.0)
    assert cache.shares.requested == {}


def test_a_cluster_without_nodes_has_no_shares() -> None:
    cache = world([node("a", cpu="4")], [placed(pod("one", namespace="team", cpu="1"), "a")])

    cache.drop_node("a")

    assert shares_of(cache, "team") == (0.0, 0.0)


def test_each_namespace_changed_since_a_version_is_reported_once() -> None:
    cache = world([node("a", cpu="4"), node("b", cpu="4")], [])
    before = cache.shares.version

    cache.assume(pod("one", namespace="x", cpu="1"), "a")
    cache.assume(pod("two", namespace="y", cpu="1"), "a")
    between = cache.shares.version
    cache.assume(pod("three", namespace="x", cpu="1"), "b")

    assert sorted(cache.shares.changed_since(before) or []) == ["x", "y"]
    assert list(cache.shares.changed_since(between) or []) == ["x"]
    assert list(cache.shares.changed_since(cache.shares.version) or []) == []


def test_the_change_log_of_namespaces_is_bounded() -> None:
    cache = world([node("a", cpu="4")], [])
    before = cache.shares.version

    for number in range(3 * _CHANGES_KEPT_MAX):
        cache.shares.adjust_requested(f"build-{number}", {"cpu": 1}, 1)
        cache.shares.adjust_requested(f"build-{number}", {"cpu": 1}, -1)
        assert len(cache.shares.changes) <= _CHANGES_KEPT_MAX
    cache.shares.adjust_requested("y", {"cpu": 1}, 1)
    between = cache.shares.version
    cache.shares.adjust_requested("x", {"cpu": 1}, 1)

    assert cache.shares.changed_since(before) is None, "everybody may have"
    assert list(cache.shares.changed_since(between) or []) == ["x"]


def test_adding_a_node_changes_all_shares() -> None:
    cache = world([node("a", cpu="4")], [])
    before = cache.shares.version

    cache.put_node(node("b", cpu="4"))

    assert cache.shares.changed_since(before) is None


def test_a_hypothetical_placement_does_not_change_the_real_share() -> None:
    cache = world([node("a", cpu="4")], [placed(pod("one", namespace="team", cpu="1"), "a")])
    shares = HypotheticalShares(cache.shares)

    shares.adjust_requested("team", {"cpu": 2000}, 1)

    assert shares.share_of("team", "cpu") == 0.75
    assert cache.shares.share_of("team", "cpu") == 0.25


def test_the_ledger_recounts_namespace_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    hold = NamespaceShares.adjust_requested
    monkeypatch.setattr(
        NamespaceShares,
        "adjust_requested",
        lambda self, space, requests, sign: hold(self, space, requests, abs(sign)),
    )
    cache = ClusterCache()
    cache.put_node(node("a", cpu="4"))
    cache.assume(pod("one", namespace="team", cpu="1"), "a")

    cache.drop_pod(pod("one", namespace="team").uid)

    assert [difference for difference in cache.ledger.check() if "namespace requests" in difference]


def test_there_is_a_share_of_every_resource_of_nodes_and_of_the_number_of_pods() -> None:
    cache = world([node("a", cpu="4", pods="8", resources={"nvidia.com/gpu": "4"})], [])

    cache.assume(pod("one", namespace="team", cpu="1", resources={"nvidia.com/gpu": "1"}), "a")

    assert cache.shares.share_of("team", "nvidia.com/gpu") == 0.25
    assert cache.shares.share_of("team", "pods") == 0.125
    assert cache.shares.share_of("team", "example.com/none") == 0.0

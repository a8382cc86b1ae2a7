"""Which pods there are, and which of them moved."""

from dataclasses import replace

import pytest

from policysched.cluster.audit import find_cache_differences
from policysched.cluster.cache import ClusterCache
from policysched.cluster.pod_index import PodIndex
from tests.builders import finished, pending, placed, pod


def names(cache: ClusterCache) -> set[str]:
    return {one.name for one in cache.active_pods.pods.values()}


def test_pods_count_on_a_node_and_on_none_until_they_finish_or_are_to_end() -> None:
    cache = ClusterCache()
    cache.put_pod(pending(pod("waits")))
    cache.put_pod(placed(pod("runs"), "a"))
    cache.put_pod(placed(pod("ends"), "a"))
    cache.put_pod(placed(pod("done"), "a"))
    assert names(cache) == {"waits", "runs", "ends", "done"}

    cache.put_pod(replace(placed(pod("ends"), "a"), deleting=True))
    cache.put_pod(finished(pod("done"), "a"))
    cache.drop_pod(pod("waits").uid)

    assert names(cache) == {"runs"}


def test_who_is_done_is_remembered_until_deleted_without_what_placing_reads() -> None:
    cache, big = ClusterCache(), pod("done", labels={"app": "x"}, gates=["x"])
    cache.put_pod(placed(big, "a"))
    cache.put_pod(placed(pod("ends"), "a"))
    before = set(cache.ended_pods.pods)

    cache.put_pod(finished(big, "a"))
    cache.put_pod(replace(placed(pod("ends"), "a"), deleting=True))
    cache.put_pod(finished(pod("stranger"), "a"))
    cache.drop_pod(pod("stranger").uid)

    assert before == set()
    assert {one.name for one in cache.ended_pods.pods.values()} == {"done", "ends"}
    assert (cache.ended_pods.pods[big.uid].labels, cache.ended_pods.pods[big.uid].gates) == ({"app": "x"}, ())
    assert (
        find_cache_differences(
            cache, pods=[finished(big, "a"), replace(placed(pod("ends"), "a"), deleting=True)], nodes=[]
        )
        == []
    )


def test_a_pod_that_is_bound_is_the_same_pod() -> None:
    cache = ClusterCache()
    cache.put_pod(pending(pod("web")))
    before = cache.active_pods.version

    cache.put_pod(placed(pod("web"), "a"))

    assert cache.active_pods.version == before


def test_whoever_asks_is_told_who_moved_since() -> None:
    census = PodIndex()
    census.put(pod("first"))
    first = census.version
    census.put(pod("second"))
    census.drop(pod("first").uid)

    assert list(census.changed_since(first) or ()) == [pod("first").uid, pod("second").uid]
    assert list(census.changed_since(census.version) or ()) == []


def test_pods_that_are_gone_are_forgotten_in_the_end() -> None:
    census = PodIndex()
    for number in range(3000):
        census.put(pod(f"p{number}"))
        census.drop(pod(f"p{number}").uid)

    assert census.changed_since(0) is None
    assert len(census.changes) <= 1001


def test_a_census_that_overlooks_a_pod_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PodIndex, "put", lambda *_: None)
    cache, one = ClusterCache(), pending(pod("web"))

    cache.put_pod(one)

    assert len(find_cache_differences(cache, pods=[one], nodes=[])) == 1

"""The pod indexes of the cluster cache and their change log."""

from dataclasses import replace

import pytest

from policysched.cluster.cache import ClusterCache
from policysched.cluster.cache_differences import find_cache_differences
from policysched.cluster.pod_index import PodIndex
from tests.builders import finished, pending, placed, pod


def names(cache: ClusterCache) -> set[str]:
    return {pod.name for pod in cache.active_pods.pods.values()}


def test_active_pods_are_bound_or_unbound_but_not_finished_or_terminating() -> None:
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


def test_ended_pods_are_kept_compacted_until_they_are_deleted() -> None:
    cache, big = ClusterCache(), pod("done", labels={"app": "x"}, gates=["x"])
    cache.put_pod(placed(big, "a"))
    cache.put_pod(placed(pod("ends"), "a"))
    before = set(cache.ended_pods.pods)

    cache.put_pod(finished(big, "a"))
    cache.put_pod(replace(placed(pod("ends"), "a"), deleting=True))
    cache.put_pod(finished(pod("stranger"), "a"))
    cache.drop_pod(pod("stranger").uid)

    assert before == set()
    assert {ended.name for ended in cache.ended_pods.pods.values()} == {"done", "ends"}
    assert (cache.ended_pods.pods[big.uid].labels, cache.ended_pods.pods[big.uid].gates) == ({"app": "x"}, ())
    assert (
        find_cache_differences(
            cache, pods=[finished(big, "a"), replace(placed(pod("ends"), "a"), deleting=True)], nodes=[]
        )
        == []
    )


def test_binding_a_pod_does_not_change_it_in_the_index() -> None:
    cache = ClusterCache()
    cache.put_pod(pending(pod("web")))
    before = cache.active_pods.version

    cache.put_pod(placed(pod("web"), "a"))

    assert cache.active_pods.version == before


def test_the_index_reports_pods_changed_since_a_version() -> None:
    index = PodIndex()
    index.put(pod("first"))
    first = index.version
    index.put(pod("second"))
    index.drop(pod("first").uid)

    assert list(index.changed_since(first) or ()) == [pod("first").uid, pod("second").uid]
    assert list(index.changed_since(index.version) or ()) == []


def test_changes_of_removed_pods_are_forgotten_beyond_the_limit() -> None:
    index = PodIndex()
    for number in range(3000):
        index.put(pod(f"p{number}"))
        index.drop(pod(f"p{number}").uid)

    assert index.changed_since(0) is None
    assert len(index.changes) <= 1001


def test_the_audit_finds_a_pod_missing_from_the_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PodIndex, "put", lambda *_: None)
    cache, observed = ClusterCache(), pending(pod("web"))

    cache.put_pod(observed)

    assert len(find_cache_differences(cache, pods=[observed], nodes=[])) == 1

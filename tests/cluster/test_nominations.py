"""Nominations of ours and those that the watch shows."""

from dataclasses import replace

import pytest

from policysched.cluster.cache import ClusterCache
from policysched.kube.decode import core_objects
from policysched.model.cluster_events import ClusterEvent
from policysched.model.identifiers import NodeName
from policysched.model.pod_status import ObservedPod
from tests.builders import node, pending, placed, pod, pod_manifest, world

A, B = NodeName("a"), NodeName("b")


def shown(where: NodeName | None, **touched: str) -> ObservedPod:
    return replace(pending(pod("p", annotations=touched)), nominated_node=where)


def cache_of(seen: ObservedPod) -> ClusterCache:
    return world([node("a"), node("b")], [seen])


def nominated(cache: ClusterCache) -> NodeName | None:
    found = cache.nominated.get(shown(None).pod.uid)
    return None if found is None else found.nominated_node


def test_ours_stands_while_the_watch_shows_none_and_goes_when_the_server_takes_it_back() -> None:
    cache = cache_of(shown(None))

    cache.nominate(shown(None).pod.uid, A)
    cache.put_pod(shown(None, step="late"))
    late = nominated(cache)
    cache.put_pod(shown(A))
    confirmed = nominated(cache)
    cache.put_pod(shown(None, step="cleared"))

    assert (late, confirmed, nominated(cache)) == (A, A, None)


def test_one_taken_back_stays_so_while_the_watch_still_shows_it() -> None:
    cache = cache_of(shown(A))

    freed = cache.nominate(shown(None).pod.uid, None)
    cache.put_pod(shown(A, step="late"))

    assert nominated(cache) is None
    assert freed == {ClusterEvent.ASSIGNED_POD_DELETE}, "its room is free for others"


def test_another_node_replaces_it() -> None:
    cache = cache_of(shown(A))

    cache.nominate(shown(None).pod.uid, B)
    cache.put_pod(shown(A, step="late"))

    assert nominated(cache) == B


def test_a_pod_that_is_placed_or_gone_is_nominated_no_more() -> None:
    bound, gone = cache_of(shown(None)), cache_of(shown(None))
    for cache in (bound, gone):
        cache.nominate(shown(None).pod.uid, A)

    bound.put_pod(placed(shown(None).pod, "a"))
    gone.drop_pod(shown(None).pod.uid)

    assert (nominated(bound), nominated(gone)) == (None, None)


def test_a_placed_pod_cannot_be_nominated() -> None:
    cache = cache_of(placed(shown(None).pod, "a"))

    with pytest.raises(AssertionError, match="cannot be nominated"):
        cache.nominate(shown(None).pod.uid, B)


def test_the_wire_says_when_a_pod_was_taken_up_and_what_ends_it() -> None:
    manifest = pod_manifest("p")
    target = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    manifest["status"] = {"startTime": "2026-01-01T00:00:01Z", "conditions": [target]}
    evicted = {**manifest, "status": {"conditions": [{**target, "reason": "EvictionByEvictionAPI"}]}}

    seen = core_objects.decode_pod(manifest)

    assert (seen.started_ns, seen.preempted) == (1_767_225_601 * 10**9, True)
    assert (core_objects.decode_pod(evicted).started_ns, core_objects.decode_pod(evicted).preempted) == (
        None,
        False,
    )

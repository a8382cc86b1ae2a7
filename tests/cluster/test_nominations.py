"""Nominations by this scheduler and those that the watch shows."""

from dataclasses import replace

import pytest

from policysched.cluster.cache import ClusterCache
from policysched.kube.decode.pods import decode_pod
from policysched.model.cluster_events import ClusterEvent
from policysched.model.identifiers import NodeName
from policysched.model.pod_status import ObservedPod
from tests.builders import node, pending, placed, pod, pod_manifest, world

A, B = NodeName("a"), NodeName("b")


def shown(where: NodeName | None, **touched: str) -> ObservedPod:
    return replace(pending(pod("p", annotations=touched)), nominated_node=where)


def cache_of(observed: ObservedPod) -> ClusterCache:
    return world([node("a"), node("b")], [observed])


def nominated(cache: ClusterCache) -> NodeName | None:
    observed = cache.nominated.get(shown(None).pod.uid)
    return None if observed is None else observed.nominated_node


def test_a_nomination_stands_until_the_watch_shows_it_and_goes_when_the_server_clears_it() -> None:
    cache = cache_of(shown(None))

    cache.nominate(shown(None).pod.uid, A)
    cache.put_pod(shown(None, step="late"))
    late = nominated(cache)
    cache.put_pod(shown(A))
    confirmed = nominated(cache)
    cache.put_pod(shown(None, step="cleared"))

    assert (late, confirmed, nominated(cache)) == (A, A, None)


def test_a_withdrawn_nomination_stays_withdrawn_while_the_watch_still_shows_it() -> None:
    cache = cache_of(shown(A))

    freed = cache.nominate(shown(None).pod.uid, None)
    cache.put_pod(shown(A, step="late"))

    assert nominated(cache) is None
    assert freed == {ClusterEvent.ASSIGNED_POD_DELETE}, "its room is free for others"


def test_a_new_nomination_replaces_the_old_one() -> None:
    cache = cache_of(shown(A))

    cache.nominate(shown(None).pod.uid, B)
    cache.put_pod(shown(A, step="late"))

    assert nominated(cache) == B


def test_a_placed_or_deleted_pod_is_not_nominated() -> None:
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


def test_start_time_and_preemption_are_decoded() -> None:
    manifest = pod_manifest("p")
    target = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    manifest["status"] = {"startTime": "2026-01-01T00:00:01Z", "conditions": [target]}
    evicted = {**manifest, "status": {"conditions": [{**target, "reason": "EvictionByEvictionAPI"}]}}

    observed = decode_pod(manifest)

    assert (observed.started_ns, observed.preempted) == (1_767_225_601 * 10**9, True)
    assert (decode_pod(evicted).started_ns, decode_pod(evicted).preempted) == (
        None,
        False,
    )

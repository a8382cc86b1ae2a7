"""Compares the cluster cache with fresh lists from the API server."""

from collections.abc import Iterable
from dataclasses import replace

from policysched.cluster.cache import ClusterCache
from policysched.cluster.pod_index import compact_ended_pod
from policysched.model.nodes import Node
from policysched.model.pod_status import ObservedPod


def find_cache_differences(
    cache: ClusterCache, *, pods: Iterable[ObservedPod], nodes: Iterable[Node]
) -> list[str]:
    """Compare the cache with complete lists of one resource version. Returns one message per
    difference.

    An assumed pod may still be listed as not bound. Any other difference means that a change was
    lost.
    """
    differences = list(cache.ledger.check())
    # The Node object itself does not have the custom resources of the node.
    fresh_nodes = {
        node.name: replace(node, objects=cache.nodes[node.name].objects) if node.name in cache.nodes else node
        for node in nodes
    }
    pods = [cache.pod_groups.attach(pod) for pod in pods]
    ended = {pod.pod.uid: compact_ended_pod(pod.pod) for pod in pods if pod.finished or pod.deleting}
    differences += [
        f"ended pods: index has {cache.ended_pods.pods.get(uid)} for {uid}, expected {ended.get(uid)}"
        for uid in sorted(ended.keys() | cache.ended_pods.pods.keys())
        if cache.ended_pods.pods.get(uid) != ended.get(uid)
    ]
    counted = {uid: pod.pod for uid, pod in cache.pods.items() if not pod.deleting}
    differences += [
        f"active pods: index has {cache.active_pods.pods.get(uid)} for {uid}, expected {counted.get(uid)}"
        for uid in sorted(counted.keys() | cache.active_pods.pods.keys())
        if cache.active_pods.pods.get(uid) != counted.get(uid)
    ]
    for name in sorted(fresh_nodes.keys() | cache.nodes.keys()):
        cached, fresh = cache.nodes.get(name), fresh_nodes.get(name)
        if cached != fresh:
            differences.append(f"node {name}: {_difference(cached, fresh)}")
    fresh_pods = {pod.pod.uid: pod for pod in pods if not pod.finished}
    for uid in sorted(fresh_pods.keys() | cache.pods.keys()):
        cached_pod, observed = cache.pods.get(uid), fresh_pods.get(uid)
        if cached_pod != observed:
            differences.append(f"pod {uid}: {_difference(cached_pod, observed)}")
        placement = cache.ledger.placement(uid)
        ledger_node = placement.node if placement else None
        if observed is not None and observed.node is not None and ledger_node != observed.node:
            differences.append(
                f"pod {observed.pod.full_name} is on {observed.node}, but the ledger has it on {ledger_node}"
            )
        if observed is None and placement is not None:
            differences.append(
                f"pod {placement.pod.full_name} is deleted, but the ledger has it on {ledger_node}"
            )
    return differences


def _difference(cached: object, fresh: object) -> str:
    if cached is None:
        return "missing from the cache"
    if fresh is None:
        return "in the cache, but not on the API server"
    fields = [name for name in type(cached).__slots__ if getattr(cached, name) != getattr(fresh, name)]  # type: ignore[attr-defined]
    return ", ".join(
        f"{name} is {getattr(cached, name)!r}, expected {getattr(fresh, name)!r}" for name in fields
    )

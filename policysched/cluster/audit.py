"""Whether the cache still says what the API server says."""

from collections.abc import Iterable
from dataclasses import replace

from policysched.cluster.cache import ClusterCache
from policysched.cluster.pod_index import compact_ended_pod
from policysched.model.nodes import Node
from policysched.model.pod_status import ObservedPod


def find_cache_differences(
    cache: ClusterCache, *, pods: Iterable[ObservedPod], nodes: Iterable[Node]
) -> list[str]:
    """Compare with fresh lists, whole and taken at one moment. One sentence a difference, none when all is well.

    A pod that we assumed may be shown as not bound yet; every other difference means that a change was lost.
    """
    found = list(cache.ledger.check())
    # What custom resources say of a node is not the node's own.
    fresh_nodes = {
        node.name: replace(node, objects=cache.nodes[node.name].objects) if node.name in cache.nodes else node
        for node in nodes
    }
    pods = list(pods)
    ended = {seen.pod.uid: compact_ended_pod(seen.pod) for seen in pods if seen.finished or seen.deleting}
    found += [
        f"pod {uid}: of those that are done the census has {cache.ended_pods.pods.get(uid)}, should have {ended.get(uid)}"
        for uid in sorted(ended.keys() | cache.ended_pods.pods.keys())
        if cache.ended_pods.pods.get(uid) != ended.get(uid)
    ]
    counted = {uid: seen.pod for uid, seen in cache.pods.items() if not seen.deleting}
    found += [
        f"pod {uid}: the census has {cache.active_pods.pods.get(uid)}, should have {counted.get(uid)}"
        for uid in sorted(counted.keys() | cache.active_pods.pods.keys())
        if cache.active_pods.pods.get(uid) != counted.get(uid)
    ]
    for name in sorted(fresh_nodes.keys() | cache.nodes.keys()):
        kept, fresh = cache.reported_node(name), fresh_nodes.get(name)
        if kept != fresh:
            found.append(f"node {name}: {_difference(kept, fresh)}")
    fresh_pods = {seen.pod.uid: seen for seen in pods if not seen.finished}
    for uid in sorted(fresh_pods.keys() | cache.pods.keys()):
        known, seen = cache.pods.get(uid), fresh_pods.get(uid)
        if known != seen:
            found.append(f"pod {uid}: {_difference(known, seen)}")
        placement = cache.ledger.placement(uid)
        promised = placement.node if placement else None
        if seen is not None and seen.node is not None and promised != seen.node:
            found.append(f"pod {seen.pod.full_name} is on {seen.node}, the ledger has it on {promised}")
        if seen is None and placement is not None:
            found.append(f"pod {placement.pod.full_name} is gone, the ledger still has it on {promised}")
    return found


def _difference(kept: object, fresh: object) -> str:
    if kept is None:
        return "the cache does not have it"
    if fresh is None:
        return "the cache has it, the server does not"
    fields = [name for name in type(kept).__slots__ if getattr(kept, name) != getattr(fresh, name)]  # type: ignore[attr-defined]
    return ", ".join(
        f"{name} is {getattr(kept, name)!r}, should be {getattr(fresh, name)!r}" for name in fields
    )

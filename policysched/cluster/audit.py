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
    differences = list(cache.ledger.check())
    # What custom resources say of a node is not the node's own.
    fresh_nodes = {
        node.name: replace(node, objects=cache.nodes[node.name].objects) if node.name in cache.nodes else node
        for node in nodes
    }
    pods = list(pods)
    ended = {pod.pod.uid: compact_ended_pod(pod.pod) for pod in pods if pod.finished or pod.deleting}
    differences += [
        f"pod {uid}: of those that are done the census has {cache.ended_pods.pods.get(uid)}, should have {ended.get(uid)}"
        for uid in sorted(ended.keys() | cache.ended_pods.pods.keys())
        if cache.ended_pods.pods.get(uid) != ended.get(uid)
    ]
    counted = {uid: pod.pod for uid, pod in cache.pods.items() if not pod.deleting}
    differences += [
        f"pod {uid}: the census has {cache.active_pods.pods.get(uid)}, should have {counted.get(uid)}"
        for uid in sorted(counted.keys() | cache.active_pods.pods.keys())
        if cache.active_pods.pods.get(uid) != counted.get(uid)
    ]
    for name in sorted(fresh_nodes.keys() | cache.nodes.keys()):
        kept, fresh = cache.reported_node(name), fresh_nodes.get(name)
        if kept != fresh:
            differences.append(f"node {name}: {_difference(kept, fresh)}")
    fresh_pods = {pod.pod.uid: pod for pod in pods if not pod.finished}
    for uid in sorted(fresh_pods.keys() | cache.pods.keys()):
        known, observed = cache.pods.get(uid), fresh_pods.get(uid)
        if known != observed:
            differences.append(f"pod {uid}: {_difference(known, observed)}")
        placement = cache.ledger.placement(uid)
        promised = placement.node if placement else None
        if observed is not None and observed.node is not None and promised != observed.node:
            differences.append(f"pod {observed.pod.full_name} is on {observed.node}, the ledger has it on {promised}")
        if observed is None and placement is not None:
            differences.append(f"pod {placement.pod.full_name} is gone, the ledger still has it on {promised}")
    return differences


def _difference(kept: object, fresh: object) -> str:
    if kept is None:
        return "the cache does not have it"
    if fresh is None:
        return "the cache has it, the server does not"
    fields = [name for name in type(kept).__slots__ if getattr(kept, name) != getattr(fresh, name)]  # type: ignore[attr-defined]
    return ", ".join(
        f"{name} is {getattr(kept, name)!r}, should be {getattr(fresh, name)!r}" for name in fields
    )

"""The cluster of a running scheduler as `ClusterFiles`, for what simulates on it in another process."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from policysched.cluster.cache import ClusterCache

ClusterParts = Mapping[str, list[Any]]
"""The objects by field of `ClusterFiles`. They do not change, so that another thread may read them."""


def cluster_parts(cache: ClusterCache) -> ClusterParts:
    """References to what the cache holds now; assumed pods are on their nodes. CSINodes and custom resources of nodes are part
    of the nodes."""
    placement_of, volumes = cache.ledger.placement, cache.volumes
    pods = []
    for uid, observed in cache.pods.items():
        placement = placement_of(uid)
        if placement is not None and observed.node is None:
            observed = replace(observed, node=placement.node)
        pods.append(replace(observed, container_events=()) if observed.container_events else observed)
    return {
        "nodes": list(cache.nodes.values()),
        "namespaces": list(cache.namespaces.values()),
        "budgets": list(cache.budgets),
        "selector_owners": list(cache.selector_owners.by_key.values()),
        "storage": [
            *volumes.classes.values(),
            *volumes.drivers.values(),
            *volumes.capacities.values(),
            *volumes.volumes.values(),
            *volumes.claims.values(),
        ],
        "devices": list(cache.devices.objects()),
        "pod_groups": list(cache.pod_groups.groups.values()),
        "pods": pods,
    }

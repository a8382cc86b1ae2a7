"""What of the cluster `policysched run` watches before it decides."""

from typing import Any

from policysched.kube.decode.counted_names import CountedNames
from policysched.kube.watch.node_resources import with_node_resources
from policysched.kube.watch.resources import (
    DEVICE_RESOURCES,
    DISRUPTION_BUDGETS,
    NAMESPACES,
    POD_GROUP_RESOURCES,
    SELECTOR_OWNERS,
    STORAGE_RESOURCES,
    WatchedResource,
    pods_within,
)
from policysched.scheduler.events import NodeDeleted, NodeUpdated


def cluster_resources(
    nodes: WatchedResource[NodeUpdated | NodeDeleted], decision_budget: int, names: CountedNames
) -> tuple[WatchedResource[Any], ...]:
    """All that the decisions about any pod can need."""
    return (
        NAMESPACES,
        with_node_resources(nodes, names),
        pods_within(decision_budget, names),
        DISRUPTION_BUDGETS,
        *SELECTOR_OWNERS,
        *STORAGE_RESOURCES,
        *DEVICE_RESOURCES,
        *POD_GROUP_RESOURCES,
    )

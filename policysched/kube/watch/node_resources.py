"""The resources of the watched nodes, of which large pods keep their requests first."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from policysched.kube.decode.counted_names import CountedNames
from policysched.kube.watch.resources import WatchedResource
from policysched.scheduler.events import NodeDeleted, NodeUpdated


def with_node_resources(
    nodes: WatchedResource[NodeUpdated | NodeDeleted], names: CountedNames
) -> WatchedResource[NodeUpdated | NodeDeleted]:
    """Nodes, whose resources are counted."""

    def updated_event(obj: Mapping[str, Any]) -> NodeUpdated | NodeDeleted:
        event = nodes.updated_event(obj)
        if isinstance(event, NodeUpdated):
            names.count_node(event.node.name, event.node.allocatable)
        return event

    def deleted_event(key: str) -> NodeUpdated | NodeDeleted:
        names.count_node(key, ())
        return nodes.deleted_event(key)

    return replace(nodes, updated_event=updated_event, deleted_event=deleted_event)

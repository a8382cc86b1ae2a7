"""Slices of devices as last seen, by their pool and by who can use them."""

from collections.abc import Iterable

from policysched.model.devices import PoolId, ResourceSlice
from policysched.model.identifiers import NodeName


class ResourceSliceIndex:
    """A slice is one node's where all of its devices are and nothing is counted across nodes; any other may be for several."""

    def __init__(self) -> None:
        self.by_name: dict[str, ResourceSlice] = {}
        self._by_pool: dict[PoolId, dict[str, ResourceSlice]] = {}
        self._by_node: dict[NodeName, dict[str, ResourceSlice]] = {}
        self._of_several_nodes: dict[str, ResourceSlice] = {}

    def add(self, one: ResourceSlice) -> None:
        self.by_name[one.name] = one
        self._by_pool.setdefault(one.pool, {})[one.name] = one
        if _exclusive_node(one) is None or one.counters:
            self._of_several_nodes[one.name] = one
        else:
            assert one.accessible_nodes.node is not None, f"{one.name} is of no node"
            self._by_node.setdefault(one.accessible_nodes.node, {})[one.name] = one

    def remove(self, one: ResourceSlice) -> None:
        del self.by_name[one.name]
        self._of_several_nodes.pop(one.name, None)
        if one.accessible_nodes.node is not None:
            of_node = self._by_node.get(one.accessible_nodes.node, {})
            of_node.pop(one.name, None)
            if not of_node:
                self._by_node.pop(one.accessible_nodes.node, None)
        pool = self._by_pool[one.pool]
        del pool[one.name]
        if not pool:
            del self._by_pool[one.pool]

    def of_pool(self, pool: PoolId) -> Iterable[ResourceSlice]:
        return self._by_pool.get(pool, {}).values()

    def candidates_for(self, node: NodeName) -> tuple[ResourceSlice, ...]:
        """The node's own, and those that several can use, this one perhaps among them."""
        return (*self._by_node.get(node, {}).values(), *self._of_several_nodes.values())

    def exclusive_node_of(self, pool: PoolId) -> NodeName | None:
        """The node that alone can use the pool's devices; None: several, or nobody knows."""
        nodes = {_exclusive_node(one) for one in self.of_pool(pool)}
        return nodes.pop() if len(nodes) == 1 else None


def _exclusive_node(one: ResourceSlice) -> NodeName | None:
    return None if one.per_device_node_selection else one.accessible_nodes.node

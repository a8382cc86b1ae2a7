"""ResourceSlices as observed, indexed by pool and by the nodes that can use them."""

from collections import Counter
from collections.abc import Iterable

from policysched.cluster.devices.pools import PoolSlices
from policysched.model.devices import PoolId, ResourceSlice
from policysched.model.identifiers import NodeName


class ResourceSliceIndex:
    """A slice belongs to one node if all its devices do, or their counters. Any other slice may be used by several."""

    def __init__(self) -> None:
        self.by_name: dict[str, ResourceSlice] = {}
        self._pools: dict[PoolId, PoolSlices] = {}
        self._by_node: dict[NodeName, dict[str, ResourceSlice]] = {}
        self._of_several_nodes: dict[str, ResourceSlice] = {}
        self._exclusive_nodes: dict[PoolId, Counter[NodeName | None]] = {}

    def add(self, resource_slice: ResourceSlice) -> None:
        self.by_name[resource_slice.name] = resource_slice
        self._pools.setdefault(resource_slice.pool, PoolSlices()).add(resource_slice)
        self._exclusive_nodes.setdefault(resource_slice.pool, Counter())[_exclusive_node(resource_slice)] += 1
        if _exclusive_node(resource_slice) is None:
            self._of_several_nodes[resource_slice.name] = resource_slice
        else:
            assert resource_slice.accessible_nodes.node is not None, (
                f"{resource_slice.name} belongs to no node"
            )
            self._by_node.setdefault(resource_slice.accessible_nodes.node, {})[resource_slice.name] = (
                resource_slice
            )

    def remove(self, resource_slice: ResourceSlice) -> None:
        del self.by_name[resource_slice.name]
        self._of_several_nodes.pop(resource_slice.name, None)
        if resource_slice.accessible_nodes.node is not None:
            of_node = self._by_node.get(resource_slice.accessible_nodes.node, {})
            of_node.pop(resource_slice.name, None)
            if not of_node:
                self._by_node.pop(resource_slice.accessible_nodes.node, None)
        pool = self._pools[resource_slice.pool]
        pool.remove(resource_slice)
        nodes, node = self._exclusive_nodes[resource_slice.pool], _exclusive_node(resource_slice)
        nodes[node] -= 1
        if not nodes[node]:
            del nodes[node]
        if not pool.by_name:
            del self._pools[resource_slice.pool], self._exclusive_nodes[resource_slice.pool]

    def of_pool(self, pool: PoolId) -> PoolSlices:
        return self._pools[pool]

    def candidates_for(self, node: NodeName) -> tuple[ResourceSlice, ...]:
        """The slices of the node, and all slices that several nodes may use."""
        return (*self.of_node(node), *self.of_several_nodes())

    def of_node(self, node: NodeName) -> Iterable[ResourceSlice]:
        return self._by_node.get(node, {}).values()

    def of_several_nodes(self) -> Iterable[ResourceSlice]:
        return self._of_several_nodes.values()

    def exclusive_node_of(self, pool: PoolId) -> NodeName | None:
        """The only node that can use the pool's devices; None: several can, or it is unknown."""
        nodes = self._exclusive_nodes.get(pool, ())
        return next(iter(nodes)) if len(nodes) == 1 else None


def _exclusive_node(resource_slice: ResourceSlice) -> NodeName | None:
    return None if resource_slice.per_device_node_selection else resource_slice.accessible_nodes.node

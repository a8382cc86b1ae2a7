"""Slices of devices as last seen, by their pool and by who can use them."""

from collections.abc import Iterable

from policysched.model.devices import PoolId, ResourceSlice
from policysched.model.objects import NodeName


class DeviceSlices:
    """A slice is one node's where all of its devices are and nothing is counted across nodes; any other may be for several."""

    def __init__(self) -> None:
        self.by_name: dict[str, ResourceSlice] = {}
        self._by_pool: dict[PoolId, dict[str, ResourceSlice]] = {}
        self._of_node: dict[NodeName, dict[str, ResourceSlice]] = {}
        self._of_many: dict[str, ResourceSlice] = {}

    def add(self, one: ResourceSlice) -> None:
        self.by_name[one.name] = one
        self._by_pool.setdefault(one.pool, {})[one.name] = one
        if _only_node(one) is None or one.counters:
            self._of_many[one.name] = one
        else:
            assert one.reach.node is not None, f"{one.name} is of no node"
            self._of_node.setdefault(one.reach.node, {})[one.name] = one

    def remove(self, one: ResourceSlice) -> None:
        del self.by_name[one.name]
        self._of_many.pop(one.name, None)
        if one.reach.node is not None:
            of_node = self._of_node.get(one.reach.node, {})
            of_node.pop(one.name, None)
            if not of_node:
                self._of_node.pop(one.reach.node, None)
        pool = self._by_pool[one.pool]
        del pool[one.name]
        if not pool:
            del self._by_pool[one.pool]

    def of_pool(self, pool: PoolId) -> Iterable[ResourceSlice]:
        return self._by_pool.get(pool, {}).values()

    def perhaps_for(self, node: NodeName) -> tuple[ResourceSlice, ...]:
        """The node's own, and those that several can use, this one perhaps among them."""
        return (*self._of_node.get(node, {}).values(), *self._of_many.values())

    def node_of(self, pool: PoolId) -> NodeName | None:
        """The node that alone can use the pool's devices; None: several, or nobody knows."""
        nodes = {_only_node(one) for one in self.of_pool(pool)}
        return nodes.pop() if len(nodes) == 1 else None


def _only_node(one: ResourceSlice) -> NodeName | None:
    return None if one.per_device else one.reach.node

"""Nodes on which a search for the same claims has the same outcome, as they can use the same devices.

Whoever takes a device that several nodes share changes the outcomes of all of them. With one outcome for a group, the members of a
gang need one each, and not one for each node.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from policysched.cluster.devices.pools import DevicePool
from policysched.model.devices import ResourceSlice
from policysched.model.identifiers import NodeName


@dataclass(frozen=True, slots=True, eq=False)
class NodeGroup:
    """`pools`: those with devices that the claims can get. None of their slices belongs to one node."""

    pools: tuple[DevicePool, ...]


@dataclass(slots=True)
class NodeGroups:
    """For the same claims, as long as `stamp`, that of shared slices and of classes, is the same. Of each node with the pools that
    it had."""

    stamp: Hashable = None
    _by_pools: dict[Hashable, NodeGroup] = field(default_factory=dict)
    _by_node: dict[NodeName, tuple[Sequence[DevicePool], NodeGroup | None]] = field(default_factory=dict)

    def of(
        self,
        node: NodeName,
        pools: Sequence[DevicePool],
        stamp: Hashable,
        may_select: Callable[[ResourceSlice], bool],
    ) -> NodeGroup | None:
        """None: the node has devices of its own that `may_select` says the claims can get."""
        if stamp != self.stamp:
            self.stamp, self._by_pools, self._by_node = stamp, {}, {}
        known = self._by_node.get(node)
        if known is None or known[0] is not pools:
            known = self._by_node[node] = pools, self._find(pools, may_select)
        return known[1]

    def forget_node(self, name: NodeName) -> None:
        self._by_node.pop(name, None)

    def _find(
        self, pools: Sequence[DevicePool], may_select: Callable[[ResourceSlice], bool]
    ) -> NodeGroup | None:
        """A pool from which nothing is allocated has an error for claims of all devices, and a search without a result."""
        relevant = tuple(
            pool for pool in pools if pool.incomplete or pool.invalid or any(map(may_select, pool.slices))
        )
        slices = [each for pool in relevant for each in pool.slices]
        if any(each.per_device_node_selection or each.accessible_nodes.node is not None for each in slices):
            return None
        # The group refers to the objects, so that no other ones get their numbers.
        key = tuple(
            (pool.id, pool.incomplete, pool.invalid, id(pool.generation), tuple(map(id, pool.slices)))
            for pool in relevant
        )
        group = self._by_pools.get(key)
        if group is None:
            group = self._by_pools[key] = NodeGroup(relevant)
        return group

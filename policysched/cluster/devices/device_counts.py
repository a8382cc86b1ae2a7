"""How many devices of a class a node can use, and how many of them are allocated, for scores."""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from policysched.cluster.devices.cel_selectors import CelSelectorError
from policysched.cluster.devices.change_stamps import DeviceChangeStamps
from policysched.cluster.devices.device_overlay import DeviceOverlay
from policysched.cluster.devices.device_usage import AllocatedDevices, DeviceUsage
from policysched.cluster.devices.selector_results import SelectorResults
from policysched.cluster.devices.slices import ResourceSliceIndex
from policysched.model.devices import AccessibleNodes, DeviceClass, DeviceId, ResourceSlice
from policysched.model.identifiers import NodeName
from policysched.model.nodes import Node


class DeviceCounts:
    """Kept for each node: each allocation would otherwise have the devices of all nodes counted again."""

    def __init__(
        self,
        slices: ResourceSliceIndex,
        usage: DeviceUsage,
        stamps: DeviceChangeStamps,
        selector_results: SelectorResults,
    ) -> None:
        self._slices = slices
        self._usage = usage
        self._stamps = stamps
        self._selector_results = selector_results
        self._kept: dict[NodeName, tuple[Hashable, dict[str, tuple[int, int] | None]]] = {}
        self._shared: dict[str, tuple[Hashable, _SharedCounts]] = {}  # by class
        self._parts: dict[str, dict[str, _Part]] = {}  # by class and slice

    def of_node(self, of_class: DeviceClass, node: Node, overlay: DeviceOverlay | None) -> tuple[int, int]:
        """How many devices of the class the node can use, and how many of them are allocated.

        As in kube-scheduler's scores, slices of all generations count, and nothing if a selector
        fails. Source: `calculateDRAResourceTotals` in kubernetes'
        `pkg/scheduler/framework/plugins/noderesources/resource_allocation.go`.
        """
        own = self._of_own_slices(of_class, node, overlay)
        shared = self._of_shared_slices(of_class, overlay).on(node)
        return (0, 0) if own is None or shared is None else (own[0] + shared[0], own[1] + shared[1])

    def _of_own_slices(
        self, of_class: DeviceClass, node: Node, overlay: DeviceOverlay | None
    ) -> tuple[int, int] | None:
        """Those that no other node can use. None: a selector fails."""
        slices = self._slices.of_node(node.name)
        if overlay is not None and (overlay.shared_changes or overlay.node_changes.get(node.name)):
            return self._count(of_class, node, overlay, slices)
        stamp = self._stamps.of_node(node.name)  # a pool may have slices of several nodes
        cached = self._kept.get(node.name)
        if cached is None or cached[0] != stamp:
            cached = self._kept[node.name] = stamp, {}
        if of_class.name not in cached[1]:
            cached[1][of_class.name] = self._count(of_class, node, None, slices)
        return cached[1][of_class.name]

    def _of_shared_slices(self, of_class: DeviceClass, overlay: DeviceOverlay | None) -> "_SharedCounts":
        """Once for all nodes: a pool of the whole cluster has thousands of devices. Only those of slices that are new are visited."""
        state = 0 if overlay is None else overlay.shared_changes
        stamp = self._stamps.of_shared_devices(), state
        kept = self._shared.get(of_class.name)
        if kept is not None and kept[0] == stamp:
            return kept[1]
        uses = (self._usage,) if overlay is None else (self._usage, overlay.usage)
        counts, parts, before = _SharedCounts(), {}, self._parts.get(of_class.name, {})
        for resource_slice in self._slices.of_several_nodes():
            part = before.get(resource_slice.name)
            if part is None or part.resource_slice is not resource_slice or part.of_class is not of_class:
                part = self._part(of_class, resource_slice)
            parts[resource_slice.name] = part
            used = [
                use.by_pool[resource_slice.pool].devices for use in uses if resource_slice.pool in use.by_pool
            ]
            for nodes, names in part.names.items():
                in_use = sum(any(name in devices for devices in used) for name in names) if used else 0
                counts.add(nodes, len(names), in_use, fails=nodes in part.failing)
        self._parts[of_class.name] = parts
        self._shared[of_class.name] = stamp, counts
        return counts

    def _part(self, of_class: DeviceClass, resource_slice: ResourceSlice) -> "_Part":
        part = _Part(resource_slice, of_class)
        for index, device in enumerate(resource_slice.devices):
            nodes = resource_slice.accessible_nodes_of(device)
            names = part.names.setdefault(nodes, [])
            try:
                if self._is_chosen(of_class, resource_slice, index):
                    names.append(device.name)
            except CelSelectorError:
                part.failing.add(nodes)
        return part

    def _is_chosen(self, of_class: DeviceClass, resource_slice: ResourceSlice, index: int) -> bool:
        return all(
            expression is None or self._selector_results.matches(expression, resource_slice, index)
            for expression in of_class.selectors
        )

    def count_uncached(
        self, of_class: DeviceClass, node: Node, overlay: DeviceOverlay | None
    ) -> tuple[int, int]:
        """As `of_node`, without the cache."""
        return self._count(of_class, node, overlay, self._slices.candidates_for(node.name)) or (0, 0)

    def _count(
        self,
        of_class: DeviceClass,
        node: Node,
        overlay: DeviceOverlay | None,
        slices: Iterable[ResourceSlice],
    ) -> tuple[int, int] | None:
        allocated = (
            AllocatedDevices(self._usage) if overlay is None else AllocatedDevices(self._usage, overlay.usage)
        )
        total, in_use = 0, 0
        for resource_slice in slices:
            for index, device in enumerate(resource_slice.devices):
                if not resource_slice.accessible_nodes_of(device).includes(node):
                    continue
                try:
                    is_chosen = self._is_chosen(of_class, resource_slice, index)
                except CelSelectorError:
                    return None
                if is_chosen:
                    total += 1
                    device_id = DeviceId(*resource_slice.pool, device.name)
                    in_use += allocated.is_wholly_allocated(device_id) or allocated.is_shared(device_id)
        return total, in_use

    def forget_node(self, name: NodeName) -> None:
        """The node was deleted."""
        self._kept.pop(name, None)


@dataclass(slots=True)
class _Part:
    """Of the devices of a slice that the class chooses, by the nodes that can use them. `failing`: a selector of the class fails
    for one of them."""

    resource_slice: ResourceSlice
    of_class: DeviceClass
    names: dict[AccessibleNodes, list[str]] = field(default_factory=dict)
    failing: set[AccessibleNodes] = field(default_factory=set)


class _SharedCounts:
    """All such devices and those in use, by node, and by what selects several nodes."""

    def __init__(self) -> None:
        self._by_nodes: dict[AccessibleNodes, tuple[int, int, bool]] = {}
        self._of_several: list[AccessibleNodes] = []

    def add(self, nodes: AccessibleNodes, total: int, in_use: int, *, fails: bool) -> None:
        known = self._by_nodes.get(nodes)
        if known is None and nodes.node is None:
            self._of_several.append(nodes)
        before = known or (0, 0, False)
        self._by_nodes[nodes] = before[0] + total, before[1] + in_use, before[2] or fails

    def on(self, node: Node) -> tuple[int, int] | None:
        of_node = [AccessibleNodes(node.name), *(each for each in self._of_several if each.includes(node))]
        counts = [self._by_nodes[each] for each in of_node if each in self._by_nodes]
        if any(fails for *_, fails in counts):
            return None
        return sum(total for total, *_ in counts), sum(in_use for _, in_use, _ in counts)

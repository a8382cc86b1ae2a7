"""How many devices of a class a node can use, and how many of them are allocated, for scores."""

from collections.abc import Hashable, Mapping

from policysched.cluster.devices.cel_selectors import CelSelectorError
from policysched.cluster.devices.change_stamps import DeviceChangeStamps
from policysched.cluster.devices.device_overlay import DeviceOverlay
from policysched.cluster.devices.device_usage import AllocatedDevices, DeviceUsage
from policysched.cluster.devices.selector_results import SelectorResults
from policysched.cluster.devices.slices import ResourceSliceIndex
from policysched.model.devices import DeviceClass, DeviceId
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
        self._kept: dict[NodeName, tuple[Hashable, Mapping[str, str], dict[str, tuple[int, int]]]] = {}

    def of_node(self, of_class: DeviceClass, node: Node, overlay: DeviceOverlay | None) -> tuple[int, int]:
        """How many devices of the class the node can use, and how many of them are allocated.

        As in kube-scheduler's scores, slices of all generations count, and nothing if a selector
        fails. Source: `calculateDRAResourceTotals` in kubernetes'
        `pkg/scheduler/framework/plugins/noderesources/resource_allocation.go`.
        """
        if overlay is not None and (overlay.shared_changes or overlay.node_changes.get(node.name)):
            return self.count_uncached(of_class, node, overlay)
        stamp = self._stamps.of_node(node.name)
        cached = self._kept.get(node.name)
        if cached is None or cached[0] != stamp or cached[1] != node.labels:
            cached = self._kept[node.name] = stamp, node.labels, {}
        counts = cached[2].get(of_class.name)
        if counts is None:
            counts = cached[2][of_class.name] = self.count_uncached(of_class, node, None)
        return counts

    def count_uncached(
        self, of_class: DeviceClass, node: Node, overlay: DeviceOverlay | None
    ) -> tuple[int, int]:
        """As `of_node`, without the cache."""
        allocated = (
            AllocatedDevices(self._usage) if overlay is None else AllocatedDevices(self._usage, overlay.usage)
        )
        total, in_use = 0, 0
        for resource_slice in self._slices.candidates_for(node.name):
            for index, device in enumerate(resource_slice.devices):
                if not resource_slice.accessible_nodes_of(device).includes(node):
                    continue
                try:
                    chosen = all(
                        expression is None
                        or self._selector_results.matches(expression, resource_slice, index)
                        for expression in of_class.selectors
                    )
                except CelSelectorError:
                    return 0, 0
                if chosen:
                    total += 1
                    device_id = DeviceId(*resource_slice.pool, device.name)
                    in_use += allocated.is_wholly_allocated(device_id) or allocated.is_shared(device_id)
        return total, in_use

    def forget_node(self, name: NodeName) -> None:
        """The node was deleted."""
        self._kept.pop(name, None)

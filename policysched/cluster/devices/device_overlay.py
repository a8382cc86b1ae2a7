"""The devices that a hypothetical cluster allocates, such as those of earlier members of a gang."""

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

from policysched.cluster.devices.allocator import DeviceSearch
from policysched.cluster.devices.device_usage import DeviceUsage
from policysched.cluster.devices.node_groups import NodeGroup
from policysched.cluster.devices.search_outcomes import Specs
from policysched.model.devices import DeviceAllocation
from policysched.model.identifiers import NodeName, ResourceClaimKey
from policysched.model.nodes import Node

Groups = Sequence[Sequence[int]]
"""Positions in a list."""


@dataclass(slots=True)
class DeviceOverlay:
    """Allocations of a hypothetical cluster on top of the real ones. `node_changes` identifies what
    is allocated of each node's devices, `shared_changes` what of devices that several nodes can use
    (0: nothing); see `state_after`. `overruns`: searches that exceeded the step limit; `suspended`: one of which a piece is over."""

    allocations: dict[ResourceClaimKey, DeviceAllocation] = field(default_factory=dict)
    usage: DeviceUsage = field(default_factory=DeviceUsage)
    node_changes: dict[NodeName, int] = field(default_factory=dict)
    shared_changes: int = 0
    overruns: Counter[Specs] = field(default_factory=Counter)
    suspended: tuple[Specs, NodeName, DeviceSearch] | None = None
    _changes: list[NodeName | None] = field(default_factory=list)
    _searched: dict[Specs, int] = field(default_factory=dict)
    _groups: dict[Specs, list[tuple[int, Sequence[Node | None], Groups]]] = field(default_factory=dict)

    def note_change(self, node: NodeName | None, allocation: DeviceAllocation) -> None:
        """`node`: the only one that can use the devices of a pool; None: several can."""
        self._changes.append(node)
        if node is None:
            self.shared_changes = state_after(self.shared_changes, allocation)
        else:
            self.node_changes[node] = state_after(self.node_changes.get(node, 0), allocation)

    @property
    def change_count(self) -> int:
        return len(self._changes)

    def changes_since(self, count: int) -> set[NodeName | None]:
        """The nodes whose devices were reserved after so many changes; None: devices that several nodes can use."""
        return set(self._changes[count:])

    def changes_since_search(self, specs: Specs) -> set[NodeName | None]:
        """Since the last call for these specs."""
        searched, self._searched[specs] = self._searched.get(specs, 0), len(self._changes)
        return set(self._changes[searched:])

    def groups(
        self,
        specs: Specs,
        nodes: Sequence[Node | None],
        stamp: int,
        group_of: Callable[[Node], NodeGroup | None],
    ) -> Generator[None, None, Groups]:
        """The positions of nodes of the same group. Kept for the other members, for the search and the evaluation. Yields for each
        node, unless they are kept."""
        kept = self._groups.setdefault(specs, [])
        for known_stamp, known_nodes, groups in kept:
            if known_stamp == stamp and known_nodes == nodes:
                return groups
        by_group: dict[NodeGroup | NodeName, list[int]] = {}
        for position, node in enumerate(nodes):
            if node is not None:
                by_group.setdefault(group_of(node) or node.name, []).append(position)
            yield
        kept[1:] = kept[:1]
        kept[:1] = [(stamp, list(nodes), list(by_group.values()))]
        return kept[0][2]

    def take_suspended(self, specs: Specs, node: NodeName) -> DeviceSearch | None:
        """The search that is to go on, if it is for these specs on this node."""
        suspended, self.suspended = self.suspended, None
        return suspended[2] if suspended is not None and suspended[:2] == (specs, node) else None


def state_after(state: int, allocation: DeviceAllocation) -> int:
    """What identifies an overlay's allocations once this one is added: the same in another overlay
    with equal allocations in the same order. Names are hashed with the process's secret."""
    return hash(
        (
            state,
            *(
                (device.device, bool(device.share_id), device.consumed_capacity)
                for device in allocation.devices
                if not device.admin_access
            ),
        )
    )

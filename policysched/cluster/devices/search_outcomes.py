"""Outcomes of the search for devices, by the text of the claims and by node."""

from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from operator import is_

from policysched.cluster.devices.allocator import DeviceSearch, DeviceSearchResult
from policysched.cluster.devices.device_requests import DeviceSearchFailed
from policysched.cluster.devices.node_groups import NodeGroup, NodeGroups
from policysched.cluster.devices.pools import DevicePool
from policysched.model.identifiers import NodeName
from policysched.model.nodes import Node

_SPECS_CACHED_MIN, _SPECS_CACHED_MAX = 16, 256
_OUTCOMES_CACHED_MAX, _CHARACTERS_CACHED_MAX = 80_000, 2**23
"""Beyond the minimum, the least recently used specs are dropped while there are more outcomes or longer texts."""

Specs = tuple[str, ...]
SearchOutcome = DeviceSearchResult | DeviceSearchFailed | None


@dataclass(slots=True)
class CachedOutcome:
    """Valid while the node has this stamp and these labels, and for an attempt that accepts this `number`. `slices`: the stamp
    of what was read where it may be accepted."""

    stamp: tuple[int, int, int]
    labels: Mapping[str, str]
    outcome: SearchOutcome
    number: int = 0
    slices: Hashable = None


@dataclass(slots=True)
class SuspendedSearch:
    """On a node, as its slice is over. `stamp`: when it began."""

    node: NodeName
    stamp: tuple[int, int, int]
    labels: Mapping[str, str]
    pools: tuple[DevicePool, ...]
    search: DeviceSearch

    def __deepcopy__(self, memo: object) -> None:
        """In a copy of the cluster it begins anew."""

    def reads(self, node: Node, pools: tuple[DevicePool, ...], classes_stamp: int) -> bool:
        """Whether the node has the same devices, which may be allocated otherwise."""
        read, slices = [[each for pool in known for each in pool.slices] for known in (self.pools, pools)]
        return (
            self.node == node.name
            and self.labels == node.labels
            and self.stamp[2] == classes_stamp
            and len(read) == len(slices)
            and all(map(is_, read, slices))
        )


@dataclass(slots=True)
class SpecOutcomes:
    """`on_overlays`: by node or group of nodes, and what an overlay allocates there. `overruns`: searches that exceeded the step limit since
    `stamp`. `searched`: so many nodes, in their order, were searched in pieces, with these shared devices; `is_known`: once all were;
    `restarts`: how often what was read changed before that; `is_outdated`: some were searched before a change; `number`: of the results
    since the first of them."""

    by_node: dict[NodeName, CachedOutcome] = field(default_factory=dict)
    on_overlays: OrderedDict[tuple[NodeName | NodeGroup, int, int], CachedOutcome] = field(
        default_factory=OrderedDict
    )
    groups: NodeGroups = field(default_factory=NodeGroups)
    stamp: Hashable = None
    overruns: int = 0
    searched: tuple[Hashable, int] = None, 0
    is_known: bool = False
    restarts: int = 0
    is_outdated: bool = False
    number: int = 0
    discarded: int = 0
    suspended: SuspendedSearch | None = None


class OutcomeCache:
    """Search results by claim specs."""

    def __init__(self) -> None:
        self._by_specs: OrderedDict[Specs, SpecOutcomes] = OrderedDict()

    def of_specs(self, specs: Specs) -> SpecOutcomes:
        outcomes = self._by_specs.get(specs)
        if outcomes is None:
            outcomes = self._by_specs[specs] = SpecOutcomes()
            while len(self._by_specs) > _SPECS_CACHED_MIN and self._is_full():
                self._by_specs.popitem(last=False)
        else:
            self._by_specs.move_to_end(specs)
        return outcomes

    def _is_full(self) -> bool:
        outcomes = sum(len(cached.by_node) + len(cached.on_overlays) for cached in self._by_specs.values())
        characters = sum(len(text) for specs in self._by_specs for text in specs)
        return (
            len(self._by_specs) > _SPECS_CACHED_MAX
            or outcomes > _OUTCOMES_CACHED_MAX
            or characters > _CHARACTERS_CACHED_MAX
        )

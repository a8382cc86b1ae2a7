"""Outcomes of the search for devices, by the text of the claims and by node."""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from operator import is_

from policysched.cluster.devices.allocator import DeviceSearch, DeviceSearchResult
from policysched.cluster.devices.device_requests import DeviceSearchFailed
from policysched.cluster.devices.node_groups import NodeGroup, NodeGroups
from policysched.cluster.devices.pools import DevicePool
from policysched.cluster.devices.search_limits import SearchAllowance
from policysched.model.identifiers import NodeName
from policysched.model.nodes import Node

_SPECS_CACHED_MIN, _SPECS_CACHED_MAX = 16, 256
_OUTCOMES_CACHED_MAX, _CHARACTERS_CACHED_MAX = 80_000, 2**23
"""Beyond the minimum, the least recently used specs are dropped while there are more outcomes or longer texts. The limits of an attempt,
too, but that so few specs may have outcomes on any number of nodes."""

Specs = tuple[str, ...]
SearchOutcome = DeviceSearchResult | DeviceSearchFailed | None
OverlayState = tuple[NodeName | NodeGroup, int, int]
"""What identifies the allocations there: of devices that several nodes can use, and of those of the node."""


@dataclass(slots=True)
class CachedOutcome:
    """Valid while the node has this stamp and these labels, and for an attempt that accepts this `number`. `slices`: the stamp
    of what was read where it may be accepted. `used_in`: the last slice of an attempt that read it, if it is on an overlay."""

    stamp: tuple[int, int, int]
    labels: Mapping[str, str]
    outcome: SearchOutcome
    number: int = 0
    slices: Hashable = None
    used_in: int = 0


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
    since the first of them. `used_in`: the last slice of an attempt."""

    by_node: dict[NodeName, CachedOutcome] = field(default_factory=dict)
    on_overlays: OrderedDict[OverlayState, CachedOutcome] = field(default_factory=OrderedDict)
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
    used_in: int = 0


class OutcomeCache:
    """Search results by claim specs. Beyond the limits, the least recently used results are dropped, but none that the running slice
    has used. Each slice uses all results of its attempt. An attempt that needs more than the limits is refused, because it would
    search for ever. Of two attempts that take turns, the one whose first results were dropped drops its own later ones next, so
    the other one ends."""

    def __init__(self) -> None:
        self._by_specs: OrderedDict[Specs, SpecOutcomes] = OrderedDict()
        self._count = 0
        self._count_checked = 0  # there is room for so many
        self._last_slice = 0
        self.allowance: SearchAllowance | None = None

    def continue_slice(self, allowance: SearchAllowance) -> None:
        self.allowance = allowance
        if not allowance.number:
            self._last_slice += 1
            allowance.number = self._last_slice

    def of_specs(self, specs: Specs) -> SpecOutcomes:
        outcomes = self._by_specs.get(specs)
        is_new = outcomes is None
        if outcomes is None:
            outcomes = self._by_specs[specs] = SpecOutcomes()
        else:
            self._by_specs.move_to_end(specs)
        if self.allowance is not None:
            outcomes.used_in = self.allowance.number
        if is_new:
            self._make_room()
        return outcomes

    def on_overlay(self, outcomes: SpecOutcomes, state: OverlayState) -> CachedOutcome | None:
        cached = outcomes.on_overlays.get(state)
        if cached is not None and self.allowance is not None:
            cached.used_in = self.allowance.number
            outcomes.on_overlays.move_to_end(state)
        return cached

    def keep(self, outcomes: SpecOutcomes, node: NodeName, cached: CachedOutcome) -> None:
        self._count += node not in outcomes.by_node
        outcomes.by_node[node] = cached
        if self._count > self._count_checked:
            self._make_room()

    def keep_on_overlay(self, outcomes: SpecOutcomes, state: OverlayState, cached: CachedOutcome) -> None:
        cached.used_in = 0 if self.allowance is None else self.allowance.number
        self._count += state not in outcomes.on_overlays
        outcomes.on_overlays[state] = cached
        if self._count > self._count_checked:
            self._make_room()

    def forget_node(self, name: NodeName) -> None:
        """Outcomes on overlays go with their attempt."""
        for outcomes in self._by_specs.values():
            self._count -= outcomes.by_node.pop(name, None) is not None
            outcomes.groups.forget_node(name)
            if outcomes.suspended is not None and outcomes.suspended.node == name:
                outcomes.suspended = None

    def _make_room(self) -> None:
        """More than one place, as all specs are visited for it."""
        count_max, more = _OUTCOMES_CACHED_MAX, _OUTCOMES_CACHED_MAX // 100
        if self._is_full(count_max):
            for specs, outcomes in list(self._by_specs.items())[:-1]:  # the last one is in use
                if len(self._by_specs) <= _SPECS_CACHED_MIN or not self._is_full(count_max - more):
                    break
                if not self._is_used(outcomes.used_in):
                    del self._by_specs[specs]
                    self._count -= len(outcomes.by_node) + len(outcomes.on_overlays)
            for outcomes in self._by_specs.values():
                self._drop_unused(outcomes, self._count - (count_max - more))
            self._refuse_too_many()
        self._count_checked = max(count_max, self._count + more if self._count > count_max else 0)

    def _drop_unused(self, outcomes: SpecOutcomes, count: int) -> None:
        while outcomes.on_overlays and count > 0:
            state, oldest = next(iter(outcomes.on_overlays.items()))
            if self._is_used(oldest.used_in):
                break
            del outcomes.on_overlays[state]
            self._count, count = self._count - 1, count - 1

    def _is_full(self, count_max: int) -> bool:
        return (
            len(self._by_specs) > _SPECS_CACHED_MAX
            or self._count > count_max
            or _characters(self._by_specs) > _CHARACTERS_CACHED_MAX
        )

    def _is_used(self, number: int) -> bool:
        return self.allowance is not None and number == self.allowance.number

    def _refuse_too_many(self) -> None:
        if self.allowance is None:
            return
        used = {specs: each for specs, each in self._by_specs.items() if self._is_used(each.used_in)}
        count = sum(len(each.on_overlays) for each in used.values())
        if len(used) > _SPECS_CACHED_MIN:
            count += sum(len(each.by_node) for each in used.values())
            if len(used) > _SPECS_CACHED_MAX:
                self.allowance.refuse(
                    f"the claims of all members have more than {_SPECS_CACHED_MAX} different specs, "
                    "too many for one search for devices"
                )
            elif _characters(used) > _CHARACTERS_CACHED_MAX:
                self.allowance.refuse(
                    f"the specs of the claims of all members have more than {_CHARACTERS_CACHED_MAX} characters, "
                    "too many for one search for devices"
                )
        if count > _OUTCOMES_CACHED_MAX:
            self.allowance.refuse(
                f"the search for devices has more than {_OUTCOMES_CACHED_MAX} results: one for each node and "
                "different spec of claims, and again for each member that changes what other nodes can use"
            )


def _characters(texts: Iterable[Specs]) -> int:
    return sum(len(text) for specs in texts for text in specs)

"""Caches results of the device search by claim specs and node, until the devices of the node
change.

For pods of one template, only nodes whose devices changed are searched again. The same holds on
overlays: a gang whose search was cut off places its first members as before, and finds the results
for the nodes that they change. Pools are cached by node, and results of selectors by slice
(`selector_results`).
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice

from policysched.cluster.devices.allocator import (
    NODE_STEPS,
    PIECE_STEPS,
    RESTARTS_MAX,
    SEARCH_CONTINUES,
    SLICE_STEPS_MAX,
    STEPS_EXCEEDED,
    DeviceSearchResult,
    SearchAllowance,
    search_devices,
)
from policysched.cluster.devices.cel_selectors import CelSelectorError
from policysched.cluster.devices.change_stamps import DeviceChangeStamps
from policysched.cluster.devices.device_requests import DeviceSearchFailed
from policysched.cluster.devices.device_usage import AllocatedDevices, DeviceUsage
from policysched.cluster.devices.pools import DevicePool, pools_for
from policysched.cluster.devices.selector_results import SelectorResults
from policysched.cluster.devices.slices import ResourceSliceIndex
from policysched.model.devices import (
    DeviceAllocation,
    DeviceClass,
    DeviceId,
    ResourceClaim,
)
from policysched.model.identifiers import NodeName, ResourceClaimKey
from policysched.model.nodes import Node

_SPECS_CACHED_MIN, _SPECS_CACHED_MAX = 16, 256
_OUTCOMES_CACHED_MAX, _CHARACTERS_CACHED_MAX = 80_000, 2**23
"""Beyond the minimum, the least recently used specs are dropped while there are more outcomes or longer texts."""

_OVERLAY_OUTCOMES_MAX = 5_000
"""For one text of specs."""

OVERRUNS_MAX = 8
"""Nodes on which the search for the same claims may exceed its step limit. Then no more nodes are
searched until a device changes, so that one claim cannot block all others."""

_Specs = tuple[str, ...]
SearchOutcome = DeviceSearchResult | DeviceSearchFailed | None


@dataclass(slots=True)
class _CachedOutcome:
    """Valid while the node has this stamp and these labels."""

    stamp: Hashable
    labels: Mapping[str, str]
    outcome: SearchOutcome


@dataclass(slots=True)
class _SpecOutcomes:
    """`on_overlays`: by node and what an overlay allocates there. `overruns`: searches that exceeded the step limit since
    `stamp`. `searched`: so many nodes, in their order, were searched in pieces, with these shared devices; `is_known`: once all were;
    `restarts`: how often these devices changed before that."""

    by_node: dict[NodeName, _CachedOutcome] = field(default_factory=dict)
    on_overlays: OrderedDict[tuple[NodeName, int, int], _CachedOutcome] = field(default_factory=OrderedDict)
    stamp: Hashable = None
    overruns: int = 0
    searched: tuple[Hashable, int] = None, 0
    is_known: bool = False
    restarts: int = 0


class _OutcomeCache:
    """Search results by claim specs."""

    def __init__(self) -> None:
        self._by_specs: OrderedDict[_Specs, _SpecOutcomes] = OrderedDict()

    def of_specs(self, specs: _Specs) -> _SpecOutcomes:
        outcomes = self._by_specs.get(specs)
        if outcomes is None:
            outcomes = self._by_specs[specs] = _SpecOutcomes()
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


@dataclass(slots=True)
class DeviceOverlay:
    """Allocations of a hypothetical cluster on top of the real ones. `node_changes` identifies what
    is allocated of each node's devices, `shared_changes` what of devices that several nodes can use
    (0: nothing); see `state_after`. `overruns`: searches that exceeded the step limit."""

    allocations: dict[ResourceClaimKey, DeviceAllocation] = field(default_factory=dict)
    usage: DeviceUsage = field(default_factory=DeviceUsage)
    node_changes: dict[NodeName, int] = field(default_factory=dict)
    shared_changes: int = 0
    overruns: Counter[_Specs] = field(default_factory=Counter)


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


class AllocationCache:
    """Reads slices, classes and usage; changes none of them.
    `epoch` grows with each attempt after one that was cut off: what the searches rejected then is to be evaluated again."""

    def __init__(
        self,
        slices: ResourceSliceIndex,
        classes: Mapping[str, DeviceClass],
        use: DeviceUsage,
        stamps: DeviceChangeStamps,
    ) -> None:
        self._slices = slices
        self._classes = classes
        self._usage = use
        self._stamps = stamps
        self.selector_results = SelectorResults(slices.by_name)
        self._pools: dict[NodeName, tuple[Hashable, Mapping[str, str], tuple[DevicePool, ...]]] = {}
        self._counts: dict[NodeName, tuple[Hashable, Mapping[str, str], dict[str, tuple[int, int]]]] = {}
        self._outcomes = _OutcomeCache()
        self._allowance: SearchAllowance | None = None
        self._cut_off: SearchAllowance | None = None
        self.epoch = 0

    @contextmanager
    def limited(self, allowance: SearchAllowance) -> Iterator[None]:
        """An attempt continues with its allowance."""
        if self._cut_off is not None and allowance is not self._cut_off:
            self.epoch += 1
            self._cut_off = None
        self._allowance = allowance
        try:
            yield
        finally:
            self._allowance = None

    @property
    def is_cut_off(self) -> bool:
        """Whether the attempt that is running has left out nodes for lack of steps."""
        return self._allowance is not None and self._allowance.is_cut_off

    @property
    def goes_on_at_once(self) -> bool:
        """Whether only the slice is over, and the attempt has steps left for another one."""
        return (
            self._allowance is not None
            and self._allowance.is_cut_off
            and self._allowance.attempt_steps_left > 0
        )

    def are_searched(self, specs: _Specs, nodes: Collection[Node], shared_stamp: Hashable) -> bool:
        """Whether `search_in_pieces` has visited all nodes."""
        return self._outcomes.of_specs(specs).searched == (shared_stamp, len(nodes))

    def search_in_pieces(
        self,
        specs: _Specs,
        nodes: Collection[Node],
        shared_stamp: Hashable,
        search: Callable[[Node], object],
    ) -> Iterator[int]:
        """`search` the nodes on which nothing was searched for these specs yet, as long as the slice lasts. Yields the steps of
        each piece. The evaluation searches what changed since."""
        progress, allowance = self._outcomes.of_specs(specs), self._allowance
        if progress.searched[0] != shared_stamp:
            progress.restarts += 0 < progress.searched[1] < len(nodes)
            progress.searched = shared_stamp, 0
        if allowance is None:
            return
        allowance.searches_again = progress.is_known or progress.restarts > 0
        if progress.restarts and not allowance.is_cut_off:
            steps = SLICE_STEPS_MAX << min(progress.restarts, RESTARTS_MAX)
            allowance.steps_left = max(allowance.steps_left, min(steps, allowance.attempt_steps_left))
        steps_left = allowance.steps_left
        for count, node in enumerate(islice(nodes, progress.searched[1], None), progress.searched[1] + 1):
            if allowance.steps_left <= 0:
                allowance.is_cut_off = True
                return
            if steps_left - allowance.steps_left >= PIECE_STEPS:
                yield steps_left - allowance.steps_left
                steps_left = allowance.steps_left
            search(node)
            progress.searched = shared_stamp, count
        progress.is_known, progress.restarts = True, 0
        yield steps_left - allowance.steps_left

    def find(
        self, claims: Sequence[ResourceClaim], node: Node, overlay: DeviceOverlay | None
    ) -> SearchOutcome:
        """The devices for these claims on the node, from the cache if possible."""
        stamp = self._stamps.of_node(node.name)
        specs = tuple(claim.spec_text for claim in claims)
        answers = self._outcomes.of_specs(specs)
        on_overlay = 0 if overlay is None else overlay.node_changes.get(node.name, 0)
        if overlay is not None and not (overlay.shared_changes or on_overlay):
            overlay = None
        state = None if overlay is None else (node.name, overlay.shared_changes, on_overlay)
        cached = answers.by_node.get(node.name) if state is None else answers.on_overlays.get(state)
        if cached is not None and cached.stamp == stamp and cached.labels == node.labels:
            return cached.outcome
        if answers.stamp != self._stamps.latest:
            answers.stamp, answers.overruns = self._stamps.latest, 0
        overruns = answers.overruns if overlay is None else overlay.overruns[specs]
        if overruns >= OVERRUNS_MAX:
            return DeviceSearchFailed(STEPS_EXCEEDED, rejects_node_only=True)
        if self._allowance is not None and self._allowance.steps_left <= 0:
            self._allowance.is_cut_off, self._cut_off = True, self._allowance
            return DeviceSearchFailed(SEARCH_CONTINUES, rejects_node_only=True)
        if self._allowance is not None:
            self._allowance.steps_left -= NODE_STEPS
        outcome = self.search_uncached(claims, node, overlay)
        exceeded = isinstance(outcome, DeviceSearchFailed) and outcome.message == STEPS_EXCEEDED
        if overlay is None or state is None:
            answers.by_node[node.name] = _CachedOutcome(stamp, node.labels, outcome)
            answers.overruns += exceeded
            return outcome
        answers.on_overlays[state] = _CachedOutcome(stamp, node.labels, outcome)
        overlay.overruns[specs] += exceeded
        if len(answers.on_overlays) > _OVERLAY_OUTCOMES_MAX:
            answers.on_overlays.popitem(last=False)
        return outcome

    def search_uncached(
        self, claims: Sequence[ResourceClaim], node: Node, overlay: DeviceOverlay | None
    ) -> SearchOutcome:
        """As `find`, without the cache."""
        allocated = (
            AllocatedDevices(self._usage) if overlay is None else AllocatedDevices(self._usage, overlay.usage)
        )
        try:
            return search_devices(
                claims,
                node,
                self._pools_of(node),
                allocated,
                self._classes,
                self.selector_results.matches,
                self._allowance,
            )
        except DeviceSearchFailed as failed:
            # without the traceback, since it is cached
            return DeviceSearchFailed(
                failed.message, failed.claim_index, rejects_node_only=failed.rejects_node_only
            )

    def device_counts(
        self, of_class: DeviceClass, node: Node, overlay: DeviceOverlay | None
    ) -> tuple[int, int]:
        """How many devices of the class the node can use, and how many of them are allocated.

        As in kube-scheduler's scores, slices of all generations count, and nothing if a selector
        fails. Source: `calculateDRAResourceTotals` in kubernetes'
        `pkg/scheduler/framework/plugins/noderesources/resource_allocation.go`.

        Kept for each node: each allocation would otherwise have the devices of all nodes counted again.
        """
        if overlay is not None and (overlay.shared_changes or overlay.node_changes.get(node.name)):
            return self.count_uncached(of_class, node, overlay)
        stamp = self._stamps.of_node(node.name)
        cached = self._counts.get(node.name)
        if cached is None or cached[0] != stamp or cached[1] != node.labels:
            cached = self._counts[node.name] = stamp, node.labels, {}
        counts = cached[2].get(of_class.name)
        if counts is None:
            counts = cached[2][of_class.name] = self.count_uncached(of_class, node, None)
        return counts

    def count_uncached(
        self, of_class: DeviceClass, node: Node, overlay: DeviceOverlay | None
    ) -> tuple[int, int]:
        """As `device_counts`, without the cache."""
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
                        expression is None or self.selector_results.matches(expression, resource_slice, index)
                        for expression in of_class.selectors
                    )
                except CelSelectorError:
                    return 0, 0
                if chosen:
                    total += 1
                    device_id = DeviceId(*resource_slice.pool, device.name)
                    in_use += allocated.is_wholly_allocated(device_id) or allocated.is_shared(device_id)
        return total, in_use

    def _pools_of(self, node: Node) -> tuple[DevicePool, ...]:
        stamp = self._stamps.of_slices(node.name)
        cached = self._pools.get(node.name)
        if cached is not None and cached[0] == stamp and cached[1] == node.labels:
            return cached[2]
        pools = pools_for(node, self._slices.candidates_for(node.name), self._slices.of_pool)
        self._pools[node.name] = stamp, node.labels, pools
        return pools

    def forget_node(self, name: NodeName) -> None:
        """The node was deleted."""
        self._pools.pop(name, None)
        self._counts.pop(name, None)

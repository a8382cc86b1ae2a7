"""Caches results of the device search by claim specs and node, until the devices of the node
change.

For pods of one template, only nodes whose devices changed are searched again. The same holds on
overlays: a gang whose search was cut off places its first members as before, and finds the results
for the nodes that they change. Pools are cached by node, and results of selectors by slice
(`selector_results`).
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import islice

from policysched.cluster.devices.allocator import DeviceSearch, DeviceSearchResult
from policysched.cluster.devices.cel_selectors import CelSelectorError
from policysched.cluster.devices.change_stamps import DeviceChangeStamps
from policysched.cluster.devices.device_counts import DeviceCounts
from policysched.cluster.devices.device_overlay import DeviceOverlay
from policysched.cluster.devices.device_requests import DeviceSearchFailed
from policysched.cluster.devices.device_taints import DeviceTaints
from policysched.cluster.devices.device_usage import AllocatedDevices, DeviceUsage
from policysched.cluster.devices.node_groups import NodeGroup
from policysched.cluster.devices.pools import DevicePool, PoolSlices, pools_for, visited_devices
from policysched.cluster.devices.search_limits import (
    DEVICES_PER_STEP,
    NODE_STEPS,
    PIECE_STEPS,
    RESTARTS_MAX,
    SEARCH_CONTINUES,
    SELECTORS_PER_STEP,
    SLICES_PER_STEP,
    STEPS_EXCEEDED,
    SearchAllowance,
)
from policysched.cluster.devices.search_outcomes import (
    CachedOutcome,
    OutcomeCache,
    SearchOutcome,
    SpecOutcomes,
    Specs,
    SuspendedSearch,
)
from policysched.cluster.devices.selector_results import SelectorResults
from policysched.cluster.devices.shared_counters import CountersLeft
from policysched.cluster.devices.slices import ResourceSliceIndex
from policysched.model.devices import DeviceClass, ResourceClaim, ResourceSlice
from policysched.model.identifiers import NodeName
from policysched.model.nodes import Node

_OF_GROUP: Mapping[str, str] = {}
"""Labels that decide nothing: the group is another one where they change what its nodes can use."""

OVERRUNS_MAX = 8
"""Nodes on which the search for the same claims may exceed its step limit. Then no more nodes are
searched until a device changes, so that one claim cannot block all others."""


class AllocationCache:
    """Reads slices, classes and usage; changes none of them.
    `epoch` grows with each attempt after one that was cut off: what the searches rejected then is to be evaluated again.
    So is what an evaluation read that accepted an older result while it ran."""

    def __init__(
        self,
        slices: ResourceSliceIndex,
        classes: Mapping[str, DeviceClass],
        use: DeviceUsage,
        stamps: DeviceChangeStamps,
        taints: DeviceTaints,
    ) -> None:
        self._slices = slices
        self._classes = classes
        self._usage = use
        self._stamps = stamps
        self._taints = taints
        self.selector_results = SelectorResults(slices.by_name)
        self._pools: dict[NodeName, tuple[Hashable, Mapping[str, str], tuple[DevicePool, ...]]] = {}
        self.counts = DeviceCounts(slices, use, stamps, self.selector_results)
        self._outcomes = OutcomeCache()
        self._counters_left = CountersLeft()
        self._allowance: SearchAllowance | None = None
        self._cut_off: SearchAllowance | None = None
        self._last_number = 0
        self._pass: SpecOutcomes | None = None
        self._is_suspended = False
        self._confirms = False
        self.epoch = 0

    @contextmanager
    def limited(self, allowance: SearchAllowance) -> Iterator[None]:
        """An attempt continues with its allowance."""
        if self._cut_off is not None and allowance is not self._cut_off:
            self.epoch += 1
            self._cut_off = None
        self._allowance = allowance
        self._outcomes.continue_slice(allowance)
        try:
            yield
        finally:
            self._allowance = self._outcomes.allowance = None

    @property
    def refused(self) -> str | None:
        """Why the search of the attempt that is running can never end."""
        return None if self._allowance is None else self._allowance.refused

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

    def begin_placing(self) -> bool:
        """Whether the slice is not over with the search for a gang on the cluster. Then it has more steps, for its members."""
        allowance = self._allowance
        if allowance is not None and not allowance.is_cut_off:
            steps, allowance.steps_of_members = allowance.steps_left + allowance.steps_of_members, 0
            allowance.steps_left = min(steps, allowance.attempt_steps_left)
        return not self.is_cut_off

    @property
    def accepted(self) -> frozenset[int]:
        """Which results the attempt that is running accepts, although they may be older than the last change."""
        return frozenset() if self._allowance is None else self._allowance.accepted

    def confirm(self, check: Callable[[], bool]) -> bool:
        """`check` of a node with what is true now, where older results were accepted. If it fails, the node is searched again in
        the next slice."""
        if not self.accepted or self._allowance is None:
            return True
        self._confirms = True
        try:
            holds = check()
        finally:
            self._confirms = False
        if not holds:
            self._allowance.is_cut_off, self._allowance.accepted = True, frozenset()
        return not self.is_cut_off

    def are_searched(self, specs: Specs, nodes: Collection[Node], shared_stamp: Hashable) -> bool:
        """Whether `search_in_pieces` has visited all nodes."""
        return self._outcomes.of_specs(specs).searched == (shared_stamp, len(nodes))

    def search_in_pieces(
        self,
        specs: Specs,
        nodes: Collection[Node],
        shared_stamp: Hashable,
        search: Callable[[Node], object],
    ) -> Iterator[int]:
        """`search` the nodes on which nothing was searched for these specs yet, as long as the slice lasts. Yields the steps of
        each piece. The evaluation searches what changed since."""
        progress, allowance = self._outcomes.of_specs(specs), self._allowance
        if allowance is None or progress.number in allowance.accepted:
            return
        if progress.searched[0] != shared_stamp:
            progress.restarts += 0 < progress.searched[1] < len(nodes)
            progress.is_outdated = allowance.accepts_outdated and progress.restarts > RESTARTS_MAX
            progress.searched = shared_stamp, progress.searched[1] if progress.is_outdated else 0
        if not progress.searched[1]:
            progress.is_outdated, progress.number = False, self._next_number()
        allowance.searches_again = progress.is_known or progress.restarts > 0
        unsearched = islice(nodes, progress.searched[1], None)
        for number, steps in self._pieces(unsearched, search, progress, allowance):
            progress.searched = shared_stamp, progress.searched[1] + number
            yield steps
        if allowance.is_cut_off:
            self._cut_off = None  # nothing was evaluated
            return
        progress.is_known = True
        if progress.is_outdated:
            allowance.accepted, progress.searched = allowance.accepted | {progress.number}, (None, 0)
        else:
            progress.restarts = 0

    def search_on_overlay(
        self,
        specs: Specs,
        nodes: Mapping[NodeName, Node],
        overlay: DeviceOverlay,
        search: Callable[[Node], object],
        representatives: Callable[[], Iterable[Node | None]],
    ) -> Iterator[int]:
        """The same on nodes that the overlay changed since it was searched last for these specs. `representatives`: one node of
        each group, of which the other nodes have the same outcome; None while these are looked at."""
        changed, allowance = overlay.changes_since_search(specs), self._allowance
        if allowance is None or not changed:
            return
        on = representatives() if None in changed else map(nodes.get, filter(None, changed))
        of_pass = self._outcomes.of_specs(specs)
        for _, steps in self._pieces(on, search, of_pass, allowance, ends_nodes=True):
            yield steps

    def _pieces(
        self,
        nodes: Iterable[Node | None],
        search: Callable[[Node], object],
        of_pass: SpecOutcomes,
        allowance: SearchAllowance,
        *,
        ends_nodes: bool = False,
    ) -> Iterator[tuple[int, int]]:
        """Search the nodes, as long as the slice lasts. Yields how many of them each piece ended, and its steps. `ends_nodes`: each
        that is begun, since a later slice has another overlay."""
        steps_left, ended, visited = allowance.steps_left, 0, 0
        for node in nodes:
            self._is_suspended, is_begun = True, False
            visited += node is None
            while self._is_suspended:
                if (steps := visited + steps_left - allowance.steps_left) >= PIECE_STEPS:
                    yield ended, steps
                    steps_left, ended, visited = allowance.steps_left, 0, 0
                if node is None:
                    break
                if allowance.steps_left <= 0 and not (is_begun and ends_nodes):
                    allowance.is_cut_off = True
                    break
                self._pass, self._is_suspended, is_begun = of_pass, False, True
                try:
                    search(node)
                finally:
                    self._pass = None
            if allowance.is_cut_off:
                break
            ended += 1
        yield ended, visited + steps_left - allowance.steps_left

    def _next_number(self) -> int:
        self._last_number += 1
        return self._last_number

    def find(
        self, claims: Sequence[ResourceClaim], node: Node, overlay: DeviceOverlay | None, specs: Specs
    ) -> SearchOutcome:
        """The devices for these claims, which have these specs, on the node; from the cache if possible."""
        stamp = self._stamps.of_node(node.name)
        answers = self._outcomes.of_specs(specs)
        on_overlay = 0 if overlay is None else overlay.node_changes.get(node.name, 0)
        if overlay is not None and not (overlay.shared_changes or on_overlay):
            overlay = None
        group = None if overlay is None or not overlay.shared_changes else self.group(claims, node, specs)
        labels = node.labels
        state = None if overlay is None else (group or node.name, overlay.shared_changes, on_overlay)
        if overlay is not None and group is not None:
            state, stamp, labels = (group, overlay.shared_changes, 0), (0, *stamp[1:]), _OF_GROUP
        cached = (
            answers.by_node.get(node.name) if state is None else self._outcomes.on_overlay(answers, state)
        )
        if (
            cached is not None
            and cached.labels == labels
            and (cached.stamp == stamp or cached.number in self.accepted)
            and (cached.stamp == stamp or not self._confirms or self._still_holds(claims, node, cached))
        ):
            return cached.outcome
        if answers.stamp != self._stamps.latest:
            answers.stamp, answers.overruns = self._stamps.latest, 0
        overruns = answers.overruns if overlay is None else overlay.overruns[specs]
        if overruns >= OVERRUNS_MAX:
            return DeviceSearchFailed(STEPS_EXCEEDED, rejects_node_only=True)
        begun = None if overlay is None else overlay.take_suspended(specs, node.name)
        if begun is None and self._allowance is not None and self._allowance.steps_left <= 0:
            self._allowance.is_cut_off, self._cut_off = True, self._allowance
            return DeviceSearchFailed(SEARCH_CONTINUES, rejects_node_only=True)
        if self._allowance is not None:
            self._allowance.steps_left -= NODE_STEPS
        if overlay is None and self._allowance is not None:
            return self._search_until_cut_off(claims, node, answers, self._allowance)
        search = begun or self._begin_search(claims, node, overlay, None if group is None else group.pools)
        steps_max = None if self._pass is None else PIECE_STEPS
        is_over, outcome = self._advance(search, steps_max)
        if not is_over and overlay is not None:
            overlay.suspended, self._is_suspended = (specs, node.name, search), True
            return DeviceSearchFailed(SEARCH_CONTINUES, rejects_node_only=True)
        exceeded = isinstance(outcome, DeviceSearchFailed) and outcome.message == STEPS_EXCEEDED
        if overlay is None or state is None:
            self._outcomes.keep(answers, node.name, CachedOutcome(stamp, node.labels, outcome))
            answers.overruns += exceeded
            return outcome
        self._outcomes.keep_on_overlay(answers, state, CachedOutcome(stamp, labels, outcome))
        overlay.overruns[specs] += exceeded
        return outcome

    def group(self, claims: Sequence[ResourceClaim], node: Node, specs: Specs) -> NodeGroup | None:
        """The nodes with the same outcome for these claims, also beside allocations of an overlay. None: this one alone."""
        stamp = self._stamps.of_slices(node.name)[1], self._stamps.of_node(node.name)[2]
        groups = self._outcomes.of_specs(specs).groups
        return groups.of(node.name, self._pools_of(node), stamp, lambda each: self._may_select(claims, each))

    def _may_select(self, claims: Sequence[ResourceClaim], resource_slice: ResourceSlice) -> bool:
        """Whether a request gets a device of the slice where all are free, or an error."""
        asks = {
            (ask.class_name, ask.selectors): None
            for claim in claims
            for request in claim.requests
            for ask in (*((request.exactly,) if request.exactly else ()), *request.first_available)
        }
        if self._allowance is not None:
            self._allowance.steps_left -= len(asks) * len(resource_slice.devices) // SELECTORS_PER_STEP
        for class_name, of_request in asks:
            of_class = self._classes.get(class_name)
            if of_class is None or None in (selectors := (*of_class.selectors, *of_request)):
                return True
            for index in range(len(resource_slice.devices)):
                try:
                    if all(
                        self.selector_results.matches(str(each), resource_slice, index) for each in selectors
                    ):
                        return True
                except CelSelectorError:
                    return True
        return False

    def search_uncached(
        self, claims: Sequence[ResourceClaim], node: Node, overlay: DeviceOverlay | None
    ) -> SearchOutcome:
        """As `find`, without the cache, and without pools and counters that are kept."""
        pool_slices = cache(lambda pool: PoolSlices(self._slices.of_pool(pool).by_name.values()))
        pools = pools_for(node, self._slices.candidates_for(node.name), pool_slices)
        search = self._begin_search(claims, node, overlay, pools, CountersLeft())
        return self._advance(search, None)[1]

    def _begin_search(
        self,
        claims: Sequence[ResourceClaim],
        node: Node,
        overlay: DeviceOverlay | None,
        pools: tuple[DevicePool, ...] | None = None,
        counters_left: CountersLeft | None = None,
    ) -> DeviceSearch:
        allocated = (
            AllocatedDevices(self._usage) if overlay is None else AllocatedDevices(self._usage, overlay.usage)
        )
        pools, left = self._pools_of(node) if pools is None else pools, counters_left or self._counters_left
        return DeviceSearch(
            claims, node, pools, allocated, self._classes, self.selector_results.matches, left, self._taints
        )

    def _advance(self, search: DeviceSearch, steps_max: int | None) -> tuple[bool, SearchOutcome]:
        """Whether the search is over, and its outcome."""
        steps = search.steps
        try:
            return search.advance(steps_max), search.result
        except DeviceSearchFailed as failed:
            # without the traceback, since it is cached
            return True, DeviceSearchFailed(
                failed.message, failed.claim_index, rejects_node_only=failed.rejects_node_only
            )
        finally:
            if self._allowance is not None:
                self._allowance.spend(search.steps - steps)

    def _search_until_cut_off(
        self,
        claims: Sequence[ResourceClaim],
        node: Node,
        answers: SpecOutcomes,
        allowance: SearchAllowance,
    ) -> SearchOutcome:
        """Begin the search, or go on with it. Where other devices are allocated than when it began, it begins anew, and the
        third time it goes on; where the node has other devices each time, the node is rejected."""
        stamp, divides = self._stamps.of_node(node.name), allowance.accepts_outdated
        in_pass = self._pass is not None
        pools = self._pools_of(node)
        of_pass = answers if self._pass is None else self._pass
        begun, answers.suspended = answers.suspended, None
        if begun is not None and begun.node != node.name:
            begun = None
        if begun is not None and (begun.stamp != stamp or begun.labels != node.labels):
            goes_on = divides and (of_pass.is_outdated or answers.discarded >= RESTARTS_MAX)
            if not goes_on or not begun.reads(node, pools, stamp[2]):
                answers.discarded += 1
                begun = None
        if begun is None:
            search = self._begin_search(claims, node, None)
            begun = SuspendedSearch(node.name, stamp, node.labels, pools, search)
        is_over = True
        outcome: SearchOutcome = DeviceSearchFailed(STEPS_EXCEEDED, rejects_node_only=True)
        if not divides or answers.discarded <= 2 * RESTARTS_MAX:
            steps_max = max(PIECE_STEPS, 0 if in_pass else allowance.steps_left) if divides else None
            is_over, outcome = self._advance(begun.search, steps_max)
        if not is_over:
            answers.suspended, self._is_suspended = begun, True
            if not in_pass:
                allowance.is_cut_off, self._cut_off = True, allowance
            return DeviceSearchFailed(SEARCH_CONTINUES, rejects_node_only=True)
        answers.discarded, slices = 0, self._stamps.of_slices(node.name)
        cached = CachedOutcome(begun.stamp, node.labels, outcome, slices=slices)
        self._outcomes.keep(answers, node.name, cached)
        answers.overruns += isinstance(outcome, DeviceSearchFailed) and outcome.message == STEPS_EXCEEDED
        if begun.stamp != stamp and not self._still_holds(claims, node, cached):
            of_pass.is_outdated = True  # accepted once the pass has ended
            if not in_pass:
                if of_pass.number not in allowance.accepted:
                    of_pass.number = self._next_number()
                allowance.accepted |= {of_pass.number}
                self.epoch += 1  # the evaluation that is running began without it
            if self._confirms:
                outcome = DeviceSearchFailed(SEARCH_CONTINUES, rejects_node_only=True)
        cached.number = of_pass.number
        return outcome

    def _still_holds(self, claims: Sequence[ResourceClaim], node: Node, cached: CachedOutcome) -> bool:
        """Whether the node still has the devices of an accepted result, which is up to date then."""
        stamp, slices = self._stamps.of_node(node.name), self._stamps.of_slices(node.name)
        if not isinstance(cached.outcome, DeviceSearchResult) or cached.stamp[2] != stamp[2]:  # other classes
            return False
        holds = self.still_has(claims, node, None, cached.outcome, cached.slices == slices)
        cached.stamp = stamp if holds else cached.stamp
        return holds

    def still_has(
        self,
        claims: Sequence[ResourceClaim],
        node: Node,
        overlay: DeviceOverlay | None,
        found: DeviceSearchResult,
        same_slices: bool,
    ) -> bool:
        """Whether what was found for these claims, with the present classes, is free. `same_slices`: since then."""
        return self._begin_search(claims, node, overlay).still_holds(found, same_slices=same_slices)

    def _pools_of(self, node: Node) -> tuple[DevicePool, ...]:
        stamp = self._stamps.of_slices(node.name)
        cached = self._pools.get(node.name)
        if cached is not None and cached[0] == stamp and cached[1] == node.labels:
            return cached[2]
        candidates = self._slices.candidates_for(node.name)
        pools = pools_for(node, candidates, self._slices.of_pool)
        if self._allowance is not None:
            self._allowance.steps_left -= (
                len(candidates) // SLICES_PER_STEP + visited_devices(pools) // DEVICES_PER_STEP
            )
        self._pools[node.name] = stamp, node.labels, pools
        return pools

    def forget_node(self, name: NodeName) -> None:
        """The node was deleted."""
        self._pools.pop(name, None)
        self._outcomes.forget_node(name)
        self.counts.forget_node(name)

"""Search for devices that satisfy the claims of a pod on one node.

A depth-first search with backtracking: claims and their requests in their order; for each device of
a request the pools and slices by name and the devices in the order of the slice. Devices of
resource_slice request are combined, not permuted. The order is that of kube-scheduler, so that the
same devices are chosen. The number of steps is limited, where kube-scheduler limits the time.
Source: `allocator_incubating.go` in k8s.io/dynamic-resource-allocation v0.36.3,
`structured/internal/incubating`.
"""

import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass

from policysched.cluster.devices.capacity import (
    capacity_steps,
)
from policysched.cluster.devices.device_requests import (
    RESULTS_MAX,
    DeviceMatcher,
    DeviceSearchFailed,
    RequestLoader,
    RequestOption,
    SelectorMatches,
)
from policysched.cluster.devices.device_taints import DeviceTaints
from policysched.cluster.devices.device_usage import AllocatedDevices
from policysched.cluster.devices.pools import DevicePool
from policysched.cluster.devices.search_limits import DEVICES_MAX, STEPS_EXCEEDED, STEPS_MAX
from policysched.cluster.devices.shared_counters import CountersLeft
from policysched.cluster.devices.taken_devices import ChosenDevice, TakenDevices
from policysched.model.devices import (
    DeviceClass,
    DeviceId,
    PoolId,
    ResourceClaim,
    ResourceSlice,
)
from policysched.model.nodes import Node

_TOO_MANY = f"the pod's claims request more than {DEVICES_MAX} devices"

_Position = tuple[int, int, int]
_START: _Position = (0, 0, 0)


class _TooManyDevices(Exception):
    """More devices than a claim can have. Another alternative may need fewer."""


@dataclass(frozen=True, slots=True)
class DeviceSearchResult:
    """The devices of each claim, and the option chosen for each request: itself, and its index in
    the alternatives."""

    devices: tuple[tuple[ChosenDevice, ...], ...]
    options: tuple[tuple[RequestOption, ...], ...]
    alternatives: tuple[tuple[int, ...], ...]


Found = Generator[None, None, bool]
"""Part of a search. It yields when a piece is over."""


def _offers(known: ResourceSlice, chosen: ChosenDevice) -> bool:
    """Whether the slice has the device as it was chosen. Drivers publish slices again when another device of theirs changes."""
    return known is chosen.slice or (
        chosen.device in known.devices
        and known.accessible_nodes_of(chosen.device) == chosen.slice.accessible_nodes_of(chosen.device)
    )


class DeviceSearch:
    """For these claims on a node. `result`: None if the node cannot satisfy all of them. `steps`: so far."""

    def __init__(
        self,
        claims: Sequence[ResourceClaim],
        node: Node,
        pools: Sequence[DevicePool],
        allocated: AllocatedDevices,
        classes: Mapping[str, DeviceClass],
        matches: SelectorMatches,
        counters_left: CountersLeft,
        taints: DeviceTaints,
    ) -> None:
        self._claims = claims
        self._pools = pools
        self._matcher = DeviceMatcher(node, matches)
        self._loader = RequestLoader(pools, allocated, classes, self._matcher, self._count_step)
        self.steps = 0
        self.result: DeviceSearchResult | None = None
        self._piece_end: float = math.inf
        self._parts = self._run()
        self._taken = TakenDevices(len(claims), allocated, counters_left, taints, self._count_step)
        self._chosen_options: dict[tuple[int, int], int] = {}
        self._options: list[list[list[RequestOption]]] = []

    def advance(self, steps_max: int | None = None) -> bool:
        """Search on, for not many more steps than that (None: to the end). Returns whether the search is over. Raises
        DeviceSearchFailed."""
        self._piece_end = math.inf if steps_max is None else self.steps + steps_max
        return next(self._parts, True) is True

    def _run(self) -> Iterator[None]:
        devices_min = 0
        for index, claim in enumerate(self._claims):
            options, constraints, claim_devices_min = yield from self._loader.load_claim(index, claim)
            self._options.append(options)
            self._taken.constraints.append(constraints)
            devices_min += claim_devices_min
            if devices_min > DEVICES_MAX:  # the claims that follow are not read: a pod may have thousands
                raise DeviceSearchFailed(_TOO_MANY, rejects_node_only=True)
        try:
            if (yield from self._search_request(0, 0)):
                self.result = self._result()
                return
        except _TooManyDevices:
            return
        if any(pool.invalid for pool in self._pools):
            raise DeviceSearchFailed("invalid resource pools were encountered", rejects_node_only=True)

    def _result(self) -> DeviceSearchResult:
        alternatives = tuple(
            tuple(self._chosen_options.get((claim, request), 0) for request in range(len(options)))
            for claim, options in enumerate(self._options)
        )
        chosen = tuple(
            tuple(options[request][index] for request, index in enumerate(indexes))
            for options, indexes in zip(self._options, alternatives, strict=True)
        )
        return DeviceSearchResult(
            tuple(tuple(devices) for devices in self._taken.by_claim), chosen, alternatives
        )

    def still_holds(self, found: DeviceSearchResult, *, same_slices: bool) -> bool:
        """Whether what an earlier search found is free now. Instead of `advance`. `same_slices`: the node has the devices that it
        had then; otherwise all of them may be more."""
        try:
            return self._has(found, same_slices=same_slices)
        except DeviceSearchFailed:
            return False  # too many steps

    def _has(self, found: DeviceSearchResult, *, same_slices: bool) -> bool:
        self._taken.constraints = [[] for _ in self._claims]  # they hold as long as the devices are the same
        pools = {pool.id: pool for pool in self._pools}
        for claim, devices in enumerate(found.devices):
            for chosen in devices:
                if chosen.option.all_devices is not None and not same_slices:
                    return False
                pool = pools.get(PoolId(chosen.id.driver, chosen.id.pool))
                if pool is None or not any(_offers(known, chosen) for known in pool.slices):
                    return False
                if not self._taken.take(claim, chosen.option, pool, chosen.slice, chosen.device, must=False):
                    return False
        return True

    # ── search ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _search_request(self, claim: int, request: int) -> Found:
        """Search for this request and all later ones. May raise _TooManyDevices."""
        if claim == len(self._claims):
            return True
        if request == len(self._options[claim]):
            following = claim + 1
            while following < len(self._claims) and not self._options[following]:
                following += 1  # requests nothing: a pod may have more such claims than the stack has frames
            try:
                return (yield from self._search_request(following, 0))
            except _TooManyDevices:
                return False  # fewer devices for an earlier claim may help
        options = self._options[claim][request]
        if not options[0].parent_request:
            return (yield from self._search_devices(claim, request, 0, 0, _START))
        too_many = True
        for alternative in range(len(options)):
            try:
                done = yield from self._search_devices(claim, request, alternative, 0, _START)
            except _TooManyDevices:
                continue
            too_many = False
            if done:
                self._chosen_options[claim, request] = alternative
                return True
        if too_many:
            raise _TooManyDevices
        return False

    def _search_devices(
        self, claim: int, request: int, alternative: int, have: int, start: _Position
    ) -> Found:
        """Search from a position on for the devices that the option lacks beside `have`, then for
        all later requests."""
        self._count_step()
        option = self._options[claim][request][alternative]
        if option.all_devices is not None and not option.all_devices:
            return False
        if have >= option.count:
            return (yield from self._search_request(claim, request + 1))
        if len(self._taken.by_claim[claim]) + option.count - have > RESULTS_MAX:
            raise _TooManyDevices
        if self._taken.count >= DEVICES_MAX:
            raise DeviceSearchFailed(_TOO_MANY, rejects_node_only=True)
        if option.all_devices is not None:
            pool, resource_slice, index = option.all_devices[have]
            return (
                yield from self._try_device(
                    claim, request, alternative, have, pool, resource_slice, index, _START, must=True
                )
            )
        first_pool, first_slice, first_device = start
        for pool_index in range(first_pool, len(self._pools)):
            pool = self._pools[pool_index]
            from_slice = first_slice if pool_index == first_pool else 0
            for slice_index in range(from_slice, len(pool.slices)):
                resource_slice = pool.slices[slice_index]
                is_first_slice = (pool_index, slice_index) == (first_pool, first_slice)
                for index in range(first_device if is_first_slice else 0, len(resource_slice.devices)):
                    asked = option.request
                    steps = capacity_steps(resource_slice.devices[index], asked.capacity)
                    if self._count_step(1 + len(asked.selectors) // 8 + steps):
                        yield
                    after = (pool_index, slice_index, index + 1)
                    if self._is_candidate(
                        claim, request, alternative, option, pool, resource_slice, index
                    ) and (
                        yield from self._try_device(
                            claim, request, alternative, have, pool, resource_slice, index, after, must=False
                        )
                    ):
                        return True
        return False

    def _is_candidate(
        self,
        claim: int,
        request: int,
        alternative: int,
        option: RequestOption,
        pool: DevicePool,
        resource_slice: ResourceSlice,
        index: int,
    ) -> bool:
        device = resource_slice.devices[index]
        if not self._taken.is_free(claim, option.request, DeviceId(*pool.id, device.name), device):
            return False
        return self._matcher.is_selected(
            claim, request, alternative, option, resource_slice, index
        ) and self._taken.has_capacity(option, pool, device)

    def _try_device(
        self,
        claim: int,
        request: int,
        alternative: int,
        have: int,
        pool: DevicePool,
        resource_slice: ResourceSlice,
        index: int,
        after: _Position,
        *,
        must: bool,
    ) -> Found:
        """Take the device and search on. Returns whether that satisfies all requests; if not,
        undoes the choice."""
        option = self._options[claim][request][alternative]
        step = self._taken.take(claim, option, pool, resource_slice, resource_slice.devices[index], must=must)
        if step is None:
            return False
        device = DeviceId(*pool.id, resource_slice.devices[index].name)
        try:
            done = yield from self._search_devices(claim, request, alternative, have + 1, after)
        except _TooManyDevices:
            self._taken.undo(claim, device, step)
            raise
        if not done:
            self._taken.undo(claim, device, step)
        return done

    def _count_step(self, steps: int = 1) -> bool:
        """Returns whether the piece is over."""
        self.steps += steps
        if self.steps > STEPS_MAX:
            raise DeviceSearchFailed(STEPS_EXCEEDED, rejects_node_only=True)
        return self.steps >= self._piece_end

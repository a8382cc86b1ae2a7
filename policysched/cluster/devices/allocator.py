"""Search for devices that satisfy the claims of a pod on one node.

A depth-first search with backtracking: claims and their requests in their order; for each device of
a request the pools and slices by name and the devices in the order of the slice. Devices of
resource_slice request are combined, not permuted. The order is that of kube-scheduler, so that the
same devices are chosen. The number of steps is limited, where kube-scheduler limits the time.
Source: `allocator_incubating.go` in k8s.io/dynamic-resource-allocation v0.36.3,
`structured/internal/incubating`.
"""

import math
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from policysched.cluster.devices.capacity import (
    add_amounts,
    capacity_consumption,
    capacity_steps,
    has_capacity,
)
from policysched.cluster.devices.constraints import ConstraintChecker
from policysched.cluster.devices.device_requests import (
    CLAIM_PLACEHOLDER,
    RESULTS_MAX,
    DeviceMatcher,
    DeviceSearchFailed,
    RequestLoader,
    RequestOption,
    SelectorMatches,
)
from policysched.cluster.devices.device_usage import AllocatedDevices
from policysched.cluster.devices.pools import DevicePool
from policysched.cluster.devices.shared_counters import CountersLeft, SharedCounters
from policysched.model.devices import (
    Device,
    DeviceClass,
    DeviceId,
    ExactDeviceRequest,
    PoolId,
    ResourceClaim,
    ResourceSlice,
)
from policysched.model.nodes import Node

DEVICES_MAX = 128
"""Devices that one pod may request, in all its claims."""
_TOO_MANY = f"the pod's claims request more than {DEVICES_MAX} devices"
STEPS_MAX = 10_000
"""Devices considered for one pod on one node. A device with much to compare counts several times; a step takes about 4 µs."""

STEPS_EXCEEDED = f"the device search exceeded its limit of {STEPS_MAX} steps"
ATTEMPT_STEPS_MAX = 100_000
"""Steps on all nodes in one attempt of a pod, about 0.4 s."""
PIECE_STEPS = 100
"""After so many, a search on the nodes in their order can stop, about half a millisecond."""
SLICE_STEPS_MAX = 1_000
"""Those of a slice, about 5 ms. Others may be decided between two slices."""
GANG_SLICE_STEPS_MAX = 10_000
"""The same for a gang, whose members are placed again in each slice."""
RESTARTS_MAX = 2
"""Where devices that were read change before all nodes are searched, the search begins anew, so many times. Then it goes on with
what was found before the changes, so that it ends beside pods that get and release such devices all the time."""
GANG_RESTARTS_MAX = 7
"""That for a gang always begins anew, and its slice is twice as long each time, so many times at most."""
CHARGED_STEPS = 10_000
"""The namespace pays for a slice of a new search. For one that is repeated, as devices of several nodes changed, from here on:
each pod that gets such a device changes them."""
NODE_STEPS = 5
"""A search on a node takes as long as so many steps more. They count for the slice, and not for the attempt."""
MEMBER_STEPS_MAX = 100
"""Those of a slice for a gang beyond them, for each member: enough to search the nodes again that members changed."""
SEARCH_CONTINUES = (
    f"the device search continues in the next attempt (limit of one attempt: {ATTEMPT_STEPS_MAX} steps)"
)

_Position = tuple[int, int, int]
_START: _Position = (0, 0, 0)


@dataclass(slots=True)
class SearchAllowance:
    """Of one slice, and the attempt's share of later slices. `is_cut_off`: nodes were left out for lack of steps.
    `searches_again`: on nodes where the same was searched before, as devices changed that several nodes can use.
    `accepts_outdated`: results may be older than the last change, except of the node that is chosen; `accepted`: those with this
    number may (0: none)."""

    steps_left: int = ATTEMPT_STEPS_MAX
    attempt_steps_left: int = 0
    is_cut_off: bool = False
    searches_again: bool = False
    accepts_outdated: bool = False
    accepted: int = 0

    def spend(self, steps: int) -> None:
        self.steps_left -= steps
        self.attempt_steps_left -= steps


class _TooManyDevices(Exception):
    """More devices than a claim can have. Another alternative may need fewer."""


@dataclass(frozen=True, slots=True)
class ChosenDevice:
    """`consumed_capacity` is the allocated share of a device that allows several allocations; None: the
    whole device."""

    option: RequestOption
    id: DeviceId
    slice: ResourceSlice
    device: Device
    consumed_capacity: Mapping[str, Fraction] | None


@dataclass(frozen=True, slots=True)
class DeviceSearchResult:
    """The devices of each claim, and the option chosen for each request: itself, and its index in
    the alternatives."""

    devices: tuple[tuple[ChosenDevice, ...], ...]
    options: tuple[tuple[RequestOption, ...], ...]
    alternatives: tuple[tuple[int, ...], ...]


@dataclass(slots=True)
class _UndoRecord:
    """What taking a device changed, to be undone on backtracking."""

    counters: tuple[PoolId, Device] | None = None
    constraints: list[ConstraintChecker] = field(default_factory=list)
    marked: bool = False
    consumed: Mapping[str, Fraction] | None = None
    listed: bool = False


Found = Generator[None, None, bool]
"""Part of a search. It yields when a piece is over."""


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
    ) -> None:
        self._claims = claims
        self._pools = pools
        self._allocated = allocated
        self._matcher = DeviceMatcher(node, matches)
        self._loader = RequestLoader(pools, allocated, classes, self._matcher, self._count_step)
        self.steps = 0
        self.result: DeviceSearchResult | None = None
        self._piece_end: float = math.inf
        self._parts = self._run()
        self._counters = SharedCounters(allocated, counters_left)
        self._claims_of_device: dict[DeviceId, set[int]] = {}
        self._consumed: dict[DeviceId, Mapping[str, Fraction]] = {}
        self._share_counts: Counter[DeviceId] = Counter()
        self._results: list[list[ChosenDevice]] = [[] for _ in claims]
        self._chosen_options: dict[tuple[int, int], int] = {}
        self._options: list[list[list[RequestOption]]] = []
        self._constraints: list[list[ConstraintChecker]] = []

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
            self._constraints.append(constraints)
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
        return DeviceSearchResult(tuple(tuple(devices) for devices in self._results), chosen, alternatives)

    def still_holds(self, found: DeviceSearchResult, *, same_slices: bool) -> bool:
        """Whether what an earlier search found is free now. Instead of `advance`. `same_slices`: the node has the devices that it
        had then; otherwise all of them may be more."""
        self._constraints = [[] for _ in self._claims]  # they hold as long as the devices are the same
        pools = {pool.id: pool for pool in self._pools}
        for claim, devices in enumerate(found.devices):
            for chosen in devices:
                if chosen.option.all_devices is not None and not same_slices:
                    return False
                pool = pools.get(PoolId(chosen.id.driver, chosen.id.pool))
                if pool is None or not any(known is chosen.slice for known in pool.slices):
                    return False
                if not self._take_device(claim, chosen.option, pool, chosen.slice, chosen.device, must=False):
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
        if len(self._results[claim]) + option.count - have > RESULTS_MAX:
            raise _TooManyDevices
        if sum(len(devices) for devices in self._results) >= DEVICES_MAX:
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
        if not self._is_free(claim, option.request, DeviceId(*pool.id, device.name), device):
            return False
        return self._matcher.is_selected(
            claim, request, alternative, option, resource_slice, index
        ) and self._has_capacity(option, pool, device)

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
        step = self._take_device(
            claim, option, pool, resource_slice, resource_slice.devices[index], must=must
        )
        if step is None:
            return False
        device = DeviceId(*pool.id, resource_slice.devices[index].name)
        try:
            done = yield from self._search_devices(claim, request, alternative, have + 1, after)
        except _TooManyDevices:
            self._undo(claim, device, step)
            raise
        if not done:
            self._undo(claim, device, step)
        return done

    def _count_step(self, steps: int = 1) -> bool:
        """Returns whether the piece is over."""
        self.steps += steps
        if self.steps > STEPS_MAX:
            raise DeviceSearchFailed(STEPS_EXCEEDED, rejects_node_only=True)
        return self.steps >= self._piece_end

    def _comparison_steps(self, claim: int, option: RequestOption, pool: DevicePool, device: Device) -> int:
        """What a device costs beyond a step. A constraint compares it with those chosen before, and amounts are fractions."""
        steps = len(self._constraints[claim]) * (len(self._results[claim]) + 4) // 32
        if device.taints:
            steps += len(device.taints) * len(option.request.tolerations) // 64
        if device.capacity:
            steps += len(device.capacity) * (16 if device.shareable else 1) // 4
        if device.consumes_counters:
            steps += sum(map(len, pool.counters.values())) // 8
        return steps

    # ── one device ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _is_free(self, claim: int, request: ExactDeviceRequest, device_id: DeviceId, device: Device) -> bool:
        marked = self._claims_of_device.get(device_id, ())
        if request.admin_access:
            return device.shareable or claim not in marked
        if self._allocated.is_wholly_allocated(device_id) or marked:
            return False
        return device.shareable or not self._allocated.is_shared(device_id)

    def _has_capacity(self, option: RequestOption, pool: DevicePool, device: Device) -> bool:
        device_id = DeviceId(*pool.id, device.name)
        consumed = self._allocated.consumed_capacity(device_id)
        if device_id in self._consumed:
            consumed = add_amounts(consumed, self._consumed[device_id])
        return has_capacity(device, option.request.capacity, consumed)

    def _take_device(
        self,
        claim: int,
        option: RequestOption,
        pool: DevicePool,
        resource_slice: ResourceSlice,
        device: Device,
        *,
        must: bool,
    ) -> _UndoRecord | None:
        """None if the device cannot be allocated. With `must`, a constraint that forbids the device is
        an error."""
        device_id = DeviceId(*pool.id, device.name)
        if not self._is_free(claim, option.request, device_id, device):
            return None
        self._count_step(self._comparison_steps(claim, option, pool, device))
        step = _UndoRecord()
        is_shared = self._share_counts[device_id] > 0 or self._allocated.is_shared(device_id)
        if device.consumes_counters and not (device.shareable and is_shared):
            if not self._counters.take(pool, device):
                return None
            step.counters = pool.id, device
        if any(
            taint.effect in ("NoSchedule", "NoExecute")
            and not any(toleration.tolerates(taint) for toleration in option.request.tolerations)
            for taint in device.taints
        ):
            self._undo(claim, device_id, step)
            return None
        for constraint in self._constraints[claim]:
            if not constraint.add(
                option.parent_request or option.request.name, option.full_name, pool.id.driver, device
            ):
                self._undo(claim, device_id, step)
                if must:
                    message = (
                        f"claim {CLAIM_PLACEHOLDER}, request {option.request.name}: cannot add device {device_id} because a claim"
                        " constraint would not be satisfied"
                    )
                    raise DeviceSearchFailed(message, claim)
                return None
            step.constraints.append(constraint)
        if not device.shareable:
            self._claims_of_device.setdefault(device_id, set()).add(claim)
            step.marked = True
        if not self._has_capacity(option, pool, device):
            self._undo(claim, device_id, step)
            return None
        if device.shareable:
            step.consumed = capacity_consumption(device, option.request.capacity)
            self._consumed[device_id] = add_amounts(self._consumed.get(device_id, {}), step.consumed)
            self._share_counts[device_id] += 1
        self._results[claim].append(ChosenDevice(option, device_id, resource_slice, device, step.consumed))
        step.listed = True
        return step

    def _undo(self, claim: int, device_id: DeviceId, step: _UndoRecord) -> None:
        if step.listed:
            self._results[claim].pop()
        if step.consumed is not None:
            self._consumed[device_id] = add_amounts(self._consumed[device_id], step.consumed, -1)
            self._share_counts[device_id] -= 1
        if step.marked:
            self._claims_of_device[device_id].discard(claim)
        for constraint in reversed(step.constraints):
            constraint.remove()
        if step.counters is not None:
            self._counters.give_back(*step.counters)

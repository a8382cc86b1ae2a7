"""Devices for claims on one node: the first way to give each request what it asks for.

Claims are gone through in their order, their requests in theirs, and for each device that a request needs the pools by
their names, slices by theirs, devices as they are listed; a choice with which the rest cannot be had is taken back.
Devices of one request are only combined, not permuted. The order is that of kube-scheduler, so that the same devices
are found; the number of steps is bounded, as time bounds it there. Source: `allocator_incubating.go` in
k8s.io/dynamic-resource-allocation v0.36.3, `structured/internal/incubating`.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from policysched.cluster.devices.capacity import add_amounts, capacity_consumption, has_capacity
from policysched.cluster.devices.cel_selectors import CelSelectorError
from policysched.cluster.devices.constraints import ConstraintChecker, constraint_checker
from policysched.cluster.devices.pools import DevicePool
from policysched.cluster.devices.usage import TakenDevices
from policysched.model.devices import (
    Device,
    DeviceClass,
    DeviceId,
    DeviceRequest,
    ExactDeviceRequest,
    PoolId,
    ResourceClaim,
    ResourceSlice,
)
from policysched.model.nodes import Node

RESULTS_MAX = 32
"""Devices of one claim. Source: `AllocationResultsMaxSize` of k8s.io/api/resource/v1."""
DEVICES_MAX = 128
"""Devices that one pod may ask for, in all its claims."""
STEPS_MAX = 10_000
"""Devices looked at for one pod on one node."""

STEPS_EXCEEDED = f"the search for devices went past its bound of {STEPS_MAX} steps"

SelectorMatches = Callable[[str, ResourceSlice, int], bool]
"""Whether a CEL expression selects a slice's device of this index. May raise SelectorError."""
_Position = tuple[int, int, int]
_START: _Position = (0, 0, 0)


class DeviceSearchFailed(Exception):
    """There is no sense in looking on: in kube-scheduler's words. `claim_index` is the index of the claim whose name stands in them
    as `CLAIM_PLACEHOLDER`."""

    def __init__(self, words: str, claim: int | None = None) -> None:
        super().__init__(words)
        self.message = words
        self.claim_index = claim


CLAIM_PLACEHOLDER = "\0"


class _TooManyDevices(Exception):
    """More devices than a claim can have: another alternative may need fewer."""


@dataclass(frozen=True, slots=True)
class RequestOption:
    """A request, or one of its alternatives (then `parent_request` is the request's name). `all_devices`: all devices that it
    means, where it asks for all."""

    request: ExactDeviceRequest
    parent_request: str
    device_class: DeviceClass
    count: int
    all_devices: tuple[tuple[DevicePool, ResourceSlice, int], ...] | None

    @property
    def full_name(self) -> str:
        return f"{self.parent_request}/{self.request.name}" if self.parent_request else self.request.name


@dataclass(frozen=True, slots=True)
class ChosenDevice:
    """`consumed_capacity` is what of a shared device is taken; None: the device is nobody else's."""

    option: RequestOption
    id: DeviceId
    slice: ResourceSlice
    device: Device
    consumed_capacity: Mapping[str, Fraction] | None


@dataclass(frozen=True, slots=True)
class DeviceSearchResult:
    """For each claim its devices, and by request which option was taken."""

    devices: tuple[tuple[ChosenDevice, ...], ...]
    options: tuple[tuple[RequestOption, ...], ...]
    alternatives: tuple[tuple[int, ...], ...]


def search_devices(
    claims: Sequence[ResourceClaim],
    node: Node,
    pools: Sequence[DevicePool],
    taken: TakenDevices,
    classes: Mapping[str, DeviceClass],
    matches: SelectorMatches,
) -> DeviceSearchResult | None:
    """None: not all of it can be had on this node. Raises SearchFailed."""
    return _DeviceSearch(claims, node, pools, taken, classes, matches).run()


@dataclass(slots=True)
class _UndoRecord:
    """What a device that was taken has changed."""

    counters: tuple[PoolId, Device] | None = None
    constraints: list[ConstraintChecker] = field(default_factory=list)
    marked: bool = False
    consumed: Mapping[str, Fraction] | None = None
    listed: bool = False


class _DeviceSearch:
    def __init__(
        self,
        claims: Sequence[ResourceClaim],
        node: Node,
        pools: Sequence[DevicePool],
        taken: TakenDevices,
        classes: Mapping[str, DeviceClass],
        matches: SelectorMatches,
    ) -> None:
        self._claims = claims
        self._node = node
        self._pools = pools
        self._taken = taken
        self._classes = classes
        self._matches = matches
        self._steps = 0
        self._selected: dict[tuple[int, int, int, str, int], bool] = {}
        self._counters_available: dict[PoolId, dict[tuple[str, str], Fraction]] = {}
        self._counters_taken: defaultdict[PoolId, defaultdict[tuple[str, str], Fraction]] = defaultdict(
            lambda: defaultdict(Fraction)
        )
        self._claims_of_device: dict[DeviceId, set[int]] = {}
        self._consumed: dict[DeviceId, Mapping[str, Fraction]] = {}
        self._share_counts: Counter[DeviceId] = Counter()
        self._results: list[list[ChosenDevice]] = [[] for _ in claims]
        self._chosen_options: dict[tuple[int, int], int] = {}
        self._options: list[list[list[RequestOption]]] = []
        self._constraints: list[list[ConstraintChecker]] = []

    def run(self) -> DeviceSearchResult | None:
        least = 0
        for index in range(len(self._claims)):
            least += self._load_claim(index)
        if least > DEVICES_MAX:
            raise DeviceSearchFailed(f"the pod's claims ask for more than {DEVICES_MAX} devices, {least}")
        try:
            if self._search_request(0, 0):
                return self._result()
        except _TooManyDevices:
            return None
        if any(pool.invalid for pool in self._pools):
            raise DeviceSearchFailed("invalid resource pools were encountered")
        return None

    def _result(self) -> DeviceSearchResult:
        picked = tuple(
            tuple(self._chosen_options.get((claim, request), 0) for request in range(len(options)))
            for claim, options in enumerate(self._options)
        )
        chosen = tuple(
            tuple(options[request][place] for request, place in enumerate(places))
            for options, places in zip(self._options, picked, strict=True)
        )
        return DeviceSearchResult(tuple(tuple(one) for one in self._results), chosen, picked)

    # ── what is asked for ──────────────────────────────────────────────────────────────────────────────────────────

    def _load_claim(self, index: int) -> int:
        """Read the claim; how many devices it needs at the least."""
        claim, least = self._claims[index], 0
        self._options.append([])
        for place, request in enumerate(claim.requests):
            options = self._options_of(index, place, request)
            self._options[index].append(options)
            least += min(one.count for one in options)
        if least > RESULTS_MAX:
            raise DeviceSearchFailed(
                f"claim {CLAIM_PLACEHOLDER}: number of requested devices {least} exceeds the claim limit of {RESULTS_MAX}",
                index,
            )
        self._constraints.append([])
        for number, one in enumerate(claim.constraints):
            if one.kind == "other":
                words = f"claim {CLAIM_PLACEHOLDER}, constraint #{number}: empty constraint (unsupported constraint type?)"
                raise DeviceSearchFailed(words, index)
            self._constraints[index].append(constraint_checker(one))
        return least

    def _options_of(self, index: int, place: int, request: DeviceRequest) -> list[RequestOption]:
        if request.exactly is not None:
            return [self._option(index, place, 0, request.exactly, "")]
        if not request.first_available:
            raise DeviceSearchFailed(
                f"resource claim {CLAIM_PLACEHOLDER}, request {request.name}: unknown request type", index
            )
        return [
            self._option(index, place, number, ask, request.name)
            for number, ask in enumerate(request.first_available)
        ]

    def _option(
        self, index: int, place: int, number: int, ask: ExactDeviceRequest, parent: str
    ) -> RequestOption:
        where = f"claim {CLAIM_PLACEHOLDER}, request {ask.name}"
        for selector_number, selector in enumerate(ask.selectors):
            if selector is None:
                words = (
                    f"{where}, selector #{selector_number}: CEL expression empty (unsupported selector type?)"
                )
                raise DeviceSearchFailed(words, index)
        found = self._classes.get(ask.class_name)
        if found is None:
            raise DeviceSearchFailed(f"{where}: could not retrieve device class {ask.class_name}", index)
        if ask.mode == "ExactCount":
            return RequestOption(ask, parent, found, ask.count, None)
        if ask.mode != "All":
            raise DeviceSearchFailed(f"{where}: unsupported count mode {ask.mode}", index)
        probe = RequestOption(ask, parent, found, 0, None)
        everything = []
        for pool in self._pools:
            if pool.incomplete or pool.invalid:
                state = "being updated" if pool.incomplete else "invalid"
                words = f"{where}: asks for all devices, but resource pool {pool.id} is currently {state}"
                raise DeviceSearchFailed(words, index)
            for one in pool.slices:
                for device_index in range(len(one.devices)):
                    self._count_step()
                    if self._is_selected(
                        index, place, number, probe, one, device_index
                    ) and self._has_capacity(probe, pool, one.devices[device_index]):
                        everything.append((pool, one, device_index))
        return RequestOption(ask, parent, found, len(everything), tuple(everything))

    # ── the search ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _search_request(self, claim: int, request: int) -> bool:
        """This request and all after it. May raise _TooMany."""
        if claim == len(self._claims):
            return True
        if request == len(self._options[claim]):
            try:
                return self._search_request(claim + 1, 0)
            except _TooManyDevices:
                return False  # with fewer devices for an earlier claim it may work
        options = self._options[claim][request]
        if not options[0].parent_request:
            return self._search_devices(claim, request, 0, 0, _START)
        too_many = True
        for number in range(len(options)):
            try:
                done = self._search_devices(claim, request, number, 0, _START)
            except _TooManyDevices:
                continue
            too_many = False
            if done:
                self._chosen_options[claim, request] = number
                return True
        if too_many:
            raise _TooManyDevices
        return False

    def _search_devices(self, claim: int, request: int, number: int, have: int, start: _Position) -> bool:
        """What the option needs beside the `have` devices that it has, from this place on, and all that comes after."""
        self._count_step()
        option = self._options[claim][request][number]
        if option.all_devices is not None and not option.all_devices:
            return False
        if have >= option.count:
            return self._search_request(claim, request + 1)
        if len(self._results[claim]) + option.count - have > RESULTS_MAX:
            raise _TooManyDevices
        if sum(len(one) for one in self._results) >= DEVICES_MAX:
            raise DeviceSearchFailed(f"the pod's claims ask for more than {DEVICES_MAX} devices")
        if option.all_devices is not None:
            pool, one, index = option.all_devices[have]
            return self._try_device(claim, request, number, have, pool, one, index, _START, must=True)
        first_pool, first_slice, first_device = start
        for pool_index in range(first_pool, len(self._pools)):
            pool = self._pools[pool_index]
            from_slice = first_slice if pool_index == first_pool else 0
            for slice_index in range(from_slice, len(pool.slices)):
                one = pool.slices[slice_index]
                here = (pool_index, slice_index) == (first_pool, first_slice)
                for index in range(first_device if here else 0, len(one.devices)):
                    self._count_step()
                    after = (pool_index, slice_index, index + 1)
                    if self._is_candidate(
                        claim, request, number, option, pool, one, index
                    ) and self._try_device(claim, request, number, have, pool, one, index, after, must=False):
                        return True
        return False

    def _is_candidate(
        self,
        claim: int,
        request: int,
        number: int,
        option: RequestOption,
        pool: DevicePool,
        one: ResourceSlice,
        index: int,
    ) -> bool:
        device = one.devices[index]
        if not self._is_free(claim, option.request, DeviceId(*pool.id, device.name), device):
            return False
        return self._is_selected(claim, request, number, option, one, index) and self._has_capacity(
            option, pool, device
        )

    def _try_device(
        self,
        claim: int,
        request: int,
        number: int,
        have: int,
        pool: DevicePool,
        one: ResourceSlice,
        index: int,
        after: _Position,
        *,
        must: bool,
    ) -> bool:
        """Whether everything can be had with this device."""
        option = self._options[claim][request][number]
        step = self._take(claim, option, pool, one, one.devices[index], must=must)
        if step is None:
            return False
        device = DeviceId(*pool.id, one.devices[index].name)
        try:
            done = self._search_devices(claim, request, number, have + 1, after)
        except _TooManyDevices:
            self._undo_take(claim, device, step)
            raise
        if not done:
            self._undo_take(claim, device, step)
        return done

    def _count_step(self) -> None:
        self._steps += 1
        if self._steps > STEPS_MAX:
            raise DeviceSearchFailed(STEPS_EXCEEDED)

    # ── one device ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _is_free(self, claim: int, ask: ExactDeviceRequest, device_id: DeviceId, device: Device) -> bool:
        marked = self._claims_of_device.get(device_id, ())
        if ask.admin_access:
            return device.shareable or claim not in marked
        if self._taken.is_taken_whole(device_id) or marked:
            return False
        return device.shareable or not self._taken.is_shared(device_id)

    def _is_selected(
        self, claim: int, request: int, number: int, option: RequestOption, one: ResourceSlice, index: int
    ) -> bool:
        """By class, request and node."""
        key = claim, request, number, one.name, index
        known = self._selected.get(key)
        if known is None:
            device = one.devices[index]
            known = self._selected[key] = (
                self._matches_all(claim, option.device_class, option.device_class.selectors, one, index)
                and self._matches_all(claim, None, option.request.selectors, one, index)
                and (
                    not one.per_device_node_selection or one.accessible_nodes_of(device).includes(self._node)
                )
            )
        return known

    def _matches_all(
        self,
        claim: int,
        device_class: DeviceClass | None,
        selectors: Sequence[str | None],
        one: ResourceSlice,
        index: int,
    ) -> bool:
        for number, selector in enumerate(selectors):
            whose = f"claim {CLAIM_PLACEHOLDER}" if device_class is None else f"class {device_class.name}"
            if selector is None:
                raise DeviceSearchFailed(f"{whose}: selector #{number}: unsupported selector type", claim)
            try:
                if not self._matches(selector, one, index):
                    return False
            except CelSelectorError as error:
                raise DeviceSearchFailed(f"{whose}: selector #{number}: {error}", claim) from error
        return True

    def _has_capacity(self, option: RequestOption, pool: DevicePool, device: Device) -> bool:
        device_id = DeviceId(*pool.id, device.name)
        consumed = self._taken.consumed_capacity(device_id)
        if device_id in self._consumed:
            consumed = add_amounts(consumed, self._consumed[device_id])
        return has_capacity(device, option.request.capacity, consumed)

    def _take(
        self,
        claim: int,
        option: RequestOption,
        pool: DevicePool,
        one: ResourceSlice,
        device: Device,
        *,
        must: bool,
    ) -> _UndoRecord | None:
        """None: it cannot be had. Where it `must` be, a constraint that forbids it is an error."""
        device_id = DeviceId(*pool.id, device.name)
        if not self._is_free(claim, option.request, device_id, device):
            return None
        step = _UndoRecord()
        is_shared = self._share_counts[device_id] > 0 or self._taken.is_shared(device_id)
        if device.consumes_counters and not (device.shareable and is_shared):
            if not self._take_counters(pool, device):
                return None
            step.counters = pool.id, device
        if any(
            taint.effect in ("NoSchedule", "NoExecute")
            and not any(one.tolerates(taint) for one in option.request.tolerations)
            for taint in device.taints
        ):
            self._undo_take(claim, device_id, step)
            return None
        for held in self._constraints[claim]:
            if not held.add(
                option.parent_request or option.request.name, option.full_name, pool.id.driver, device
            ):
                self._undo_take(claim, device_id, step)
                if must:
                    words = (
                        f"claim {CLAIM_PLACEHOLDER}, request {option.request.name}: cannot add device {device_id} because a claim"
                        " constraint would not be satisfied"
                    )
                    raise DeviceSearchFailed(words, claim)
                return None
            step.constraints.append(held)
        if not device.shareable:
            self._claims_of_device.setdefault(device_id, set()).add(claim)
            step.marked = True
        if not self._has_capacity(option, pool, device):
            self._undo_take(claim, device_id, step)
            return None
        if device.shareable:
            step.consumed = capacity_consumption(device, option.request.capacity)
            self._consumed[device_id] = add_amounts(self._consumed.get(device_id, {}), step.consumed)
            self._share_counts[device_id] += 1
        self._results[claim].append(ChosenDevice(option, device_id, one, device, step.consumed))
        step.listed = True
        return step

    def _undo_take(self, claim: int, device_id: DeviceId, step: _UndoRecord) -> None:
        if step.listed:
            self._results[claim].pop()
        if step.consumed is not None:
            self._consumed[device_id] = add_amounts(self._consumed[device_id], step.consumed, -1)
            self._share_counts[device_id] -= 1
        if step.marked:
            self._claims_of_device[device_id].discard(claim)
        for held in reversed(step.constraints):
            held.remove()
        if step.counters is not None:
            pool_id, device = step.counters
            self._adjust_counters(pool_id, device, -1)

    # ── counters that partitions share ─────────────────────────────────────────────────────────────────────────────

    def _take_counters(self, pool: DevicePool, device: Device) -> bool:
        """Take what the device uses of the pool's counters; False, and nothing taken, where it is not there."""
        available = self._counters_available.get(pool.id)
        if available is None:
            available = self._counters_available[pool.id] = self._counters_left(pool)
        self._adjust_counters(pool.id, device, 1)
        counted = self._counters_taken[pool.id]
        if all(counted[key] <= amount for key, amount in available.items()):
            return True
        self._adjust_counters(pool.id, device, -1)
        return False

    def _adjust_counters(self, pool_id: PoolId, device: Device, times: int) -> None:
        counted = self._counters_taken[pool_id]
        for use in device.consumes_counters:
            for name, amount in use.counters.items():
                counted[use.counter_set, name] += times * amount

    def _counters_left(self, pool: DevicePool) -> dict[tuple[str, str], Fraction]:
        """What the devices that are taken leave of each counter: less than nothing where they are too many."""
        left = {(name, key): amount for name, held in pool.counters.items() for key, amount in held.items()}
        for one in (*pool.slices, *pool.other_slices):
            for device in one.devices:
                device_id = DeviceId(*pool.id, device.name)
                if device.consumes_counters and (
                    self._taken.is_taken_whole(device_id) or self._taken.is_shared(device_id)
                ):
                    for use in device.consumes_counters:
                        for key, amount in use.counters.items():
                            left[use.counter_set, key] -= amount
        return left

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

from policysched.cluster.devices.capacity import added, consumption, has_room
from policysched.cluster.devices.cel_selectors import SelectorError
from policysched.cluster.devices.constraints import Constraint, constraint
from policysched.cluster.devices.pools import Pool
from policysched.cluster.devices.usage import Taken
from policysched.model.devices import (
    Ask,
    Device,
    DeviceClass,
    DeviceId,
    DeviceRequest,
    PoolId,
    ResourceClaim,
    ResourceSlice,
)
from policysched.model.objects import Node

RESULTS_MAX = 32
"""Devices of one claim. Source: `AllocationResultsMaxSize` of k8s.io/api/resource/v1."""
DEVICES_MAX = 128
"""Devices that one pod may ask for, in all its claims."""
STEPS_MAX = 10_000
"""Devices looked at for one pod on one node."""

OVERRUN = f"the search for devices went past its bound of {STEPS_MAX} steps"

Matches = Callable[[str, ResourceSlice, int], bool]
"""Whether a CEL expression selects a slice's device of this index. May raise SelectorError."""
_Place = tuple[int, int, int]
_START: _Place = (0, 0, 0)


class SearchFailed(Exception):
    """There is no sense in looking on: in kube-scheduler's words. `claim` is the index of the claim whose name stands in them
    as `CLAIM`."""

    def __init__(self, words: str, claim: int | None = None) -> None:
        super().__init__(words)
        self.words = words
        self.claim = claim


CLAIM = "\0"


class _TooMany(Exception):
    """More devices than a claim can have: another alternative may need fewer."""


@dataclass(frozen=True, slots=True)
class Option:
    """A request, or one of its alternatives (then `parent` is the request's name). `everything`: all devices that it
    means, where it asks for all."""

    ask: Ask
    parent: str
    device_class: DeviceClass
    count: int
    everything: tuple[tuple[Pool, ResourceSlice, int], ...] | None

    @property
    def full_name(self) -> str:
        return f"{self.parent}/{self.ask.name}" if self.parent else self.ask.name


@dataclass(frozen=True, slots=True)
class Chosen:
    """`consumed` is what of a shared device is taken; None: the device is nobody else's."""

    option: Option
    id: DeviceId
    slice: ResourceSlice
    device: Device
    consumed: Mapping[str, Fraction] | None


@dataclass(frozen=True, slots=True)
class Found:
    """For each claim its devices, and by request which option was taken."""

    devices: tuple[tuple[Chosen, ...], ...]
    options: tuple[tuple[Option, ...], ...]
    alternatives: tuple[tuple[int, ...], ...]


def search(
    claims: Sequence[ResourceClaim],
    node: Node,
    pools: Sequence[Pool],
    taken: Taken,
    classes: Mapping[str, DeviceClass],
    matches: Matches,
) -> Found | None:
    """None: not all of it can be had on this node. Raises SearchFailed."""
    return _Search(claims, node, pools, taken, classes, matches).run()


@dataclass(slots=True)
class _Step:
    """What a device that was taken has changed."""

    counters: tuple[PoolId, Device] | None = None
    constraints: list[Constraint] = field(default_factory=list)
    marked: bool = False
    consumed: Mapping[str, Fraction] | None = None
    listed: bool = False


class _Search:
    def __init__(
        self,
        claims: Sequence[ResourceClaim],
        node: Node,
        pools: Sequence[Pool],
        taken: Taken,
        classes: Mapping[str, DeviceClass],
        matches: Matches,
    ) -> None:
        self._claims = claims
        self._node = node
        self._pools = pools
        self._taken = taken
        self._classes = classes
        self._matches = matches
        self._steps = 0
        self._selected: dict[tuple[int, int, int, str, int], bool] = {}
        self._available: dict[PoolId, dict[tuple[str, str], Fraction]] = {}
        self._counted: defaultdict[PoolId, defaultdict[tuple[str, str], Fraction]] = defaultdict(
            lambda: defaultdict(Fraction)
        )
        self._marked: dict[DeviceId, set[int]] = {}
        self._consumed: dict[DeviceId, Mapping[str, Fraction]] = {}
        self._sharing: Counter[DeviceId] = Counter()
        self._results: list[list[Chosen]] = [[] for _ in claims]
        self._picked: dict[tuple[int, int], int] = {}
        self._options: list[list[list[Option]]] = []
        self._constraints: list[list[Constraint]] = []

    def run(self) -> Found | None:
        least = 0
        for index in range(len(self._claims)):
            least += self._prepare(index)
        if least > DEVICES_MAX:
            raise SearchFailed(f"the pod's claims ask for more than {DEVICES_MAX} devices, {least}")
        try:
            if self._request(0, 0):
                return self._found()
        except _TooMany:
            return None
        if any(pool.invalid for pool in self._pools):
            raise SearchFailed("invalid resource pools were encountered")
        return None

    def _found(self) -> Found:
        picked = tuple(
            tuple(self._picked.get((claim, request), 0) for request in range(len(options)))
            for claim, options in enumerate(self._options)
        )
        chosen = tuple(
            tuple(options[request][place] for request, place in enumerate(places))
            for options, places in zip(self._options, picked, strict=True)
        )
        return Found(tuple(tuple(one) for one in self._results), chosen, picked)

    # ── what is asked for ──────────────────────────────────────────────────────────────────────────────────────────

    def _prepare(self, index: int) -> int:
        """Read the claim; how many devices it needs at the least."""
        claim, least = self._claims[index], 0
        self._options.append([])
        for place, request in enumerate(claim.requests):
            options = self._options_of(index, place, request)
            self._options[index].append(options)
            least += min(one.count for one in options)
        if least > RESULTS_MAX:
            raise SearchFailed(
                f"claim {CLAIM}: number of requested devices {least} exceeds the claim limit of {RESULTS_MAX}",
                index,
            )
        self._constraints.append([])
        for number, one in enumerate(claim.constraints):
            if one.kind == "other":
                words = (
                    f"claim {CLAIM}, constraint #{number}: empty constraint (unsupported constraint type?)"
                )
                raise SearchFailed(words, index)
            self._constraints[index].append(constraint(one))
        return least

    def _options_of(self, index: int, place: int, request: DeviceRequest) -> list[Option]:
        if request.exactly is not None:
            return [self._option(index, place, 0, request.exactly, "")]
        if not request.first_available:
            raise SearchFailed(f"resource claim {CLAIM}, request {request.name}: unknown request type", index)
        return [
            self._option(index, place, number, ask, request.name)
            for number, ask in enumerate(request.first_available)
        ]

    def _option(self, index: int, place: int, number: int, ask: Ask, parent: str) -> Option:
        where = f"claim {CLAIM}, request {ask.name}"
        for selector_number, selector in enumerate(ask.selectors):
            if selector is None:
                words = (
                    f"{where}, selector #{selector_number}: CEL expression empty (unsupported selector type?)"
                )
                raise SearchFailed(words, index)
        found = self._classes.get(ask.class_name)
        if found is None:
            raise SearchFailed(f"{where}: could not retrieve device class {ask.class_name}", index)
        if ask.mode == "ExactCount":
            return Option(ask, parent, found, ask.count, None)
        if ask.mode != "All":
            raise SearchFailed(f"{where}: unsupported count mode {ask.mode}", index)
        probe = Option(ask, parent, found, 0, None)
        everything = []
        for pool in self._pools:
            if pool.incomplete or pool.invalid:
                state = "being updated" if pool.incomplete else "invalid"
                words = f"{where}: asks for all devices, but resource pool {pool.id} is currently {state}"
                raise SearchFailed(words, index)
            for one in pool.slices:
                for device_index in range(len(one.devices)):
                    self._count_step()
                    if self._selectable(index, place, number, probe, one, device_index) and self._has_room(
                        probe, pool, one.devices[device_index]
                    ):
                        everything.append((pool, one, device_index))
        return Option(ask, parent, found, len(everything), tuple(everything))

    # ── the search ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _request(self, claim: int, request: int) -> bool:
        """This request and all after it. May raise _TooMany."""
        if claim == len(self._claims):
            return True
        if request == len(self._options[claim]):
            try:
                return self._request(claim + 1, 0)
            except _TooMany:
                return False  # with fewer devices for an earlier claim it may work
        options = self._options[claim][request]
        if not options[0].parent:
            return self._devices(claim, request, 0, 0, _START)
        too_many = True
        for number in range(len(options)):
            try:
                done = self._devices(claim, request, number, 0, _START)
            except _TooMany:
                continue
            too_many = False
            if done:
                self._picked[claim, request] = number
                return True
        if too_many:
            raise _TooMany
        return False

    def _devices(self, claim: int, request: int, number: int, have: int, start: _Place) -> bool:
        """What the option needs beside the `have` devices that it has, from this place on, and all that comes after."""
        self._count_step()
        option = self._options[claim][request][number]
        if option.everything is not None and not option.everything:
            return False
        if have >= option.count:
            return self._request(claim, request + 1)
        if len(self._results[claim]) + option.count - have > RESULTS_MAX:
            raise _TooMany
        if sum(len(one) for one in self._results) >= DEVICES_MAX:
            raise SearchFailed(f"the pod's claims ask for more than {DEVICES_MAX} devices")
        if option.everything is not None:
            pool, one, index = option.everything[have]
            return self._with(claim, request, number, have, pool, one, index, _START, must=True)
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
                    if self._may_have(claim, request, number, option, pool, one, index) and self._with(
                        claim, request, number, have, pool, one, index, after, must=False
                    ):
                        return True
        return False

    def _may_have(
        self,
        claim: int,
        request: int,
        number: int,
        option: Option,
        pool: Pool,
        one: ResourceSlice,
        index: int,
    ) -> bool:
        device = one.devices[index]
        if not self._is_free(claim, option.ask, DeviceId(*pool.id, device.name), device):
            return False
        return self._selectable(claim, request, number, option, one, index) and self._has_room(
            option, pool, device
        )

    def _with(
        self,
        claim: int,
        request: int,
        number: int,
        have: int,
        pool: Pool,
        one: ResourceSlice,
        index: int,
        after: _Place,
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
            done = self._devices(claim, request, number, have + 1, after)
        except _TooMany:
            self._give_back(claim, device, step)
            raise
        if not done:
            self._give_back(claim, device, step)
        return done

    def _count_step(self) -> None:
        self._steps += 1
        if self._steps > STEPS_MAX:
            raise SearchFailed(OVERRUN)

    # ── one device ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _is_free(self, claim: int, ask: Ask, device_id: DeviceId, device: Device) -> bool:
        marked = self._marked.get(device_id, ())
        if ask.admin:
            return device.shareable or claim not in marked
        if self._taken.whole(device_id) or marked:
            return False
        return device.shareable or not self._taken.shared(device_id)

    def _selectable(
        self, claim: int, request: int, number: int, option: Option, one: ResourceSlice, index: int
    ) -> bool:
        """By class, request and node."""
        key = claim, request, number, one.name, index
        known = self._selected.get(key)
        if known is None:
            device = one.devices[index]
            known = self._selected[key] = (
                self._select(claim, option.device_class, option.device_class.selectors, one, index)
                and self._select(claim, None, option.ask.selectors, one, index)
                and (not one.per_device or one.reach_of(device).covers(self._node))
            )
        return known

    def _select(
        self,
        claim: int,
        device_class: DeviceClass | None,
        selectors: Sequence[str | None],
        one: ResourceSlice,
        index: int,
    ) -> bool:
        for number, selector in enumerate(selectors):
            whose = f"claim {CLAIM}" if device_class is None else f"class {device_class.name}"
            if selector is None:
                raise SearchFailed(f"{whose}: selector #{number}: unsupported selector type", claim)
            try:
                if not self._matches(selector, one, index):
                    return False
            except SelectorError as error:
                raise SearchFailed(f"{whose}: selector #{number}: {error}", claim) from error
        return True

    def _has_room(self, option: Option, pool: Pool, device: Device) -> bool:
        device_id = DeviceId(*pool.id, device.name)
        consumed = self._taken.consumed(device_id)
        if device_id in self._consumed:
            consumed = added(consumed, self._consumed[device_id])
        return has_room(device, option.ask.capacity, consumed)

    def _take(
        self, claim: int, option: Option, pool: Pool, one: ResourceSlice, device: Device, *, must: bool
    ) -> _Step | None:
        """None: it cannot be had. Where it `must` be, a constraint that forbids it is an error."""
        device_id = DeviceId(*pool.id, device.name)
        if not self._is_free(claim, option.ask, device_id, device):
            return None
        step = _Step()
        is_shared = self._sharing[device_id] > 0 or self._taken.shared(device_id)
        if device.uses and not (device.shareable and is_shared):
            if not self._count(pool, device):
                return None
            step.counters = pool.id, device
        if any(
            taint.effect in ("NoSchedule", "NoExecute")
            and not any(one.tolerates(taint) for one in option.ask.tolerations)
            for taint in device.taints
        ):
            self._give_back(claim, device_id, step)
            return None
        for held in self._constraints[claim]:
            if not held.add(option.parent or option.ask.name, option.full_name, pool.id.driver, device):
                self._give_back(claim, device_id, step)
                if must:
                    words = (
                        f"claim {CLAIM}, request {option.ask.name}: cannot add device {device_id} because a claim"
                        " constraint would not be satisfied"
                    )
                    raise SearchFailed(words, claim)
                return None
            step.constraints.append(held)
        if not device.shareable:
            self._marked.setdefault(device_id, set()).add(claim)
            step.marked = True
        if not self._has_room(option, pool, device):
            self._give_back(claim, device_id, step)
            return None
        if device.shareable:
            step.consumed = consumption(device, option.ask.capacity)
            self._consumed[device_id] = added(self._consumed.get(device_id, {}), step.consumed)
            self._sharing[device_id] += 1
        self._results[claim].append(Chosen(option, device_id, one, device, step.consumed))
        step.listed = True
        return step

    def _give_back(self, claim: int, device_id: DeviceId, step: _Step) -> None:
        if step.listed:
            self._results[claim].pop()
        if step.consumed is not None:
            self._consumed[device_id] = added(self._consumed[device_id], step.consumed, -1)
            self._sharing[device_id] -= 1
        if step.marked:
            self._marked[device_id].discard(claim)
        for held in reversed(step.constraints):
            held.remove()
        if step.counters is not None:
            pool_id, device = step.counters
            self._recount(pool_id, device, -1)

    # ── counters that partitions share ─────────────────────────────────────────────────────────────────────────────

    def _count(self, pool: Pool, device: Device) -> bool:
        """Take what the device uses of the pool's counters; False, and nothing taken, where it is not there."""
        available = self._available.get(pool.id)
        if available is None:
            available = self._available[pool.id] = self._left(pool)
        self._recount(pool.id, device, 1)
        counted = self._counted[pool.id]
        if all(counted[key] <= amount for key, amount in available.items()):
            return True
        self._recount(pool.id, device, -1)
        return False

    def _recount(self, pool_id: PoolId, device: Device, times: int) -> None:
        counted = self._counted[pool_id]
        for use in device.uses:
            for name, amount in use.counters.items():
                counted[use.counter_set, name] += times * amount

    def _left(self, pool: Pool) -> dict[tuple[str, str], Fraction]:
        """What the devices that are taken leave of each counter: less than nothing where they are too many."""
        left = {(name, key): amount for name, held in pool.counters.items() for key, amount in held.items()}
        for one in (*pool.slices, *pool.elsewhere):
            for device in one.devices:
                device_id = DeviceId(*pool.id, device.name)
                if device.uses and (self._taken.whole(device_id) or self._taken.shared(device_id)):
                    for use in device.uses:
                        for key, amount in use.counters.items():
                            left[use.counter_set, key] -= amount
        return left

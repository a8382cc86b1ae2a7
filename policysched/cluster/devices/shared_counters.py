"""Counters that the partitions of a device share: what a pool has, and what allocated devices use of
it."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from weakref import WeakKeyDictionary

from policysched.cluster.devices.device_usage import AllocatedDevices, PoolUsage
from policysched.cluster.devices.pools import CounterKey, DevicePool, PoolGeneration
from policysched.model.devices import Amounts, Device, PoolId, ResourceSlice

Amount = Fraction | int
"""Whole ones are integers, which are added in a fifth of the time."""


class SharedCounters:
    """Counters of the pools of one search: those of `allocated` devices, and those that the search
    takes."""

    def __init__(self, allocated: AllocatedDevices, left: "CountersLeft") -> None:
        self._allocated = allocated
        self._left = left
        self._taken: dict[PoolId, _Taken] = {}

    def take(self, pool: DevicePool, device: Device) -> bool:
        """Take what the device consumes. Returns False, and takes nothing, if a counter would be
        exceeded."""
        taken = self._taken.get(pool.id)
        if taken is None:
            taken = self._taken[pool.id] = _Taken(self._left.of_pool(pool, self._allocated))
        taken.adjust(device, 1)
        if not taken.exceeded:
            return True
        taken.adjust(device, -1)
        return False

    def give_back(self, pool_id: PoolId, device: Device) -> None:
        self._taken[pool_id].adjust(device, -1)


class _Taken:
    """Of one pool. A pool may have ten thousands of counters: those that a device does not consume are not visited."""

    def __init__(self, left: "Left") -> None:
        self._left = left.counters
        self._used: defaultdict[CounterKey, Amount] = defaultdict(int)
        self.exceeded = set(left.exceeded)

    def adjust(self, device: Device, times: int) -> None:
        for key, amount in _amounts(_uses(device)):
            used = self._used[key] = self._used[key] + times * amount
            _note(self.exceeded, key, used > self._left.get(key, used))


@dataclass(frozen=True, slots=True)
class Left:
    """`counters`: what `devices` leave of those of these slices, which are allocated in this version of the usage; `exceeded`:
    those that are negative. A counter that is consumed and not defined is negative, in a pool that is invalid."""

    slices: tuple[ResourceSlice, ...] = ()
    version: int = -1
    devices: frozenset[str] = frozenset()
    counters: Mapping[CounterKey, Amount] = field(default_factory=dict)
    exceeded: frozenset[CounterKey] = frozenset()

    def beside(self, pool: PoolGeneration) -> "Left":
        """With the slices that the generation has now. Devices of others are not visited."""
        before, now = ({id(each): each for each in slices} for slices in (self.slices, pool.slices))
        changes: list[tuple[CounterKey, Amount]] = []
        for times, slices, others in ((-1, before, now), (1, now, before)):
            for each in (slices[key] for key in slices.keys() - others.keys()):
                changes += ((key, times * amount) for key, amount in _amounts(each.counters.items()))
                for device in each.devices if self.devices else ():
                    if device.name in self.devices:
                        changes += ((key, -times * amount) for key, amount in _amounts(_uses(device)))
        counters, exceeded = self._changed(changes, pool)
        return Left(pool.slices, self.version, self.devices, counters, exceeded)

    def after(self, usage: PoolUsage, pool: PoolGeneration, *, more: bool = False) -> "Left":
        """Where the devices of the usage are allocated; `more`: beside those."""
        devices = self.devices | usage.devices if more else frozenset(usage.devices)
        changes = (
            (key, times * amount)
            for times, names in ((-1, devices - self.devices), (1, self.devices - devices))
            for name in names
            for device in pool.devices(name)
            for key, amount in _amounts(_uses(device))
        )
        counters, exceeded = self._changed(changes, pool)
        return Left(self.slices, usage.version, devices, counters, exceeded)

    def _changed(
        self, changes: Iterable[tuple[CounterKey, Amount]], pool: PoolGeneration
    ) -> tuple[Mapping[CounterKey, Amount], frozenset[CounterKey]]:
        left = dict(self.counters)  # a copy, as a suspended search reads those of before
        exceeded = set(self.exceeded)
        for key, amount in changes:
            left[key] = left.get(key, 0) + amount
            _note(exceeded, key, left[key].numerator < 0)
            if not left[key] and not pool.defines(key):
                del left[key]
        return left, frozenset(exceeded)


_NOTHING = Left()


class CountersLeft:
    """What the allocated devices of the cluster leave of each counter. Kept for all nodes, since a pool of the whole cluster
    has thousands of devices; of these only those that were allocated or released are visited."""

    def __init__(self) -> None:
        self._kept: WeakKeyDictionary[PoolGeneration, Left] = WeakKeyDictionary()
        self._of_overlays: WeakKeyDictionary[PoolUsage, tuple[Left, Left]] = WeakKeyDictionary()

    def of_pool(self, pool: DevicePool, allocated: AllocatedDevices) -> Left:
        of_cluster, *of_overlays = allocated.uses
        generation, usage = pool.generation, of_cluster.by_pool.get(pool.id, PoolUsage())
        left = self._kept.get(generation, _NOTHING)
        if left.slices is not generation.slices:
            left = left.beside(generation)
        if left.version != usage.version:
            left = left.after(usage, generation)
        self._kept[generation] = left
        for overlay in of_overlays:
            if pool.id in overlay.by_pool:
                left = self._beside(left, overlay.by_pool[pool.id], generation)
        return left

    def _beside(self, left: Left, usage: PoolUsage, generation: PoolGeneration) -> Left:
        """Kept for all nodes, too."""
        kept = self._of_overlays.get(usage)
        if kept is None or kept[0] is not left or kept[1].version != usage.version:
            kept = self._of_overlays[usage] = left, left.after(usage, generation, more=True)
        return kept[1]


def _uses(device: Device) -> Iterator[tuple[str, Amounts]]:
    return ((each.counter_set, each.counters) for each in device.consumes_counters)


def _amounts(counters: Iterable[tuple[str, Amounts]]) -> Iterator[tuple[CounterKey, Amount]]:
    for counter_set, amounts in counters:
        for name, amount in amounts.items():
            yield (counter_set, name), amount.numerator if amount.denominator == 1 else amount


def _note(exceeded: set[CounterKey], key: CounterKey, is_exceeded: bool) -> None:
    if is_exceeded:
        exceeded.add(key)
    else:
        exceeded.discard(key)

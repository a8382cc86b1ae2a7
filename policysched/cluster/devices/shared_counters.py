"""Counters that the partitions of a device share: what a pool has, and what allocated devices use of
it."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from weakref import WeakKeyDictionary

from policysched.cluster.devices.device_usage import AllocatedDevices, PoolUsage
from policysched.cluster.devices.pools import DevicePool, PoolGeneration
from policysched.model.devices import CounterConsumption, Device, PoolId

CounterKey = tuple[str, str]
"""A counter set and a counter in it."""


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
        taken.adjust(device.consumes_counters, 1)
        if not taken.exceeded:
            return True
        taken.adjust(device.consumes_counters, -1)
        return False

    def give_back(self, pool_id: PoolId, device: Device) -> None:
        self._taken[pool_id].adjust(device.consumes_counters, -1)


class _Taken:
    """Of one pool. A pool may have ten thousands of counters: those that a device does not consume are not visited."""

    def __init__(self, left: "Left") -> None:
        self._left = left.counters
        self._used: defaultdict[CounterKey, Fraction] = defaultdict(Fraction)
        self.exceeded = set(left.exceeded)

    def adjust(self, consumptions: Iterable[CounterConsumption], times: int) -> None:
        for key, amount in _amounts(consumptions):
            used = self._used[key] = self._used[key] + times * amount
            _note(self.exceeded, key, used > self._left.get(key, used))


@dataclass(frozen=True, slots=True)
class Left:
    """`counters`: what `devices` leave of them, which are allocated in this version of the usage; `exceeded`: those that are
    negative."""

    version: int
    devices: frozenset[str]
    counters: Mapping[CounterKey, Fraction]
    exceeded: frozenset[CounterKey]

    def after(self, usage: PoolUsage, pool: PoolGeneration, *, more: bool = False) -> "Left":
        """Where the devices of the usage are allocated; `more`: beside those."""
        devices = self.devices | usage.devices if more else frozenset(usage.devices)
        left, exceeded = (
            dict(self.counters),
            set(self.exceeded),
        )  # a copy, as a suspended search reads those of before
        for times, names in ((-1, devices - self.devices), (1, self.devices - devices)):
            for name in names:
                for key, amount in _amounts(pool.consumptions.get(name, ())):
                    left[key] += times * amount
                    _note(exceeded, key, left[key].numerator < 0)
        return Left(usage.version, devices, left, frozenset(exceeded))


class CountersLeft:
    """What the allocated devices of the cluster leave of each counter. Kept for all nodes, since a pool of the whole cluster
    has thousands of devices; of these only those that were allocated or released are visited."""

    def __init__(self) -> None:
        self._kept: WeakKeyDictionary[PoolGeneration, Left] = WeakKeyDictionary()
        self._of_overlays: WeakKeyDictionary[PoolUsage, tuple[Left, Left]] = WeakKeyDictionary()

    def of_pool(self, pool: DevicePool, allocated: AllocatedDevices) -> Left:
        of_cluster, *of_overlays = allocated.uses
        generation, usage = pool.generation, of_cluster.by_pool.get(pool.id, PoolUsage())
        left = self._kept.get(generation)
        if left is None:
            left = _without_allocations(pool)
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


def _without_allocations(pool: DevicePool) -> Left:
    counters = {(name, key): each for name, keys in pool.counters.items() for key, each in keys.items()}
    exceeded = frozenset(key for key, amount in counters.items() if amount.numerator < 0)
    return Left(-1, frozenset(), counters, exceeded)


def _amounts(consumptions: Iterable[CounterConsumption]) -> Iterator[tuple[CounterKey, Fraction]]:
    for consumption in consumptions:
        for name, amount in consumption.counters.items():
            yield (consumption.counter_set, name), amount


def _note(exceeded: set[CounterKey], key: CounterKey, is_exceeded: bool) -> None:
    if is_exceeded:
        exceeded.add(key)
    else:
        exceeded.discard(key)

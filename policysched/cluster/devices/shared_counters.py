"""Counters that the partitions of a device share: what a pool has, and what allocated devices use of
it."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from weakref import WeakKeyDictionary

from policysched.cluster.devices.device_usage import AllocatedDevices, PoolUsage
from policysched.cluster.devices.pools import DevicePool, PoolGeneration
from policysched.model.devices import Device, PoolId

CounterKey = tuple[str, str]
"""A counter set and a counter in it."""


class SharedCounters:
    """Counters of the pools of one search: those of `allocated` devices, and those that the search
    takes."""

    def __init__(self, allocated: AllocatedDevices, left: "CountersLeft") -> None:
        self._allocated = allocated
        self._left = left
        self._available: dict[PoolId, Mapping[CounterKey, Fraction]] = {}
        self._used: defaultdict[PoolId, defaultdict[CounterKey, Fraction]] = defaultdict(
            lambda: defaultdict(Fraction)
        )

    def take(self, pool: DevicePool, device: Device) -> bool:
        """Take what the device consumes. Returns False, and takes nothing, if a counter would be
        exceeded."""
        available = self._available.get(pool.id)
        if available is None:
            available = self._available[pool.id] = self._left.of_pool(pool, self._allocated)
        self._adjust(pool.id, device, 1)
        used = self._used[pool.id]
        if all(used[key] <= amount for key, amount in available.items()):
            return True
        self._adjust(pool.id, device, -1)
        return False

    def give_back(self, pool_id: PoolId, device: Device) -> None:
        self._adjust(pool_id, device, -1)

    def _adjust(self, pool_id: PoolId, device: Device, times: int) -> None:
        used = self._used[pool_id]
        for consumption in device.consumes_counters:
            for name, amount in consumption.counters.items():
                used[consumption.counter_set, name] += times * amount


class CountersLeft:
    """What the allocated devices of the cluster leave of each counter: negative if they exceed it. Kept for all nodes, since
    a pool of the whole cluster has thousands of devices; of these only those that were allocated or released are visited."""

    def __init__(self) -> None:
        self._kept: WeakKeyDictionary[PoolGeneration, _Left] = WeakKeyDictionary()

    def of_pool(self, pool: DevicePool, allocated: AllocatedDevices) -> Mapping[CounterKey, Fraction]:
        of_cluster, *of_overlays = allocated.uses
        generation, usage = pool.generation, of_cluster.by_pool.get(pool.id, PoolUsage())
        kept = self._kept.get(generation)
        if kept is None:
            kept = _Left(
                -1,
                frozenset(),
                {(name, key): each for name, keys in pool.counters.items() for key, each in keys.items()},
            )
        if kept.version != usage.version:
            released, added = kept.devices - usage.devices, usage.devices - kept.devices
            counters = _after(kept.counters, generation, added, released)
            kept = self._kept[generation] = _Left(usage.version, frozenset(usage.devices), counters)
        counters = kept.counters
        for overlay in of_overlays:
            if pool.id in overlay.by_pool:
                more = overlay.by_pool[pool.id].devices - kept.devices
                counters = _after(counters, generation, more, ())
        return counters


@dataclass(frozen=True, slots=True)
class _Left:
    """`counters`: what these devices leave of them, which are allocated in this version of the usage."""

    version: int
    devices: frozenset[str]
    counters: Mapping[CounterKey, Fraction]


def _after(
    counters: Mapping[CounterKey, Fraction],
    pool: PoolGeneration,
    allocated: Iterable[str],
    released: Iterable[str],
) -> Mapping[CounterKey, Fraction]:
    """A copy, as a suspended search reads the counters of before."""
    left = dict(counters)
    for times, names in ((-1, allocated), (1, released)):
        for name in names:
            for consumption in pool.consumptions.get(name, ()):
                for key, amount in consumption.counters.items():
                    left[consumption.counter_set, key] += times * amount
    return left

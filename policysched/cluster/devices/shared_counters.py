"""Counters that the partitions of a device share: what a pool has, and what allocated devices use of
it."""

from collections import defaultdict
from fractions import Fraction

from policysched.cluster.devices.device_usage import AllocatedDevices
from policysched.cluster.devices.pools import DevicePool
from policysched.model.devices import Device, DeviceId, PoolId

CounterKey = tuple[str, str]
"""A counter set and a counter in it."""


class SharedCounters:
    """Counters of the pools of one search: those of `allocated` devices, and those that the search
    takes."""

    def __init__(self, allocated: AllocatedDevices) -> None:
        self._allocated = allocated
        self._available: dict[PoolId, dict[CounterKey, Fraction]] = {}
        self._used: defaultdict[PoolId, defaultdict[CounterKey, Fraction]] = defaultdict(
            lambda: defaultdict(Fraction)
        )

    def take(self, pool: DevicePool, device: Device) -> bool:
        """Take what the device consumes. Returns False, and takes nothing, if a counter would be
        exceeded."""
        available = self._available.get(pool.id)
        if available is None:
            available = self._available[pool.id] = self._available_in(pool)
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

    def _available_in(self, pool: DevicePool) -> dict[CounterKey, Fraction]:
        """What allocated devices leave of each counter: negative if they exceed it."""
        left = {
            (name, key): amount for name, amounts in pool.counters.items() for key, amount in amounts.items()
        }
        for resource_slice in (*pool.slices, *pool.other_slices):
            for device in resource_slice.devices:
                device_id = DeviceId(*pool.id, device.name)
                if device.consumes_counters and (
                    self._allocated.is_wholly_allocated(device_id) or self._allocated.is_shared(device_id)
                ):
                    for consumption in device.consumes_counters:
                        for key, amount in consumption.counters.items():
                            left[consumption.counter_set, key] -= amount
        return left

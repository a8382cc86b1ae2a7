"""Which devices are allocated: whole devices to one claim, shared devices by shares of their
capacity."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from policysched.cluster.devices.capacity import add_amounts
from policysched.model.devices import DeviceAllocation, DeviceId, PoolId

_NONE: Mapping[str, Fraction] = {}


@dataclass(slots=True, eq=False, weakref_slot=True)
class PoolUsage:
    """The names of allocated devices. `version` grows with each change, and no version comes again."""

    version: int = 0
    devices: set[str] = field(default_factory=set)


@dataclass(slots=True)
class DeviceUsage:
    """`whole` and `shares` count allocations by device; `consumed` sums what shares consume.
    Allocations with admin access do not count. A whole device that is allocated twice by mistake
    counts twice, so that both can be removed. `by_pool`: the devices that are allocated, for pools whose devices are."""

    whole: Counter[DeviceId] = field(default_factory=Counter)
    shares: Counter[DeviceId] = field(default_factory=Counter)
    consumed: dict[DeviceId, dict[str, Fraction]] = field(default_factory=dict)
    by_pool: dict[PoolId, "PoolUsage"] = field(default_factory=dict, compare=False)
    _changes: int = field(default=0, compare=False)

    def add(self, allocation: DeviceAllocation, times: int = 1) -> None:
        """Add the allocation, or remove it with `times` -1."""
        for device in allocation.devices:
            if device.admin_access:
                continue
            counted = self.shares if device.share_id else self.whole
            counted[device.device] += times
            if not counted[device.device]:
                del counted[device.device]
            self._note(device.device)
            if device.share_id and device.consumed_capacity:
                amounts = {name: amount for name, amount in device.consumed_capacity if amount > 0}
                left = add_amounts(self.consumed.pop(device.device, {}), amounts, times)
                if left:
                    self.consumed[device.device] = left

    def _note(self, device: DeviceId) -> None:
        pool = PoolId(device.driver, device.pool)
        of_pool = self.by_pool.setdefault(pool, PoolUsage())
        self._changes += 1
        of_pool.version = self._changes
        if device in self.whole or device in self.shares:
            of_pool.devices.add(device.device)
        else:
            of_pool.devices.discard(device.device)
            if not of_pool.devices:
                del self.by_pool[pool]

    def remove(self, allocation: DeviceAllocation) -> None:
        self.add(allocation, -1)


class AllocatedDevices:
    """The sum of several usages: that of the cluster, and that of an overlay."""

    __slots__ = ("_uses",)

    def __init__(self, *uses: DeviceUsage) -> None:
        self._uses = uses

    @property
    def uses(self) -> tuple[DeviceUsage, ...]:
        return self._uses

    def is_wholly_allocated(self, device: DeviceId) -> bool:
        return any(device in use.whole for use in self._uses)

    def is_shared(self, device: DeviceId) -> bool:
        return any(device in use.shares for use in self._uses)

    def consumed_capacity(self, device: DeviceId) -> Mapping[str, Fraction]:
        consumed = _NONE
        for use in self._uses:
            if device in use.consumed:
                consumed = add_amounts(consumed, use.consumed[device])
        return consumed

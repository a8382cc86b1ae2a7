"""Which devices are taken: whole ones by one claim, shared ones by shares of their capacity."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from policysched.cluster.devices.capacity import added
from policysched.model.devices import Allocation, DeviceId

_NONE: Mapping[str, Fraction] = {}


@dataclass(slots=True)
class DeviceUse:
    """`whole` and `shares` count allocations by device (more than one of a whole device is somebody's mistake, and both are to be
    taken back some day); `consumed` sums what shares take. What is used with admin access is not taken."""

    whole: Counter[DeviceId] = field(default_factory=Counter)
    shares: Counter[DeviceId] = field(default_factory=Counter)
    consumed: dict[DeviceId, dict[str, Fraction]] = field(default_factory=dict)

    def add(self, allocation: Allocation, times: int = 1) -> None:
        """Or take it back, with `times` -1."""
        for one in allocation.devices:
            if one.admin:
                continue
            counted = self.shares if one.share else self.whole
            counted[one.device] += times
            if not counted[one.device]:
                del counted[one.device]
            if one.share and one.consumed:
                left = added(self.consumed.pop(one.device, {}), dict(one.consumed), times)
                if left:
                    self.consumed[one.device] = left

    def remove(self, allocation: Allocation) -> None:
        self.add(allocation, -1)


class Taken:
    """The sum of several uses (what the API server shows and what is promised; what is laid on an overlay)."""

    __slots__ = ("_uses",)

    def __init__(self, *uses: DeviceUse) -> None:
        self._uses = uses

    def whole(self, device: DeviceId) -> bool:
        return any(device in use.whole for use in self._uses)

    def shared(self, device: DeviceId) -> bool:
        return any(device in use.shares for use in self._uses)

    def consumed(self, device: DeviceId) -> Mapping[str, Fraction]:
        found = _NONE
        for use in self._uses:
            if device in use.consumed:
                found = added(found, use.consumed[device])
        return found

"""Consumable capacity: how much of a shared device a request consumes, and whether that much is
left.

Source: `consumable_capacity.go` in k8s.io/dynamic-resource-allocation v0.37.2,
`structured/internal/incubating`.
"""

from collections.abc import Mapping
from fractions import Fraction

from policysched.model.devices import Amounts, CapacityRequestPolicy, Device, DeviceCapacity

Nanos = Fraction | int
_NANO, _NOTHING = 10**9, Fraction()


def has_capacity(device: Device, requested: Amounts, consumed: Amounts) -> bool:
    """Whether the device has the requested capacity beside what is consumed. A capacity that it
    does not declare is never available."""
    if not requested.keys() <= device.capacity.keys():
        return False
    for name, capacity in device.capacity.items():
        wanted = requested.get(name)
        if wanted is None and capacity.policy is None and name not in consumed:
            continue  # all of it is there
        amount = _consumed_nanos(capacity, wanted)
        # The API server takes negative requests, which would make room for others that is not there.
        if amount < 0 or _violates_policy(amount, capacity.policy):
            return False
        if _nanos(consumed.get(name, _NOTHING)) + amount > _nanos(capacity.amount):
            return False
    return True


def capacity_steps(device: Device, requested: Amounts) -> int:
    """What `has_capacity` takes, in steps of the search beyond that of the device."""
    return len(device.capacity) // (1 if device.shareable else 8) + len(requested) // 4


def capacity_consumption(device: Device, requested: Amounts) -> dict[str, Fraction]:
    """How much of each capacity a share for this request consumes."""
    return {
        name: Fraction(_consumed_nanos(capacity, requested.get(name))) / _NANO
        for name, capacity in device.capacity.items()
    }


def _consumed_nanos(capacity: DeviceCapacity, requested: Fraction | None) -> Nanos:
    """The requested amount rounded up by the device's policy, or the default if none is requested."""
    policy = capacity.policy
    if requested is None:
        default = None if policy is None else policy.default
        return _nanos(capacity.amount if default is None else default)
    amount = _nanos(requested)
    if policy is None:
        return amount
    if policy.has_range and policy.range_min is not None:
        return _rounded_up_to_step(amount, _nanos(policy.range_min), policy.range_step)
    return next((value for each in policy.valid_values if amount <= (value := _nanos(each))), amount)


def _rounded_up_to_step(requested: Nanos, least: Nanos, step: Fraction | None) -> Nanos:
    if requested < least:
        return least
    if not step:
        return requested
    unit = _unit(least, _nanos(step))
    whole, base, width = _ceil(requested, unit), _ceil(least, unit), _ceil(_nanos(step), unit)
    return unit * (base + width * -(-(whole - base) // width))


def _violates_policy(amount: Nanos, policy: CapacityRequestPolicy | None) -> bool:
    if policy is None or (policy.default is not None and amount == _nanos(policy.default)):
        return False
    if policy.has_range:
        if policy.range_max is not None and amount > _nanos(policy.range_max):
            return True
        if not policy.range_step:
            return False
        least, step = _nanos(policy.range_min or _NOTHING), _nanos(policy.range_step)
        unit = _unit(least, step)
        return (_ceil(amount, unit) - _ceil(least, unit)) % _ceil(step, unit) != 0
    return bool(policy.valid_values) and all(amount != _nanos(each) for each in policy.valid_values)


def _nanos(amount: Fraction) -> Nanos:
    """In billionths, which are integers for all that the API server stores: fractions take ten times as long."""
    times, rest = divmod(_NANO, amount.denominator)
    return amount * _NANO if rest else amount.numerator * times


def _unit(*bounds: Nanos) -> int:
    """The unit of a range's arithmetic: thousandths where its bounds are multiples of them, else 1."""
    return _NANO if any(bound % (_NANO // 1000) for bound in bounds) else _NANO // 1000


def _ceil(amount: Nanos, unit: int) -> int:
    """In units, rounded away from zero, as `Quantity.Value` does."""
    return -(-amount // unit) if amount >= 0 else amount // unit


def add_amounts(
    amounts: Mapping[str, Fraction], added: Mapping[str, Fraction], times: int = 1
) -> dict[str, Fraction]:
    """The sum by name, without zeros."""
    sums = dict(amounts)
    for name, amount in added.items():
        total = sums.pop(name, Fraction(0)) + times * amount
        if total:
            sums[name] = total
    return sums

"""Consumable capacity: how much of a shared device a request consumes, and whether that much is
left.

Source: `consumable_capacity.go` in k8s.io/dynamic-resource-allocation v0.37.2,
`structured/internal/incubating`.
"""

from collections.abc import Mapping
from fractions import Fraction

from policysched.model.devices import Amounts, CapacityRequestPolicy, Device, DeviceCapacity


def has_capacity(device: Device, requested: Amounts, consumed: Amounts) -> bool:
    """Whether the device has the requested capacity beside what is consumed. A capacity that it
    does not declare is never available."""
    if not requested.keys() <= device.capacity.keys():
        return False
    for name, capacity in device.capacity.items():
        wanted = requested.get(name)
        if wanted is None and capacity.policy is None and name not in consumed:
            continue  # all of it is there
        amount = consumed_amount(capacity, wanted)
        # The API server takes negative requests, which would make room for others that is not there.
        if amount < 0 or _violates_policy(amount, capacity.policy):
            return False
        if consumed.get(name, 0) + amount > capacity.amount:
            return False
    return True


def capacity_steps(device: Device, requested: Amounts) -> int:
    """What `has_capacity` takes, in steps of the search beyond that of the device."""
    return len(device.capacity) // (1 if device.shareable else 8) + len(requested) // 4


def capacity_consumption(device: Device, requested: Amounts) -> dict[str, Fraction]:
    """How much of each capacity a share for this request consumes."""
    return {
        name: consumed_amount(capacity, requested.get(name)) for name, capacity in device.capacity.items()
    }


def consumed_amount(capacity: DeviceCapacity, requested: Fraction | None) -> Fraction:
    """The requested amount rounded up by the device's policy, or the default if none is requested."""
    policy = capacity.policy
    if requested is None:
        return policy.default if policy is not None and policy.default is not None else capacity.amount
    if policy is None:
        return requested
    if policy.has_range and policy.range_min is not None:
        return _rounded_up_to_step(requested, policy.range_min, policy.range_step)
    return next((value for value in policy.valid_values if requested <= value), requested)


def _rounded_up_to_step(requested: Fraction, least: Fraction, step: Fraction | None) -> Fraction:
    if requested < least:
        return least
    if not step:
        return requested
    unit = _unit(least, step)
    whole, base, width = _ceil(requested / unit), _ceil(least / unit), _ceil(step / unit)
    return unit * (base + width * -(-(whole - base) // width))


def _violates_policy(amount: Fraction, policy: CapacityRequestPolicy | None) -> bool:
    if policy is None or amount == policy.default:
        return False
    if policy.has_range:
        if policy.range_max is not None and amount > policy.range_max:
            return True
        if not policy.range_step:
            return False
        least = policy.range_min or Fraction(0)
        unit = _unit(least, policy.range_step)
        return (_ceil(amount / unit) - _ceil(least / unit)) % _ceil(policy.range_step / unit) != 0
    return bool(policy.valid_values) and amount not in policy.valid_values


def _unit(*bounds: Fraction) -> Fraction:
    """The unit of a range's arithmetic: thousandths where its bounds are multiples of them, else 1."""
    milli = Fraction(1, 1000)
    return milli if all((bound / milli).denominator == 1 for bound in bounds) else Fraction(1)


def _ceil(amount: Fraction) -> int:
    """Round to an integer away from zero, as `Quantity.Value` does."""
    whole = -(-abs(amount.numerator) // amount.denominator)
    return whole if amount >= 0 else -whole


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

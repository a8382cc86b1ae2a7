"""How much of a device's capacity a request takes, and whether so much is left: devices that several claims share.

Source: `consumable_capacity.go` in k8s.io/dynamic-resource-allocation v0.36.3, `structured/internal/incubating`.
"""

from collections.abc import Mapping
from fractions import Fraction

from policysched.model.devices import Amounts, Capacity, Device, RequestPolicy


def has_room(device: Device, asked: Amounts, consumed: Amounts) -> bool:
    """Whether the device can give what is asked on top of what is consumed of it. What it does not have at all it cannot
    give."""
    if not asked.keys() <= device.capacity.keys():
        return False
    for name, capacity in device.capacity.items():
        amount = taken(capacity, asked.get(name))
        if _violates(amount, capacity.policy) or consumed.get(name, 0) + amount > capacity.amount:
            return False
    return True


def consumption(device: Device, asked: Amounts) -> dict[str, Fraction]:
    """What a share for this request takes of each capacity."""
    return {name: taken(capacity, asked.get(name)) for name, capacity in device.capacity.items()}


def taken(capacity: Capacity, asked: Fraction | None) -> Fraction:
    """The amount that is asked, rounded up as the device's policy says; what it takes by default where none is."""
    policy = capacity.policy
    if asked is None:
        return policy.default if policy is not None and policy.default is not None else capacity.amount
    if policy is None:
        return asked
    if policy.range and policy.least is not None:
        return _in_steps(asked, policy.least, policy.step)
    return next((one for one in policy.values if asked <= one), asked)


def _in_steps(asked: Fraction, least: Fraction, step: Fraction | None) -> Fraction:
    if asked < least:
        return least
    if step is None:
        return asked
    whole, base, width = _whole(asked), _whole(least), _whole(step)
    return Fraction(base + width * -(-(whole - base) // width))


def _violates(amount: Fraction, policy: RequestPolicy | None) -> bool:
    if policy is None or amount == policy.default:
        return False
    if policy.range:
        if policy.most is not None and amount > policy.most:
            return True
        least = policy.least or Fraction(0)
        return policy.step is not None and (_whole(amount) - _whole(least)) % _whole(policy.step) != 0
    return bool(policy.values) and amount not in policy.values


def _whole(amount: Fraction) -> int:
    """Rounded up, as `Quantity.Value`."""
    return -(-amount.numerator // amount.denominator)


def added(one: Mapping[str, Fraction], other: Mapping[str, Fraction], times: int = 1) -> dict[str, Fraction]:
    """The sum by name, without what comes to nothing."""
    found = dict(one)
    for name, amount in other.items():
        total = found.pop(name, Fraction(0)) + times * amount
        if total:
            found[name] = total
    return found

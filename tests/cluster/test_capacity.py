"""Consumable capacity of devices: amounts are compared as integers, as the API server stores no others."""

from fractions import Fraction
from math import ceil, floor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policysched.cluster.devices import capacity
from policysched.cluster.devices.capacity import capacity_consumption, has_capacity
from policysched.model.devices import CapacityRequestPolicy, Device, DeviceCapacity

CAPACITIES = 32


def sharing(*policies: CapacityRequestPolicy | None, amount: Fraction = Fraction(100)) -> Device:
    each = {f"c{number}": DeviceCapacity(amount, policy) for number, policy in enumerate(policies)}
    return Device("g", {}, each, shareable=True)


def steps_of(least: Fraction, step: Fraction | None, most: Fraction | None = None) -> CapacityRequestPolicy:
    return CapacityRequestPolicy(None, (), True, least, most, step)


def test_amounts_are_compared_without_a_fraction(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fractions took 17 ms for a slice of a search, where devices have 32 capacities with ranges."""
    operations: list[str] = []
    for operator in ("add", "sub", "mul", "truediv", "floordiv", "mod", "neg", "eq", "lt", "le", "gt", "ge"):
        original = getattr(Fraction, f"__{operator}__")

        def counting(*values: Any, of: Any = original, name: str = operator) -> Any:
            operations.append(name)
            return of(*values)

        monkeypatch.setattr(Fraction, f"__{operator}__", counting)
    milli = Fraction(1, 1000)
    policies = (
        steps_of(milli, 3 * milli, Fraction(100)),
        CapacityRequestPolicy(milli, (milli, 2 * milli), False, None, None, None),
        None,
    )
    device = sharing(*(policies[at % 3] for at in range(CAPACITIES)))
    requested = dict.fromkeys(device.capacity, 2 * milli)
    consumed = {name: Fraction(99) for name in device.capacity}
    operations.clear()

    assert has_capacity(device, requested, consumed)

    assert operations == []


# ── agreement with fractions ─────────────────────────────────────────────────────────────────────────────────────────

AMOUNTS = st.one_of(
    st.integers(-3, 12).map(Fraction),
    st.integers(-3000, 12_000).map(lambda milli: Fraction(milli, 1000)),
    st.integers(-30, 120).map(lambda tenths: Fraction(tenths, 10)),
    st.sampled_from([Fraction(1, 10**9), Fraction(2**63 - 1), Fraction(1, 3)]),
)
OPTIONAL = st.none() | AMOUNTS
POLICIES = st.none() | st.builds(
    CapacityRequestPolicy,
    OPTIONAL,
    st.lists(AMOUNTS, max_size=3).map(tuple),
    st.booleans(),
    OPTIONAL,
    OPTIONAL,
    OPTIONAL,
)


def amount_by_fractions(of: DeviceCapacity, requested: Fraction | None) -> Fraction:
    policy = of.policy
    if requested is None:
        return of.amount if policy is None or policy.default is None else policy.default
    if policy is None:
        return requested
    if policy.has_range and policy.range_min is not None:
        if requested < policy.range_min or not policy.range_step:
            return max(requested, policy.range_min)
        unit = unit_of(policy.range_min, policy.range_step)
        whole, base, width = (away(each / unit) for each in (requested, policy.range_min, policy.range_step))
        return unit * (base + width * ceil(Fraction(whole - base, width)))
    return next((each for each in policy.valid_values if requested <= each), requested)


def is_allowed(amount: Fraction, policy: CapacityRequestPolicy | None) -> bool:
    if policy is None or amount == policy.default:
        return True
    if policy.has_range:
        if policy.range_max is not None and amount > policy.range_max:
            return False
        if not policy.range_step:
            return True
        least = policy.range_min or Fraction(0)
        unit = unit_of(least, policy.range_step)
        return (away(amount / unit) - away(least / unit)) % away(policy.range_step / unit) == 0
    return not policy.valid_values or amount in policy.valid_values


def unit_of(*bounds: Fraction) -> Fraction:
    milli = Fraction(1, 1000)
    return milli if all((bound / milli).denominator == 1 for bound in bounds) else Fraction(1)


def away(amount: Fraction) -> int:
    return ceil(amount) if amount > 0 else floor(amount)


def agrees(
    policy: CapacityRequestPolicy | None, whole: Fraction, wanted: Fraction | None, consumed: Fraction
) -> None:
    device, of = sharing(policy, amount=whole), DeviceCapacity(whole, policy)
    amount = amount_by_fractions(of, wanted)
    requested = {} if wanted is None else {"c0": wanted}

    assert has_capacity(device, requested, {"c0": consumed}) == (
        amount >= 0 and is_allowed(amount, policy) and consumed + amount <= whole
    )
    assert capacity_consumption(device, requested) == {"c0": amount}


@given(POLICIES, AMOUNTS, OPTIONAL, AMOUNTS)
def test_amounts_are_those_of_exact_fractions(
    policy: CapacityRequestPolicy | None, whole: Fraction, wanted: Fraction | None, consumed: Fraction
) -> None:
    agrees(policy, whole, wanted, consumed)


@pytest.mark.parametrize(
    ("part", "planted"),
    [
        ("_ceil", lambda amount, unit: amount // unit),
        ("_unit", lambda *_: 10**9),
        ("_nanos", lambda amount: amount.numerator * 1000 // amount.denominator * 10**6),
    ],
    ids=["rounded down", "whole units", "in thousandths"],
)
def test_a_planted_bug_is_caught(part: str, planted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, part, planted)
    tenth, half = Fraction(1, 10), Fraction(1, 2)

    with pytest.raises(AssertionError):
        agrees(steps_of(tenth, tenth), Fraction(1), Fraction(3005, 10_000), Fraction(0))
        agrees(steps_of(Fraction(1, 10**6), half), Fraction(4), Fraction(3, 2), Fraction(0))

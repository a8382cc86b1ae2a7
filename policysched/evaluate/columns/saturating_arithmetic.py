"""Saturating int64 arithmetic on arrays."""

import numpy as np

from policysched.evaluate.columns.columns import Array
from policysched.model.quantity import INT64_MAX, INT64_MIN

_HUNDREDTH = INT64_MAX // 100


def percent(part: Array, whole: Array) -> Array:
    """`floor(100 * part / whole)` for `0 <= part`; rows whose `whole` is 0 give 0. Exact for any int64."""
    nonzero = whole > 0
    divisor = whole if all_true(nonzero) else np.maximum(whole, 1)
    if len(part) and largest(part) > _HUNDREDTH:
        exact = part.astype(object) * 100 // divisor.astype(object)
        return np.where(nonzero, exact, 0).astype(np.int64)
    share: Array = part * 100 // divisor
    return share if divisor is whole else share * nonzero


def largest(values: Array) -> int:
    """The maximum of at least one value. Reads a single row directly: a reduction costs as much as for hundreds."""
    return int(values[0] if len(values) == 1 else values.max())


def all_true(mask: Array) -> bool:
    """`mask.all()`, reading a single row directly."""
    return bool(mask[0]) if len(mask) == 1 else bool(mask.all())


def saturating_add(left: Array, right: Array) -> Array:
    total = left + right
    # Overflow: both operands have one sign and the sum has the other.
    wrapped = ((left ^ total) & (right ^ total)) < 0
    return np.where(wrapped, np.where(left < 0, INT64_MIN, INT64_MAX), total) if wrapped.any() else total


def saturating_subtract(left: Array, right: Array) -> Array:
    difference = left - right
    wrapped = ((left ^ right) & (left ^ difference)) < 0
    if wrapped.any():
        return np.where(wrapped, np.where(left < 0, INT64_MIN, INT64_MAX), difference)
    return difference


def saturating_multiply(left: Array, right: Array) -> Array:
    """int64 products wrap around; float64, which errs by less than 2**12 here, shows which did.

    Up to 1.5 * 2**63 a wrapped product has the wrong sign, and beyond it every product overflows.
    """
    estimate = left.astype(np.float64) * right.astype(np.float64)
    product = np.asarray(left * right)
    magnitude = np.abs(estimate)
    may_overflow = magnitude > 2.0**62
    if not may_overflow.any():
        return product
    wrapped = (magnitude > 1.5 * 2.0**63) | (may_overflow & ((product < 0) != (estimate < 0)))
    return np.where(wrapped, np.where(estimate < 0, INT64_MIN, INT64_MAX), product)


def saturating_floor_divide(left: Array, right: Array) -> Array:
    """Rounded toward minus infinity, saturating; rows with a divisor of 0 give 0."""
    divisor = np.where(right == 0, 1, right)
    overflows = (left == INT64_MIN) & (divisor == -1)
    quotient = np.where(overflows, INT64_MAX, np.where(overflows, 0, left) // divisor)
    return np.where(right == 0, 0, quotient)


def saturating_negate(operand: Array) -> Array:
    return np.where(operand == INT64_MIN, INT64_MAX, -operand)

"""Sets and lists in CEL: the functions of Kubernetes' libraries sets and lists, and of cel-go's lists.

Numbers of different types can be equal. Addresses, networks, quantities and versions are bytes here, and have no order in a
list. Source: `lists.go` in k8s.io/apiserver/pkg/cel/library v0.37.2, `ext/sets.go` and `ext/lists.go` of cel-go v0.29.
"""

from collections.abc import Sequence
from datetime import timedelta
from functools import reduce
from itertools import pairwise
from operator import add
from typing import Any

from policysched.model.quantity import INT64_MAX, INT64_MIN

RANGE_MAX = 10_000
"""Of `lists.range`: no more than the runtime would iterate."""


def sets_contains(values: Sequence[object], others: Sequence[object]) -> bool:
    return all(_has(values, other) for other in others)


def sets_equivalent(values: Sequence[object], others: Sequence[object]) -> bool:
    return sets_contains(values, others) and sets_contains(others, values)


def sets_intersects(values: Sequence[object], others: Sequence[object]) -> bool:
    return any(_has(values, other) for other in others)


def includes(value: object, item: object) -> bool:
    return _equal(value, item) or (isinstance(value, list) and _has(value, item))


def is_sorted(values: Sequence[object]) -> bool:
    return all(_not_above(a, b) for a, b in pairwise(values))


def smallest(values: Sequence[object]) -> object:
    if not values:
        raise ValueError("min called on empty list")
    return reduce(lambda best, value: best if _not_above(best, value) else value, values)


def largest(values: Sequence[object]) -> object:
    if not values:
        raise ValueError("max called on empty list")
    return reduce(lambda best, value: best if _not_above(value, best) else value, values)


def total(values: Sequence[object]) -> object:
    """Of numbers. A function in Python cannot return a duration."""
    if not all(type(value) in (int, float) for value in values):
        raise ValueError("no such overload: values that cannot be added")
    result = reduce(add, values) if values else 0
    if isinstance(result, int) and not INT64_MIN <= result <= INT64_MAX:
        raise ValueError("integer overflow")
    return result


def slice_of(values: Sequence[object], start: int, end: int) -> list[object]:
    if start < 0 or end < 0:
        raise ValueError(f"cannot slice({start}, {end}), negative indexes not supported")
    if start > end:
        raise ValueError(f"cannot slice({start}, {end}), start index must be less than or equal to end index")
    if end > len(values):
        raise ValueError(f"cannot slice({start}, {end}), list is length {len(values)}")
    return list(values[start:end])


def flatten(values: Sequence[object], depth: int = 1) -> list[object]:
    if depth < 0:
        raise ValueError("level must be non-negative")
    flat: list[object] = []
    for value in values:
        if depth and isinstance(value, list):
            flat += flatten(value, depth - 1)
        else:
            flat.append(value)
    return flat


def distinct(values: Sequence[object]) -> list[object]:
    kept: list[object] = []
    for value in values:
        if not _has(kept, value):
            kept.append(value)
    return kept


def backwards(values: Sequence[object]) -> list[object]:
    return list(reversed(values))


def ordered(values: Sequence[Any]) -> list[object]:
    if values and any(type(value) is not type(values[0]) for value in values):
        raise ValueError("list elements must have the same type")
    for value in values[:1]:
        _not_above(value, value)  # raises for values without an order
    return sorted(values)


def numbers_below(count: int) -> list[int]:
    if count < 0:
        raise ValueError(f"lists.range: size must be non-negative, got {count}")
    if count > RANGE_MAX:
        raise ValueError(f"lists.range: size {count} exceeds maximum allowed ({RANGE_MAX})")
    return list(range(count))


def _has(values: Sequence[object], item: object) -> bool:
    return any(_equal(value, item) for value in values)


def _equal(a: object, b: object) -> bool:
    """As in CEL: numbers of different types can be equal, truth values only to themselves."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_equal, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_equal(value, b[key]) for key, value in a.items())
    return a == b


def _not_above(a: Any, b: Any) -> bool:
    # Addresses, networks, quantities and versions have no `<=`. In a list the runtime passes their bytes as `bytearray`.
    if not isinstance(a, bytes | bytearray | list):
        try:
            return bool(a <= b)
        except TypeError:
            pass
    raise ValueError("no such overload: values that cannot be compared")


# ── what the templates of `cel_macros` call ────────────────────────────────────────────────────────────────────────────


def order(keys: Sequence[Any]) -> list[int]:
    """The positions of the keys in ascending order."""
    ordered(keys)
    return sorted(range(len(keys)), key=keys.__getitem__)


def can_format(arguments: Sequence[object]) -> bool:
    """Raises ValueError for values that the runtime formats otherwise than Kubernetes. Quantities and the like are bytes here."""
    for argument in arguments:
        if isinstance(argument, float | list | dict | timedelta | bytes | bytearray):
            raise ValueError(
                "policysched formats no lists, maps, doubles, durations, bytes and values of Kubernetes' types"
            )
    return True


def keys_of(arguments: Sequence[Any]) -> list[object]:
    """The keys of a map, or the positions of a list."""
    (items,) = arguments
    if not isinstance(items, dict | list):
        raise ValueError("no such overload: neither a list nor a map")
    return list(items) if isinstance(items, dict) else list(range(len(items)))


def merged(maps: Sequence[Any]) -> dict[object, object]:
    entries: dict[object, object] = {}
    for entry in maps:
        for key, value in entry.items():
            if key in entries:
                raise ValueError(f"insert failed: key {key} already exists")
            entries[key] = value
    return entries


def index_of(arguments: Sequence[Any]) -> int:
    """Of an item in a list, or of a string in a string."""
    items, item = arguments
    if isinstance(items, str) and isinstance(item, str):
        return items.find(item)
    return next((index for index, value in enumerate(_list(items)) if _equal(value, item)), -1)


def last_index_of(arguments: Sequence[Any]) -> int:
    items, item = arguments
    if isinstance(items, str) and isinstance(item, str):
        return items.rfind(item)
    return max((index for index, value in enumerate(_list(items)) if _equal(value, item)), default=-1)


def _list(items: object) -> list[object]:
    if not isinstance(items, list):
        raise ValueError("no such overload: not a list")
    return items

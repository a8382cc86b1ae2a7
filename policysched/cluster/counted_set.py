"""`CountedSet`: items with their counts, which are also one frozen set."""

from collections.abc import Iterable
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")

_NO_COUNTS: dict[Any, int] = {}
_NOTHING: set[Any] = set()


class CountedSet(Generic[Item]):
    """`items` is made of what it was before: to hash 70,000 ports of a node for each of its pods takes 50 ms, and to copy a
    set of them 2 ms. Copies share the counts until one of them changes, and so do new ones: most nodes have no ports and no
    disks, and a gang copies the usage of many."""

    __slots__ = ("_changed", "_counts", "_is_shared", "_items")

    def __init__(self) -> None:
        self._is_shared = True
        self._counts: dict[Item, int] = _NO_COUNTS
        self._items: frozenset[Item] = frozenset()
        self._changed: set[Item] = _NOTHING  # since `items` was read

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CountedSet) and self._counts == other._counts

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"CountedSet({self._counts})"

    def add(self, items: Iterable[Item], times: int) -> None:
        """Count each item so many times more; a negative number takes it away."""
        if self._is_shared:
            self._counts, self._changed = dict(self._counts), set(self._changed)
            self._is_shared = False
        for item in items:
            if count := self._counts.get(item, 0) + times:
                self._counts[item] = count
            else:
                del self._counts[item]
            self._changed.add(item)

    @property
    def items(self) -> frozenset[Item]:
        if self._changed:
            present = {item for item in self._changed if item in self._counts}
            if not (present <= self._items and self._items.isdisjoint(self._changed - present)):
                self._items = (self._items - self._changed) | present
            self._changed = set()
        return self._items

    def share(self, items: frozenset[Item]) -> None:
        """Take over an equal set: identical sets are compared at once, equal ones item by item."""
        self._items = items

    def copy(self) -> "CountedSet[Item]":
        copy: CountedSet[Item] = CountedSet()
        copy._counts, copy._items, copy._changed = self._counts, self._items, self._changed
        self._is_shared = True
        return copy

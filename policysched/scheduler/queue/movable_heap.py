"""A priority queue whose items can be moved and removed.

`heapq` supports neither. A moved or removed item leaves a stale entry in the heap, which is skipped when it reaches the
top. The heap is rebuilt when stale entries outnumber the live ones. A stale entry does not hold its item, which may be a
pod of many megabytes.
"""

from collections.abc import Hashable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import Any, Generic, TypeVar

Item = TypeVar("Item", bound=Hashable)
Key = Any
"""Comparable with `<` to every other key of the same heap."""

_STALE_ENTRIES_MAX = 64
_FEW = 4
_KEY, _ITEM = 0, 2
_Entry = list[Any]
"""Key, serial and item; without an item it is stale. No two serials are equal, so items are not compared."""


def earlier_ns(*times_ns: int | None) -> int | None:
    """The earliest of the times; None is never. Asked several times for each event, so a loop: it takes a fifth of `min`."""
    earliest_ns = None
    for time_ns in times_ns:
        if time_ns is not None and (earliest_ns is None or time_ns < earliest_ns):
            earliest_ns = time_ns
    return earliest_ns


class MovableHeap(Generic[Item]):
    """Items by key, least first; equal keys in the order of their `put`. O(log n) a change, amortised."""

    def __init__(self) -> None:
        self._heap: list[_Entry] = []
        self._live: dict[Item, _Entry] = {}
        self._serial = 0

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, item: Item) -> bool:
        return item in self._live

    def __iter__(self) -> Iterator[Item]:
        """In the order in which the items were put, not by key."""
        return iter(self._live)

    def put(self, item: Item, key: Key) -> None:
        """Add the item, or move it to another key."""
        before = self._live.get(item)
        if before is not None:
            before[_ITEM] = None
        heappush(self._heap, self._new_entry(item, key))
        self._compact()

    def fill(self, entries: Iterable[tuple[Item, Key]]) -> None:
        """Add many at once, in O(n); few to many that there are, one by one."""
        added = list(entries)
        if len(added) * _FEW < len(self._live):
            for item, key in added:
                self.put(item, key)
            return
        for item, key in added:
            self._new_entry(item, key)
        self._rebuild()

    def discard(self, item: Item) -> None:
        entry = self._live.pop(item, None)
        if entry is not None:
            entry[_ITEM] = None
            self._compact()

    def key_of(self, item: Item) -> Key:
        return self._live[item][_KEY]

    def first(self) -> Item | None:
        """The least item, without removing it."""
        if not self._live:
            self._heap.clear()
            return None
        heap = self._heap
        while heap:
            item: Item | None = heap[0][_ITEM]
            if item is not None:
                return item
            heappop(heap)
        return None

    def first_key(self) -> Key | None:
        if not self._live:
            return None
        item = self.first()
        return None if item is None else self._heap[0][_KEY]

    def pop(self) -> Item | None:
        item = self.first()
        if item is not None:
            heappop(self._heap)
            del self._live[item]
        return item

    def clear(self) -> None:
        self._heap.clear()
        self._live.clear()

    def _new_entry(self, item: Item, key: Key) -> _Entry:
        self._serial += 1
        entry = self._live[item] = [key, self._serial, item]
        return entry

    def _compact(self) -> None:
        """Drop stale entries. Removals call this too, so that removed items are released without further puts."""
        if len(self._heap) > 2 * len(self._live) + _STALE_ENTRIES_MAX:
            self._rebuild()

    def _rebuild(self) -> None:
        self._heap = list(self._live.values())
        heapify(self._heap)

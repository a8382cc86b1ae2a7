"""A priority queue whose items can be moved and removed.

`heapq` supports neither. A moved or removed item leaves a stale entry in the heap, which is skipped when it reaches the
top. The heap is rebuilt when stale entries outnumber the live ones.
"""

from collections.abc import Hashable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import Any, Generic, TypeVar

Item = TypeVar("Item", bound=Hashable)
Key = Any
"""Comparable with `<` to every other key of the same heap."""

_STALE_ENTRIES_MAX = 64


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
        self._heap: list[tuple[Key, int, Item]] = []
        self._live: dict[Item, tuple[Key, int]] = {}
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
        self._serial += 1
        self._live[item] = (key, self._serial)
        heappush(self._heap, (key, self._serial, item))
        self._compact()

    def fill(self, entries: Iterable[tuple[Item, Key]]) -> None:
        """Add many at once, in O(n)."""
        for item, key in entries:
            self._serial += 1
            self._live[item] = (key, self._serial)
        self._rebuild()

    def discard(self, item: Item) -> None:
        if self._live.pop(item, None) is not None:
            self._compact()

    def key_of(self, item: Item) -> Key:
        return self._live[item][0]

    def first(self) -> Item | None:
        """The least item, without removing it."""
        if not self._live:
            self._heap.clear()
            return None
        heap = self._heap
        while heap:
            _, serial, item = heap[0]
            live = self._live.get(item)
            if live is not None and live[1] == serial:
                return item
            heappop(heap)
        return None

    def first_key(self) -> Key | None:
        if not self._live:
            return None
        item = self.first()
        return None if item is None else self._heap[0][0]

    def pop(self) -> Item | None:
        item = self.first()
        if item is not None:
            heappop(self._heap)
            del self._live[item]
        return item

    def clear(self) -> None:
        self._heap.clear()
        self._live.clear()

    def _compact(self) -> None:
        """Drop stale entries. Removals call this too, so that removed items are released without further puts."""
        if len(self._heap) > 2 * len(self._live) + _STALE_ENTRIES_MAX:
            self._rebuild()

    def _rebuild(self) -> None:
        self._heap = [(key, serial, item) for item, (key, serial) in self._live.items()]
        heapify(self._heap)

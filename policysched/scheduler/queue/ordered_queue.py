"""A waiting line: the units of one policy, first in its order first.

Mostly a heap does. Where the order reads what namespaces hold, a single placement moves all pods of a namespace at
once, perhaps thousands; but they move together, and keep their order among themselves. So each namespace has a heap of
its own, and the namespaces stand in a heap by the place of their first unit, which is worked out again for those alone
that moved: a placement costs one key and not one for every pod that waits.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from policysched.cluster.shares import NamespaceShares
from policysched.scheduler.queue.entries import QueueEntry
from policysched.scheduler.queue.movable_heap import Key, MovableHeap


class OrderedQueue(Protocol):
    """As a `MovableHeap` of units."""

    def __len__(self) -> int: ...

    def __contains__(self, item: QueueEntry) -> bool: ...

    def __iter__(self) -> Iterator[QueueEntry]: ...

    def put(self, item: QueueEntry, key: Key) -> None: ...

    def fill(self, entries: Iterable[tuple[QueueEntry, Key]]) -> None: ...

    def discard(self, item: QueueEntry) -> None: ...

    def first(self) -> QueueEntry | None: ...

    def pop(self) -> QueueEntry | None: ...


class FairShareQueue:
    """`key_now` gives a unit's place among all namespaces, from what its namespace holds at this moment; the keys that
    are put compare within a namespace only."""

    def __init__(self, shares: NamespaceShares, key_now: Callable[[QueueEntry], Key]) -> None:
        self._shares = shares
        self._current_key = key_now
        self._version = shares.version
        self._heaps: dict[str, MovableHeap[QueueEntry]] = {}
        self._heads: MovableHeap[str] = MovableHeap()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, item: QueueEntry) -> bool:
        line = self._heaps.get(item.namespace)
        return line is not None and item in line

    def __iter__(self) -> Iterator[QueueEntry]:
        for line in self._heaps.values():
            yield from line

    def put(self, item: QueueEntry, key: Key) -> None:
        line = self._heaps.setdefault(item.namespace, MovableHeap())
        before = len(line)
        line.put(item, key)
        self._count += len(line) - before
        self._reposition(item.namespace)

    def fill(self, entries: Iterable[tuple[QueueEntry, Key]]) -> None:
        """Add many at once, in O(n)."""
        by_namespace: dict[str, list[tuple[QueueEntry, Key]]] = {}
        for item, key in entries:
            by_namespace.setdefault(item.namespace, []).append((item, key))
        for namespace, some in by_namespace.items():
            line = self._heaps.setdefault(namespace, MovableHeap())
            before = len(line)
            line.fill(some)
            self._count += len(line) - before
            self._reposition(namespace)

    def discard(self, item: QueueEntry) -> None:
        if item in self:
            self._heaps[item.namespace].discard(item)
            self._count -= 1
            self._reposition(item.namespace)

    def first(self) -> QueueEntry | None:
        self._reposition_changed()
        namespace = self._heads.first()
        return None if namespace is None else self._heaps[namespace].first()

    def pop(self) -> QueueEntry | None:
        item = self.first()
        if item is not None:
            self.discard(item)
        return item

    def _reposition_changed(self) -> None:
        """Let the namespaces whose share has changed stand where they now belong."""
        if self._version == self._shares.version:
            return
        moved = self._shares.changed_since(self._version)
        self._version = self._shares.version
        for namespace in list(self._heaps) if moved is None else moved:
            if namespace in self._heaps:
                self._reposition(namespace)

    def _reposition(self, namespace: str) -> None:
        head = self._heaps[namespace].first()
        if head is None:
            del self._heaps[namespace]
            self._heads.discard(namespace)
        else:
            self._heads.put(namespace, self._current_key(head))

"""The queue of one policy, first in its order first. `evaluate.plan.queue_order` computes the keys of `queue by`.

Usually a heap is enough. If the order reads what namespaces use, one placement moves all pods of a namespace, perhaps
thousands, but they keep their order among themselves. So each namespace has its own heap, and a heap of namespaces is
ordered by the key of their first entries. Only namespaces whose share changed get a new key: a placement costs one key,
not one for every queued pod.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from policysched.cluster.shares import NamespaceShares
from policysched.scheduler.queue.entries import QueueEntry
from policysched.scheduler.queue.movable_heap import Key, MovableHeap


class OrderedQueue(Protocol):
    """What `SchedulingQueue` needs of the queue of one policy."""

    order_changes: bool
    """Whether entries can change places without `put`."""

    def __len__(self) -> int: ...

    def __contains__(self, item: QueueEntry) -> bool: ...

    def __iter__(self) -> Iterator[QueueEntry]: ...

    def put(self, item: QueueEntry, key: Key) -> None: ...

    def fill(self, entries: Iterable[tuple[QueueEntry, Key]]) -> None: ...

    def discard(self, item: QueueEntry) -> None: ...

    def first(self) -> QueueEntry | None: ...

    def pop(self) -> QueueEntry | None: ...

    def precedes(self, entry: QueueEntry) -> bool:
        """Whether the first entry is ahead of this one, which is not in this queue."""


class SortKeyQueue(MovableHeap[QueueEntry]):
    """Orders entries by `sort_key`, their key in every `put`."""

    order_changes = False

    def precedes(self, entry: QueueEntry) -> bool:
        key = self.first_key()
        return key is not None and bool(key < entry.sort_key)


class FairShareQueue:
    """`current_key` is an entry's key among all namespaces, from what its namespace uses now. The keys that are put
    compare within a namespace only."""

    order_changes = True

    def __init__(self, shares: NamespaceShares, current_key: Callable[[QueueEntry], Key]) -> None:
        self._shares = shares
        self._current_key = current_key
        self._version = shares.version
        self._heaps: dict[str, MovableHeap[QueueEntry]] = {}
        self._heads: MovableHeap[str] = MovableHeap()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, item: QueueEntry) -> bool:
        heap = self._heaps.get(item.namespace)
        return heap is not None and item in heap

    def __iter__(self) -> Iterator[QueueEntry]:
        for heap in self._heaps.values():
            yield from heap

    def put(self, item: QueueEntry, key: Key) -> None:
        heap = self._heaps.setdefault(item.namespace, MovableHeap())
        before = len(heap)
        heap.put(item, key)
        self._count += len(heap) - before
        self._reposition(item.namespace)

    def fill(self, entries: Iterable[tuple[QueueEntry, Key]]) -> None:
        """Add many at once, in O(n)."""
        by_namespace: dict[str, list[tuple[QueueEntry, Key]]] = {}
        for item, key in entries:
            by_namespace.setdefault(item.namespace, []).append((item, key))
        for namespace, added in by_namespace.items():
            heap = self._heaps.setdefault(namespace, MovableHeap())
            before = len(heap)
            heap.fill(added)
            self._count += len(heap) - before
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

    def precedes(self, entry: QueueEntry) -> bool:
        first = self.first()
        return first is not None and bool(self._current_key(first) < self._current_key(entry))

    def _reposition_changed(self) -> None:
        """Update the keys of the namespaces whose share has changed."""
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

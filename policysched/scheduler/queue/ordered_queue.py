"""The queue of one policy, first in its order first. `evaluate.plan.queue_order` computes the keys of `queue by`.

Usually a heap is enough. If the order reads what namespaces or quotas use, one placement moves all pods of a namespace
or entity, perhaps thousands, but they keep their order among themselves. So each has its own heap, and a heap of those is
ordered by the key of their first entries. Only those whose share changed get a new key: a placement costs one key, not
one for every queued pod.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Protocol

from policysched.scheduler.queue.entries import QueueEntry
from policysched.scheduler.queue.movable_heap import Key, MovableHeap

Owners = tuple[Hashable, ...]


class OrderedQueue(Protocol):
    """What `SchedulingQueue` needs of the queue of one policy."""

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

    def precedes(self, entry: QueueEntry) -> bool:
        key = self.first_key()
        return key is not None and bool(key < entry.sort_key)


def firsts_of(entries: OrderedQueue) -> list[QueueEntry]:
    """Those of which one is first. Where the order changes by itself, those with the same owners keep their places."""
    if isinstance(entries, FairShareQueue):
        return list(entries.first_of_each())
    first = entries.first()
    return [] if first is None else [first]


class ShareChanges(Protocol):
    """A log of whose share changed: names of namespaces, or entities of quotas."""

    @property
    def version(self) -> int: ...

    def changed_since(self, version: int) -> Iterable[Hashable] | None:
        """None: every share may have changed."""


class FairShareQueue:
    """`owners_of` an entry are those whose shares it is ordered by (its namespace, its entities of quotas); entries with
    the same owners have one heap. `current_key` is an entry's key among all, from what its owners use now. The keys that
    are put compare within a heap only."""

    def __init__(
        self,
        logs: Sequence[ShareChanges],
        owners_of: Callable[[QueueEntry], Owners],
        current_key: Callable[[QueueEntry], Key],
    ) -> None:
        self._logs = logs
        self._owners_of = owners_of
        self._current_key = current_key
        self._versions = [log.version for log in logs]
        self._heaps: dict[Owners, MovableHeap[QueueEntry]] = {}
        self._heaps_of: dict[Hashable, dict[Owners, None]] = {}
        self._owners: dict[QueueEntry, Owners] = {}
        self._heads: MovableHeap[Owners] = MovableHeap()

    def __len__(self) -> int:
        return len(self._owners)

    def __contains__(self, item: QueueEntry) -> bool:
        return item in self._owners

    def __iter__(self) -> Iterator[QueueEntry]:
        for heap in self._heaps.values():
            yield from heap

    def put(self, item: QueueEntry, key: Key) -> None:
        owners = self._owners_of(item)
        if self._owners.get(item, owners) != owners:
            self.discard(item)
        self._heap(owners).put(item, key)
        self._owners[item] = owners
        self._reposition(owners)

    def fill(self, entries: Iterable[tuple[QueueEntry, Key]]) -> None:
        """Add many at once, in O(n)."""
        by_owners: dict[Owners, list[tuple[QueueEntry, Key]]] = {}
        for item, key in entries:
            owners = self._owners[item] = self._owners_of(item)
            by_owners.setdefault(owners, []).append((item, key))
        for owners, added in by_owners.items():
            self._heap(owners).fill(added)
            self._reposition(owners)

    def discard(self, item: QueueEntry) -> None:
        owners = self._owners.pop(item, None)
        if owners is not None:
            self._heaps[owners].discard(item)
            self._reposition(owners)

    def first(self) -> QueueEntry | None:
        self._reposition_changed()
        owners = self._heads.first()
        return None if owners is None else self._heaps[owners].first()

    def pop(self) -> QueueEntry | None:
        item = self.first()
        if item is not None:
            self.discard(item)
        return item

    def precedes(self, entry: QueueEntry) -> bool:
        first = self.first()
        return first is not None and bool(self._current_key(first) < self._current_key(entry))

    def with_same_owners(self, item: QueueEntry) -> MovableHeap[QueueEntry]:
        """Those whose places among each other only `put` changes."""
        return self._heaps[self._owners[item]]

    def first_of_each(self) -> Iterator[QueueEntry]:
        """The first entry of each owners. One of them is the first of all."""
        return filter(None, (heap.first() for heap in self._heaps.values()))

    def _heap(self, owners: Owners) -> MovableHeap[QueueEntry]:
        heap = self._heaps.get(owners)
        if heap is None:
            heap = self._heaps[owners] = MovableHeap()
            for owner in owners:
                self._heaps_of.setdefault(owner, {})[owners] = None
        return heap

    def _reposition_changed(self) -> None:
        """Update the keys of the owners whose share has changed."""
        for index, log in enumerate(self._logs):
            if self._versions[index] == log.version:
                continue
            moved = log.changed_since(self._versions[index])
            self._versions[index] = log.version
            if moved is None:
                changed = dict.fromkeys(self._heaps)
            else:
                changed = {owners: None for owner in moved for owners in self._heaps_of.get(owner, ())}
            for owners in changed:
                self._reposition(owners)

    def _reposition(self, owners: Owners) -> None:
        head = self._heaps[owners].first()
        if head is not None:
            self._heads.put(owners, self._current_key(head))
            return
        del self._heaps[owners]
        self._heads.discard(owners)
        for owner in owners:
            del self._heaps_of[owner][owners]
            if not self._heaps_of[owner]:
                del self._heaps_of[owner]

"""A waiting line: the units of one policy, first in its order first.

Mostly a heap does. Where the order reads what namespaces hold, a single placement moves all pods of a namespace at
once, perhaps thousands; but they move together, and keep their order among themselves. So each namespace has a heap of
its own, and the namespaces stand in a heap by the place of their first unit, which is worked out again for those alone
that moved: a placement costs one key and not one for every pod that waits.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from policysched.cluster.shares import Shares
from policysched.scheduler.queue.entries import Unit
from policysched.scheduler.queue.heap import Key, MovableHeap


class Line(Protocol):
    """As a `MovableHeap` of units."""

    def __len__(self) -> int: ...

    def __contains__(self, item: Unit) -> bool: ...

    def __iter__(self) -> Iterator[Unit]: ...

    def put(self, item: Unit, key: Key) -> None: ...

    def fill(self, entries: Iterable[tuple[Unit, Key]]) -> None: ...

    def discard(self, item: Unit) -> None: ...

    def first(self) -> Unit | None: ...

    def pop(self) -> Unit | None: ...


class FairLine:
    """`key_now` gives a unit's place among all namespaces, from what its namespace holds at this moment; the keys that
    are put compare within a namespace only."""

    def __init__(self, shares: Shares, key_now: Callable[[Unit], Key]) -> None:
        self._shares = shares
        self._key_now = key_now
        self._version = shares.version
        self._lines: dict[str, MovableHeap[Unit]] = {}
        self._heads: MovableHeap[str] = MovableHeap()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, item: Unit) -> bool:
        line = self._lines.get(item.namespace)
        return line is not None and item in line

    def __iter__(self) -> Iterator[Unit]:
        for line in self._lines.values():
            yield from line

    def put(self, item: Unit, key: Key) -> None:
        line = self._lines.setdefault(item.namespace, MovableHeap())
        before = len(line)
        line.put(item, key)
        self._count += len(line) - before
        self._place(item.namespace)

    def fill(self, entries: Iterable[tuple[Unit, Key]]) -> None:
        """Add many at once, in O(n)."""
        by_namespace: dict[str, list[tuple[Unit, Key]]] = {}
        for item, key in entries:
            by_namespace.setdefault(item.namespace, []).append((item, key))
        for namespace, some in by_namespace.items():
            line = self._lines.setdefault(namespace, MovableHeap())
            before = len(line)
            line.fill(some)
            self._count += len(line) - before
            self._place(namespace)

    def discard(self, item: Unit) -> None:
        if item in self:
            self._lines[item.namespace].discard(item)
            self._count -= 1
            self._place(item.namespace)

    def first(self) -> Unit | None:
        self._catch_up()
        namespace = self._heads.first()
        return None if namespace is None else self._lines[namespace].first()

    def pop(self) -> Unit | None:
        item = self.first()
        if item is not None:
            self.discard(item)
        return item

    def _catch_up(self) -> None:
        """Let the namespaces whose share has changed stand where they now belong."""
        if self._version == self._shares.version:
            return
        moved = self._shares.moved_since(self._version)
        self._version = self._shares.version
        for namespace in list(self._lines) if moved is None else moved:
            if namespace in self._lines:
                self._place(namespace)

    def _place(self, namespace: str) -> None:
        head = self._lines[namespace].first()
        if head is None:
            del self._lines[namespace]
            self._heads.discard(namespace)
        else:
            self._heads.put(namespace, self._key_now(head))

"""Changes that affect many pods: they are applied in slices, between which pods of others are decided."""

from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable
from typing import Generic, TypeVar

from policysched.scheduler.blame import ObjectId, raises_for
from policysched.scheduler.queue.scheduling_queue import SchedulingQueue
from policysched.scheduler.steps import POD_OPERATIONS_PER_SLICE

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item", bound=Hashable)

PODS_PER_SLICE = 32
"""A few milliseconds. A change for so few is applied at once."""


class SlicedChanges(Generic[Key, Item]):
    """At most one change for each key, a namespace, policy or gang; `apply` applies it to a slice of what it affects, `end`
    follows the last one. `cost_of` an item is its static cost, in operations. `id_of` a key says who is at fault if one of
    them raises. A part of the timers."""

    def __init__(
        self,
        queue: SchedulingQueue,
        id_of: Callable[[Key], ObjectId],
        apply: Callable[[Key, list[Item], int], None],
        end: Callable[[Key, int], None] = lambda _key, _now_ns: None,
        cost_of: Callable[[Item], int] = lambda _item: 0,
    ) -> None:
        self._queue = queue
        self._id_of = id_of
        self._apply = apply
        self._end = end
        self._cost_of = cost_of
        self._left: OrderedDict[Key, dict[Item, None]] = OrderedDict()
        self._began_ns = 0

    def begin(self, key: Key, items: Iterable[Item], now_ns: int) -> None:
        """Apply the first slice. A change of the key that has not reached everything is replaced."""
        self._left[key] = dict.fromkeys(items)
        self._began_ns = now_ns
        self.reach(key, self._left[key], now_ns)

    def left(self, key: Key) -> Collection[Item]:
        """What the change has not reached."""
        return self._left.get(key, ())

    def next_time_ns(self) -> int | None:
        return self._began_ns if self._left else None

    def advance(self, now_ns: int) -> None:
        """Apply a slice of the first change of each `id_of` in turn: a namespace with many gangs has one turn for all."""
        if self._left:
            first = next(iter(self._left))
            of_first = self._id_of(first)
            for key in [key for key in self._left if self._id_of(key) == of_first]:
                self._left.move_to_end(key)
            self.reach(first, self._left[first], now_ns)

    def reach(self, key: Key, items: Iterable[Item], now_ns: int) -> None:
        """Apply the change to a slice of these; to all where others say what is attempted next, since they do not ask."""
        taken, operations = list[Item](), 0
        for item in items:
            operations += self._cost_of(item)
            is_full = len(taken) >= PODS_PER_SLICE or operations > POD_OPERATIONS_PER_SLICE
            if taken and is_full and not self._queue.order_is_given:
                break
            taken.append(item)
        self._apply_to(key, taken, now_ns)

    def finish(self, key: Key, now_ns: int) -> None:
        """Apply the change to everything that it has not reached."""
        while key in self._left:
            self._apply_to(key, list(self._left[key]), now_ns)

    def _apply_to(self, key: Key, items: list[Item], now_ns: int) -> None:
        left = self._left[key]
        for item in items:
            del left[item]
        with raises_for(self._id_of(key)):
            self._apply(key, items, now_ns)
            if not left:
                del self._left[key]
                self._end(key, now_ns)

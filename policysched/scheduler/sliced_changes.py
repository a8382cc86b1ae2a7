"""Changes that affect many pods: they are applied in slices, between which pods of others are decided.

Slices are at the expense of the namespace of the change (`slice_turns`). While it rests (`DecisionTime`), there are none.
"""

from collections.abc import Callable, Collection, Hashable, Iterable
from typing import Generic, TypeVar

from policysched.scheduler.blame import ObjectId, raises_for
from policysched.scheduler.queue.scheduling_queue import SchedulingQueue
from policysched.scheduler.slice_turns import Key, PayerTurns, Slice
from policysched.scheduler.steps import POD_OPERATIONS_AT_ONCE_MAX, POD_OPERATIONS_PER_SLICE

Item = TypeVar("Item", bound=Hashable)

PODS_PER_SLICE = 32
"""A few milliseconds. A change for so few is applied at once."""


class SlicedChanges(Generic[Key, Item]):
    """At most one change for each key, a namespace, policy or gang; `apply` applies it to a slice of what it affects, `end`
    follows the last one. `cost_of` an item is its static cost, in operations. `id_of` a key says who is at fault if one of
    them raises, and `payer_of` it which namespace pays, by default that one. `rests`: not if others wait for the change."""

    def __init__(
        self,
        queue: SchedulingQueue,
        id_of: Callable[[Key], ObjectId],
        apply: Callable[[Key, list[Item], int], None],
        end: Callable[[Key, int], None] = lambda _key, _now_ns: None,
        cost_of: Callable[[Item], int] = lambda _item: 0,
        *,
        payer_of: Callable[[Key], str] | None = None,
        rests: bool = True,
    ) -> None:
        self._queue = queue
        self._id_of = id_of
        self._apply = apply
        self._end = end
        self._cost_of = cost_of
        self._payer_of = payer_of or (lambda key: id_of(key).namespace)
        self._rests = rests
        self._left: dict[Key, dict[Item, None]] = {}
        self._turns = PayerTurns[Key]()
        self._began_ns = 0

    def begin(self, key: Key, items: Iterable[Item], now_ns: int, *, at_once: bool = True) -> None:
        """Apply the first slice `at_once`, unless it is a slow one. A change of the key that has not reached everything is replaced."""
        left = self._left[key] = dict.fromkeys(items)
        self._turns.add(self._payer_of(key), key)
        self._began_ns = now_ns
        is_slow = bool(left) and self._cost_of(next(iter(left))) > POD_OPERATIONS_AT_ONCE_MAX
        if (at_once and not is_slow) or self._queue.order_is_given:
            self.reach(key, left, now_ns)

    def add(self, key: Key, item: Item, now_ns: int) -> None:
        """One more item for the change of the key, which begins with it if there is none."""
        if key not in self._left:
            self._left[key] = {}
            self._turns.add(self._payer_of(key), key)
            self._began_ns = now_ns
        self._left[key][item] = None

    def left(self, key: Key) -> Collection[Item]:
        """What the change has not reached."""
        return self._left.get(key, ())

    def discard(self, key: Key) -> None:
        """The change does not take place any more."""
        if self._left.pop(key, None) is not None:
            self._turns.discard(self._payer_of(key), key)

    def next_time_ns(self) -> int | None:
        if not self._left:
            return None
        return min(self._rest_ends_ns(payer) or self._began_ns for payer, _ in self._turns)

    def take_slice(self, now_ns: int) -> Slice | None:
        """Apply a slice of the first change of each payer in turn."""
        for payer, keys in self._turns:
            if self._rest_ends_ns(payer) is None:
                key = next(iter(keys))
                self._turns.take(payer, key)
                return Slice(payer, self.reach(key, self._left[key], now_ns))
        return None

    def _rest_ends_ns(self, payer: str) -> int | None:
        return self._queue.decision_time.slice_rest_ends_ns(payer) if self._rests else None

    def reach(self, key: Key, items: Iterable[Item], now_ns: int) -> int:
        """Apply the change to a slice of these; to all where others say what is attempted next, since they do not ask. Returns
        to how many."""
        taken, operations = list[Item](), 0
        for item in items:
            operations += self._cost_of(item)
            is_full = len(taken) >= PODS_PER_SLICE or operations > POD_OPERATIONS_PER_SLICE
            if taken and is_full and not self._queue.order_is_given:
                break
            taken.append(item)
        self._apply_to(key, taken, now_ns)
        return len(taken)

    def _apply_to(self, key: Key, items: list[Item], now_ns: int) -> None:
        left = self._left[key]
        for item in items:
            del left[item]
        with raises_for(self._id_of(key)):
            self._apply(key, items, now_ns)
            if not left:
                self.discard(key)
                self._end(key, now_ns)

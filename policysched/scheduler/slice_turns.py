"""Slices of long work beside the attempts: those for a namespace are at its expense, as failed attempts are (`DecisionTime`).

    slice of a namespace ──► attempt ──► slice of the next namespace ──► attempt ──► slow order keys ──► attempt ──► ...

They take turns, so that no attempt is charged for a slice, and others wait for one slice at most.
"""

from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from typing import Generic, NamedTuple, Protocol, TypeVar

from policysched.scheduler.queue.movable_heap import earlier_ns
from policysched.scheduler.queue.order_key_expiries import OrderKeyExpiries
from policysched.scheduler.queue.scheduling_queue import SchedulingQueue

Key = TypeVar("Key", bound=Hashable)

ORDINARY_POD_NS = 200_000
"""So much of a slice is for each pod at nobody's expense: whoever changes a text or a namespace causes it, not the pods."""


class Slice(NamedTuple):
    """`payer`: the namespace at whose expense it was; empty: at nobody's."""

    payer: str
    pod_count: int = 0


class SlicedWork(Protocol):
    def next_time_ns(self) -> int | None:
        """When there is a slice to take; None: not before something else happens."""

    def take_slice(self, now_ns: int) -> Slice | None:
        """Do one slice. None: there is none now."""


class SlicedTexts(SlicedWork, Protocol):
    def take_slice_beside_pause(self, now_ns: int) -> Slice | None:
        """The same in the pause of an attempt."""


class PayerTurns(Generic[Key]):
    """Keys of sliced work. Each payer has one turn for all of its own: one with many keys, or new ones all the time, keeps nobody
    waiting. Those that nobody pays for take turns themselves, as they are of policies of different teams."""

    def __init__(self) -> None:
        self._keys: dict[str, dict[Key, None]] = {}

    def __iter__(self) -> Iterator[tuple[str, Iterable[Key]]]:
        """Payers with their keys, who is next first."""
        return iter(self._keys.items())

    def add(self, payer: str, key: Key) -> None:
        self._keys.setdefault(payer, {}).setdefault(key)

    def discard(self, payer: str, key: Key) -> None:
        keys = self._keys.get(payer, {})
        keys.pop(key, None)
        if not keys:
            self._keys.pop(payer, None)

    def take(self, payer: str, key: Key) -> None:
        """This key has its turn; its payer is last from now on."""
        keys = self._keys[payer] = self._keys.pop(payer)
        if not payer:
            keys[key] = keys.pop(key)


class SlicesInTurn:
    """A slice of each part in turn."""

    def __init__(self, parts: Iterable[SlicedWork]) -> None:
        self._parts = deque(parts)

    def next_time_ns(self) -> int | None:
        return earlier_ns(*[part.next_time_ns() for part in self._parts])

    def take_slice(self, now_ns: int) -> Slice | None:
        for _ in range(len(self._parts)):
            self._parts.rotate(-1)
            taken = self._parts[-1].take_slice(now_ns)
            if taken is not None:
                return taken
        return None


class WakeUpSlices:
    """Parked groups of an event that helps many, at nobody's expense."""

    def __init__(self, queue: SchedulingQueue) -> None:
        self.next_time_ns = queue.next_slice_ns
        self._queue = queue

    def take_slice(self, now_ns: int) -> Slice | None:
        return Slice("") if self._queue.open_slice(now_ns) else None


class SliceTurns:
    """`changes` of many pods: who never calls `decide` takes their slices. They go on in the pauses of an attempt, and so does the
    preparation of `texts`. A part of the timers, of which nothing else is due: `step` has its own turn."""

    def __init__(
        self,
        queue: SchedulingQueue,
        changes: Iterable[SlicedWork],
        texts: SlicedTexts,
        order_keys: OrderKeyExpiries,
    ) -> None:
        self._queue = queue
        self.changes = SlicesInTurn((WakeUpSlices(queue), *changes))
        self._texts = texts
        self._all = SlicesInTurn((self.changes, texts))
        self._order_keys = order_keys
        self._gives_way = self._had_keys = self._texts_are_next = False
        self._uncharged: Slice | None = None

    def next_time_ns(self) -> int | None:
        return self._all.next_time_ns()

    def advance(self, now_ns: int) -> None:
        pass

    def step(self, now_ns: int, *, beside_pause: bool = False) -> bool:
        """Take a slice, unless the last call did and there is something to attempt. True: one was taken, and there is no attempt
        beside it."""
        keys, self._uncharged = self._order_keys, None
        gave_way = self._gives_way and (beside_pause or self._queue.can_pop)
        if keys.has_slow_keys:  # they have accounts of their own
            self._uncharged, self._had_keys = Slice(""), True
        elif not gave_way:
            self._uncharged = (
                self._take_beside_pause(now_ns) if beside_pause else self._all.take_slice(now_ns)
            )
            self._had_keys = False
        self._gives_way = self._uncharged is not None
        keys.is_held = self._gives_way or self._had_keys
        return self._gives_way

    def _take_beside_pause(self, now_ns: int) -> Slice | None:
        """Of a change and of a text in turn."""
        first, second = self.changes.take_slice, self._texts.take_slice_beside_pause
        if self._texts_are_next:
            first, second = second, first
        self._texts_are_next = not self._texts_are_next
        return first(now_ns) or second(now_ns)

    def charge(self, elapsed_ns: int) -> bool:
        """Charge the time of the last step to whoever pays for it. False: it took no slice."""
        taken, self._uncharged = self._uncharged, None
        if taken is not None and taken.payer:
            charged_ns = elapsed_ns - taken.pod_count * ORDINARY_POD_NS
            self._queue.decision_time.charge_slice(taken.payer, charged_ns)
        return taken is not None

"""Who is next, who waits, and for what.

Each policy has a heap of its own in its own order; between policies the heads compare by pod priority, then by waiting
time. Who fails is parked together with its kin (pods that agree on everything the policy reads of them, and so share
one verdict): a thousand replicas that do not fit are one room, and what could help them sends out one of them to see.
If that one finds a node the next follows, if not all of them stay where they are; an event among 50,000 parked pods
costs one evaluation for each kind of pod, not one for each pod.

No event is lost between a decision and its parking, because events are applied only between decisions.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from policysched.model.cluster_events import ClusterEvent
from policysched.model.objects import AnyClaim
from policysched.scheduler.limits import SECOND_NS, Limits
from policysched.scheduler.queue.entries import Place, Unit
from policysched.scheduler.queue.heap import MovableHeap
from policysched.scheduler.queue.order import Line
from policysched.scheduler.reports import PendingReason

Kin = Hashable

_PLACES = {event: place for place, event in enumerate(ClusterEvent)}
_OUT = (Place.ACTIVE, Place.BACKING_OFF, Place.DECIDING)
_TELLING_RAREST_NS = 300 * SECOND_NS
_RECHECK_SOONEST_NS = 100_000_000  # a verdict that says it expires at once is still kept this long


@dataclass(slots=True, eq=False)
class Room:
    """Parked kin and the verdict they share.

        blocked ──an event of `wakes`, or `valid_until_ns` passed──► open: one member after the other is sent out
           ▲                                                           │
           └───────────────────── one of them failed ◄─────────────────┘

    While a room is open and has members, at least one of its kin is out (`probes`). `told` are the words that its
    members were last told; `claims` those that they use; `untold` those of them who are still to be told newer ones
    (`telling`), while that is under way.
    """

    kin: Kin
    policy: str
    members: Line
    blocked: bool = False
    wakes: frozenset[ClusterEvent] = frozenset()
    reason: PendingReason = "Unschedulable"
    message: str = ""
    probes: dict[Unit, None] = field(default_factory=dict)
    told: str = ""
    tellings: int = 0
    telling: str = ""
    untold: list[Unit] | None = None
    claims: frozenset[AnyClaim] = frozenset()


class Queue:
    """Pods and gangs by place: see `units` for the drawing. Counts what came in, by the queue and the event. `line_of`
    makes an empty line for units of a policy; who is of a policy that is `held` keeps its place and is not taken."""

    def __init__(
        self,
        limits: Limits,
        line_of: Callable[[str], Line] | None = None,
        held: Collection[str] = frozenset(),
    ) -> None:
        self._limits = limits
        self._held = held
        self._line_of: Callable[[str], Line] = line_of or (lambda _: MovableHeap())
        self._active: dict[str, Line] = {}
        self._backing_off: MovableHeap[Unit] = MovableHeap()
        self._failing: MovableHeap[Unit] = MovableHeap()
        self._rooms: dict[Kin, Room] = {}
        self._parked_in: dict[Unit, Room] = {}
        self._waiting_for: dict[ClusterEvent, dict[Kin, Room]] = {event: {} for event in ClusterEvent}
        self._expiries: MovableHeap[Kin] = MovableHeap()
        self._new_words: MovableHeap[Kin] = MovableHeap()
        self._gated: dict[Unit, None] = {}
        self.incoming: dict[tuple[str, str], int] = {}

    # ── taking ─────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def busy(self) -> bool:
        """Whether `pop` would give somebody."""
        if not self._held:
            return any(self._active.values()) or len(self._backing_off) > 0
        return any(line for policy, line in self._active.items() if policy not in self._held) or self._early()

    def _early(self) -> bool:
        first = self._backing_off.first()
        return first is not None and first.policy not in self._held

    def pop(self) -> Unit | None:
        """The next to be tried. When nobody is active, who backs off soonest is taken early (KEP-5142), unless it
        backs off from an error."""
        heads = [
            head
            for policy, heap in self._active.items()
            if policy not in self._held and (head := heap.first()) is not None
        ]
        if heads:
            head = min(heads, key=_between_policies) if len(heads) > 1 else heads[0]
            self._active[head.policy].pop()
        elif self._early() and (early := self._backing_off.pop()) is not None:
            head = early
        else:
            return None
        head.place = Place.NOWHERE
        return head

    def advance(self, now_ns: int) -> None:
        """Let in whose backoff is over, open the rooms whose verdict has expired."""
        for heap in (self._backing_off, self._failing):
            while (key := heap.first_key()) is not None and key[0] <= now_ns:
                unit = heap.pop()
                assert unit is not None
                self._activate(unit, "BackoffComplete")
        while (expiry := self._expiries.first_key()) is not None and expiry <= now_ns:
            kin = self._expiries.pop()
            self._open(self._rooms[kin], now_ns, ClusterEvent.TIME.value)

    def next_time_ns(self) -> int | None:
        """When `advance` has something to do next."""
        times = [self._expiries.first_key(), self._new_words.first_key()]
        times += [
            key[0] for heap in (self._backing_off, self._failing) if (key := heap.first_key()) is not None
        ]
        return min((time for time in times if time is not None), default=None)

    # ── putting ────────────────────────────────────────────────────────────────────────────────────────────────────

    def enqueue(self, unit: Unit, now_ns: int, event: str) -> None:
        """To be tried: now, or when its backoff is over. `event` is what brought it, for the counters."""
        assert unit.place is Place.NOWHERE, f"{unit} is still {unit.place.value}"
        if unit.backoff_until_ns <= now_ns:
            self._activate(unit, event)
            return
        unit.place = Place.BACKING_OFF
        until_ns = unit.backoff_until_ns
        if unit.failing:
            self._failing.put(unit, (until_ns,))
        else:
            # As in kube-scheduler: within one second the order decides, for the first of them may be taken early.
            self._backing_off.put(unit, (until_ns // SECOND_NS * SECOND_NS, *_between_policies(unit)))
        self._count("backoff", event)

    def punish(self, unit: Unit, now_ns: int) -> None:
        """Note a failed attempt: the next one comes after the backoff at the earliest."""
        unit.backoff_until_ns = now_ns + self._limits.backoff_ns(unit.attempts)

    def gate(self, unit: Unit) -> None:
        """Not to be tried at all until something outside changes."""
        assert unit.place is Place.NOWHERE, f"{unit} is still {unit.place.value}"
        unit.place = Place.GATED
        self._gated[unit] = None
        self._count("gated", "ScheduleAttemptFailure" if unit.attempts else "PodAdd")

    def park(
        self,
        unit: Unit,
        kin: Kin,
        *,
        now_ns: int,
        wakes: frozenset[ClusterEvent],
        valid_until_ns: int | None,
        reason: PendingReason,
        message: str,
    ) -> None:
        """The unit was tried and failed, and so would its kin."""
        room = self._rooms.get(kin) or self._make_room(kin, unit.policy)
        self._unlist(room)
        room.claims = unit.claims
        room.blocked, room.wakes, room.reason, room.message = True, wakes, reason, message
        for event in wakes:
            self._waiting_for[event][kin] = room
        if valid_until_ns is not None:
            self._expiries.put(kin, max(valid_until_ns, now_ns + _RECHECK_SOONEST_NS))
        if not room.members:
            room.told = message
        elif room.told != message and kin not in self._new_words:
            self._new_words.put(kin, now_ns + self._telling_delay_ns(room))
        self._enter(unit, room, now_ns)

    def join(self, unit: Unit, room: Room, now_ns: int) -> None:
        """Park with kin that has just failed, without a trial of its own."""
        assert room.blocked, f"{unit} joins the open room {room.kin}"
        self._enter(unit, room, now_ns)

    def blocked(self, kin: Kin) -> Room | None:
        """The room of kin that failed, if nothing has happened since that could help it."""
        room = self._rooms.get(kin)
        return room if room is not None and room.blocked else None

    def succeeded(self, unit: Unit, now_ns: int) -> None:
        """The unit found a node: the next of its kin may follow."""
        self._come_home(unit, now_ns)

    def words_due(self, now_ns: int, most: int) -> list[tuple[Unit, Room]]:
        """Members whose room has failed again in other words than they were told, `most` at a call. One attempt stands
        for all kin, so the others learn of it in time: after 10 s, 20 s and so on, at most every five minutes."""
        found: list[tuple[Unit, Room]] = []
        while (due := self._new_words.first_key()) is not None and due <= now_ns and len(found) < most:
            kin = self._new_words.first()
            assert kin is not None
            room = self._rooms[kin]
            if not room.blocked:
                # Somebody is out to see: what comes of that is to be told, if it is not what they know.
                self._new_words.discard(kin)
                room.untold = None
                continue
            if room.untold is None or room.telling != room.message:
                room.untold, room.telling = list(room.members), room.message
            while room.untold and len(found) < most:
                unit = room.untold.pop()
                if self._parked_in.get(unit) is room:
                    found.append((unit, room))
            if not room.untold:
                self._new_words.discard(kin)
                room.untold, room.told = None, room.message
                room.tellings += 1
        return found

    # ── moving and leaving ─────────────────────────────────────────────────────────────────────────────────────────

    def reorder(self, unit: Unit) -> None:
        """The unit's key has changed."""
        match unit.place:
            case Place.ACTIVE:
                self._active[unit.policy].put(unit, unit.order)
            case Place.UNSCHEDULABLE:
                self._parked_in[unit].members.put(unit, unit.order)
            case _:
                pass  # elsewhere the order does not matter yet

    def take(self, unit: Unit, now_ns: int) -> None:
        """Out of the queue, wherever it is; its kin is not left without somebody who looks for them."""
        match unit.place:
            case Place.ACTIVE:
                self._active[unit.policy].discard(unit)
            case Place.BACKING_OFF:
                self._backing_off.discard(unit)
                self._failing.discard(unit)
            case Place.UNSCHEDULABLE:
                room = self._parked_in.pop(unit)
                room.members.discard(unit)
                self._close_if_empty(room)
            case Place.GATED:
                del self._gated[unit]
            case _:
                pass
        unit.place = Place.NOWHERE
        self._come_home(unit, now_ns)

    def wake(
        self,
        events: Iterable[ClusterEvent],
        now_ns: int,
        *,
        policy: str | None = None,
        claim: AnyClaim | None = None,
    ) -> None:
        """Something happened that may help those who wait for it (all policies', or one's; those who use the claim)."""
        waited_for = [event for event in events if self._waiting_for[event]]
        # In the order of the enumeration: a set has one of its own in each process.
        for event in sorted(waited_for, key=_PLACES.__getitem__) if len(waited_for) > 1 else waited_for:
            for room in list(self._waiting_for[event].values()):
                if policy in (None, room.policy) and (claim is None or claim in room.claims):
                    self._open(room, now_ns, event.value)

    def drop_policy(self, policy: str) -> None:
        """Everything of one policy leaves at once; the caller puts back what stays."""
        for unit in list(self._units_of(policy)):
            unit.place, unit.probing = Place.NOWHERE, None
        self._active.pop(policy, None)
        for heap in (self._backing_off, self._failing):
            for unit in [one for one in heap if one.policy == policy]:
                heap.discard(unit)
        for unit in [one for one in self._gated if one.policy == policy]:
            del self._gated[unit]
        for room in [one for one in self._rooms.values() if one.policy == policy]:
            for unit in room.members:
                del self._parked_in[unit]
            self._unlist(room)
            self._new_words.discard(room.kin)
            del self._rooms[room.kin]

    def fill(self, policy: str, units: Sequence[Unit], event: str) -> None:
        """Many at once into the active queue, in linear time."""
        for unit in units:
            assert unit.place is Place.NOWHERE, f"{unit} is still {unit.place.value}"
            unit.place = Place.ACTIVE
        self._active_of(policy).fill((unit, unit.order) for unit in units)
        self._count("active", event, len(units))

    # ── looking ────────────────────────────────────────────────────────────────────────────────────────────────────

    def counts(self) -> dict[str, int]:
        """Pods by the `queue` label of `scheduler_pending_pods`."""
        return {
            "active": sum(unit.pods for heap in self._active.values() for unit in heap),
            "backoff": sum(unit.pods for heap in (self._backing_off, self._failing) for unit in heap),
            "unschedulable": sum(unit.pods for unit in self._parked_in),
            "gated": sum(unit.pods for unit in self._gated),
        }

    def active(self, policy: str) -> Iterator[Unit]:
        """Who of a policy could be taken next, in no order."""
        yield from self._active.get(policy, ())

    def room_of(self, unit: Unit) -> Room | None:
        return self._parked_in.get(unit)

    def check(self) -> list[str]:
        """One sentence for each thing that is not as the drawings say."""
        found = []
        standing: dict[Unit, list[Place]] = {}
        for unit in (unit for heap in self._active.values() for unit in heap):
            standing.setdefault(unit, []).append(Place.ACTIVE)
        for unit in (*self._backing_off, *self._failing):
            standing.setdefault(unit, []).append(Place.BACKING_OFF)
        for unit in (unit for room in self._rooms.values() for unit in room.members):
            standing.setdefault(unit, []).append(Place.UNSCHEDULABLE)
        for unit in self._gated:
            standing.setdefault(unit, []).append(Place.GATED)
        for unit, places in standing.items():
            if places != [unit.place]:
                found.append(
                    f"{unit} stands in {[place.value for place in places]}, says it is {unit.place.value}"
                )
        for room in self._rooms.values():
            out = [one for one in room.probes if one.place in _OUT]
            if not room.blocked and room.members and not out:
                found.append(f"room {room.kin!r} is open, has {len(room.members)} members and nobody is out")
            if room.blocked and not room.wakes and room.kin not in self._expiries and not room.message:
                found.append(f"room {room.kin!r} is blocked without a word")
            if not room.members and not room.probes:
                found.append(f"room {room.kin!r} is empty")
            listed = [event for event in ClusterEvent if room.kin in self._waiting_for[event]]
            if set(listed) != (room.wakes if room.blocked else set()):
                found.append(f"room {room.kin!r} waits for {room.wakes}, is listed under {listed}")
        return found

    # ── inside ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _activate(self, unit: Unit, event: str) -> None:
        unit.place, unit.failing = Place.ACTIVE, False
        self._active_of(unit.policy).put(unit, unit.order)
        self._count("active", event)

    def _active_of(self, policy: str) -> Line:
        line = self._active.get(policy)
        if line is None:
            line = self._active[policy] = self._line_of(policy)
        return line

    def _enter(self, unit: Unit, room: Room, now_ns: int) -> None:
        assert unit.place is Place.NOWHERE, f"{unit} is still {unit.place.value}"
        unit.place = Place.UNSCHEDULABLE
        room.members.put(unit, unit.order)
        self._parked_in[unit] = room
        self._count("unschedulable", "ScheduleAttemptFailure")
        self._come_home(unit, now_ns)

    def _make_room(self, kin: Kin, policy: str) -> Room:
        room = self._rooms[kin] = Room(kin, policy, self._line_of(policy))
        return room

    def _open(self, room: Room, now_ns: int, event: str) -> None:
        self._unlist(room)
        room.blocked = False
        self._send_one(room, now_ns, event)

    def _send_one(self, room: Room, now_ns: int, event: str) -> None:
        unit = room.members.pop()
        if unit is None:
            self._close_if_empty(room)
            return
        del self._parked_in[unit]
        unit.place, unit.probing = Place.NOWHERE, room.kin
        room.probes[unit] = None
        self.enqueue(unit, now_ns, event)

    def _come_home(self, unit: Unit, now_ns: int) -> None:
        """The unit is out for nobody any more; if its kin is still let out, the next one goes."""
        kin, unit.probing = unit.probing, None
        room = None if kin is None else self._rooms.get(kin)
        if room is None:
            return
        room.probes.pop(unit, None)
        if not room.blocked and not room.probes:
            self._send_one(room, now_ns, "KinScheduled")
        else:
            self._close_if_empty(room)

    def _close_if_empty(self, room: Room) -> None:
        if not room.members and not room.probes:
            self._unlist(room)
            self._new_words.discard(room.kin)
            del self._rooms[room.kin]

    def _telling_delay_ns(self, room: Room) -> int:
        return min(
            round(self._limits.backoff_max_s * SECOND_NS) << min(room.tellings, 10), _TELLING_RAREST_NS
        )

    def _unlist(self, room: Room) -> None:
        for event in room.wakes:
            self._waiting_for[event].pop(room.kin, None)
        self._expiries.discard(room.kin)
        room.wakes = frozenset()

    def _units_of(self, policy: str) -> Iterator[Unit]:
        yield from self._active.get(policy, ())
        yield from (
            unit for heap in (self._backing_off, self._failing) for unit in heap if unit.policy == policy
        )
        yield from (unit for unit in self._parked_in if unit.policy == policy)
        yield from (unit for unit in self._gated if unit.policy == policy)

    def _count(self, queue: str, event: str, pods: int = 1) -> None:
        label = (queue, event)
        self.incoming[label] = self.incoming.get(label, 0) + pods


def _between_policies(unit: Unit) -> tuple[Any, ...]:
    return (unit.last_in_line, -unit.priority, unit.queued_ns, unit.policy)

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
from policysched.model.identifiers import AnyClaim
from policysched.scheduler.limits import SECOND_NS, SchedulerLimits
from policysched.scheduler.pending_reports import PendingReason
from policysched.scheduler.queue.entries import QueueEntry, QueueState
from policysched.scheduler.queue.movable_heap import MovableHeap
from policysched.scheduler.queue.ordered_queue import OrderedQueue

EquivalenceKey = Hashable

_EVENT_ORDER = {event: place for place, event in enumerate(ClusterEvent)}
_RETRYING_STATES = (QueueState.ACTIVE, QueueState.BACKING_OFF, QueueState.ATTEMPTING)
_REPORT_DELAY_MAX_NS = 300 * SECOND_NS
_RECHECK_DELAY_MIN_NS = 100_000_000  # a verdict that says it expires at once is still kept this long


@dataclass(slots=True, eq=False)
class ParkedGroup:
    """Parked kin and the verdict they share.

        blocked ──an event of `requeue_events`, or `valid_until_ns` passed──► open: one member after the other is sent out
           ▲                                                           │
           └───────────────────── one of them failed ◄─────────────────┘

    While a room is open and has members, at least one of its kin is out (`representatives`). `reported_message` are the words that its
    members were last told; `claims` those that they use; `unreported` those of them who are still to be told newer ones
    (`message_being_reported`), while that is under way.
    """

    equivalence_key: EquivalenceKey
    policy: str
    members: OrderedQueue
    blocked: bool = False
    requeue_events: frozenset[ClusterEvent] = frozenset()
    reason: PendingReason = "Unschedulable"
    message: str = ""
    representatives: dict[QueueEntry, None] = field(default_factory=dict)
    reported_message: str = ""
    report_count: int = 0
    message_being_reported: str = ""
    unreported: list[QueueEntry] | None = None
    claims: frozenset[AnyClaim] = frozenset()


class SchedulingQueue:
    """Pods and gangs by place: see `units` for the drawing. Counts what came in, by the queue and the event. `new_policy_queue`
    makes an empty line for units of a policy; who is of a policy that is `held_policies` keeps its place and is not taken."""

    def __init__(
        self,
        limits: SchedulerLimits,
        new_policy_queue: Callable[[str], OrderedQueue] | None = None,
        held_policies: Collection[str] = frozenset(),
    ) -> None:
        self._limits = limits
        self._held_policies = held_policies
        self._new_policy_queue: Callable[[str], OrderedQueue] = new_policy_queue or (lambda _: MovableHeap())
        self._active: dict[str, OrderedQueue] = {}
        self._backoff: MovableHeap[QueueEntry] = MovableHeap()
        self._error_backoff: MovableHeap[QueueEntry] = MovableHeap()
        self._groups: dict[EquivalenceKey, ParkedGroup] = {}
        self._group_by_entry: dict[QueueEntry, ParkedGroup] = {}
        self._groups_by_event: dict[ClusterEvent, dict[EquivalenceKey, ParkedGroup]] = {
            event: {} for event in ClusterEvent
        }
        self._expiries: MovableHeap[EquivalenceKey] = MovableHeap()
        self._message_report_times: MovableHeap[EquivalenceKey] = MovableHeap()
        self._gated: dict[QueueEntry, None] = {}
        self.incoming_counts: dict[tuple[str, str], int] = {}

    # ── taking ─────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def can_pop(self) -> bool:
        """Whether `pop` would give somebody."""
        if not self._held_policies:
            return any(self._active.values()) or len(self._backoff) > 0
        return (
            any(line for policy, line in self._active.items() if policy not in self._held_policies)
            or self._can_pop_from_backoff()
        )

    def _can_pop_from_backoff(self) -> bool:
        first = self._backoff.first()
        return first is not None and first.policy not in self._held_policies

    def pop(self) -> QueueEntry | None:
        """The next to be tried. When nobody is active, who backs off soonest is taken early (KEP-5142), unless it
        backs off from an error."""
        heads = [
            head
            for policy, heap in self._active.items()
            if policy not in self._held_policies and (head := heap.first()) is not None
        ]
        if heads:
            head = min(heads, key=_cross_policy_key) if len(heads) > 1 else heads[0]
            self._active[head.policy].pop()
        elif self._can_pop_from_backoff() and (early := self._backoff.pop()) is not None:
            head = early
        else:
            return None
        head.state = QueueState.DETACHED
        return head

    def advance(self, now_ns: int) -> None:
        """Let in whose backoff is over, open the rooms whose verdict has expired."""
        for heap in (self._backoff, self._error_backoff):
            while (key := heap.first_key()) is not None and key[0] <= now_ns:
                unit = heap.pop()
                assert unit is not None
                self._activate(unit, "BackoffComplete")
        while (expiry := self._expiries.first_key()) is not None and expiry <= now_ns:
            kin = self._expiries.pop()
            self._unblock(self._groups[kin], now_ns, ClusterEvent.TIME.value)

    def next_time_ns(self) -> int | None:
        """When `advance` has something to do next."""
        times = [self._expiries.first_key(), self._message_report_times.first_key()]
        times += [
            key[0] for heap in (self._backoff, self._error_backoff) if (key := heap.first_key()) is not None
        ]
        return min((time for time in times if time is not None), default=None)

    # ── putting ────────────────────────────────────────────────────────────────────────────────────────────────────

    def enqueue(self, unit: QueueEntry, now_ns: int, event: str) -> None:
        """To be tried: now, or when its backoff is over. `event` is what brought it, for the counters."""
        assert unit.state is QueueState.DETACHED, f"{unit} is still {unit.state.value}"
        if unit.backoff_until_ns <= now_ns:
            self._activate(unit, event)
            return
        unit.state = QueueState.BACKING_OFF
        until_ns = unit.backoff_until_ns
        if unit.in_error_backoff:
            self._error_backoff.put(unit, (until_ns,))
        else:
            # As in kube-scheduler: within one second the order decides, for the first of them may be taken early.
            self._backoff.put(unit, (until_ns // SECOND_NS * SECOND_NS, *_cross_policy_key(unit)))
        self._count("backoff", event)

    def apply_backoff(self, unit: QueueEntry, now_ns: int) -> None:
        """Note a failed attempt: the next one comes after the backoff at the earliest."""
        unit.backoff_until_ns = now_ns + self._limits.backoff_ns(unit.attempts)

    def gate(self, unit: QueueEntry) -> None:
        """Not to be tried at all until something outside changes."""
        assert unit.state is QueueState.DETACHED, f"{unit} is still {unit.state.value}"
        unit.state = QueueState.GATED
        self._gated[unit] = None
        self._count("gated", "ScheduleAttemptFailure" if unit.attempts else "PodAdd")

    def park(
        self,
        unit: QueueEntry,
        equivalence_key: EquivalenceKey,
        *,
        now_ns: int,
        requeue_events: frozenset[ClusterEvent],
        valid_until_ns: int | None,
        reason: PendingReason,
        message: str,
    ) -> None:
        """The unit was tried and failed, and so would its kin."""
        room = self._groups.get(equivalence_key) or self._new_group(equivalence_key, unit.policy)
        self._unindex(room)
        room.claims = unit.claims
        room.blocked, room.requeue_events, room.reason, room.message = True, requeue_events, reason, message
        for event in requeue_events:
            self._groups_by_event[event][equivalence_key] = room
        if valid_until_ns is not None:
            self._expiries.put(equivalence_key, max(valid_until_ns, now_ns + _RECHECK_DELAY_MIN_NS))
        if not room.members:
            room.reported_message = message
        elif room.reported_message != message and equivalence_key not in self._message_report_times:
            self._message_report_times.put(equivalence_key, now_ns + self._report_delay_ns(room))
        self._add_member(unit, room, now_ns)

    def join_group(self, unit: QueueEntry, room: ParkedGroup, now_ns: int) -> None:
        """Park with kin that has just failed, without a trial of its own."""
        assert room.blocked, f"{unit} joins the open room {room.equivalence_key}"
        self._add_member(unit, room, now_ns)

    def blocked_group(self, kin: EquivalenceKey) -> ParkedGroup | None:
        """The room of kin that failed, if nothing has happened since that could help it."""
        room = self._groups.get(kin)
        return room if room is not None and room.blocked else None

    def mark_placed(self, unit: QueueEntry, now_ns: int) -> None:
        """The unit found a node: the next of its kin may follow."""
        self._return_representative(unit, now_ns)

    def due_messages(self, now_ns: int, messages_max: int) -> list[tuple[QueueEntry, ParkedGroup]]:
        """Members whose room has failed again in other words than they were told, `messages_max` at a call. One attempt stands
        for all kin, so the others learn of it in time: after 10 s, 20 s and so on, at most every five minutes."""
        found: list[tuple[QueueEntry, ParkedGroup]] = []
        while (
            (due := self._message_report_times.first_key()) is not None
            and due <= now_ns
            and len(found) < messages_max
        ):
            kin = self._message_report_times.first()
            assert kin is not None
            room = self._groups[kin]
            if not room.blocked:
                # Somebody is out to see: what comes of that is to be told, if it is not what they know.
                self._message_report_times.discard(kin)
                room.unreported = None
                continue
            if room.unreported is None or room.message_being_reported != room.message:
                room.unreported, room.message_being_reported = list(room.members), room.message
            while room.unreported and len(found) < messages_max:
                unit = room.unreported.pop()
                if self._group_by_entry.get(unit) is room:
                    found.append((unit, room))
            if not room.unreported:
                self._message_report_times.discard(kin)
                room.unreported, room.reported_message = None, room.message
                room.report_count += 1
        return found

    # ── moving and leaving ─────────────────────────────────────────────────────────────────────────────────────────

    def reorder(self, unit: QueueEntry) -> None:
        """The unit's key has changed."""
        match unit.state:
            case QueueState.ACTIVE:
                self._active[unit.policy].put(unit, unit.sort_key)
            case QueueState.UNSCHEDULABLE:
                self._group_by_entry[unit].members.put(unit, unit.sort_key)
            case _:
                pass  # elsewhere the order does not matter yet

    def remove(self, unit: QueueEntry, now_ns: int) -> None:
        """Out of the queue, wherever it is; its kin is not left without somebody who looks for them."""
        match unit.state:
            case QueueState.ACTIVE:
                self._active[unit.policy].discard(unit)
            case QueueState.BACKING_OFF:
                self._backoff.discard(unit)
                self._error_backoff.discard(unit)
            case QueueState.UNSCHEDULABLE:
                room = self._group_by_entry.pop(unit)
                room.members.discard(unit)
                self._drop_if_empty(room)
            case QueueState.GATED:
                del self._gated[unit]
            case _:
                pass
        unit.state = QueueState.DETACHED
        self._return_representative(unit, now_ns)

    def requeue(
        self,
        events: Iterable[ClusterEvent],
        now_ns: int,
        *,
        policy: str | None = None,
        claim: AnyClaim | None = None,
    ) -> None:
        """Something happened that may help those who wait for it (all policies', or one's; those who use the claim)."""
        waited_for = [event for event in events if self._groups_by_event[event]]
        # In the order of the enumeration: a set has one of its own in each process.
        for event in sorted(waited_for, key=_EVENT_ORDER.__getitem__) if len(waited_for) > 1 else waited_for:
            for room in list(self._groups_by_event[event].values()):
                if policy in (None, room.policy) and (claim is None or claim in room.claims):
                    self._unblock(room, now_ns, event.value)

    def drop_policy(self, policy: str) -> None:
        """Everything of one policy leaves at once; the caller puts back what stays."""
        for unit in list(self._entries_of(policy)):
            unit.state, unit.represented_key = QueueState.DETACHED, None
        self._active.pop(policy, None)
        for heap in (self._backoff, self._error_backoff):
            for unit in [one for one in heap if one.policy == policy]:
                heap.discard(unit)
        for unit in [one for one in self._gated if one.policy == policy]:
            del self._gated[unit]
        for room in [one for one in self._groups.values() if one.policy == policy]:
            for unit in room.members:
                del self._group_by_entry[unit]
            self._unindex(room)
            self._message_report_times.discard(room.equivalence_key)
            del self._groups[room.equivalence_key]

    def enqueue_many(self, policy: str, units: Sequence[QueueEntry], event: str) -> None:
        """Many at once into the active queue, in linear time."""
        for unit in units:
            assert unit.state is QueueState.DETACHED, f"{unit} is still {unit.state.value}"
            unit.state = QueueState.ACTIVE
        self._active_queue(policy).fill((unit, unit.sort_key) for unit in units)
        self._count("active", event, len(units))

    # ── looking ────────────────────────────────────────────────────────────────────────────────────────────────────

    def counts(self) -> dict[str, int]:
        """Pods by the `queue` label of `scheduler_pending_pods`."""
        return {
            "active": sum(unit.pod_count for heap in self._active.values() for unit in heap),
            "backoff": sum(unit.pod_count for heap in (self._backoff, self._error_backoff) for unit in heap),
            "unschedulable": sum(unit.pod_count for unit in self._group_by_entry),
            "gated": sum(unit.pod_count for unit in self._gated),
        }

    def active_entries(self, policy: str) -> Iterator[QueueEntry]:
        """Who of a policy could be taken next, in no order."""
        yield from self._active.get(policy, ())

    def group_of(self, unit: QueueEntry) -> ParkedGroup | None:
        return self._group_by_entry.get(unit)

    def check(self) -> list[str]:
        """One sentence for each thing that is not as the drawings say."""
        found = []
        standing: dict[QueueEntry, list[QueueState]] = {}
        for unit in (unit for heap in self._active.values() for unit in heap):
            standing.setdefault(unit, []).append(QueueState.ACTIVE)
        for unit in (*self._backoff, *self._error_backoff):
            standing.setdefault(unit, []).append(QueueState.BACKING_OFF)
        for unit in (unit for room in self._groups.values() for unit in room.members):
            standing.setdefault(unit, []).append(QueueState.UNSCHEDULABLE)
        for unit in self._gated:
            standing.setdefault(unit, []).append(QueueState.GATED)
        for unit, places in standing.items():
            if places != [unit.state]:
                found.append(
                    f"{unit} stands in {[place.value for place in places]}, says it is {unit.state.value}"
                )
        for room in self._groups.values():
            out = [one for one in room.representatives if one.state in _RETRYING_STATES]
            if not room.blocked and room.members and not out:
                found.append(
                    f"room {room.equivalence_key!r} is open, has {len(room.members)} members and nobody is out"
                )
            if (
                room.blocked
                and not room.requeue_events
                and room.equivalence_key not in self._expiries
                and not room.message
            ):
                found.append(f"room {room.equivalence_key!r} is blocked without a word")
            if not room.members and not room.representatives:
                found.append(f"room {room.equivalence_key!r} is empty")
            listed = [event for event in ClusterEvent if room.equivalence_key in self._groups_by_event[event]]
            if set(listed) != (room.requeue_events if room.blocked else set()):
                found.append(
                    f"room {room.equivalence_key!r} waits for {room.requeue_events}, is listed under {listed}"
                )
        return found

    # ── inside ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _activate(self, unit: QueueEntry, event: str) -> None:
        unit.state, unit.in_error_backoff = QueueState.ACTIVE, False
        self._active_queue(unit.policy).put(unit, unit.sort_key)
        self._count("active", event)

    def _active_queue(self, policy: str) -> OrderedQueue:
        line = self._active.get(policy)
        if line is None:
            line = self._active[policy] = self._new_policy_queue(policy)
        return line

    def _add_member(self, unit: QueueEntry, room: ParkedGroup, now_ns: int) -> None:
        assert unit.state is QueueState.DETACHED, f"{unit} is still {unit.state.value}"
        unit.state = QueueState.UNSCHEDULABLE
        room.members.put(unit, unit.sort_key)
        self._group_by_entry[unit] = room
        self._count("unschedulable", "ScheduleAttemptFailure")
        self._return_representative(unit, now_ns)

    def _new_group(self, kin: EquivalenceKey, policy: str) -> ParkedGroup:
        room = self._groups[kin] = ParkedGroup(kin, policy, self._new_policy_queue(policy))
        return room

    def _unblock(self, room: ParkedGroup, now_ns: int, event: str) -> None:
        self._unindex(room)
        room.blocked = False
        self._send_representative(room, now_ns, event)

    def _send_representative(self, room: ParkedGroup, now_ns: int, event: str) -> None:
        unit = room.members.pop()
        if unit is None:
            self._drop_if_empty(room)
            return
        del self._group_by_entry[unit]
        unit.state, unit.represented_key = QueueState.DETACHED, room.equivalence_key
        room.representatives[unit] = None
        self.enqueue(unit, now_ns, event)

    def _return_representative(self, unit: QueueEntry, now_ns: int) -> None:
        """The unit is out for nobody any more; if its kin is still let out, the next one goes."""
        kin, unit.represented_key = unit.represented_key, None
        room = None if kin is None else self._groups.get(kin)
        if room is None:
            return
        room.representatives.pop(unit, None)
        if not room.blocked and not room.representatives:
            self._send_representative(room, now_ns, "KinScheduled")
        else:
            self._drop_if_empty(room)

    def _drop_if_empty(self, room: ParkedGroup) -> None:
        if not room.members and not room.representatives:
            self._unindex(room)
            self._message_report_times.discard(room.equivalence_key)
            del self._groups[room.equivalence_key]

    def _report_delay_ns(self, room: ParkedGroup) -> int:
        return min(
            round(self._limits.backoff_max_s * SECOND_NS) << min(room.report_count, 10), _REPORT_DELAY_MAX_NS
        )

    def _unindex(self, room: ParkedGroup) -> None:
        for event in room.requeue_events:
            self._groups_by_event[event].pop(room.equivalence_key, None)
        self._expiries.discard(room.equivalence_key)
        room.requeue_events = frozenset()

    def _entries_of(self, policy: str) -> Iterator[QueueEntry]:
        yield from self._active.get(policy, ())
        yield from (
            unit for heap in (self._backoff, self._error_backoff) for unit in heap if unit.policy == policy
        )
        yield from (unit for unit in self._group_by_entry if unit.policy == policy)
        yield from (unit for unit in self._gated if unit.policy == policy)

    def _count(self, queue: str, event: str, pods: int = 1) -> None:
        label = (queue, event)
        self.incoming_counts[label] = self.incoming_counts.get(label, 0) + pods


def _cross_policy_key(unit: QueueEntry) -> tuple[Any, ...]:
    return (unit.ordered_last, -unit.priority, unit.queued_ns, unit.policy)

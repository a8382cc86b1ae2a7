"""The scheduling queue: active, backing off, unschedulable and gated entries.

Each policy has its own queue in its own order; the heads of different policies compare by pod priority, then by waiting
time. An entry that fails is parked with its equivalence class (the pods that agree on everything that the policy reads,
and so share one verdict). A thousand replicas that do not fit are one parked group, and an event that could help them
requeues one member as a representative. If it is placed the next one follows, otherwise all stay parked. An event among
50,000 parked pods therefore costs one evaluation for each class, not one for each pod.

No event is lost between an attempt and its parking, because events are applied only between attempts.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from policysched.model.cluster_events import ClusterEvent
from policysched.model.identifiers import AnyClaim
from policysched.scheduler.commands import PendingReason
from policysched.scheduler.limits import SECOND_NS, SchedulerLimits
from policysched.scheduler.queue.entries import QueueEntry, QueueState
from policysched.scheduler.queue.movable_heap import MovableHeap
from policysched.scheduler.queue.ordered_queue import OrderedQueue
from policysched.scheduler.queue.parked_group import EquivalenceKey, ParkedGroup

_EVENT_ORDER = {event: index for index, event in enumerate(ClusterEvent)}
_RETRYING_STATES = (QueueState.ACTIVE, QueueState.BACKING_OFF, QueueState.ATTEMPTING)
_REPORT_DELAY_MAX_NS = 300 * SECOND_NS
_RECHECK_DELAY_MIN_NS = 100_000_000  # a verdict that expires at once is still kept this long


class SchedulingQueue:
    """Pods and gangs by state; `queue.entries` draws the states.

    `new_policy_queue` creates the queue of a policy. Entries of `held_policies` keep their place and are not popped.
    `incoming_counts` counts the pods that entered, by queue and event.
    """

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

    # ── popping ────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def can_pop(self) -> bool:
        """Whether `pop` returns an entry."""
        if not self._held_policies:
            return any(self._active.values()) or len(self._backoff) > 0
        return (
            any(
                policy_queue
                for policy, policy_queue in self._active.items()
                if policy not in self._held_policies
            )
            or self._can_pop_from_backoff()
        )

    def _can_pop_from_backoff(self) -> bool:
        first = self._backoff.first()
        return first is not None and first.policy not in self._held_policies

    def pop(self) -> QueueEntry | None:
        """The next entry to attempt. With no active entry, the first one in backoff is popped early (KEP-5142), unless it
        is in error backoff."""
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
        """Activate entries whose backoff is over, and open parked groups whose verdict expired."""
        for heap in (self._backoff, self._error_backoff):
            while (key := heap.first_key()) is not None and key[0] <= now_ns:
                entry = heap.pop()
                assert entry is not None
                self._activate(entry, "BackoffComplete")
        while (expiry := self._expiries.first_key()) is not None and expiry <= now_ns:
            equivalence_key = self._expiries.pop()
            self._unblock(self._groups[equivalence_key], now_ns, ClusterEvent.TIME.value)

    def next_time_ns(self) -> int | None:
        """When `advance` has something to do next."""
        times = [self._expiries.first_key(), self._message_report_times.first_key()]
        times += [
            key[0] for heap in (self._backoff, self._error_backoff) if (key := heap.first_key()) is not None
        ]
        return min((time for time in times if time is not None), default=None)

    # ── adding ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def enqueue(self, entry: QueueEntry, now_ns: int, event: str) -> None:
        """Add a detached entry: active, or in backoff until that is over. `event` is its cause, for the counters."""
        assert entry.state is QueueState.DETACHED, f"{entry} is still {entry.state.value}"
        if entry.backoff_until_ns <= now_ns:
            self._activate(entry, event)
            return
        entry.state = QueueState.BACKING_OFF
        until_ns = entry.backoff_until_ns
        if entry.in_error_backoff:
            self._error_backoff.put(entry, (until_ns,))
        else:
            # As in kube-scheduler, entries of one second are in queue order, because the first may be popped early.
            self._backoff.put(entry, (until_ns // SECOND_NS * SECOND_NS, *_cross_policy_key(entry)))
        self._count("backoff", event)

    def apply_backoff(self, entry: QueueEntry, now_ns: int) -> None:
        """Delay the next attempt after a failed one."""
        entry.backoff_until_ns = now_ns + self._limits.backoff_ns(entry.attempts)

    def gate(self, entry: QueueEntry) -> None:
        """Keep the entry from any attempt until its gates are removed or its gang is complete."""
        assert entry.state is QueueState.DETACHED, f"{entry} is still {entry.state.value}"
        entry.state = QueueState.GATED
        self._gated[entry] = None
        self._count("gated", "ScheduleAttemptFailure" if entry.attempts else "PodAdd")

    def park(
        self,
        entry: QueueEntry,
        equivalence_key: EquivalenceKey,
        *,
        now_ns: int,
        requeue_events: frozenset[ClusterEvent],
        valid_until_ns: int | None,
        reason: PendingReason,
        message: str,
    ) -> None:
        """Park a failed entry, and block its equivalence class until one of the events or the expiry."""
        group = self._groups.get(equivalence_key) or self._new_group(equivalence_key, entry.policy)
        self._unindex(group)
        group.claims = entry.claims
        group.blocked, group.requeue_events, group.reason, group.message = (
            True,
            requeue_events,
            reason,
            message,
        )
        for event in requeue_events:
            self._groups_by_event[event][equivalence_key] = group
        if valid_until_ns is not None:
            self._expiries.put(equivalence_key, max(valid_until_ns, now_ns + _RECHECK_DELAY_MIN_NS))
        if not group.members:
            group.reported_message = message
        elif group.reported_message != message and equivalence_key not in self._message_report_times:
            self._message_report_times.put(equivalence_key, now_ns + self._report_delay_ns(group))
        self._add_member(entry, group, now_ns)

    def join_group(self, entry: QueueEntry, group: ParkedGroup, now_ns: int) -> None:
        """Park an entry whose equivalence class has failed, without an attempt."""
        assert group.blocked, f"{entry} joins the open parked group {group.equivalence_key}"
        self._add_member(entry, group, now_ns)

    def blocked_group(self, equivalence_key: EquivalenceKey) -> ParkedGroup | None:
        """The parked group of the class, if nothing has happened that could change its verdict."""
        group = self._groups.get(equivalence_key)
        return group if group is not None and group.blocked else None

    def mark_placed(self, entry: QueueEntry, now_ns: int) -> None:
        """The entry was placed: the next member of its class follows."""
        self._return_representative(entry, now_ns)

    def due_messages(self, now_ns: int, messages_max: int) -> list[tuple[QueueEntry, ParkedGroup]]:
        """Members whose class failed again with another message than was reported for them, at most `messages_max`.

        An attempt of a representative counts for the whole class, so the other members are reported later: after 10 s,
        20 s and so on, at most every five minutes.
        """
        messages: list[tuple[QueueEntry, ParkedGroup]] = []
        while (
            (due := self._message_report_times.first_key()) is not None
            and due <= now_ns
            and len(messages) < messages_max
        ):
            equivalence_key = self._message_report_times.first()
            assert equivalence_key is not None
            group = self._groups[equivalence_key]
            if not group.blocked:
                # A representative is requeued: the outcome of its attempt is reported instead.
                self._message_report_times.discard(equivalence_key)
                group.unreported = None
                continue
            if group.unreported is None or group.message_being_reported != group.message:
                group.unreported, group.message_being_reported = list(group.members), group.message
            while group.unreported and len(messages) < messages_max:
                entry = group.unreported.pop()
                if self._group_by_entry.get(entry) is group:
                    messages.append((entry, group))
            if not group.unreported:
                self._message_report_times.discard(equivalence_key)
                group.unreported, group.reported_message = None, group.message
                group.report_count += 1
        return messages

    # ── moving and removing ────────────────────────────────────────────────────────────────────────────────────────

    def reorder(self, entry: QueueEntry) -> None:
        """The entry's key has changed."""
        match entry.state:
            case QueueState.ACTIVE:
                self._active[entry.policy].put(entry, entry.sort_key)
            case QueueState.UNSCHEDULABLE:
                self._group_by_entry[entry].members.put(entry, entry.sort_key)
            case _:
                pass  # no other state is ordered

    def remove(self, entry: QueueEntry, now_ns: int) -> None:
        """Detach the entry. If it represented its class, another member does now."""
        match entry.state:
            case QueueState.ACTIVE:
                self._active[entry.policy].discard(entry)
            case QueueState.BACKING_OFF:
                self._backoff.discard(entry)
                self._error_backoff.discard(entry)
            case QueueState.UNSCHEDULABLE:
                group = self._group_by_entry.pop(entry)
                group.members.discard(entry)
                self._drop_if_empty(group)
            case QueueState.GATED:
                del self._gated[entry]
            case _:
                pass
        entry.state = QueueState.DETACHED
        self._return_representative(entry, now_ns)

    def requeue(
        self,
        events: Iterable[ClusterEvent],
        now_ns: int,
        *,
        policy: str | None = None,
        claim: AnyClaim | None = None,
    ) -> None:
        """Open the parked groups that one of the events can help; with `policy` or `claim`, only those of it."""
        waited_for = [event for event in events if self._groups_by_event[event]]
        # In the order of the enumeration: the order of a set differs between processes.
        for event in sorted(waited_for, key=_EVENT_ORDER.__getitem__) if len(waited_for) > 1 else waited_for:
            for group in list(self._groups_by_event[event].values()):
                if policy in (None, group.policy) and (claim is None or claim in group.claims):
                    self._unblock(group, now_ns, event.value)

    def drop_policy(self, policy: str) -> None:
        """Detach all entries of the policy."""
        for entry in list(self._entries_of(policy)):
            entry.state, entry.represented_key = QueueState.DETACHED, None
        self._active.pop(policy, None)
        for heap in (self._backoff, self._error_backoff):
            for entry in [entry for entry in heap if entry.policy == policy]:
                heap.discard(entry)
        for entry in [entry for entry in self._gated if entry.policy == policy]:
            del self._gated[entry]
        for group in [group for group in self._groups.values() if group.policy == policy]:
            for entry in group.members:
                del self._group_by_entry[entry]
            self._unindex(group)
            self._message_report_times.discard(group.equivalence_key)
            del self._groups[group.equivalence_key]

    def enqueue_many(self, policy: str, entries: Sequence[QueueEntry], event: str) -> None:
        """Add many detached entries to the active queue in linear time."""
        for entry in entries:
            assert entry.state is QueueState.DETACHED, f"{entry} is still {entry.state.value}"
            entry.state = QueueState.ACTIVE
        self._active_queue(policy).fill((entry, entry.sort_key) for entry in entries)
        self._count("active", event, len(entries))

    # ── reading ────────────────────────────────────────────────────────────────────────────────────────────────────

    def counts(self) -> dict[str, int]:
        """Pods by the `queue` label of `scheduler_pending_pods`."""
        return {
            "active": sum(entry.pod_count for heap in self._active.values() for entry in heap),
            "backoff": sum(
                entry.pod_count for heap in (self._backoff, self._error_backoff) for entry in heap
            ),
            "unschedulable": sum(entry.pod_count for entry in self._group_by_entry),
            "gated": sum(entry.pod_count for entry in self._gated),
        }

    def active_entries(self, policy: str) -> Iterator[QueueEntry]:
        """The policy's active entries, in no order."""
        yield from self._active.get(policy, ())

    def group_of(self, entry: QueueEntry) -> ParkedGroup | None:
        return self._group_by_entry.get(entry)

    def check(self) -> list[str]:
        """One sentence for each violation of the states and of the parked groups' rules."""
        problems = []
        states: dict[QueueEntry, list[QueueState]] = {}
        for entry in (entry for heap in self._active.values() for entry in heap):
            states.setdefault(entry, []).append(QueueState.ACTIVE)
        for entry in (*self._backoff, *self._error_backoff):
            states.setdefault(entry, []).append(QueueState.BACKING_OFF)
        for entry in (entry for group in self._groups.values() for entry in group.members):
            states.setdefault(entry, []).append(QueueState.UNSCHEDULABLE)
        for entry in self._gated:
            states.setdefault(entry, []).append(QueueState.GATED)
        for entry, places in states.items():
            if places != [entry.state]:
                problems.append(
                    f"{entry} is in {[place.value for place in places]}, its state is {entry.state.value}"
                )
        for group in self._groups.values():
            requeued = [entry for entry in group.representatives if entry.state in _RETRYING_STATES]
            if not group.blocked and group.members and not requeued:
                problems.append(
                    f"parked group {group.equivalence_key!r} is open with {len(group.members)} members and no requeued one"
                )
            if (
                group.blocked
                and not group.requeue_events
                and group.equivalence_key not in self._expiries
                and not group.message
            ):
                problems.append(
                    f"parked group {group.equivalence_key!r} is blocked for ever without a message"
                )
            if not group.members and not group.representatives:
                problems.append(f"parked group {group.equivalence_key!r} is empty")
            listed = [
                event for event in ClusterEvent if group.equivalence_key in self._groups_by_event[event]
            ]
            if set(listed) != (group.requeue_events if group.blocked else set()):
                problems.append(
                    f"parked group {group.equivalence_key!r} waits for {group.requeue_events}, is listed under {listed}"
                )
        return problems

    # ── inside ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _activate(self, entry: QueueEntry, event: str) -> None:
        entry.state, entry.in_error_backoff = QueueState.ACTIVE, False
        self._active_queue(entry.policy).put(entry, entry.sort_key)
        self._count("active", event)

    def _active_queue(self, policy: str) -> OrderedQueue:
        policy_queue = self._active.get(policy)
        if policy_queue is None:
            policy_queue = self._active[policy] = self._new_policy_queue(policy)
        return policy_queue

    def _add_member(self, entry: QueueEntry, group: ParkedGroup, now_ns: int) -> None:
        assert entry.state is QueueState.DETACHED, f"{entry} is still {entry.state.value}"
        entry.state = QueueState.UNSCHEDULABLE
        group.members.put(entry, entry.sort_key)
        self._group_by_entry[entry] = group
        self._count("unschedulable", "ScheduleAttemptFailure")
        self._return_representative(entry, now_ns)

    def _new_group(self, equivalence_key: EquivalenceKey, policy: str) -> ParkedGroup:
        group = self._groups[equivalence_key] = ParkedGroup(
            equivalence_key, policy, self._new_policy_queue(policy)
        )
        return group

    def _unblock(self, group: ParkedGroup, now_ns: int, event: str) -> None:
        self._unindex(group)
        group.blocked = False
        self._send_representative(group, now_ns, event)

    def _send_representative(self, group: ParkedGroup, now_ns: int, event: str) -> None:
        entry = group.members.pop()
        if entry is None:
            self._drop_if_empty(group)
            return
        del self._group_by_entry[entry]
        entry.state, entry.represented_key = QueueState.DETACHED, group.equivalence_key
        group.representatives[entry] = None
        self.enqueue(entry, now_ns, event)

    def _return_representative(self, entry: QueueEntry, now_ns: int) -> None:
        """The entry's attempt as a representative is over. If its class is still open, requeue the next member."""
        equivalence_key, entry.represented_key = entry.represented_key, None
        group = None if equivalence_key is None else self._groups.get(equivalence_key)
        if group is None:
            return
        group.representatives.pop(entry, None)
        if not group.blocked and not group.representatives:
            self._send_representative(group, now_ns, "KinScheduled")
        else:
            self._drop_if_empty(group)

    def _drop_if_empty(self, group: ParkedGroup) -> None:
        if not group.members and not group.representatives:
            self._unindex(group)
            self._message_report_times.discard(group.equivalence_key)
            del self._groups[group.equivalence_key]

    def _report_delay_ns(self, group: ParkedGroup) -> int:
        return min(
            round(self._limits.backoff_max_s * SECOND_NS) << min(group.report_count, 10), _REPORT_DELAY_MAX_NS
        )

    def _unindex(self, group: ParkedGroup) -> None:
        for event in group.requeue_events:
            self._groups_by_event[event].pop(group.equivalence_key, None)
        self._expiries.discard(group.equivalence_key)
        group.requeue_events = frozenset()

    def _entries_of(self, policy: str) -> Iterator[QueueEntry]:
        yield from self._active.get(policy, ())
        yield from (
            entry for heap in (self._backoff, self._error_backoff) for entry in heap if entry.policy == policy
        )
        yield from (entry for entry in self._group_by_entry if entry.policy == policy)
        yield from (entry for entry in self._gated if entry.policy == policy)

    def _count(self, queue: str, event: str, pods: int = 1) -> None:
        label = (queue, event)
        self.incoming_counts[label] = self.incoming_counts.get(label, 0) + pods


def _cross_policy_key(entry: QueueEntry) -> tuple[Any, ...]:
    return (entry.ordered_last, -entry.priority, entry.queued_ns, entry.policy)

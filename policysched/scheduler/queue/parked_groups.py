"""Parked entries of one equivalence class and the verdict that they share."""

from collections import defaultdict
from collections.abc import Callable, Container, Hashable, Iterable, Iterator
from dataclasses import dataclass, field

from policysched.evaluate.verdict import RejectionCause
from policysched.model.cluster_events import ClusterEvent, may_help
from policysched.model.identifiers import AnyClaim
from policysched.scheduler.commands import PendingReason
from policysched.scheduler.limits import SchedulerLimits
from policysched.scheduler.queue.decision_time import DecisionTime
from policysched.scheduler.queue.entries import QueueEntry, QueueState
from policysched.scheduler.queue.late_wake_ups import LateWakeUps, WakeUp
from policysched.scheduler.queue.movable_heap import MovableHeap, earlier_ns
from policysched.scheduler.queue.ordered_queue import FairShareQueue, OrderedQueue
from policysched.scheduler.queue.policy_queues import PolicyQueues
from policysched.scheduler.queue.sliced_wake_ups import WAKE_UPS_PER_SLICE, SlicedWakeUps

EquivalenceKey = Hashable

_EVENT_ORDER = {event: index for index, event in enumerate(ClusterEvent)}
_RETRYING_STATES = (QueueState.ACTIVE, QueueState.BACKING_OFF, QueueState.ATTEMPTING)
_RECHECK_DELAY_MIN_NS = 100_000_000  # a verdict that expires at once is still kept this long


@dataclass(slots=True, eq=False)
class ParkedGroup:
    """The parked entries of one equivalence class, and the verdict that they share.

        blocked ──an event of `requeue_events`, or the verdict expired──► open: members are requeued one by one
           ▲                                                               │
           └──────────────────── a representative failed ◄─────────────────┘

    An open parked group with members has at least one requeued representative. `claims` are those that the members use;
    `listed`: see `ParkedGroups.first_before`.
    `reported_message` is the message last reported for the members. While a newer one (`message_being_reported`) is
    reported in portions, `unreported` are the members that still lack it.
    """

    equivalence_key: EquivalenceKey
    policy: str
    namespace: str
    members: OrderedQueue
    blocked: bool = False
    requeue_events: frozenset[ClusterEvent] = frozenset()
    reason: PendingReason = "Unschedulable"
    message: str = ""
    cause: RejectionCause | None = None
    representatives: dict[QueueEntry, None] = field(default_factory=dict)
    reported_message: str = ""
    report_count: int = 0
    message_being_reported: str = ""
    unreported: list[QueueEntry] | None = None
    claims: frozenset[AnyClaim] = frozenset()
    listed: dict[QueueEntry, None] = field(default_factory=dict)


@dataclass(slots=True)
class RuleCounts:
    """Failed attempts whose nearest nodes the rule rejects, and those of them in which it alone rejects a node."""

    blocked: int = 0
    blocked_alone: int = 0


class ParkedGroups:
    """The parked groups by equivalence class and by the events that open them."""

    def __init__(
        self,
        limits: SchedulerLimits,
        new_policy_queue: Callable[[str], OrderedQueue],
        decision_time: DecisionTime,
        dropped: Callable[[EquivalenceKey, str], None],
    ) -> None:
        """`dropped` is told the key and the policy of each group that is gone."""
        self._limits = limits
        self._new_policy_queue = new_policy_queue
        self._groups: dict[EquivalenceKey, ParkedGroup] = {}
        self._by_event: dict[ClusterEvent, dict[EquivalenceKey, ParkedGroup]] = {
            event: {} for event in ClusterEvent
        }
        self._dropped = dropped
        self._listed = PolicyQueues(new_policy_queue, decision_time)
        self._expiries: MovableHeap[EquivalenceKey] = MovableHeap()
        self._message_report_times: MovableHeap[EquivalenceKey] = MovableHeap()
        self.late = LateWakeUps(new_policy_queue, decision_time)
        self.sliced = SlicedWakeUps(new_policy_queue, decision_time)
        self.rule_counts: dict[tuple[str, str], RuleCounts] = {}
        """By policy and rule of its text, since the process started."""

    def __iter__(self) -> Iterator[ParkedGroup]:
        return iter(self._groups.values())

    def get(self, equivalence_key: EquivalenceKey) -> ParkedGroup | None:
        return self._groups.get(equivalence_key)

    def block(
        self,
        equivalence_key: EquivalenceKey,
        entry: QueueEntry,
        *,
        now_ns: int,
        requeue_events: frozenset[ClusterEvent],
        valid_until_ns: int | None,
        reason: PendingReason,
        message: str,
        cause: RejectionCause | None = None,
    ) -> ParkedGroup:
        """The group of the class of an entry that failed, blocked until one of the events or the expiry."""
        if cause is not None:
            for rule in cause.rules:
                counts = self.rule_counts.setdefault((entry.policy, rule), RuleCounts())
                counts.blocked += 1
                counts.blocked_alone += rule in cause.sole_rules
        group = self._groups.get(equivalence_key)
        if group is None:
            group = self._groups[equivalence_key] = ParkedGroup(
                equivalence_key, entry.policy, entry.namespace, self._new_policy_queue(entry.policy)
            )
        self.unindex(group)
        self._unlist(group)
        group.claims = entry.claims
        group.blocked, group.requeue_events = True, requeue_events
        group.reason, group.message, group.cause = reason, message, cause
        for event in requeue_events:
            self._by_event[event][equivalence_key] = group
        if valid_until_ns is not None:
            self._expiries.put(equivalence_key, max(valid_until_ns, now_ns + _RECHECK_DELAY_MIN_NS))
        if not group.members:
            group.reported_message = message
        elif group.reported_message != message and equivalence_key not in self._message_report_times:
            self._message_report_times.put(
                equivalence_key, now_ns + self._limits.recount_delay_ns(group.report_count)
            )
        return group

    # ── members ────────────────────────────────────────────────────────────────────────────────────────────────────

    def put(self, group: ParkedGroup, entry: QueueEntry) -> None:
        """Add a member, or give it its new key."""
        self.remove(group, entry)
        group.members.put(entry, entry.sort_key)
        self.late.member_added(group, entry)
        if not group.blocked:
            self._list(group, (entry,))

    def remove(self, group: ParkedGroup, entry: QueueEntry) -> None:
        if not isinstance(group.members, FairShareQueue) or entry not in group.members:
            group.members.discard(entry)
            self.late.member_removed(group, entry)
            return
        others = group.members.with_same_owners(entry)
        group.members.discard(entry)
        self.late.member_removed(group, entry)
        if entry in group.listed:
            del group.listed[entry]
            self._listed.discard(entry)
        first = others.first()
        if not group.blocked and first is not None:
            self._list(group, (first,))

    def list_members(self, group: ParkedGroup) -> None:
        """The group was opened, and its first member requeued."""
        if isinstance(group.members, FairShareQueue):
            self._list(group, group.members.first_of_each())

    def has_before(self, entry: QueueEntry) -> bool:
        """Whether an entry waits for `first_before`, or for groups that are opened late or in slices."""
        return (
            self.first_before(entry) is not None
            or self.sliced.may_precede(entry)
            or self.late.before(entry) is not None
        )

    def first_before(self, entry: QueueEntry) -> QueueEntry | None:
        """The first member of an open group that an entry of its policy waits for. Where the order changes by itself, members
        can get ahead of their representative. Those with the same owners keep their places, so of each group the first of
        each owners is listed, in the order of the policy."""
        return self._listed.first_before(entry)

    def _list(self, group: ParkedGroup, entries: Iterable[QueueEntry]) -> None:
        if isinstance(group.members, FairShareQueue):
            for entry in entries:
                if entry not in group.listed:
                    group.listed[entry] = None
                    self._listed.put(entry)

    def _unlist(self, group: ParkedGroup) -> None:
        for entry in group.listed:
            self._listed.discard(entry)
        group.listed.clear()

    # ── events ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def waiting_for(
        self,
        events: Iterable[ClusterEvent],
        policy: str | None = None,
        claim: AnyClaim | None = None,
        cause: str | None = None,
    ) -> Iterator[WakeUp]:
        """The groups that one of the events can help, and that are opened neither late nor already. `cause`: see `LateWakeUps`."""
        waited_for = [event for event in events if self._by_event[event]]
        # In the order of the enumeration: the order of a set differs between processes.
        for event in sorted(waited_for, key=_EVENT_ORDER.__getitem__) if len(waited_for) > 1 else waited_for:
            for group in list(self._by_event[event].values()):
                if (
                    policy in (None, group.policy)
                    and (claim is None or claim in group.claims)
                    and may_help(event, group.namespace, cause)
                    and group not in self.sliced
                    and not self.late.delays(event, group, cause)
                ):
                    yield event, group

    def due(self, now_ns: int) -> Iterator[WakeUp]:
        """Groups that are opened late, and a slice of those whose verdict has expired: nothing says at which moment it does."""
        yield from self.late.due()
        for _ in range(WAKE_UPS_PER_SLICE):
            if (expiry_ns := self._expiries.first_key()) is None or expiry_ns > now_ns:
                break
            group = self._groups[self._expiries.pop()]
            if not self.late.delays(ClusterEvent.TIME, group, None):
                yield ClusterEvent.TIME, group

    def next_time_ns(self) -> int | None:
        return earlier_ns(
            self._expiries.first_key(), self._message_report_times.first_key(), self.late.next_time_ns()
        )

    def drop_policy(self, policy: str, rules: Container[str]) -> list[ParkedGroup]:
        """Drop the groups of the policy, and return them; and the counts of rules that are not among these."""
        for key in [key for key in self.rule_counts if key[0] == policy and key[1] not in rules]:
            del self.rule_counts[key]
        dropped = [group for group in self if group.policy == policy]
        self._listed.drop_policy(policy)
        for group in dropped:
            group.listed.clear()
            self._drop(group)
        self.sliced.drop_policy(policy)
        return dropped

    def drop_if_empty(self, group: ParkedGroup) -> None:
        if not group.members and not group.representatives:
            self._drop(group)

    def _drop(self, group: ParkedGroup) -> None:
        self.unindex(group)
        self._unlist(group)
        self._message_report_times.discard(group.equivalence_key)
        del self._groups[group.equivalence_key]
        self._dropped(group.equivalence_key, group.policy)

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
                if entry in group.members:
                    messages.append((entry, group))
            if not group.unreported:
                self._message_report_times.discard(equivalence_key)
                group.unreported, group.reported_message = None, group.message
                group.report_count += 1
        return messages

    def unindex(self, group: ParkedGroup) -> None:
        for event in group.requeue_events:
            self._by_event[event].pop(group.equivalence_key, None)
        self._expiries.discard(group.equivalence_key)
        self.late.discard(group)
        self.sliced.discard(group)
        group.requeue_events = frozenset()

    def check(self) -> list[str]:
        """One sentence for each violation of the rules of parked groups."""
        problems = []
        events_by_key = defaultdict[EquivalenceKey, set[ClusterEvent]](set)
        for event, groups in self._by_event.items():
            for equivalence_key in groups:
                events_by_key[equivalence_key].add(event)
        for group in self:
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
            listed = events_by_key.get(group.equivalence_key, set())
            if listed != (group.requeue_events if group.blocked else set()):
                problems.append(
                    f"parked group {group.equivalence_key!r} waits for {group.requeue_events}, is listed under {listed}"
                )
            firsts = set[QueueEntry]()
            if isinstance(group.members, FairShareQueue) and not group.blocked:
                firsts.update(group.members.first_of_each())
            if not group.listed.keys() >= firsts or (group.listed and not firsts):
                problems.append(f"parked group {group.equivalence_key!r} lists {[*group.listed]}")
        if {*self._listed} != {entry for group in self for entry in group.listed}:
            problems.append("the first members of open parked groups are not those that the groups list")
        return problems

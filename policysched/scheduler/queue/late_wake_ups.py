"""Wake-ups that wait until a namespace has paid for its failed attempts.

    parked ──event, not of its own namespace, which is overdrawn──► late ──its debt is paid, one at a time──► opened

One at a time: attempts of hundreds would run up the largest debt at once, and new pods of the namespace wait behind them. That
with the pod of the highest priority and that which waits longest take turns, so that each has one.
A tenant whose pods come and go all the time would else have the parked pods of another namespace attempted all the time, at
the expense of that namespace, whose new pods wait behind those attempts. So would nodes, slices of devices, samples and the clock,
which can change all the time, too; but if no other namespace has attempts, nobody gains by a delay of these.
"""

from typing import TYPE_CHECKING

from policysched.model.cluster_events import ClusterEvent
from policysched.scheduler.queue.decision_time import DecisionTime
from policysched.scheduler.queue.entries import QueueEntry, QueueState
from policysched.scheduler.queue.movable_heap import MovableHeap, earlier_ns

if TYPE_CHECKING:
    from policysched.scheduler.queue.parked_groups import ParkedGroup

WakeUp = tuple[ClusterEvent, "ParkedGroup"]


class LateWakeUps:
    """The groups stay blocked meanwhile."""

    def __init__(self, decision_time: DecisionTime) -> None:
        self._time = decision_time
        self._events: dict[ParkedGroup, ClusterEvent] = {}  # the first one for each group
        # By namespace, those with a member of high priority first, equal ones by their first event.
        self._late: dict[str, MovableHeap[ParkedGroup]] = {}
        # By policy: no member of a late group has a higher one.
        self._priority_max: dict[str, int] = {}
        self._opened: dict[str, ParkedGroup] = {}  # by namespace: the last one that was due
        self._oldest_next = set[str]()  # namespaces

    def __contains__(self, group: "ParkedGroup") -> bool:
        return group in self._events

    def delays(self, event: ClusterEvent, group: "ParkedGroup", cause: str | None) -> bool:
        """Whether the group is opened later than at this event, of a pod of the namespace `cause` (None: of no namespace)."""
        are_others_late = group.namespace in self._late
        if cause == group.namespace or not (are_others_late or self._time.paid_ns(group.namespace)):
            return False
        # What a victim releases of a quota is of no namespace either, and a preemptor waits for it.
        if cause is None and (event is ClusterEvent.QUOTA or not self._time.has_others(group.namespace)):
            return False
        if group not in self._events:
            self._events[group] = event
            late = self._late.setdefault(group.namespace, MovableHeap())
            late.put(group, -max((member.priority for member in group.members), default=0))
            for member in group.members:
                self._raise_priority_max(member)
        return True

    def member_added(self, group: "ParkedGroup", member: QueueEntry) -> None:
        if group in self:
            self._raise_priority_max(member)
            late = self._late[group.namespace]
            if -member.priority < late.key_of(group):
                late.put(group, -member.priority)

    def _raise_priority_max(self, member: QueueEntry) -> None:
        before = self._priority_max.get(member.policy, member.priority)
        self._priority_max[member.policy] = max(before, member.priority)

    def discard(self, group: "ParkedGroup") -> None:
        """It was opened, or is gone."""
        if self._events.pop(group, None) is None:
            return
        late = self._late[group.namespace]
        late.discard(group)
        if not late:
            del self._late[group.namespace]
            self._opened.pop(group.namespace, None)
            self._oldest_next.discard(group.namespace)
            if not self._late:
                self._priority_max.clear()

    def due(self) -> list[WakeUp]:
        """The next one of each namespace that has paid."""
        due = [self._next_of(namespace) for namespace in self._late if self._is_due(namespace)]
        self._opened |= {group.namespace: group for _, group in due}
        return due

    def _next_of(self, namespace: str) -> WakeUp:
        late = self._late[namespace]
        group = next(iter(late)) if namespace in self._oldest_next else late.first()
        assert group is not None, f"nothing of {namespace} is late"
        self._oldest_next ^= {namespace}
        return self._events[group], group

    def _is_due(self, namespace: str) -> bool:
        """Whether it has paid, and its last one is attempted."""
        opened = self._opened.get(namespace)
        is_attempted = opened is None or all(e.state is not QueueState.ACTIVE for e in opened.representatives)
        return is_attempted and self._time.paid_ns(namespace) is None

    def before(self, entry: QueueEntry) -> list[WakeUp]:
        """Those that an entry of their policy, which is about to be placed, waits for: they are ahead of it, and of higher
        priority, as for other entries of overdrawn namespaces (`PolicyQueues.waits_for`). Asked for each entry that is placed,
        so the groups are visited only if one may have such a priority."""
        if self._priority_max.get(entry.policy, entry.priority) <= entry.priority:
            return []
        late = [(event, group) for group, event in self._events.items() if group.policy == entry.policy]
        priorities = (member.priority for _, group in late for member in group.members)
        self._priority_max[entry.policy] = max(priorities, default=entry.priority)
        return [
            (event, group)
            for event, group in late
            if (first := group.members.first()) is not None
            and first.priority > entry.priority
            and group.members.precedes(entry)
        ]

    def next_time_ns(self) -> int | None:
        """When some are due."""
        return earlier_ns(
            *[
                self._time.now_ns if self._is_due(namespace) else self._time.paid_ns(namespace)
                for namespace in self._late
            ]
        )

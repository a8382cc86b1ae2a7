"""Wake-ups that wait until a namespace has paid for its failed attempts.

    parked ──event, not of its own namespace, which is overdrawn──► late ──its debt is paid, one at a time──► opened

One at a time: attempts of hundreds would run up the largest debt at once, and new pods of the namespace wait behind them. That
with the pod of the highest priority and that which waits longest take turns, so that each has one.
A tenant whose pods come and go all the time would else have the parked pods of another namespace attempted all the time, at
the expense of that namespace, whose new pods wait behind those attempts. So would nodes, slices of devices, samples and the clock,
which can change all the time, too; but if no other namespace has attempts, nobody gains by a delay of these.
"""

from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING

from policysched.model.cluster_events import ClusterEvent
from policysched.scheduler.queue.decision_time import DecisionTime
from policysched.scheduler.queue.entries import QueueEntry, QueueState
from policysched.scheduler.queue.movable_heap import MovableHeap, earlier_ns
from policysched.scheduler.queue.ordered_queue import OrderedQueue, firsts_of

if TYPE_CHECKING:
    from policysched.scheduler.queue.parked_groups import ParkedGroup

SORTED_PER_SLICE = 512
"""Groups that are put in order at once: a few milliseconds."""

WakeUp = tuple[ClusterEvent, "ParkedGroup"]


class LateWakeUps:
    """The groups stay blocked meanwhile."""

    def __init__(self, new_policy_queue: Callable[[str], OrderedQueue], decision_time: DecisionTime) -> None:
        self._new_policy_queue = new_policy_queue
        self._time = decision_time
        self._events: dict[ParkedGroup, ClusterEvent] = {}  # the first one for each group
        # By namespace, those with a member of high priority first, equal ones by their first event.
        self._late: dict[str, MovableHeap[ParkedGroup]] = {}
        # By policy and priority, none empty: of each group the members of which one is first.
        self._firsts: dict[str, dict[int, OrderedQueue]] = {}
        self._listed: dict[ParkedGroup, list[tuple[int, QueueEntry]]] = {}
        self._groups: dict[QueueEntry, ParkedGroup] = {}
        # By policy, those that are not listed there yet, and no member of which has a higher priority.
        self._unlisted: dict[str, dict[ParkedGroup, None]] = {}
        self._unlisted_priority_max: dict[str, int] = {}
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
            highest = max((member.priority for member in group.members), default=0)
            late.put(group, -highest)
            self._unlisted.setdefault(group.policy, {})[group] = None
            self._raise_unlisted(group.policy, highest)
        return True

    def member_added(self, group: "ParkedGroup", member: QueueEntry) -> None:
        if group in self:
            if group in self._listed:
                self._list(group)
            else:
                self._raise_unlisted(group.policy, member.priority)
            late = self._late[group.namespace]
            if -member.priority < late.key_of(group):
                late.put(group, -member.priority)

    def member_removed(self, group: "ParkedGroup", member: QueueEntry) -> None:
        if member in self._groups:
            self._list(group)

    def list_some(self, entry: QueueEntry) -> bool:
        """Make ready to answer `before` quickly. False: it is."""
        policy = entry.policy
        if self._unlisted_priority_max.get(policy, entry.priority) <= entry.priority:
            return False
        for group in list(islice(self._unlisted[policy], SORTED_PER_SLICE)):
            del self._unlisted[policy][group]
            self._list(group)
        self._forget_unlisted_if_none(policy)
        return True

    def _raise_unlisted(self, policy: str, priority: int) -> None:
        self._unlisted_priority_max[policy] = max(priority, self._unlisted_priority_max.get(policy, priority))

    def _forget_unlisted_if_none(self, policy: str) -> None:
        if not self._unlisted[policy]:
            del self._unlisted[policy], self._unlisted_priority_max[policy]

    def _list(self, group: "ParkedGroup") -> None:
        """The members of which one is first, instead of those before."""
        self._unlist(group)
        listed = self._listed[group] = [(member.priority, member) for member in firsts_of(group.members)]
        for priority, member in listed:
            firsts = self._firsts.setdefault(group.policy, {})
            if priority not in firsts:
                firsts[priority] = self._new_policy_queue(group.policy)
            firsts[priority].put(member, member.sort_key)
            self._groups[member] = group

    def _unlist(self, group: "ParkedGroup") -> None:
        firsts = self._firsts.get(group.policy, {})
        for priority, member in self._listed.pop(group, ()):
            del self._groups[member]
            firsts[priority].discard(member)
            if not firsts[priority]:
                del firsts[priority]
        if not firsts:
            self._firsts.pop(group.policy, None)

    def discard(self, group: "ParkedGroup") -> None:
        """It was opened, or is gone."""
        if self._events.pop(group, None) is None:
            return
        if group in self._listed:
            self._unlist(group)
        else:
            del self._unlisted[group.policy][group]
            self._forget_unlisted_if_none(group.policy)
        late = self._late[group.namespace]
        late.discard(group)
        if not late:
            del self._late[group.namespace]
            self._opened.pop(group.namespace, None)
            self._oldest_next.discard(group.namespace)

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

    def before(self, entry: QueueEntry) -> WakeUp | None:
        """The next one that an entry of their policy, which is about to be placed, waits for: it has a member that is ahead, and of
        higher priority, as for other entries of overdrawn namespaces (`PolicyQueues.waits_for`)."""
        while self.list_some(entry):
            pass
        for priority, firsts in self._firsts.get(entry.policy, {}).items():
            if priority > entry.priority and firsts.precedes(entry):
                first = firsts.first()
                assert first is not None, f"{entry} is preceded by nothing that is late"
                return self._events[self._groups[first]], self._groups[first]
        return None

    def next_time_ns(self) -> int | None:
        """When some are due."""
        return earlier_ns(
            *[
                self._time.now_ns if self._is_due(namespace) else self._time.paid_ns(namespace)
                for namespace in self._late
            ]
        )

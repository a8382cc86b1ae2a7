"""Wake-ups of many parked groups by one event: they are opened in slices, in the order of the queue.

    parked ──event that helps few───────────────────────────────────────────────────► opened
       └────event that helps many──► due ──a slice of them──► sorted ──a slice of them──┘

A due group stays blocked, but nobody joins it without an attempt (`blocked_group`), and nothing that stands behind it is attempted.
Slices are at nobody's expense: who causes the event is not who has the pods, and each group that is opened has an attempt, which
takes far longer and is at the expense of its own namespace, before it can be opened again.
"""

from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

from policysched.model.cluster_events import ClusterEvent
from policysched.scheduler.queue.decision_time import DecisionTime
from policysched.scheduler.queue.entries import QueueEntry
from policysched.scheduler.queue.late_wake_ups import SORTED_PER_SLICE, WakeUp
from policysched.scheduler.queue.ordered_queue import OrderedQueue, firsts_of
from policysched.scheduler.queue.policy_queues import PolicyQueues

if TYPE_CHECKING:
    from policysched.scheduler.queue.parked_groups import ParkedGroup

WAKE_UPS_PER_SLICE = 64
"""Less than a millisecond."""


class SlicedWakeUps:
    """The members of a due group must not change: whoever is about to change them opens it first."""

    def __init__(self, new_policy_queue: Callable[[str], OrderedQueue], decision_time: DecisionTime) -> None:
        self._time = decision_time
        self._due: dict[ParkedGroup, ClusterEvent] = {}
        self._unsorted: dict[str, list[ParkedGroup]] = {}  # by policy; also some that are not due any more
        self._order = PolicyQueues(new_policy_queue, decision_time)
        self._firsts: dict[ParkedGroup, list[QueueEntry]] = {}  # of each: what is in the order
        self._groups: dict[QueueEntry, ParkedGroup] = {}
        self._began_ns = 0

    def __contains__(self, group: "ParkedGroup") -> bool:
        return group in self._due

    def __len__(self) -> int:
        return len(self._due)

    def next_time_ns(self) -> int | None:
        """When there is a slice."""
        return self._began_ns if self._due else None

    def add(self, wake_ups: Iterable[WakeUp], now_ns: int) -> None:
        """In one piece, so nothing is compared yet. Each has members."""
        self._began_ns = now_ns
        for event, group in wake_ups:
            if group not in self._due:
                self._due[group] = event
                self._unsorted.setdefault(group.policy, []).append(group)

    def sort_some(self, policy: str) -> bool:
        """False: all of the policy are sorted."""
        unsorted = self._unsorted.get(policy)
        if unsorted is None:
            return False
        those = dict.fromkeys(unsorted[-SORTED_PER_SLICE:])
        groups = [group for group in those if group in self._due and group not in self._firsts]
        del unsorted[-SORTED_PER_SLICE:]
        if not unsorted:
            del self._unsorted[policy]
        for group in groups:
            self._firsts[group] = firsts = firsts_of(group.members)
            assert firsts, f"{group.equivalence_key} has no members"
            self._groups.update(dict.fromkeys(firsts, group))
        self._order.fill(policy, [first for group in groups for first in self._firsts[group]])
        return True

    def discard(self, group: "ParkedGroup") -> None:
        """It is opened, has a new verdict, or is gone."""
        if self._due.pop(group, None) is None:
            return
        for entry in self._firsts.pop(group, ()):
            del self._groups[entry]
            self._order.discard(entry)
        if not self._due:
            self._unsorted.clear()

    def drop_policy(self, policy: str) -> None:
        """All of its groups are discarded. Its next text may order in another way."""
        self._unsorted.pop(policy, None)
        self._order.drop_policy(policy)

    def event_of(self, group: "ParkedGroup") -> ClusterEvent:
        return self._due[group]

    def may_precede(self, entry: QueueEntry) -> bool:
        return entry.policy in self._unsorted or self.before(entry) is not None

    def before(self, entry: QueueEntry) -> "ParkedGroup | None":
        """The first one with a member that an entry of its policy waits for."""
        while self.sort_some(entry.policy):
            pass
        first = self._order.first_before(entry) if self._due else None
        return None if first is None else self._groups[first]

    def sort_slice(self) -> bool:
        """Of a policy. False: all are sorted."""
        policy = next(iter(self._unsorted), None)
        return policy is not None and self.sort_some(policy)

    def in_order(self) -> Iterator["ParkedGroup"]:
        """Those of high priority first, of one priority the first of each policy in turn. Each is discarded before the next."""
        serials = count()
        heads = [key for policy in self._order.policies if (key := self._next_of(policy, next(serials)))]
        heapify(heads)
        while heads:
            *_, head = heappop(heads)
            yield self._groups[head]
            following = self._next_of(head.policy, next(serials))
            if following is not None:
                heappush(heads, following)

    def _next_of(self, policy: str, serial: int) -> tuple[int, bool, int, QueueEntry] | None:
        head = self._order.head_of(policy)
        if head is None:  # all are of overdrawn namespaces
            head = next(self._order.overdrawn_heads(policy, None), None)
        return (
            None if head is None else (-head.priority, self._time.is_overdrawn(head.namespace), serial, head)
        )

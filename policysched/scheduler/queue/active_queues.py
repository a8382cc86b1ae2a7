"""The active entries, and which is popped next.

Of the first entries of the policies, the one with the highest pod priority is popped first, then one whose policy has
not taken more time than the others, then the one that waits longest. Entries of overdrawn namespaces
(`DecisionTime`) come after all others that have their priority or a higher one, and in their policy after those that the
order puts ahead of them.
"""

from collections.abc import Callable, Collection

from policysched.scheduler.queue.decision_time import DecisionTime
from policysched.scheduler.queue.entries import QueueEntry
from policysched.scheduler.queue.ordered_queue import OrderedQueue
from policysched.scheduler.queue.policy_queues import PolicyQueues


class ActiveQueues(PolicyQueues):
    """Entries of `held_policies` are not popped."""

    def __init__(
        self,
        new_policy_queue: Callable[[str], OrderedQueue],
        held_policies: Collection[str],
        decision_time: DecisionTime,
    ) -> None:
        super().__init__(new_policy_queue, decision_time)
        self._held_policies = held_policies

    @property
    def can_pop(self) -> bool:
        return any(self.has_entries(policy) for policy in self.policies if policy not in self._held_policies)

    def pop(self) -> QueueEntry | None:
        heads = self.heads()
        first = self.first_of(heads.values())
        behind = [
            head
            for policy in self.policies
            if policy not in self._held_policies
            for head in self.overdrawn_heads(policy, heads.get(policy))
        ]
        if behind:
            next_behind = min(
                behind, key=lambda head: (-head.priority, self._time.debt_ns(head.namespace), head.queued_ns)
            )
            if first is None or next_behind.priority > first.priority:
                first = next_behind
        if first is not None:
            self.discard(first)
        return first

    def pop_until(self, entry: QueueEntry) -> QueueEntry:
        """The first of those that the entry waits for, or the entry."""
        first = self.first_before(entry) or entry
        self.discard(first)
        return first

    def heads(self) -> dict[str, QueueEntry]:
        """The first entry of each policy, without those of overdrawn namespaces."""
        return {
            policy: head
            for policy in self.policies
            if policy not in self._held_policies and (head := self.head_of(policy)) is not None
        }

    def first_of(self, heads: Collection[QueueEntry]) -> QueueEntry | None:
        """Of first entries of different policies."""
        if not heads:
            return None
        most = min((head.ordered_last, -head.priority) for head in heads)
        equal = [head for head in heads if (head.ordered_last, -head.priority) == most]
        behind = self._time.behind([head.policy for head in equal])
        return min(equal, key=lambda head: (head.policy in behind, head.queued_ns, head.policy))

"""The active entries, and which is popped next.

Of the first entries of the policies, the one with the highest pod priority is popped first, then one whose policy has
not taken more time than the others, then the one that waits longest. Entries of overdrawn namespaces
(`DecisionTime`) come after all others that have their priority or a higher one, and in their policy after those that the
order puts ahead of them. If the next one is of a namespace that rests, and no others are left, nothing is popped; nor if it is of
one that waits for answers to its binds, as those of lower priority wait for it (`PromptBinds`).
"""

from collections.abc import Callable, Collection, Mapping

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
        self._turn = 0

    @property
    def has_unheld_entries(self) -> bool:
        return any(self.has_entries(policy) for policy in self.policies if policy not in self._held_policies)

    @property
    def can_pop(self) -> bool:
        if self._time.is_anybody_resting or self._time.prompt_binds.are_too_many:
            return self._next() is not None
        return self.has_unheld_entries

    def pop(self) -> QueueEntry | None:
        first = self._next()
        if first is not None:
            self._turn = (self._turn + (self._deferred_with(first) is not None)) % 4
            self.discard(first)
        return first

    def _next(self) -> QueueEntry | None:
        heads = self.heads()
        first = self.first_of(heads.values())
        if first is not None and first.priority >= self.deferred_priority_max:
            return first
        next_behind = self._first_behind(heads)
        if next_behind is None or (first is not None and first.priority >= next_behind.priority):
            return first
        if self._time.prompt_binds.are_too_many_of(next_behind.namespace):
            return None
        rests = first is None and self._time.rest_ends_ns(next_behind.namespace) is not None
        return None if rests else next_behind

    def rest_ends_ns(self) -> int | None:
        """When `pop` returns an entry again, if there are entries; None: it does now, or there are none."""
        if not self._time.is_anybody_resting:
            return None
        heads = self.heads()
        next_behind = None if heads else self._first_behind(heads)
        return None if next_behind is None else self._time.rest_ends_ns(next_behind.namespace)

    def _first_behind(self, heads: Mapping[str, QueueEntry]) -> QueueEntry | None:
        """The next entry of the overdrawn namespaces. `heads`: those of the others. Every other turn is of that which waits longest. The
        others are of the newest and of the namespace of which a pod was placed last, in turn, so that neither a new namespace nor
        one whose pods fit waits for the first attempts of thousands of others."""
        latest = self._time.latest_placed() if self._turn == 3 else []
        behind = [
            head
            for policy in self.policies
            if policy not in self._held_policies
            for head in self.overdrawn_heads(policy, heads.get(policy), latest)
        ]
        return min(
            behind,
            key=lambda head: (
                -head.priority,
                self._time.prompt_binds.are_too_many_of(head.namespace),
                self._time.debt_ns(head.namespace),
                latest.index(head.namespace) if head.namespace in latest else len(latest),
                -head.queued_ns if self._turn % 2 else head.queued_ns,
            ),
            default=None,
        )

    def pop_until(self, entry: QueueEntry) -> QueueEntry:
        """The first of those that the entry waits for, or the entry. That may wait in turn, for entries of higher priority of overdrawn
        namespaces: each has a higher priority than the one that waits for it."""
        first = entry
        while (earlier := self.first_before(first)) is not None:
            first = earlier
        self.discard(first)
        return first

    def heads(self) -> dict[str, QueueEntry]:
        """The first entry of each policy, without those of overdrawn namespaces."""
        return {
            policy: head
            for policy in self.policies
            if policy not in self._held_policies and (head := self.head_of(policy)) is not None
        }

    def heads_beside_gang(self) -> Collection[QueueEntry]:
        """While the attempt of a gang is paused: the `heads`. If there are none, the next entry whose namespace is overdrawn only because
        of the attempts of all: the gang may be of one that owes more."""
        heads = self.heads()
        behind = None if heads else self._first_behind(heads)
        return heads.values() if behind is None or self._time.owes(behind.namespace) else (behind,)

    def first_of(self, heads: Collection[QueueEntry]) -> QueueEntry | None:
        """Of first entries of different policies."""
        if not heads:
            return None
        most = min((head.ordered_last, -head.priority) for head in heads)
        equal = [head for head in heads if (head.ordered_last, -head.priority) == most]
        behind = self._time.behind([head.policy for head in equal])
        return min(equal, key=lambda head: (head.policy in behind, head.queued_ns, head.policy))

"""Entries in backoff: after a failed attempt in the order of their policy, after an error by time only."""

from collections.abc import Callable, Collection, Iterator

from policysched.scheduler.queue.decision_time import DecisionTime
from policysched.scheduler.queue.entries import QueueEntry
from policysched.scheduler.queue.movable_heap import MovableHeap, earlier_ns
from policysched.scheduler.queue.ordered_queue import OrderedQueue
from policysched.scheduler.queue.policy_queues import PolicyQueues


class BackoffQueue:
    """Backoff after a failed attempt may be cut short; backoff after an error is always waited for."""

    def __init__(self, new_policy_queue: Callable[[str], OrderedQueue], decision_time: DecisionTime) -> None:
        self._times: MovableHeap[QueueEntry] = MovableHeap()
        self._by_policy = PolicyQueues(new_policy_queue, decision_time)
        self._error_times: MovableHeap[QueueEntry] = MovableHeap()

    def __iter__(self) -> Iterator[QueueEntry]:
        yield from self._times
        yield from self._error_times

    def put(self, entry: QueueEntry) -> None:
        if entry.in_error_backoff:
            self._error_times.put(entry, entry.backoff_until_ns)
            return
        self._times.put(entry, entry.backoff_until_ns)
        self._by_policy.put(entry)

    def end_error_backoff(self, entry: QueueEntry) -> None:
        """If it is in one: the rest may be cut short."""
        if entry in self._error_times:
            self._error_times.discard(entry)
            entry.in_error_backoff = False
            self.put(entry)

    def reorder(self, entry: QueueEntry) -> None:
        """The entry's key has changed."""
        if entry in self._times:
            self._by_policy.put(entry)

    def discard(self, entry: QueueEntry) -> None:
        # Not by `in_error_backoff`: it is set for a gang in backoff when the bind of a member fails.
        if entry in self._times:
            self._times.discard(entry)
            self._by_policy.discard(entry)
        self._error_times.discard(entry)

    def pop_expired(self, now_ns: int) -> QueueEntry | None:
        """An entry whose backoff is over."""
        for times in (self._times, self._error_times):
            until_ns = times.first_key()
            entry = times.first()
            if entry is not None and until_ns is not None and until_ns <= now_ns:
                self.discard(entry)
                return entry
        return None

    def heads(self, except_policies: Collection[str]) -> list[QueueEntry]:
        """The first entry of each policy whose backoff may be cut short now, because nothing else is active: not that of
        overdrawn namespaces."""
        return [
            head
            for policy in self._by_policy.policies
            if policy not in except_policies and (head := self._by_policy.head_of(policy)) is not None
        ]

    def precedes(self, entry: QueueEntry) -> bool:
        """Whether an entry of the same policy is ahead of this one, which waits for it."""
        return self._by_policy.first_before(entry) is not None

    def pop_before(self, entry: QueueEntry) -> QueueEntry | None:
        """The first entry of the same policy, if it `precedes` this one."""
        first = self._by_policy.first_before(entry)
        if first is not None:
            self.discard(first)
        return first

    def drop_policy(self, policy: str) -> None:
        for entry in [entry for entry in self if entry.policy == policy]:
            self._times.discard(entry)
            self._error_times.discard(entry)
        # Whole: its keys are those of the old text, whose quotas are gone.
        self._by_policy.drop_policy(policy)

    def next_time_ns(self) -> int | None:
        return earlier_ns(self._times.first_key(), self._error_times.first_key())

    def check(self) -> list[str]:
        """One sentence for each violation of the queues of policies."""
        return self._by_policy.check()

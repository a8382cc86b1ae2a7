"""Entries in backoff: after a failed attempt in the order of their policy, after an error by time only.

Those of overdrawn namespaces (`DecisionTime`) are by time only, too.
"""

from collections.abc import Callable, Collection, Iterator, Mapping

from policysched.scheduler.queue.decision_time import DecisionTime
from policysched.scheduler.queue.entries import QueueEntry
from policysched.scheduler.queue.movable_heap import MovableHeap, earlier_ns
from policysched.scheduler.queue.ordered_queue import OrderedQueue


class BackoffQueue:
    """Backoff after a failed attempt may be cut short; backoff after an error is always waited for."""

    def __init__(self, new_policy_queue: Callable[[str], OrderedQueue], decision_time: DecisionTime) -> None:
        self._time = decision_time
        self._new_policy_queue = new_policy_queue
        self._times: MovableHeap[QueueEntry] = MovableHeap()
        self._by_policy: dict[str, OrderedQueue] = {}
        self._error_times: MovableHeap[QueueEntry] = MovableHeap()

    def __iter__(self) -> Iterator[QueueEntry]:
        yield from self._times
        yield from self._error_times

    @property
    def by_policy(self) -> Mapping[str, OrderedQueue]:
        """Entries whose backoff may be cut short. Read-only."""
        return self._by_policy

    def put(self, entry: QueueEntry) -> None:
        if entry.in_error_backoff:
            self._error_times.put(entry, entry.backoff_until_ns)
            return
        self._times.put(entry, entry.backoff_until_ns)
        policy_queue = self._by_policy.get(entry.policy)
        if policy_queue is None:
            policy_queue = self._by_policy[entry.policy] = self._new_policy_queue(entry.policy)
        policy_queue.put(entry, entry.sort_key)

    def reorder(self, entry: QueueEntry) -> None:
        """The entry's key has changed."""
        if entry in self._times:
            self._by_policy[entry.policy].put(entry, entry.sort_key)

    def discard(self, entry: QueueEntry) -> None:
        # Not by `in_error_backoff`: it is set for a gang in backoff when the bind of a member fails.
        if entry in self._times:
            self._times.discard(entry)
            self._by_policy[entry.policy].discard(entry)
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
        """The first entry of each policy whose backoff may be cut short now."""
        for policy_queue in self._by_policy.values():
            while (head := policy_queue.first()) is not None and self._time.is_overdrawn(head.namespace):
                self._wait_out(head)
        return [
            head
            for policy, policy_queue in self._by_policy.items()
            if policy not in except_policies and (head := policy_queue.first()) is not None
        ]

    def precedes(self, entry: QueueEntry) -> bool:
        """Whether an entry of the same policy stands ahead of this one, which waits for it."""
        policy_queue = self._by_policy.get(entry.policy)
        while policy_queue is not None and policy_queue.precedes(entry):
            first = policy_queue.first()
            assert first is not None, f"{entry} is preceded by nothing"
            if first.priority > entry.priority or not self._time.is_overdrawn(first.namespace):
                return True
            self._wait_out(first)
        return False

    def pop_before(self, entry: QueueEntry) -> QueueEntry | None:
        """The first entry of the same policy, if it `precedes` this one."""
        if not self.precedes(entry):
            return None
        first = self._by_policy[entry.policy].first()
        assert first is not None, f"{entry} is preceded by nothing"
        self.discard(first)
        return first

    def _wait_out(self, entry: QueueEntry) -> None:
        """Its backoff is not cut short any more."""
        self.discard(entry)
        self._error_times.put(entry, entry.backoff_until_ns)

    def drop_policy(self, policy: str) -> None:
        for entry in [entry for entry in self if entry.policy == policy]:
            self.discard(entry)
        self._by_policy.pop(policy, None)

    def next_time_ns(self) -> int | None:
        return earlier_ns(self._times.first_key(), self._error_times.first_key())

"""The active entries: those of each policy in its order, and which is popped next.

    put ──► of its policy ──its namespace is overdrawn, and it came first──► deferred ──► popped, if nothing else is,
                  └──────────────► popped                                                or once the debt is paid

Of the first entries of the policies, the one with the highest pod priority is popped first, then one whose policy has
not taken more time than the others, then the one that waits longest. Entries of overdrawn namespaces
(`DecisionTime`) come after all others that have their priority or a higher one.
"""

from collections.abc import Callable, Collection, Iterable, Iterator

from policysched.scheduler.queue.decision_time import DecisionTime
from policysched.scheduler.queue.entries import QueueEntry
from policysched.scheduler.queue.ordered_queue import OrderedQueue


class ActiveQueues:
    """`by_policy` has the entries that are not deferred. Those of `held_policies` are not popped."""

    def __init__(
        self,
        new_policy_queue: Callable[[str], OrderedQueue],
        held_policies: Collection[str],
        decision_time: DecisionTime,
    ) -> None:
        self._new_policy_queue = new_policy_queue
        self._held_policies = held_policies
        self._time = decision_time
        self.by_policy: dict[str, OrderedQueue] = {}
        self._deferred: dict[tuple[str, str], OrderedQueue] = {}  # by namespace and policy, none empty

    def __iter__(self) -> Iterator[QueueEntry]:
        for policy_queue in (*self.by_policy.values(), *self._deferred.values()):
            yield from policy_queue

    @property
    def can_pop(self) -> bool:
        return any(
            policy_queue and policy not in self._held_policies
            for policy, policy_queue in self.by_policy.items()
        ) or any(policy not in self._held_policies for _, policy in self._deferred)

    def of_policy(self, policy: str) -> Iterator[QueueEntry]:
        """In no order."""
        yield from self.by_policy.get(policy, ())
        for (_, deferred_policy), deferred in self._deferred.items():
            if deferred_policy == policy:
                yield from deferred

    def put(self, entry: QueueEntry) -> None:
        """Add an entry, or give it its new key."""
        self._queue_with(entry).put(entry, entry.sort_key)

    def precedes(self, head: QueueEntry, entry: QueueEntry) -> bool:
        """Whether one of `heads` is ahead of an entry of its policy that is not active."""
        return self._queue_with(head).precedes(entry)

    def fill(self, policy: str, entries: Iterable[QueueEntry]) -> None:
        """Add many at once, in linear time."""
        self._queue_of(policy).fill((entry, entry.sort_key) for entry in entries)

    def discard(self, entry: QueueEntry) -> None:
        self._queue_of(entry.policy).discard(entry)
        key = entry.namespace, entry.policy
        deferred = self._deferred.get(key)
        if deferred is not None:
            deferred.discard(entry)
            if not deferred:
                del self._deferred[key]

    def order_changes(self, policy: str) -> bool:
        """Whether entries of the policy can change places without `put`."""
        policy_queue = self.by_policy.get(policy)
        return policy_queue is not None and policy_queue.order_changes

    def drop_policy(self, policy: str) -> None:
        self.by_policy.pop(policy, None)
        self._deferred = {key: deferred for key, deferred in self._deferred.items() if key[1] != policy}

    def pop(self) -> QueueEntry | None:
        heads = self.heads()
        first = self.first_of(heads.values())
        for key, deferred in self._deferred.items():
            if key[1] in self._held_policies or not self._time.is_overdrawn(key[0]):
                continue  # held, or among the heads
            head = deferred.first()
            if head is not None and (first is None or head.priority > first.priority):
                first = head
        if first is None:
            keys = [key for key in self._deferred if key[1] not in self._held_policies]
            if keys:
                first = self._deferred[min(keys, key=lambda key: self._time.debt_ns(key[0]))].first()
        if first is not None:
            self.discard(first)
        return first

    def pop_until(self, entry: QueueEntry) -> QueueEntry:
        """The first of the entry's policy, up to this one."""
        while True:
            head = self.by_policy[entry.policy].first()
            assert head is not None, f"{entry} is not active"
            if head is entry or not self._is_deferred_behind(head, entry.priority):
                self.discard(head)
                return head
            self._defer(head)

    def heads(self) -> dict[str, QueueEntry]:
        """The first entry of each policy, without those of overdrawn namespaces."""
        heads = {}
        for policy, policy_queue in self.by_policy.items():
            if policy in self._held_policies:
                continue
            while (head := policy_queue.first()) is not None and self._time.is_overdrawn(head.namespace):
                self._defer(head)
            if head is not None:
                heads[policy] = head
        for (namespace, policy), deferred in self._deferred.items():
            if policy not in self._held_policies and not self._time.is_overdrawn(namespace):
                ahead_of = heads.get(policy)
                head = deferred.first()
                if head is not None and (ahead_of is None or deferred.precedes(ahead_of)):
                    heads[policy] = head
        return heads

    def first_of(self, heads: Collection[QueueEntry]) -> QueueEntry | None:
        """Of first entries of different policies."""
        if not heads:
            return None
        most = min((head.ordered_last, -head.priority) for head in heads)
        equal = [head for head in heads if (head.ordered_last, -head.priority) == most]
        behind = self._time.behind([head.policy for head in equal])
        return min(equal, key=lambda head: (head.policy in behind, head.queued_ns, head.policy))

    def _is_deferred_behind(self, entry: QueueEntry, priority: int) -> bool:
        return entry.priority <= priority and self._time.is_overdrawn(entry.namespace)

    def _defer(self, entry: QueueEntry) -> None:
        self.by_policy[entry.policy].discard(entry)
        key = entry.namespace, entry.policy
        deferred = self._deferred.get(key)
        if deferred is None:
            deferred = self._deferred[key] = self._new_policy_queue(entry.policy)
        deferred.put(entry, entry.sort_key)

    def _queue_with(self, entry: QueueEntry) -> OrderedQueue:
        """The one that the entry is in, or gets in."""
        deferred = self._deferred.get((entry.namespace, entry.policy))
        return deferred if deferred is not None and entry in deferred else self._queue_of(entry.policy)

    def _queue_of(self, policy: str) -> OrderedQueue:
        policy_queue = self.by_policy.get(policy)
        if policy_queue is None:
            policy_queue = self.by_policy[policy] = self._new_policy_queue(policy)
        return policy_queue

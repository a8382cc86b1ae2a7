"""Entries by policy, those of each policy in its order.

    put ──► of its policy ──its namespace is overdrawn, and one of such is first──► deferred, with all of the namespace
               ▲────────────────────────────── none of them is left ──────────────────────────┘

The entries of a namespace are in one queue, so they keep their order whatever its account says (`DecisionTime`). A
deferred namespace is behind the others while it is overdrawn, and back in its position afterwards.
"""

from collections.abc import Callable, Iterable, Iterator
from math import inf

from policysched.scheduler.queue.decision_time import DecisionTime
from policysched.scheduler.queue.entries import QueueEntry
from policysched.scheduler.queue.movable_heap import earlier_ns
from policysched.scheduler.queue.ordered_queue import OrderedQueue

_MOVED_BACK_MAX = 16
"""Entries of a namespace that leave its own queue together once it has paid."""


class PolicyQueues:
    """`new_policy_queue` creates a queue in the order of a policy."""

    def __init__(self, new_policy_queue: Callable[[str], OrderedQueue], decision_time: DecisionTime) -> None:
        self._new_policy_queue = new_policy_queue
        self._time = decision_time
        self._queues: dict[str, OrderedQueue] = {}
        self._deferred: dict[str, dict[str, OrderedQueue]] = {}  # by policy and namespace, none empty
        self._filled: dict[str, None] = {}
        # By policy, of what is deferred: no entry has a higher priority, and all are overdrawn until then.
        self._priority_max: dict[str, int] = {}
        self._overdrawn_until_ns: dict[str, int] = {}

    def __iter__(self) -> Iterator[QueueEntry]:
        for policy in self._queues:
            yield from self.of_policy(policy)

    @property
    def policies(self) -> Iterable[str]:
        """Those with entries: of thousands of policies mostly few."""
        return self._filled

    def of_policy(self, policy: str) -> Iterator[QueueEntry]:
        """In no order."""
        yield from self._queues.get(policy, ())
        for deferred in self._deferred.get(policy, {}).values():
            yield from deferred

    def has_entries(self, policy: str) -> bool:
        return policy in self._filled

    def put(self, entry: QueueEntry) -> None:
        """Add an entry, or give it its new key."""
        self._filled.setdefault(entry.policy)
        entries = self._queue_with(entry)
        entries.put(entry, entry.sort_key)
        if entries is not self._queues.get(entry.policy):
            self._note_deferred((entry,))

    def fill(self, policy: str, entries: Iterable[QueueEntry]) -> None:
        """Add many at once, in linear time."""
        if policy in self._deferred:
            for entry in entries:
                self.put(entry)
            return
        policy_queue = self._queue_of(policy)
        policy_queue.fill((entry, entry.sort_key) for entry in entries)
        if policy_queue:
            self._filled.setdefault(policy)

    def discard(self, entry: QueueEntry) -> None:
        policy_queue = self._queue_with(entry)
        policy_queue.discard(entry)
        if not policy_queue and policy_queue is not self._queues[entry.policy]:
            self._drop_deferred(entry.policy, entry.namespace)
        if not self._queues.get(entry.policy) and entry.policy not in self._deferred:
            self._filled.pop(entry.policy, None)

    def drop_policy(self, policy: str) -> None:
        self._queues.pop(policy, None)
        self._forget_deferred(policy)
        self._filled.pop(policy, None)

    def head_of(self, policy: str) -> QueueEntry | None:
        """The first entry of the namespaces that are not overdrawn."""
        if policy not in self._queues:
            return None
        paid = self._not_overdrawn(policy)
        while (head := self._queues[policy].first()) is not None and self._time.is_overdrawn(head.namespace):
            self._defer(policy)
        for deferred in paid.values():
            if head is None or deferred.precedes(head):
                head = deferred.first()
        return head

    def _not_overdrawn(self, policy: str) -> dict[str, OrderedQueue]:
        """Of what is deferred, by namespace. There may be thousands, which are looked at once one can have paid. Those with few
        entries are not deferred any more."""
        now_ns, deferred, paid = self._time.now_ns, self._deferred.get(policy), dict[str, OrderedQueue]()
        if not deferred or now_ns < self._overdrawn_until_ns[policy]:
            return paid
        earliest_ns: int | None = None
        for namespace, entries in deferred.items():
            until_ns = self._time.overdrawn_until_ns(namespace)
            if until_ns is None:
                paid[namespace] = entries
                if len(entries) <= _MOVED_BACK_MAX:
                    continue
            earliest_ns = earlier_ns(earliest_ns, until_ns or now_ns)
        self._overdrawn_until_ns[policy] = earliest_ns or now_ns
        for namespace, entries in list(paid.items()):
            if len(entries) <= _MOVED_BACK_MAX:
                self._drop_deferred(policy, namespace)
                del paid[namespace]
                for entry in list(entries):
                    self._queues[policy].put(entry, entry.sort_key)
        return paid

    def overdrawn_heads(self, policy: str, policy_head: QueueEntry | None) -> Iterator[QueueEntry]:
        """The first entries of overdrawn namespaces, without those that stand behind the `head_of` the policy anyway."""
        paid = self._not_overdrawn(policy)
        for namespace, deferred in self._deferred.get(policy, {}).items():
            if namespace not in paid and (policy_head is None or deferred.precedes(policy_head)):
                head = deferred.first()
                if head is not None:
                    yield head

    @property
    def deferred_priority_max(self) -> float:
        """No entry that is deferred has a higher priority."""
        return max(self._priority_max.values(), default=-inf)

    def is_ahead(self, head: QueueEntry, entry: QueueEntry) -> bool:
        """Whether an entry that is first in its queue is ahead of one of its policy that is not in these queues."""
        return self._queue_with(head).precedes(entry)

    def first_before(self, entry: QueueEntry) -> QueueEntry | None:
        """The first entry that has to be tried before this one of its policy, which is about to be placed: it is ahead, and is
        of the same namespace, of one that is not overdrawn, or of higher priority."""
        self._not_overdrawn(entry.policy)
        policy_queue = self._queues.get(entry.policy)
        first: QueueEntry | None = None
        while policy_queue is not None and policy_queue.precedes(entry):
            first = policy_queue.first()
            assert first is not None, f"{entry} is preceded by nothing"
            if not self._time.is_overdrawn(first.namespace):
                break
            self._defer(entry.policy)
            policy_queue, first = self._queues[entry.policy], None
        for namespace, deferred in self._may_be_waited_for(entry).items():
            if not deferred.precedes(entry) or (first is not None and not deferred.precedes(first)):
                continue
            head = deferred.first()
            assert head is not None, f"the deferred queue of {namespace} is empty"
            if self.waits_for(entry, head):
                first = head
        return first

    def _may_be_waited_for(self, entry: QueueEntry) -> dict[str, OrderedQueue]:
        """Of what is deferred, by namespace."""
        by_namespace = self._deferred.get(entry.policy, {})
        if not by_namespace or self._priority_max[entry.policy] > entry.priority:
            return by_namespace
        own = by_namespace.get(entry.namespace)
        paid = self._not_overdrawn(entry.policy)
        return paid if own is None else {**paid, entry.namespace: own}

    def waits_for(self, entry: QueueEntry, earlier: QueueEntry) -> bool:
        """Whether an entry waits for an earlier one of its policy: not if that is of another namespace, which is overdrawn,
        and of no higher priority."""
        return (
            earlier.namespace == entry.namespace
            or earlier.priority > entry.priority
            or not self._time.is_overdrawn(earlier.namespace)
        )

    def check(self) -> list[str]:
        """One sentence for each namespace that is in two queues of a policy, for policies that are not those with entries, and for
        entries with a higher priority than is noted."""
        filled = {policy for policy in self._queues if any(True for _ in self.of_policy(policy))}
        wrong = [
            f"policy {policy} has entries or is listed, not both" for policy in filled ^ self._filled.keys()
        ]
        wrong += [
            f"{entry} has a higher priority than any that is deferred"
            for policy, by_namespace in self._deferred.items()
            for deferred in by_namespace.values()
            for entry in deferred
            if entry.priority > self._priority_max[policy]
        ]
        return wrong + [
            f"{entry} is not in the queue of its namespace, which is deferred"
            for policy, by_namespace in self._deferred.items()
            for entry in self._queues[policy]
            if entry.namespace in by_namespace
        ]

    def _defer(self, policy: str) -> None:
        """The first entry is of an overdrawn namespace. Move all entries of such: their keys can change places without `put`. Of all
        of these namespaces, so that the queue is read once for hundreds of them."""
        policy_queue = self._queues[policy]
        by_namespace: dict[str, list[QueueEntry]] = {}
        for entry in policy_queue:
            by_namespace.setdefault(entry.namespace, []).append(entry)
        if len(by_namespace) == 1:  # such as thousands of the only tenant, which wait for binds
            self._note_deferred(policy_queue)
            self._deferred.setdefault(policy, {}).update(dict.fromkeys(by_namespace, policy_queue))
            self._queues[policy] = self._new_policy_queue(policy)
            return
        for namespace, entries in by_namespace.items():
            if self._time.is_overdrawn(namespace):
                for entry in entries:
                    policy_queue.discard(entry)
                deferred = self._new_policy_queue(policy)
                deferred.fill((entry, entry.sort_key) for entry in entries)
                self._note_deferred(entries)
                self._deferred.setdefault(policy, {})[namespace] = deferred

    def _note_deferred(self, entries: Iterable[QueueEntry]) -> None:
        """These are of one policy and namespace."""
        for entry in entries:
            highest = self._priority_max.get(entry.policy, entry.priority)
            self._priority_max[entry.policy] = max(highest, entry.priority)
        until_ns = self._time.overdrawn_until_ns(entry.namespace) or 0
        self._overdrawn_until_ns[entry.policy] = min(
            until_ns, self._overdrawn_until_ns.get(entry.policy, until_ns)
        )

    def _forget_deferred(self, policy: str) -> None:
        for by_policy in (self._deferred, self._priority_max, self._overdrawn_until_ns):
            by_policy.pop(policy, None)

    def _drop_deferred(self, policy: str, namespace: str) -> None:
        by_namespace = self._deferred[policy]
        del by_namespace[namespace]
        if not by_namespace:
            self._forget_deferred(policy)

    def _queue_with(self, entry: QueueEntry) -> OrderedQueue:
        """The one that the entry is in, or gets in."""
        deferred = self._deferred.get(entry.policy, {}).get(entry.namespace)
        return self._queue_of(entry.policy) if deferred is None else deferred

    def _queue_of(self, policy: str) -> OrderedQueue:
        policy_queue = self._queues.get(policy)
        if policy_queue is None:
            policy_queue = self._queues[policy] = self._new_policy_queue(policy)
        return policy_queue

"""Entries by policy, those of each policy in its order.

    put ──► of its policy ──its namespace is overdrawn, and one of such is first──► deferred, with all of the namespace
               ▲────────────────────────────── none of them is left ──────────────────────────┘

The entries of a namespace are in one queue, so they keep their order whatever its account says (`DecisionTime`). A
deferred namespace (`DeferredEntries`) is behind the others while it is overdrawn, and back in its position afterwards.
"""

from collections.abc import Callable, Iterable, Iterator
from math import inf

from policysched.scheduler.queue.decision_time import DecisionTime
from policysched.scheduler.queue.deferred_entries import FEW_ENTRIES, DeferredEntries, QueueName
from policysched.scheduler.queue.entries import QueueEntry
from policysched.scheduler.queue.ordered_queue import OrderedQueue


class PolicyQueues:
    """`new_policy_queue` creates a queue in the order of a policy."""

    def __init__(self, new_policy_queue: Callable[[str], OrderedQueue], decision_time: DecisionTime) -> None:
        self._new_policy_queue = new_policy_queue
        self._time = decision_time
        self._queues: dict[str, OrderedQueue] = {}
        self._deferred: dict[str, DeferredEntries] = {}  # by policy, none empty
        self._filled: dict[str, None] = {}
        decision_time.namespace_trusted.append(self._namespace_trusted)

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
        yield from self._deferred.get(policy, ())

    def has_entries(self, policy: str) -> bool:
        return policy in self._filled

    def put(self, entry: QueueEntry) -> None:
        """Add an entry, or give it its new key."""
        self._filled.setdefault(entry.policy)
        deferred = self._deferred_with(entry)
        if deferred is None:
            self._queue_of(entry.policy).put(entry, entry.sort_key)
        else:
            deferred.put(entry)

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
        deferred = self._deferred_with(entry)
        if deferred is None:
            self._queue_of(entry.policy).discard(entry)
        else:
            deferred.discard(entry)
            self._drop_if_empty(entry.policy)
        if not self._queues.get(entry.policy) and entry.policy not in self._deferred:
            self._filled.pop(entry.policy, None)

    def drop_policy(self, policy: str) -> None:
        self._queues.pop(policy, None)
        self._deferred.pop(policy, None)
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

    def _not_overdrawn(self, policy: str) -> dict[QueueName, OrderedQueue]:
        """Of what is deferred. Namespaces with few entries are not deferred any more."""
        deferred = self._deferred.get(policy)
        if deferred is None:
            return {}
        paid, restored = deferred.not_overdrawn()
        for namespace in restored:
            self._restore(policy, namespace)
        return paid

    def overdrawn_heads(
        self, policy: str, policy_head: QueueEntry | None, latest_placed: Iterable[str] = ()
    ) -> Iterator[QueueEntry]:
        """The first entries of overdrawn namespaces, without those that stand behind the `head_of` the policy anyway: of those that
        share a queue the first one, that of the namespace which got one last, and that of the first one that is among `latest_placed`."""
        paid, deferred = self._not_overdrawn(policy), self._deferred.get(policy)
        if deferred is None:
            return
        deferred.set_heads_apart()
        for name, entries in list(deferred.queues.items()):
            if name in paid or not (policy_head is None or entries.precedes(policy_head)):
                continue
            newest = deferred.newest_of(name) if policy_head is None else None
            yield from (head for head in (entries.first(), newest) if head is not None)
        if policy_head is None and (placed := deferred.first_of_latest(latest_placed)) is not None:
            yield placed

    @property
    def deferred_priority_max(self) -> float:
        """No entry that is deferred has a higher priority."""
        return max((deferred.priority_max for deferred in self._deferred.values()), default=-inf)

    def is_ahead(self, head: QueueEntry, entry: QueueEntry) -> bool:
        """Whether an entry that is first in its queue is ahead of one of its policy that is not in these queues."""
        deferred = self._deferred.get(head.policy)
        its_queue = None if deferred is None else deferred.queue_with(head.namespace)
        return (self._queue_of(head.policy) if its_queue is None else its_queue).precedes(entry)

    def first_before(self, entry: QueueEntry) -> QueueEntry | None:
        """The first entry that has to be tried before this one of its policy, which is about to be placed: it is ahead, and is
        of the same namespace, of one that is not overdrawn, or of higher priority."""
        paid = self._not_overdrawn(entry.policy)
        policy_queue = self._queues.get(entry.policy)
        first: QueueEntry | None = None
        while policy_queue is not None and policy_queue.precedes(entry):
            first = policy_queue.first()
            assert first is not None, f"{entry} is preceded by nothing"
            if not self._time.is_overdrawn(first.namespace):
                break
            self._defer(entry.policy)
            policy_queue, first = self._queues[entry.policy], None
        for name, entries in self._may_be_waited_for(entry, paid).items():
            if not entries.precedes(entry) or (first is not None and not entries.precedes(first)):
                continue
            head = entries.first()
            assert head is not None, f"the deferred queue {name} is empty"
            if self.waits_for(entry, head):
                first = head
        return first

    def _may_be_waited_for(
        self, entry: QueueEntry, paid: dict[QueueName, OrderedQueue]
    ) -> dict[QueueName, OrderedQueue]:
        """Of what is deferred."""
        deferred = self._deferred.get(entry.policy)
        if deferred is None:
            return {}
        own = deferred.own_queue(entry.namespace)
        if deferred.priority_max > entry.priority:
            return deferred.queues
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
        """One sentence for each namespace that is in two queues of a policy, and for policies that are not those with entries."""
        filled = {policy for policy in self._queues if any(True for _ in self.of_policy(policy))}
        wrong = [
            f"policy {policy} has entries or is listed, not both" for policy in filled ^ self._filled.keys()
        ]
        for policy, deferred in self._deferred.items():
            wrong += deferred.check()
            wrong += [
                f"{entry} is not in the queue of its namespace, which is deferred"
                for entry in self._queues[policy]
                if deferred.queue_with(entry.namespace) is not None
            ]
        return wrong

    def _defer(self, policy: str) -> None:
        """The first entry is of an overdrawn namespace. Move all entries of such: their keys can change places without `put`. Of all
        of these namespaces, so that the queue is read once for hundreds of them."""
        policy_queue = self._queues[policy]
        by_namespace: dict[str, list[QueueEntry]] = {}
        for entry in policy_queue:
            by_namespace.setdefault(entry.namespace, []).append(entry)
        deferred = self._deferred.get(policy)
        if deferred is None:
            deferred = DeferredEntries(lambda: self._new_policy_queue(policy), self._time)
            self._deferred[policy] = deferred
        if len(by_namespace) == 1 and len(policy_queue) > FEW_ENTRIES:
            deferred.adopt(next(iter(by_namespace)), policy_queue)
            self._queues[policy] = self._new_policy_queue(policy)
            return
        behind = {name: by_namespace[name] for name in by_namespace if self._time.is_overdrawn(name)}
        for entries in behind.values():
            for entry in entries:
                policy_queue.discard(entry)
        deferred.defer(behind)

    def _restore(self, policy: str, namespace: str) -> None:
        """The entries of a namespace that is not overdrawn get back to their positions."""
        for entry in self._deferred[policy].remove(namespace):
            self._queues[policy].put(entry, entry.sort_key)
        self._drop_if_empty(policy)

    def _namespace_trusted(self, namespace: str) -> None:
        """It is not overdrawn any more, unless it owes time by itself."""
        for policy, deferred in list(self._deferred.items()):
            if deferred.shares(namespace):
                self._restore(policy, namespace)
            elif deferred.queue_with(namespace) is not None:
                deferred.overdrawn_until_ns = self._time.now_ns

    def _drop_if_empty(self, policy: str) -> None:
        if not self._deferred[policy]:
            del self._deferred[policy]

    def _deferred_with(self, entry: QueueEntry) -> DeferredEntries | None:
        """Where the entry is, or gets; None: its namespace is not deferred."""
        deferred = self._deferred.get(entry.policy)
        return None if deferred is None or deferred.queue_with(entry.namespace) is None else deferred

    def _queue_of(self, policy: str) -> OrderedQueue:
        policy_queue = self._queues.get(policy)
        if policy_queue is None:
            policy_queue = self._queues[policy] = self._new_policy_queue(policy)
        return policy_queue

"""Entries of one policy that come after those of others, because their namespaces are overdrawn (`DecisionTime`).

    of a namespace   whose own failed attempts took its time, or which waits for binds: it has a queue of its own
    shared           of namespaces that are overdrawn only because the failed attempts of all take too much: one queue for
                     each priority. There may be thousands of such namespaces, and no decision looks at all of them

The entries of a namespace keep their order. Those of a shared queue have one priority, so its first entry tells whether somebody
waits for it. Of a namespace with entries of several priorities only the first one is in a shared queue, and the next one follows it.
If the order changes by itself (`FairShareQueue`), such a namespace has a queue of its own.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf

from policysched.scheduler.queue.decision_time import DecisionTime
from policysched.scheduler.queue.entries import QueueEntry
from policysched.scheduler.queue.movable_heap import MovableHeap, earlier_ns
from policysched.scheduler.queue.ordered_queue import OrderedQueue, SortKeyQueue

FEW_ENTRIES = 16
"""Entries of a namespace that leave its own queue together once it has paid."""

QueueName = str | int
"""A namespace, or the priority of a shared queue."""


class DeferredEntries:
    """`queues`: none is empty. `priority_max`: no entry has a higher priority. `overdrawn_until_ns`: all are overdrawn until then."""

    def __init__(self, new_queue: Callable[[], OrderedQueue], decision_time: DecisionTime) -> None:
        self._new_queue = new_queue
        self._time = decision_time
        self.queues: dict[QueueName, OrderedQueue] = {}
        self._newest: dict[int, MovableHeap[QueueEntry]] = {}  # of each shared queue, that queued last first
        self._sharing: dict[str, dict[QueueEntry, None]] = {}  # by namespace: what is in the shared queue
        self._mixed: dict[str, OrderedQueue] = {}  # all entries of those that share with several priorities
        self._priority_of: dict[str, int] = {}  # of the namespaces that share
        self.priority_max: float = -inf
        self.overdrawn_until_ns: float = inf

    def __bool__(self) -> bool:
        return bool(self.queues)

    def __iter__(self) -> Iterator[QueueEntry]:
        for entries in self.queues.values():
            yield from entries
        for namespace, entries in self._mixed.items():
            yield from (entry for entry in entries if entry not in self._sharing[namespace])

    def queue_with(self, namespace: str) -> OrderedQueue | None:
        """The queue that has the entries of the namespace; None: they are not deferred."""
        return self.queues.get(self._priority_of.get(namespace, namespace))

    def shares(self, namespace: str) -> bool:
        return namespace in self._priority_of

    def defer(self, by_namespace: Mapping[str, Sequence[QueueEntry]]) -> None:
        """All entries that these namespaces have in this policy."""
        shared: dict[int, list[QueueEntry]] = {}
        for namespace, entries in by_namespace.items():
            priority, owes = entries[0].priority, self._time.owes(namespace)
            if owes or any(entry.priority != priority for entry in entries):
                own = self.queues[namespace] = self._new_queue()
                own.fill((entry, entry.sort_key) for entry in entries)
                if not owes:
                    self._share_first(namespace)
            else:
                self._priority_of[namespace], self._sharing[namespace] = priority, dict.fromkeys(entries)
                shared.setdefault(priority, []).extend(entries)
            self._note(namespace, entries)
        for priority, entries in shared.items():
            self._shared_queue(priority).fill((entry, entry.sort_key) for entry in entries)
            self._newest[priority].fill((entry, -entry.queued_ns) for entry in entries)

    def adopt(self, namespace: str, entries: OrderedQueue) -> None:
        """As `defer`, where a queue has nothing else: such as thousands of the only tenant, which wait for binds."""
        self.queues[namespace] = entries
        self._note(namespace, entries)

    def put(self, entry: QueueEntry) -> None:
        """Of a namespace that is deferred: add an entry, or give it its new key."""
        namespace = entry.namespace
        shares = self.shares(namespace)
        if self._priority_of.get(namespace) == entry.priority and namespace not in self._mixed:
            self._put_shared(entry)
        else:
            own = self.own_queue(namespace)
            assert own is not None, f"{entry} is of no deferred namespace"
            own.put(entry, entry.sort_key)
            if shares:
                self._share_first(namespace)
        self._note(namespace, (entry,))

    def discard(self, entry: QueueEntry) -> None:
        if entry.namespace in self._mixed:
            own = self.own_queue(entry.namespace)
            assert own is not None, f"{entry} is of no deferred namespace"
            own.discard(entry)
            if own:
                self._share_first(entry.namespace)
            else:
                del self.queues[entry.namespace]
            return
        name = self._priority_of.get(entry.namespace, entry.namespace)
        entries = self.queues[name]
        entries.discard(entry)
        if not entries:
            del self.queues[name]
        if isinstance(name, int):
            members = self._sharing[entry.namespace]
            members.pop(entry, None)
            self._newest[name].discard(entry)
            if not members:
                self._shares_no_more(entry.namespace)

    def remove(self, namespace: str) -> list[QueueEntry]:
        """All entries of the namespace, which is not deferred any more."""
        return list(self.queues.pop(namespace) if self.own_queue(namespace) is not None else ())

    def own_queue(self, namespace: str) -> OrderedQueue | None:
        """Only entries of the namespace; None: it has none here. They do not share a queue any more."""
        if namespace in self._priority_of:
            shared, entries = self.queues[self._priority_of[namespace]], self._sharing[namespace]
            for entry in entries:
                shared.discard(entry)
                self._newest[self._priority_of[namespace]].discard(entry)
            self._shares_no_more(namespace)
            own = self._mixed.pop(namespace, None)
            if own is None:
                own = self._new_queue()
                own.fill((entry, entry.sort_key) for entry in entries)
            self.queues[namespace] = own
        return self.queues.get(namespace)

    def _share_first(self, namespace: str) -> None:
        """Of a namespace with a queue of its own, unless the first entry can become another one by itself."""
        own = self.queues[namespace]
        first = own.first()
        if first is None or not isinstance(own, SortKeyQueue):
            return
        self._mixed[namespace] = self.queues.pop(namespace)
        self._priority_of[namespace], self._sharing[namespace] = first.priority, {}
        self._put_shared(first)

    def newest_of(self, name: QueueName) -> QueueEntry | None:
        """Of a shared queue: the first entry of the namespace with the entry that queued last."""
        newest = self._newest[name].first() if isinstance(name, int) else None
        return None if newest is None else self._first_of_sharing(newest.namespace)

    def first_of_latest(self, namespaces: Iterable[str]) -> QueueEntry | None:
        """The first entry of the first of these namespaces that shares a queue."""
        namespace = next(filter(self.shares, namespaces), None)
        return None if namespace is None else self._first_of_sharing(namespace)

    def _first_of_sharing(self, namespace: str) -> QueueEntry | None:
        entries = self._sharing[namespace]
        if len(entries) == 1:
            return next(iter(entries))
        own = self.own_queue(namespace)
        return None if own is None else own.first()

    def not_overdrawn(self) -> tuple[dict[QueueName, OrderedQueue], list[str]]:
        """Queues whose entries are not overdrawn, and namespaces that need not be deferred any more. Nothing is looked at before
        one of them can have paid."""
        paid, restored = dict[QueueName, OrderedQueue](), list[str]()
        if self._time.now_ns < self.overdrawn_until_ns:
            return paid, restored
        self.set_heads_apart()
        earliest_ns: int | None = None
        for name, entries in self.queues.items():
            is_shared = isinstance(name, int)
            until_ns = (
                self._time.all_overdrawn_until_ns
                if isinstance(name, int)
                else self._time.overdrawn_until_ns(name)
            )
            if until_ns is None and not is_shared and len(entries) <= FEW_ENTRIES:
                restored.append(str(name))
                continue
            if until_ns is None:
                paid[name] = entries
            earliest_ns = earlier_ns(earliest_ns, until_ns or self._time.now_ns)
        self.overdrawn_until_ns = self._time.now_ns if earliest_ns is None else earliest_ns
        return paid, restored

    def set_heads_apart(self) -> None:
        """Namespaces at the head of a shared queue get their own if they owe time by themselves, or are not in doubt any more."""
        for priority in [*self._newest]:
            while (shared := self.queues.get(priority)) is not None and (head := shared.first()) is not None:
                if self._time.is_in_doubt(head.namespace) and not self._time.owes(head.namespace):
                    break
                self.own_queue(head.namespace)

    def _put_shared(self, entry: QueueEntry) -> None:
        self._shared_queue(entry.priority).put(entry, entry.sort_key)
        self._newest[entry.priority].put(entry, -entry.queued_ns)
        self._sharing[entry.namespace][entry] = None

    def _shared_queue(self, priority: int) -> OrderedQueue:
        if priority not in self.queues:
            self.queues[priority], self._newest[priority] = self._new_queue(), MovableHeap()
        return self.queues[priority]

    def _shares_no_more(self, namespace: str) -> None:
        del self._sharing[namespace]
        priority = self._priority_of.pop(namespace)
        if not self._newest[priority]:
            del self._newest[priority]
            self.queues.pop(priority, None)

    def _note(self, namespace: str, entries: Iterable[QueueEntry]) -> None:
        self.priority_max = max(self.priority_max, max(entry.priority for entry in entries))
        until_ns = self._time.overdrawn_until_ns(namespace) or 0
        self.overdrawn_until_ns = min(self.overdrawn_until_ns, until_ns)

    def check(self) -> list[str]:
        """One sentence for each entry that is not where its namespace is, or has a higher priority than is noted."""
        problems = [
            f"{entry} is in the deferred queue {name}"
            for name, entries in self.queues.items()
            for entry in entries
            if name != self._priority_of.get(entry.namespace, entry.namespace)
            or (isinstance(name, int) and name != entry.priority)
        ]
        problems += [
            f"{entry} has a higher priority than any that is deferred"
            for entry in self
            if entry.priority > self.priority_max
        ]
        problems += [
            f"the first entry of {namespace} does not stand for it"
            for namespace, entries in self._mixed.items()
            if entries.first() not in self._sharing[namespace]
        ]
        sharing = [entry for members in self._sharing.values() for entry in members]
        shared = [
            entry for name, entries in self.queues.items() if isinstance(name, int) for entry in entries
        ]
        newest = [entry for entries in self._newest.values() for entry in entries]
        if not len(sharing) == len(shared) == len(newest) or not set(sharing) == set(shared) == set(newest):
            problems.append(
                "the entries that share queues are not those of their namespaces, or not the newest"
            )
        return problems

"""The order of bind requests: first attempts before retries, in turn over namespaces, with a bounded share for failures.

    put ──► first attempts ──take──► active ──finish──► answered
                                       ├──schedule_retry──► waiting ──release_due──► due ──take──► active
                                       ├── FAILING_AFTER failures in a row: the namespace is failing until one answer
                                       └── longer than SLOW_AFTER_S: the namespace is slow until one prompt answer

A namespace may have as many requests as there are workers once a bind was answered promptly, in the last minutes, and one
before: nothing tells it from one that hangs, and dozens of those leave room for a new one. Retries, and all binds of a failing
or slow namespace, are throttled: a quarter for one namespace, half for all. Every RETRY_TURN-th choice prefers them, so that a
stream of first attempts does not starve them.

A request that takes long leaves its place to others, so that any number of namespaces can begin to hang at once. All that are not
trusted (without a prompt answer, or slow or failing lately) together have `workers` requests, those that hang included. Trusted
ones have as many beside what hangs, and `spare` more, SPARE_SHARE each, until it leaves its place. While more hangs than may be
throttled, each namespace that is known has a twelfth of the workers.

A failing namespace rests after each request, so that thousands of its pods cost the API server one request a second. One
answer ends that. It, or a slow one, is known for a while also without binds (`kube.write.recent_namespaces`): a tenant can delete
its pods and create them again.

Each operation is constant in the number of binds, except for the heap of waiting retries. A choice skips only namespaces
that use their whole share, of which there are few: those that are trusted and the others have a ring each.
"""

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from policysched.kube.client.api import ApiStatusError
from policysched.kube.client.backoff import Backoff
from policysched.kube.write.recent_namespaces import SLOW_FOR_S, RecentNamespaces
from policysched.model.identifiers import PodUid
from policysched.scheduler.commands import Bind

FAILING_AFTER = 3
"""After this many requests in a row without an answer, a namespace is failing."""

RETRY_TURN = 8

REST_STEP_S, REST_MAX_S = 0.1, 1.0
"""A failing namespace sends its next request after a rest, which grows by a step with each failure in a row."""

SLOW_AFTER_S = 0.5
"""A request that takes longer makes its namespace slow."""

PROMPT_FOR_S = 600.0
"""How long a namespace is known to have been prompt, since a prompt answer."""

SPARE_SHARE = 2
"""Binds that a namespace may have active to get a spare place, with it."""

REPORT_AFTER_S = 2.0
"""When a namespace has failed for so long, all its binds are reported: with rests, most would fail themselves much later."""


@dataclass(slots=True, eq=False)
class PendingBind:
    """A bind without an outcome, and what its requests have shown."""

    bind: Bind
    backoff: Backoff | None = None
    began_s: float | None = None
    failures: int = 0
    unknown_until_s: float | None = None
    """Until then an earlier request may still be carried out."""
    rejection: ApiStatusError | None = None
    """Why the pod is read instead of bound."""
    queue: "_NamespaceQueue | None" = None
    throttled: bool = False
    untrusted: bool = False
    """It counts among those of namespaces that are not trusted. So does each throttled one."""
    is_delayed: bool = False
    is_reported: bool = False
    is_waiting: bool = False
    """For its next request to be due."""
    is_gone: bool = False
    """Its pod is: no further request is sent."""
    is_current: Callable[[], bool] | None = None
    """Asked before the first request leaves: whether the decision still holds. None: it always does."""


_Line = OrderedDict[PendingBind, None]
_Ring = OrderedDict["_NamespaceQueue", int]
"""Namespaces, and when their turns came."""


@dataclass(slots=True, eq=False)
class _NamespaceQueue:
    name: str
    first: _Line = field(default_factory=OrderedDict)
    due: _Line = field(default_factory=OrderedDict)
    waiting: int = 0
    active: int = 0
    throttled_active: int = 0
    failures: int = 0
    slow: bool = False
    in_throttled_ring: bool = False
    is_retry_turn: bool = False
    rests_until_s: float | None = None
    failing_since_s: float = 0.0
    reason: str | None = None
    """Why it fails, once that is reported."""

    @property
    def failing(self) -> bool:
        return self.failures >= FAILING_AFTER

    @property
    def set_aside(self) -> bool:
        """Whether its binds are throttled, and nobody waits for them."""
        return self.failing or self.slow

    @property
    def has_binds(self) -> bool:
        return bool(self.active or self.first or self.waiting or self.due)

    @property
    def rest_s(self) -> float:
        return min(REST_MAX_S, REST_STEP_S * (self.failures - FAILING_AFTER + 1))

    def take_throttled(self) -> PendingBind | None:
        """A first attempt of a namespace that is set aside and a retry in turn."""
        first = self.first if self.set_aside else None
        self.is_retry_turn = not self.is_retry_turn
        if first and (self.is_retry_turn or not self.due):
            return first.popitem(last=False)[0]
        return self.due.popitem(last=False)[0] if self.due else None


class BindQueue:
    """Binds without an outcome. `take` and `finish` bracket each request."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.share = max(1, workers // 4)
        self.spare = self.share
        self.requests_max = 2 * workers
        self.unknown_share = 1
        self._throttled_max = max(1, workers // 2)
        self._namespaces: dict[str, _NamespaceQueue] = {}
        self._by_uid: dict[PodUid, PendingBind] = {}
        # Those with first attempts that are not set aside.
        self._trusted_ring: _Ring = OrderedDict()
        self._untrusted_ring: _Ring = OrderedDict()
        self._throttled_ring: deque[_NamespaceQueue] = deque()
        self._waiting: list[tuple[float, int, PendingBind]] = []
        self._resting: list[tuple[float, int, _NamespaceQueue]] = []
        self._slow_lately = RecentNamespaces[str](SLOW_FOR_S)
        self._prompt_lately = RecentNamespaces[str](PROMPT_FOR_S)
        self._sequence = 0
        self._choices = 0
        self._active = 0
        self._throttled_active = 0
        self._untrusted_active = 0
        self._size = 0
        self._queued = 0

    def __len__(self) -> int:
        """Binds without an outcome."""
        return self._size

    @property
    def queued(self) -> int:
        """First attempts that wait for a worker, outside namespaces that are set aside."""
        return self._queued

    @property
    def retrying(self) -> int:
        """Binds that wait to be retried."""
        return len(self._waiting) + sum(len(namespace.due) for namespace in self._namespaces.values())

    @property
    def failing_namespaces(self) -> int:
        return sum(namespace.failing and namespace.has_binds for namespace in self._namespaces.values())

    @property
    def next_due_s(self) -> float | None:
        return min((heap[0][0] for heap in (self._waiting, self._resting) if heap), default=None)

    def put(self, pending: PendingBind) -> bool:
        """Append a first attempt. False: its namespace is set aside."""
        name = pending.bind.namespace
        namespace = self._namespaces.get(name)
        if namespace is None:
            namespace = self._namespaces[name] = _NamespaceQueue(name)
        self._size += 1
        pending.queue = namespace
        self._by_uid[pending.bind.uid] = pending
        namespace.first[pending] = None
        if namespace.set_aside:
            self._join_throttled(namespace)
            return False
        self._queued += 1
        self._join_first(namespace)
        return True

    def take(self, now_s: float) -> PendingBind | None:
        """The next bind to send, or None if nothing may be sent now."""
        self._forget(now_s)
        self._choices += 1
        if self._choices % RETRY_TURN == 0:
            return self._take_throttled(now_s) or self._take_first()
        return self._take_first() or self._take_throttled(now_s)

    def finish(self, pending: PendingBind, now_s: float, *, answered: bool, prompt: bool = True) -> bool:
        """The request ended. True: its namespace may use more or fewer workers now."""
        namespace = pending.queue
        assert namespace is not None, f"{pending.bind} was never put"
        was_calm, was_known = self._is_calm, namespace.name in self._prompt_lately
        namespace.active -= 1
        self._active -= 1
        self._untrusted_active -= pending.untrusted
        if pending.throttled:
            namespace.throttled_active -= 1
            self._throttled_active -= 1
        if answered and prompt:
            self._prompt_lately.note(namespace.name, now_s)
        is_first_answer = answered and prompt and not was_known
        has_more = is_first_answer or self._is_calm != was_calm
        if answered and not (namespace.failures or namespace.slow):
            if is_first_answer:
                self._join_first(namespace)
            return has_more
        was_failing, was_aside = namespace.failing, namespace.set_aside
        namespace.failures = 0 if answered else namespace.failures + 1
        self._slow_lately.note(namespace.name, now_s)
        namespace.slow = namespace.slow and not (answered and prompt)
        if was_failing and not namespace.failing:
            namespace.reason = None
            self._end_rest(namespace)
        elif namespace.failing and not was_failing:
            namespace.failing_since_s = now_s
        self._join_first(namespace)
        return self._note_aside(namespace, was_aside=was_aside) or has_more

    def note_slow(self, pending: PendingBind, now_s: float) -> bool:
        """Its request takes long, and leaves its place. True: its namespace is set aside now."""
        namespace = pending.queue
        assert namespace is not None, f"{pending.bind} was never put"
        if not pending.throttled:
            self._throttle(pending, namespace)
        was_aside = namespace.set_aside
        namespace.slow = True
        self._slow_lately.note(namespace.name, now_s)
        return self._note_aside(namespace, was_aside=was_aside)

    def _throttle(self, pending: PendingBind, namespace: _NamespaceQueue) -> None:
        self._untrusted_active += not pending.untrusted
        pending.throttled = pending.untrusted = True
        namespace.throttled_active += 1
        self._throttled_active += 1

    def _note_aside(self, namespace: _NamespaceQueue, *, was_aside: bool) -> bool:
        if namespace.set_aside == was_aside:
            return False
        self._join_first(namespace)
        if namespace.first:
            self._queued += len(namespace.first) if was_aside else -len(namespace.first)
            if not was_aside:
                self._join_throttled(namespace)
        return True

    def remove(self, pending: PendingBind) -> None:
        """The bind has its outcome."""
        self._size -= 1
        del self._by_uid[pending.bind.uid]
        namespace = pending.queue
        assert namespace is not None, f"{pending.bind} was never put"
        if not namespace.has_binds and namespace.name not in self._slow_lately:
            del self._namespaces[namespace.name]

    def _forget(self, now_s: float) -> None:
        for name in self._slow_lately.expire(now_s) + self._prompt_lately.expire(now_s):
            namespace = self._namespaces.get(name)
            if namespace is None:
                continue
            if namespace.has_binds:
                self._join_first(namespace)  # in the other ring
            elif name not in self._slow_lately:
                del self._namespaces[name]

    def cancel(self, uid: PodUid) -> bool:
        """No worker takes this first attempt any more. False: one has taken it, or there is none."""
        pending = self._by_uid.get(uid)
        namespace = None if pending is None else pending.queue
        if pending is None or namespace is None or pending not in namespace.first:
            return False
        del namespace.first[pending]
        self._queued -= not namespace.set_aside
        self._join_first(namespace)
        self.remove(pending)
        return True

    def abandon(self, uid: PodUid) -> PendingBind | None:
        """The pod is gone, so its bind has its outcome. None: it is being sent, or there is none."""
        pending = self._by_uid.get(uid)
        if pending is None:
            return None
        pending.is_gone = True
        namespace = pending.queue
        assert namespace is not None, f"{pending.bind} was never put"
        if pending.is_waiting:
            namespace.waiting -= 1  # `release_due` passes over it
        elif pending in namespace.due:
            del namespace.due[pending]
        else:
            return pending if self.cancel(uid) else None
        self.remove(pending)
        return pending

    def schedule_retry(self, pending: PendingBind, due_s: float) -> None:
        self._sequence += 1
        pending.is_waiting = True
        self._namespaces[pending.bind.namespace].waiting += 1
        heapq.heappush(self._waiting, (due_s, self._sequence, pending))

    def release_due(self, now_s: float) -> int:
        """Make the retries that are due, and namespaces that have rested, available to `take`. Returns how many."""
        released = 0
        while self._resting and self._resting[0][0] <= now_s:
            until_s, _, namespace = heapq.heappop(self._resting)
            if namespace.rests_until_s == until_s:
                self._end_rest(namespace)
                released += 1
        while self._waiting and self._waiting[0][0] <= now_s:
            pending = heapq.heappop(self._waiting)[2]
            if pending.is_gone:
                continue
            pending.is_waiting = False
            namespace = self._namespaces[pending.bind.namespace]
            namespace.waiting -= 1
            namespace.due[pending] = None
            self._join_throttled(namespace)
            released += 1
        return released

    def first_attempts(self, namespace: str) -> tuple[PendingBind, ...]:
        """First attempts of the namespace that wait for a worker."""
        return tuple(self._namespaces[namespace].first) if namespace in self._namespaces else ()

    def to_report(self, namespace: str, reason: str, now_s: float) -> list[PendingBind]:
        """The binds that wait in a namespace that has failed for `REPORT_AFTER_S`, the first time, and none later."""
        queue = self._namespaces[namespace]
        if queue.reason is not None or not queue.failing or now_s - queue.failing_since_s < REPORT_AFTER_S:
            return []
        queue.reason = reason
        waiting = (each for _, _, each in self._waiting if each.queue is queue and not each.is_gone)
        return [*queue.first, *queue.due, *waiting]

    def reported_reason(self, namespace: str) -> str | None:
        """Why the namespace fails, after `to_report`."""
        return self._namespaces[namespace].reason

    def is_set_aside(self, namespace: str) -> bool:
        return namespace in self._namespaces and self._namespaces[namespace].set_aside

    def is_failing(self, namespace: str) -> bool:
        return namespace in self._namespaces and self._namespaces[namespace].failing

    @property
    def _is_calm(self) -> bool:
        """No more requests hang than may be throttled."""
        return self._throttled_active <= self._throttled_max

    def _join_first(self, namespace: _NamespaceQueue) -> None:
        """In the ring where it belongs, or in none."""
        ring, other = self._trusted_ring, self._untrusted_ring
        if namespace.name not in self._prompt_lately or namespace.name in self._slow_lately:
            ring, other = other, ring
        other.pop(namespace, None)
        if not namespace.first or namespace.set_aside:
            ring.pop(namespace, None)
        elif namespace not in ring:
            self._sequence += 1
            ring[namespace] = self._sequence

    def _join_throttled(self, namespace: _NamespaceQueue) -> None:
        if not namespace.in_throttled_ring and namespace.rests_until_s is None:
            namespace.in_throttled_ring = True
            self._throttled_ring.append(namespace)

    def _rest(self, namespace: _NamespaceQueue, now_s: float) -> None:
        self._sequence += 1
        namespace.in_throttled_ring = False
        namespace.rests_until_s = now_s + namespace.rest_s
        heapq.heappush(self._resting, (namespace.rests_until_s, self._sequence, namespace))

    def _end_rest(self, namespace: _NamespaceQueue) -> None:
        namespace.rests_until_s = None
        if namespace.first or namespace.due:
            self._join_throttled(namespace)

    def _take_first(self) -> PendingBind | None:
        placed, rings = self._active - self._throttled_active, list[_Ring]()
        if placed < self.workers + self.spare:
            rings.append(self._trusted_ring)
        if placed < self.workers and self._untrusted_active < self.workers:
            rings.append(self._untrusted_ring)
        found = list[tuple[int, _NamespaceQueue, _Ring]]()
        for ring in rings:
            for namespace, turn in ring.items():
                if namespace.active < self._active_max(namespace, placed):
                    found.append((turn, namespace, ring))
                    break
        if not found:
            return None
        _, namespace, ring = min(found)  # no two have the same turn
        pending = namespace.first.popitem(last=False)[0]
        del ring[namespace]
        if namespace.first:
            self._sequence += 1
            ring[namespace] = self._sequence
        self._queued -= 1
        pending.throttled, pending.untrusted = False, ring is self._untrusted_ring
        namespace.active += 1
        self._active += 1
        self._untrusted_active += pending.untrusted
        return pending

    def _active_max(self, namespace: _NamespaceQueue, placed: int) -> int:
        if placed >= self.workers:
            return SPARE_SHARE
        known_max = self.workers if self._is_calm else max(1, self.workers // 12)
        return known_max if namespace.name in self._prompt_lately else self.unknown_share

    def _take_throttled(self, now_s: float) -> PendingBind | None:
        if self._throttled_active >= self._throttled_max or self._untrusted_active >= self.workers:
            return None
        ring = self._throttled_ring
        for _ in range(len(ring)):
            namespace = ring.popleft()
            if namespace.throttled_active >= self.share:
                ring.append(namespace)
                continue
            pending = namespace.take_throttled()
            if pending is None:
                namespace.in_throttled_ring = False
                continue
            if namespace.failing:
                self._rest(namespace, now_s)
            else:
                ring.append(namespace)
            pending.untrusted = False
            self._throttle(pending, namespace)
            namespace.active += 1
            self._active += 1
            return pending
        return None

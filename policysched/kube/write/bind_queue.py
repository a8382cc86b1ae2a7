"""The order of bind requests: first attempts before retries, in turn over namespaces, with a bounded share for failures.

    put ──► first attempts ──take──► active ──finish──► answered
                                       ├──schedule_retry──► waiting ──release_due──► due ──take──► active
                                       ├── FAILING_AFTER failures in a row: the namespace is failing until one answer
                                       └── longer than SLOW_AFTER_S: the namespace is slow until one prompt answer

One namespace may use every worker once a bind was answered promptly, and a twelfth of them before: nothing tells it from one
that hangs. Retries, and all binds of a failing or slow namespace, are throttled: a quarter of the workers for one namespace,
half of them for all. Beyond `workers` requests, only namespaces without a failure or a slow request lately get another
one, SPARE_SHARE each, from `spare` more workers: what is prompt now and then takes the others for itself, not these. Every
RETRY_TURN-th choice prefers throttled binds, so that a stream of first attempts does not starve them.

A failing namespace rests after each request, so that thousands of its pods cost the API server one request a second. One
answer ends that. It, or a slow one, is known for a while also without binds (`kube.write.recent_namespaces`): a tenant can delete
its pods and create them again.

Each operation is constant in the number of binds, except for the heap of waiting retries. A choice skips only namespaces
that use their whole share, of which there are few.
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

SPARE_SHARE = 2
"""Binds that a namespace may have active to get a spare worker, with it."""

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
    is_delayed: bool = False
    is_reported: bool = False
    is_waiting: bool = False
    """For its next request to be due."""
    is_gone: bool = False
    """Its pod is: no further request is sent."""
    is_current: Callable[[], bool] | None = None
    """Asked before the first request leaves: whether the decision still holds. None: it always does."""


_Line = OrderedDict[PendingBind, None]


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
    is_known: bool = False
    """One of its binds was answered promptly, since it has binds."""
    in_first_ring: bool = False
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
        self.unknown_share = max(1, workers // 12)
        self._throttled_max = max(1, workers // 2)
        self._namespaces: dict[str, _NamespaceQueue] = {}
        self._by_uid: dict[PodUid, PendingBind] = {}
        self._first_ring: deque[_NamespaceQueue] = deque()
        self._throttled_ring: deque[_NamespaceQueue] = deque()
        self._waiting: list[tuple[float, int, PendingBind]] = []
        self._resting: list[tuple[float, int, _NamespaceQueue]] = []
        self._slow_lately = RecentNamespaces[str](SLOW_FOR_S)
        self._sequence = 0
        self._choices = 0
        self._active = 0
        self._throttled_active = 0
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
        self._forget(now_s)  # not its own, which has this bind yet
        namespace.active -= 1
        self._active -= 1
        if pending.throttled:
            namespace.throttled_active -= 1
            self._throttled_active -= 1
        is_first_answer = answered and prompt and not namespace.is_known
        namespace.is_known = namespace.is_known or is_first_answer
        if answered and not (namespace.failures or namespace.slow):
            return is_first_answer
        was_failing, was_aside = namespace.failing, namespace.set_aside
        namespace.failures = 0 if answered else namespace.failures + 1
        self._slow_lately.note(namespace.name, now_s)
        namespace.slow = namespace.slow and not (answered and prompt)
        if was_failing and not namespace.failing:
            namespace.reason = None
            self._end_rest(namespace)
        elif namespace.failing and not was_failing:
            namespace.failing_since_s = now_s
        return self._note_aside(namespace, was_aside=was_aside) or is_first_answer

    def note_slow(self, pending: PendingBind, now_s: float) -> bool:
        """Its request takes long. True: its namespace is set aside now."""
        namespace = pending.queue
        assert namespace is not None, f"{pending.bind} was never put"
        if not pending.throttled:
            pending.throttled = True
            namespace.throttled_active += 1
            self._throttled_active += 1
        was_aside = namespace.set_aside
        namespace.slow = True
        self._slow_lately.note(namespace.name, now_s)
        return self._note_aside(namespace, was_aside=was_aside)

    def _note_aside(self, namespace: _NamespaceQueue, *, was_aside: bool) -> bool:
        if namespace.set_aside == was_aside:
            return False
        if namespace.first:
            self._queued += len(namespace.first) if was_aside else -len(namespace.first)
            if was_aside:
                self._join_first(namespace)
            else:
                self._join_throttled(namespace)
        return True

    def remove(self, pending: PendingBind) -> None:
        """The bind has its outcome."""
        self._size -= 1
        del self._by_uid[pending.bind.uid]
        namespace = pending.queue
        assert namespace is not None, f"{pending.bind} was never put"
        if namespace.has_binds:
            return
        namespace.is_known = False
        if namespace.name not in self._slow_lately:
            del self._namespaces[namespace.name]

    def _forget(self, now_s: float) -> None:
        for name in self._slow_lately.expire(now_s):
            namespace = self._namespaces.get(name)
            if namespace is not None and not namespace.has_binds:
                del self._namespaces[name]

    def cancel(self, uid: PodUid) -> bool:
        """No worker takes this first attempt any more. False: one has taken it, or there is none."""
        pending = self._by_uid.get(uid)
        namespace = None if pending is None else pending.queue
        if pending is None or namespace is None or pending not in namespace.first:
            return False
        del namespace.first[pending]
        self._queued -= not namespace.set_aside
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

    def _join_first(self, namespace: _NamespaceQueue) -> None:
        if not namespace.in_first_ring:
            namespace.in_first_ring = True
            self._first_ring.append(namespace)

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
        ring = self._first_ring
        only_spare = self._active >= self.workers
        for _ in range(len(ring)):
            namespace = ring.popleft()
            if not namespace.first or namespace.set_aside:
                namespace.in_first_ring = False
                continue
            if only_spare:
                active_max = 0 if namespace.name in self._slow_lately else SPARE_SHARE
            else:
                active_max = self.workers if namespace.is_known else self.unknown_share
            if namespace.active >= active_max:
                ring.append(namespace)
                continue
            pending = namespace.first.popitem(last=False)[0]
            if namespace.first:
                ring.append(namespace)
            else:
                namespace.in_first_ring = False
            self._queued -= 1
            pending.throttled = False
            namespace.active += 1
            self._active += 1
            return pending
        return None

    def _take_throttled(self, now_s: float) -> PendingBind | None:
        if self._throttled_active >= self._throttled_max or self._active >= self.workers:
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
            pending.throttled = True
            namespace.active += 1
            namespace.throttled_active += 1
            self._active += 1
            self._throttled_active += 1
            return pending
        return None

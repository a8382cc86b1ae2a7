"""The order of bind requests: namespaces share the time of the places, with a bounded share for those that fail or hang.

    put ──► first attempts ──take──► active ──finish──► answered
                                       ├──schedule_retry──► waiting ──release_due──► due ──take──► active
                                       ├── FAILING_AFTER failures in a row: the namespace is failing until one answer
                                       └── longer than SLOW_AFTER_S: the namespace is slow until one prompt answer

A namespace may have as many requests as there are workers once a bind was answered promptly, in the last minutes, a quarter if
another was slow or failed in the last one, and one before: nothing tells it from one that hangs. All binds of a failing or slow
namespace are throttled. Every RETRY_TURN-th choice prefers them, so that a stream of others does not starve them. A request
that takes long leaves its place, and is given up when others need it (`kube.write.bind_places`), so that any number of
namespaces can begin to hang at once. While more of those hang that were trusted than may be throttled, each namespace has a
twelfth of the workers.

Of the namespaces with a prompt answer, those whose binds take longer have fewer turns (`kube.write.bind_turns`), so what was seen
of them is kept as long. New namespaces have their turns from both ends, the oldest and the newest, since a thousand that hang can be on one side. So
have the first attempts of a namespace that is slow or failing.

A failing namespace rests after each request, so that thousands of its pods cost the API server one request a second. One
answer ends that. It, or a slow one, is known for a while also without binds (`kube.write.recent_keys`): a tenant can delete
its pods and create them again.

Each operation is constant in the number of binds, except for the heap of waiting retries. A choice skips only namespaces
that use their whole share, of which there are few: each standing has its own turns.
"""

import heapq
from collections import deque
from collections.abc import Callable

from policysched.kube.write.bind_places import BindPlaces
from policysched.kube.write.bind_turns import BindTurns
from policysched.kube.write.namespace_turns import SLOW_FOR_S
from policysched.kube.write.pending_binds import NamespaceBinds, PendingBind, Standing
from policysched.kube.write.recent_keys import RecentKeys
from policysched.model.identifiers import PodUid

RETRY_TURN = 8

PROMPT_FOR_S = 600.0
"""How long a namespace is known to have been prompt, since a prompt answer."""

REPORT_AFTER_S = 2.0
"""When a namespace has failed for so long, all its binds are reported: with rests, most would fail themselves much later."""


STANDINGS = tuple(Standing)


class BindQueue:
    """Binds without an outcome. `take` and `finish` bracket each request."""

    def __init__(self, workers: int) -> None:
        self.places = BindPlaces(workers)
        self._namespaces: dict[str, NamespaceBinds] = {}
        self._by_uid: dict[PodUid, PendingBind] = {}
        # Those with binds to send that are not set aside.
        self._turns_of = tuple(BindTurns(by_time=each is not Standing.UNKNOWN) for each in STANDINGS)
        self._throttled_ring: deque[NamespaceBinds] = deque()
        self._waiting: list[tuple[float, int, PendingBind]] = []
        self._resting: list[tuple[float, int, NamespaceBinds]] = []
        self._slow_lately = RecentKeys[str](SLOW_FOR_S)
        self._prompt_lately = RecentKeys[str](PROMPT_FOR_S)
        self._sequence = 0
        self._choices = 0
        self._turns = 0
        self._is_newest_turn = False
        self._size = 0
        self._queued = 0

    def __len__(self) -> int:
        """Binds without an outcome."""
        return self._size

    def count(self, admits: Callable[[str], bool]) -> int:
        """Binds without an outcome in these namespaces."""
        return sum(each.size for each in self._namespaces.values() if each.size and admits(each.name))

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
            namespace = self._namespaces[name] = NamespaceBinds(name)
        self._size += 1
        pending.queue = namespace
        self._by_uid[pending.bind.uid] = pending
        namespace.first[pending] = None
        self._update_turn(namespace)
        self._queued += not namespace.set_aside
        return not namespace.set_aside

    def take(self, now_s: float) -> PendingBind | None:
        """The next bind to send, or None if nothing may be sent now."""
        self._forget(now_s)
        self._choices += 1
        if self._choices % RETRY_TURN == 0:
            return self._take_throttled(now_s) or self._take_first(now_s)
        return self._take_first(now_s) or self._take_throttled(now_s)

    def finish(self, pending: PendingBind, now_s: float, *, answered: bool, prompt: bool = True) -> bool:
        """The request ended. True: its namespace may use more or fewer workers now."""
        namespace = pending.queue
        assert namespace is not None, f"{pending.bind} was never put"
        was_calm, was_known = self.places.is_calm, namespace.name in self._prompt_lately
        if not pending.throttled:
            self._settle(pending, namespace, now_s)
        self.places.give_back(pending, namespace)
        if answered and prompt:
            self._prompt_lately.note(namespace.name, now_s)
        is_first_answer = answered and prompt and not was_known
        has_more = is_first_answer or self.places.is_calm != was_calm
        if answered and not (namespace.failures or namespace.slow):
            if is_first_answer:
                self._update_turn(namespace)
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
        self._update_turn(namespace)
        return self._note_aside(namespace, was_aside=was_aside) or has_more

    def note_slow(self, pending: PendingBind, now_s: float) -> bool:
        """Its request takes long, and leaves its place. True: its namespace is set aside now."""
        namespace = pending.queue
        assert namespace is not None, f"{pending.bind} was never put"
        if not pending.throttled:
            self._settle(pending, namespace, now_s)
        self.places.note_hanging(pending, namespace)
        was_aside = namespace.set_aside
        namespace.slow = True
        self._slow_lately.note(namespace.name, now_s)
        return self._note_aside(namespace, was_aside=was_aside)

    def _note_aside(self, namespace: NamespaceBinds, *, was_aside: bool) -> bool:
        if namespace.set_aside == was_aside:
            return False
        self._update_turn(namespace)
        self._queued += len(namespace.first) if was_aside else -len(namespace.first)
        return True

    def remove(self, pending: PendingBind) -> None:
        """The bind has its outcome."""
        self._size -= 1
        del self._by_uid[pending.bind.uid]
        namespace = pending.queue
        assert namespace is not None, f"{pending.bind} was never put"
        self._forget_unused(namespace)

    def _forget_unused(self, namespace: NamespaceBinds) -> None:
        name = namespace.name
        if not (namespace.has_binds or name in self._slow_lately or name in self._prompt_lately):
            del self._namespaces[name]

    def _forget(self, now_s: float) -> None:
        for name in self._slow_lately.expire(now_s) + self._prompt_lately.expire(now_s):
            namespace = self._namespaces.get(name)
            if namespace is None:
                continue
            if namespace.has_binds:
                self._update_turn(namespace)  # of another standing
            else:
                self._forget_unused(namespace)

    def cancel(self, uid: PodUid) -> bool:
        """No worker takes this first attempt any more. False: one has taken it, or there is none."""
        pending = self._by_uid.get(uid)
        namespace = None if pending is None else pending.queue
        if pending is None or namespace is None or pending not in namespace.first:
            return False
        del namespace.first[pending]
        self._queued -= not namespace.set_aside
        self._update_turn(namespace)
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
            self._update_turn(namespace)
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
            self._update_turn(namespace)
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

    def _standing(self, namespace: NamespaceBinds) -> Standing:
        if namespace.name not in self._prompt_lately:
            return Standing.UNKNOWN
        return Standing.DOUBTFUL if namespace.name in self._slow_lately else Standing.TRUSTED

    def _update_turn(self, namespace: NamespaceBinds) -> None:
        """Among the turns where it belongs, or among none."""
        has_more = bool(namespace.first or namespace.due)
        standing = self._standing(namespace) if has_more and not namespace.set_aside else None
        if namespace.standing is not standing:
            if namespace.standing is not None:
                self._turns_of[namespace.standing].leave(namespace)
            namespace.standing = standing
            if standing is not None:
                self._sequence += 1
                self._turns_of[standing].join(namespace, self._sequence)
        may_join = has_more and namespace.set_aside and namespace.rests_until_s is None
        if may_join and not namespace.in_throttled_ring:
            namespace.in_throttled_ring = True
            self._throttled_ring.append(namespace)

    def _settle(self, pending: PendingBind, namespace: NamespaceBinds, now_s: float) -> None:
        """Its request leaves its place."""
        namespace.settle(pending, now_s)
        if namespace.standing is not None:
            self._turns_of[namespace.standing].move(namespace)

    def _rest(self, namespace: NamespaceBinds, now_s: float) -> None:
        self._sequence += 1
        namespace.in_throttled_ring = False
        namespace.rests_until_s = now_s + namespace.rest_s
        heapq.heappush(self._resting, (namespace.rests_until_s, self._sequence, namespace))

    def _end_rest(self, namespace: NamespaceBinds) -> None:
        namespace.rests_until_s = None
        self._update_turn(namespace)

    def _may_begin(self, standing: Standing, *, newest: bool = False) -> NamespaceBinds | None:
        """Whose turn it is among those of this standing."""
        if not self.places.free_for(standing):
            return None
        share = self.places.share_of(standing)
        for namespace in self._turns_of[standing].in_order(newest=newest):
            if namespace.active < share:
                return namespace
        return None

    def surplus(self) -> PendingBind | None:
        """A request that hangs, to give up because another bind waits for it."""
        places = self.places
        return places.surplus() if places.has_surplus and any(map(self._may_begin, STANDINGS)) else None

    def _take_first(self, now_s: float) -> PendingBind | None:
        oldest, first_number, standing = dict[Standing, NamespaceBinds](), None, Standing.TRUSTED
        for each in STANDINGS:
            if not self._turns_of[each] or (candidate := self._may_begin(each)) is None:
                continue
            oldest[each] = candidate
            assert candidate.turn is not None, f"{candidate.name} has no turn"
            if first_number is None or candidate.turn[1] < first_number:
                standing, first_number = each, candidate.turn[1]
        if not oldest:
            return None
        namespace = oldest[standing]
        if standing is not Standing.TRUSTED:
            standing, namespace = self._turn_of_untrusted(oldest)
        pending = namespace.take()
        assert pending is not None, f"{namespace.name} has a turn without binds"
        turns = self._turns_of[standing]
        turns.begin(namespace)
        pending.sent_s = now_s
        namespace.charge(pending)
        if namespace.first or namespace.due:
            self._sequence += 1
            turns.join(namespace, self._sequence)
        else:
            namespace.standing = None
        self._queued -= pending.began_s is None
        self.places.give(pending, namespace, standing)
        return pending

    def _turn_of_untrusted(self, oldest: dict[Standing, NamespaceBinds]) -> tuple[Standing, NamespaceBinds]:
        """Doubtful and unknown ones in turn; of these in turn the oldest and the newest, as a thousand that hang can be before
        one that does not, or after it."""
        self._turns += 1
        if Standing.DOUBTFUL in oldest and (self._turns % 2 or Standing.UNKNOWN not in oldest):
            return Standing.DOUBTFUL, oldest[Standing.DOUBTFUL]
        self._is_newest_turn = not self._is_newest_turn
        newest = self._may_begin(Standing.UNKNOWN, newest=True) if self._is_newest_turn else None
        return Standing.UNKNOWN, newest or oldest[Standing.UNKNOWN]

    def _take_throttled(self, now_s: float) -> PendingBind | None:
        if not self.places.free_for_throttled:
            return None
        ring = self._throttled_ring
        for _ in range(len(ring)):
            namespace = ring.popleft()
            if not namespace.set_aside:
                namespace.in_throttled_ring = False
                continue
            if namespace.throttled_active >= self.places.share:
                ring.append(namespace)
                continue
            pending = namespace.take()
            if pending is None:
                namespace.in_throttled_ring = False
                continue
            if namespace.failing:
                self._rest(namespace, now_s)
            else:
                ring.append(namespace)
            self.places.give_throttled(pending, namespace)
            return pending
        return None

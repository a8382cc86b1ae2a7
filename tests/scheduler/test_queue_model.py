"""The scheduling queue beside a naive one, random histories of both: one flat list in which each event wakes all pods that it can
help at once. Groups are opened in slices of two here, so that a history has hundreds of them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from policysched.model.cluster_events import ClusterEvent
from policysched.scheduler.limits import SECOND_NS, SchedulerLimits
from policysched.scheduler.queue import (
    late_wake_ups,
    parked_entries,
    parked_groups,
    scheduling_queue,
    sliced_wake_ups,
)
from policysched.scheduler.queue.backoff import BackoffQueue
from policysched.scheduler.queue.entries import PendingPod, QueueEntry, QueueState
from policysched.scheduler.queue.late_wake_ups import LateWakeUps
from policysched.scheduler.queue.ordered_queue import FairShareQueue, OrderedQueue, SortKeyQueue
from policysched.scheduler.queue.parked_entries import ParkedEntries
from policysched.scheduler.queue.parked_groups import ParkedGroups
from policysched.scheduler.queue.scheduling_queue import SchedulingQueue
from policysched.scheduler.queue.sliced_wake_ups import SlicedWakeUps
from tests.builders import pending, pod

SLICE = 2
POLICIES, NAMESPACES, USERS = ("ranked", "shared"), ("x", "y", "z"), 3
ROOMS = {"node": ClusterEvent.NODE_ALLOCATABLE, "pod": ClusterEvent.ASSIGNED_POD_DELETE}
Key = tuple[str, str, str, int]


class Shares:
    """What each user uses, with the log that the queue reads. The policy `shared` puts pods of who uses least first."""

    def __init__(self) -> None:
        self.used = [0] * USERS
        self.changed: list[int] = []

    @property
    def version(self) -> int:
        return len(self.changed)

    def changed_since(self, version: int) -> list[int] | None:
        return self.changed[version:]

    def add(self, user: int, amount: int) -> None:
        self.used[user] += amount
        self.changed.append(user)


def user_of(entry: QueueEntry) -> int:
    return int(entry.representative_pod.name[1:]) % USERS


@dataclass
class Verdict:
    """Of a class: what it waits for."""

    events: frozenset[ClusterEvent]
    until_ns: int | None


@dataclass
class Naive:
    """Pods in one list; a class without a verdict is awake. `late`: woken by pods of others while its namespace was overdrawn."""

    pods: list[PendingPod] = field(default_factory=list)
    verdicts: dict[Key, Verdict] = field(default_factory=dict)
    late: set[Key] = field(default_factory=set)

    def wake(self, keys: list[Key]) -> None:
        for key in keys:
            self.verdicts.pop(key, None)

    def forget(self, key: Key) -> None:
        self.wake([key])
        self.late.discard(key)


class Model:
    """A cluster of two kinds of room, of which a pod of a class takes some. It makes the calls that attempts make."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.charges = random.random() < 0.5
        self.shares, self.naive = Shares(), Naive()
        self.rooms = dict.fromkeys(ROOMS, 0)
        limits = SchedulerLimits(backoff_initial_s=random.choice((0.001, 1.0, 4.0)))
        self.held: set[str] = set()
        self.queue = SchedulingQueue(limits, self.new_queue, self.held)
        self.now_ns, self.count = 1000 * SECOND_NS, 0
        self.placed: list[str] = []
        self.unparking: dict[str, Iterator[None]] = {}
        self.most, self.was_late = 0, False
        self.queue.advance(self.now_ns)

    def new_queue(self, policy: str) -> OrderedQueue:
        if policy == "ranked":
            return SortKeyQueue()
        return FairShareQueue([self.shares], lambda entry: (user_of(entry),), self.key)

    def key(self, entry: QueueEntry) -> tuple[Any, ...]:
        if entry.policy == "ranked":
            return entry.sort_key
        return entry.sort_key[0], self.shares.used[user_of(entry)], *entry.sort_key[1:]

    # ── what happens ───────────────────────────────────────────────────────────────────────────────────────────────

    def step(self) -> None:
        often = (self.add, self.add, self.attempt, self.attempt, self.attempt, self.slice, self.event)
        rare = (self.delete, self.update, self.reorder, self.wait, self.text, self.gate, self.error)
        self.random.choice(often if self.random.random() < 0.8 else rare)()
        self.check()

    def one(self, *states: QueueState) -> PendingPod | None:
        pods = [each for each in self.naive.pods if not states or each.state in states]
        return self.random.choice(pods) if pods and self.queue.yielded is None else None

    def add(self) -> None:
        if self.queue.yielded is not None:
            return  # the cluster does not change
        for _ in range(self.random.choice((1, 1, 12))):
            random, self.count = self.random, self.count + 1
            policy, namespace = random.choice(POLICIES), random.choice(NAMESPACES)
            value = pod(
                f"p{self.count}", namespace=namespace, scheduler=policy, priority=random.choice((0, 0, 9))
            )
            entry = PendingPod(pending(value), queued_ns=self.now_ns)
            self.naive.pods.append(entry)
            self.enqueue(entry)

    def enqueue(self, entry: PendingPod) -> None:
        self.renew(entry)
        self.queue.enqueue(entry, self.now_ns, "PodAdd")

    def renew(self, entry: PendingPod) -> None:
        random = self.random
        key = entry.policy, entry.namespace, random.choice([*ROOMS]), random.choice((1, 4, 9))
        entry.equivalence_key, entry.order_key = key, (random.randrange(20), entry.pod.name)

    def delete(self) -> None:
        if (entry := self.one()) is not None:
            self.bounded(lambda: self.queue.remove(entry, self.now_ns))
            self.naive.pods.remove(entry)

    def update(self) -> None:
        """The pod is another one, maybe of another class. If it awaits a text, that is not known yet."""
        if (entry := self.one()) is None or entry.state is QueueState.AWAITING_POLICY:
            return
        entry.in_error_backoff = False
        self.bounded(lambda: self.queue.remove(entry, self.now_ns))
        self.bounded(lambda: self.enqueue(entry))

    def reorder(self) -> None:
        if (entry := self.one(QueueState.ACTIVE, QueueState.BACKING_OFF, QueueState.UNSCHEDULABLE)) is None:
            return
        self.queue._parked.open_due(entry, self.now_ns)  # before its key changes, as `reorder` does
        entry.order_key = self.random.randrange(20), entry.pod.name
        self.bounded(lambda: self.queue.reorder(entry, self.now_ns))

    def gate(self) -> None:
        if (entry := self.one(QueueState.ACTIVE, QueueState.BACKING_OFF)) is not None:
            self.queue.remove(entry, self.now_ns)
            entry.in_error_backoff = False
            self.queue.gate(entry)

    def error(self) -> None:
        if (entry := self.one(QueueState.ACTIVE)) is not None:
            self.queue.remove(entry, self.now_ns)
            self.queue.apply_backoff(entry, self.now_ns)
            entry.in_error_backoff = True
            self.queue.enqueue(entry, self.now_ns, "ScheduleAttemptFailure")

    def event(self) -> None:
        """There is more room, or only an event that says so."""
        if self.queue.yielded is not None:
            return
        random = self.random
        room = random.choice([*ROOMS])
        cause, policy = random.choice((None, *NAMESPACES)), random.choice((None, None, None, *POLICIES))
        if policy is None:
            self.rooms[room] += random.choice((0, 3, 30))
        self.shares.add(random.randrange(USERS), random.choice((-20, 0, 20)))
        events = random.choice(([ROOMS[room]], [ROOMS[room]], [*ROOMS.values()]))
        self.note_wake_up({*events}, cause, policy)
        self.bounded(lambda: self.queue.requeue(events, self.now_ns, policy=policy, cause=cause))

    def note_wake_up(self, events: set[ClusterEvent], cause: str | None, policy: str | None) -> None:
        woken, time = [], self.queue.decision_time
        late_namespaces = {namespace for _, namespace, *_ in self.naive.late}
        for key, verdict in self.naive.verdicts.items():
            if not verdict.events & events or policy not in (None, key[0]):
                continue
            owes = bool(time.paid_ns(key[1])) or key[1] in late_namespaces
            if cause not in (None, key[1]) and owes:
                self.naive.late.add(key)
            else:
                woken.append(key)
        self.naive.wake(woken)

    def wait(self) -> None:
        if self.queue.yielded is None:
            self.pass_time(self.random.choice((0.001, 0.3, 2.0, 20.0)))

    def pass_time(self, seconds: float) -> None:
        self.now_ns += round(seconds * SECOND_NS)
        self.advance()

    def advance(self) -> None:
        self.bounded(lambda: self.queue.advance(self.now_ns))

    def text(self) -> None:
        """A slice of a new text of a policy, or it takes over."""
        if self.queue.yielded is not None:
            return
        policy = self.random.choice(POLICIES)
        if policy not in self.unparking:
            self.unparking[policy] = self.queue.unpark_in_steps(policy, self.now_ns)
            self.held.add(policy)
        if next(self.unparking[policy], 0) is None:
            return
        del self.unparking[policy]
        self.queue.drop_policy(policy)
        pods = [entry for entry in self.naive.pods if entry.policy == policy]
        for entry in pods:
            self.queue.remove(entry, self.now_ns)
            self.renew(entry)
            entry.backoff_until_ns, entry.in_error_backoff = 0, False
        self.queue.enqueue_many(policy, pods, "PolicyChange")
        for key in [*self.naive.verdicts, *self.naive.late]:
            if key[0] == policy:
                self.naive.forget(key)
        self.held.discard(policy)

    def slice(self) -> None:
        self.bounded(lambda: self.queue.open_slice(self.now_ns))

    # ── attempts ───────────────────────────────────────────────────────────────────────────────────────────────────

    def attempt(self) -> bool:
        self.advance()
        entry = self.bounded(self.queue.pop)
        if entry is None:
            return False
        assert isinstance(entry, PendingPod)
        assert entry in self.naive.pods and entry.policy not in self.held
        key, queue = self.key_of(entry), self.queue
        group = queue.blocked_group(key)
        if group is not None:
            assert key in self.naive.verdicts, f"{entry} joins a class that something has woken"
            self.bounded(lambda: queue.join_group(entry, group, self.now_ns))
            return True
        if not any(
            self.key_of(each) == key and each.state is QueueState.UNSCHEDULABLE for each in self.naive.pods
        ):
            self.naive.forget(key)  # the last one that had the verdict has left
        is_due = key in self.naive.late or key not in self.naive.verdicts or self.is_expired(key)
        assert is_due, f"{entry} is attempted before something wakes its class"
        self.naive.wake([key])
        entry.attempts += 1
        if not self.fits(entry):
            self.fail(entry)
            return True
        if self.bounded(lambda: queue.yield_to_earlier(entry, self.now_ns)):
            entry.attempts -= 1
            return True
        self.place(entry)
        return True

    def fail(self, entry: PendingPod) -> None:
        key = self.key_of(entry)
        if self.charges:
            self.queue.decision_time.charge_failed_attempt(entry.namespace, SECOND_NS // 20)
        self.queue.apply_backoff(entry, self.now_ns)
        events = frozenset({ROOMS[key[2]]})
        until_ns = self.random.choice((None, None, self.now_ns + SECOND_NS))
        self.naive.forget(key)
        self.naive.verdicts[key] = Verdict(events, until_ns)
        self.bounded(
            lambda: self.queue.park(
                entry,
                key,
                now_ns=self.now_ns,
                requeue_events=events,
                valid_until_ns=until_ns,
                reason="Unschedulable",
                message="no room",
            )
        )

    def place(self, entry: PendingPod) -> None:
        ahead = [each for each in self.naive.pods if self.has_precedence(each, entry)]
        assert not ahead, f"{entry} is placed, and {ahead} waits for the same"
        key = self.key_of(entry)
        self.rooms[key[2]] -= key[3]
        self.shares.add(user_of(entry), key[3])
        self.naive.pods.remove(entry)
        self.placed.append(entry.pod.name)
        entry.state = QueueState.BINDING
        self.bounded(lambda: self.queue.mark_placed(entry, self.now_ns))

    def has_precedence(self, other: PendingPod, entry: PendingPod) -> bool:
        """Whether the other one should have the room that is left."""
        is_waiting = other.state in (QueueState.GATED, QueueState.AWAITING_POLICY) or other.in_error_backoff
        if other is entry or other.policy != entry.policy or is_waiting or not self.fits(other):
            return False
        if self.key(other) >= self.key(entry):
            return False
        key = self.key_of(other)
        is_late = key in self.naive.late and key in self.naive.verdicts
        is_overdrawn = self.queue.decision_time.is_overdrawn(other.namespace)
        if not is_late and (not is_overdrawn or other.namespace == entry.namespace):
            return True
        return other.priority > entry.priority and self.is_first_of_namespace(other)

    def is_first_of_namespace(self, entry: PendingPod) -> bool:
        """Whether no other one of its namespace is ahead of it."""
        same = [
            each
            for each in self.naive.pods
            if (each.policy, each.namespace) == (entry.policy, entry.namespace)
        ]
        return all(self.key(each) >= self.key(entry) for each in same)

    def fits(self, entry: PendingPod) -> bool:
        _, _, room, size = self.key_of(entry)
        return self.rooms[room] >= size

    def is_expired(self, key: Key) -> bool:
        """It is woken at some time from now on: nothing says at which moment what it reads of the time changes."""
        until_ns = self.naive.verdicts[key].until_ns
        return until_ns is not None and until_ns <= self.now_ns

    def key_of(self, entry: PendingPod) -> Key:
        key: Any = entry.equivalence_key
        return key  # type: ignore[no-any-return]

    # ── what must hold ─────────────────────────────────────────────────────────────────────────────────────────────

    def bounded(self, call: Callable[[], Any]) -> Any:
        """The call sends no more pods back into the queue than a few slices have."""
        counts = self.queue.incoming_counts
        before = sum(counts.values())
        result = call()
        self.most = max(self.most, sum(counts.values()) - before)
        return result

    def check(self) -> None:
        queue = self.queue
        assert queue.check() == []
        for entry in self.naive.pods:
            if entry.state is QueueState.UNSCHEDULABLE:
                key = self.key_of(entry)
                group = queue.group_of(entry)
                assert group is not None
                is_woken = not group.blocked or group in queue._groups.sliced
                assert is_woken or key in self.naive.verdicts, f"the wake-up of {entry} is lost"
                if group in queue._groups.late:
                    self.was_late = True
                    assert key in self.naive.late, f"{entry} is woken late for no reason"

    def settle(self) -> None:
        """No more happens but time: whoever fits is placed."""
        while self.queue.yielded is not None:
            self.slice()
            self.attempt()
        while self.unparking:
            self.text()
        for _ in range(600):
            took_slice = self.queue.open_slice(self.now_ns)
            if self.attempt() or took_slice:
                self.check()
                continue
            next_ns = self.queue.next_time_ns()
            is_busy = self.queue._groups.late._events or any(
                each.state in (QueueState.ACTIVE, QueueState.BACKING_OFF) for each in self.naive.pods
            )
            if not is_busy:
                break
            self.pass_time(0.5 if next_ns is None else max(0.001, (next_ns - self.now_ns) / SECOND_NS))
            self.check()
        left = [entry for entry in self.naive.pods if entry.state is not QueueState.GATED]
        assert all(entry.state is QueueState.UNSCHEDULABLE for entry in left), left
        lost = [entry for entry in left if self.fits(entry)]
        assert not lost, f"nothing wakes {lost}"
        assert queue_is_idle(self.queue)
        kept = {self.key_of(entry) for entry in left}
        assert not [key for key in kept if self.is_expired(key)], "verdicts that expired are kept"


def queue_is_idle(queue: SchedulingQueue) -> bool:
    return queue.yielded is None and queue.next_slice_ns() is None and not queue.has_active


def run(seeds: range) -> list[Model]:
    models = []
    for seed in seeds:
        model = Model(seed)
        for _ in range(150):
            model.step()
        model.settle()
        models.append(model)
    return models


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (parked_entries, parked_groups, scheduling_queue, sliced_wake_ups):
        monkeypatch.setattr(module, "WAKE_UPS_PER_SLICE", SLICE)
    for module in (late_wake_ups, sliced_wake_ups):
        monkeypatch.setattr(module, "SORTED_PER_SLICE", 3)


def test_it_places_pods_as_if_each_event_woke_all_at_once() -> None:
    models = run(range(150))

    assert sum(len(model.placed) for model in models) > 1_000
    assert any(model.was_late for model in models)


def test_a_class_is_represented_by_the_member_that_is_first_after_its_representative_moved_back() -> None:
    assert run(range(429, 430))


def test_what_a_pod_waits_for_waits_for_those_of_higher_priority_ahead_of_it() -> None:
    """Although the pod itself does not wait for them, as their namespace is overdrawn."""
    assert run(range(108, 109))


def test_each_call_sends_a_few_slices_of_pods_back() -> None:
    """Also where hundreds back off, are late or are members of open groups, and a pod behind them fits."""
    models = run(range(150))

    assert max(model.most for model in models) <= 2 * SLICE + len(NAMESPACES)


# ── planted bugs ───────────────────────────────────────────────────────────────────────────────────────────────────


def loses_all_but_a_slice(self: SlicedWakeUps, wake_ups: Any, now_ns: int) -> None:
    ADD(self, list(wake_ups)[:SLICE], now_ns)
    for _, group in list(wake_ups)[SLICE:]:
        group.requeue_events = frozenset()


ADD = SlicedWakeUps.add
PLANTED: dict[str, tuple[object, str, object]] = {
    "a due class still has its verdict": (
        ParkedEntries,
        "blocked_group",
        lambda self, key: group if (group := self._groups.get(key)) is not None and group.blocked else None,
    ),
    "nobody waits for those that are due": (SlicedWakeUps, "before", lambda *_: None),
    "more than a slice is forgotten": (SlicedWakeUps, "add", loses_all_but_a_slice),
    "nobody waits for those that back off": (BackoffQueue, "pop_before", lambda *_: None),
    "nobody waits for those that are late": (LateWakeUps, "before", lambda *_: None),
    "nobody waits for members of open groups": (ParkedGroups, "first_before", lambda *_: None),
    "events of the own namespace wake late": (
        LateWakeUps,
        "delays",
        lambda self, event, group, _: DELAYS(self, event, group, "another"),
    ),
    "a representative that leaves is not replaced": (ParkedEntries, "return_representative", lambda *_: None),
}
DELAYS = LateWakeUps.delays


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*PLANTED[name])  # type: ignore[arg-type]

    with pytest.raises((AssertionError, KeyError)):
        run(range(150))

"""The bind queue and its places beside a model that counts each bind: random histories of all that can happen to one."""

from random import Random
from unittest.mock import patch

import pytest

from policysched.kube.write.bind_places import LEAVING_MAX, BindPlaces
from policysched.kube.write.bind_queue import BindQueue
from policysched.kube.write.bind_turns import BindTurns
from policysched.kube.write.pending_binds import SLOW_AFTER_S, NamespaceBinds, PendingBind, Standing
from policysched.model.identifiers import NodeName, PodUid
from policysched.scheduler.commands import Bind

WORKERS = 8


class Model:
    """Where each bind is: `queued`, `active` or `waiting`. It makes the calls that the binder makes."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.queue = BindQueue(WORKERS)
        self.queued = set[PendingBind]()
        self.active = set[PendingBind]()
        self.waiting = set[PendingBind]()
        self.retried = set[PendingBind]()
        self.hanging = set[PendingBind]()
        self.leaving = set[PendingBind]()
        self.put_count = self.ended = 0
        self.now_s = 0.0

    def step(self) -> None:
        moves = (self.put, self.put, self.take, self.take, self.take, self.end, self.slow, self.give_up)
        rare = (self.cancel, self.abandon, self.wait)
        self.random.choice(moves if self.random.random() < 0.85 else rare)()
        self.check()

    def one_of(self, binds: set[PendingBind]) -> PendingBind | None:
        return self.random.choice(sorted(binds, key=lambda each: each.bind.uid)) if binds else None

    def put(self) -> None:
        uid = PodUid(f"u{self.put_count:06}")
        self.put_count += 1
        namespace = f"n{int(self.random.random() ** 2 * 30)}"
        pending = PendingBind(Bind(uid, namespace, uid, NodeName("a"), "test", "0" * 64))
        is_prompt = self.queue.put(pending)
        assert is_prompt is not self.queue.is_set_aside(namespace)
        self.queued.add(pending)

    def take(self) -> bool:
        if len(self.active) == self.queue.places.requests_max:
            return False  # no worker is idle
        pending = self.queue.take(self.now_s)
        if pending is None:
            return False
        assert pending in self.queued, f"{pending.bind} is sent twice, or has its outcome"
        self.queued.remove(pending)
        self.active.add(pending)
        pending.began_s = self.now_s if pending.began_s is None else pending.began_s
        return True

    def end(self) -> None:
        """A request has an outcome, or is to be repeated."""
        pending = self.one_of(self.active)
        if pending is None:
            return
        prompt, kind = (
            pending not in self.hanging,
            self.random.choice(("outcome", "outcome", "fails", "read")),
        )
        if pending in self.leaving:
            kind = "fails"
        self.now_s += self.random.choice((0.0, 0.002, 0.09, 0.45))
        for each in (self.active, self.hanging, self.leaving):
            each.discard(pending)
        if kind == "outcome":
            self.queue.finish(pending, self.now_s, answered=True, prompt=prompt)
            self.queue.remove(pending)
            self.ended += 1
            return
        self.queue.schedule_retry(pending, self.now_s + self.random.choice((0.1, 1.0, 12.0)))
        self.queue.finish(pending, self.now_s, answered=kind == "read", prompt=prompt)
        self.queue.to_report(pending.bind.namespace, "fails", self.now_s)
        self.waiting.add(pending)
        self.retried.add(pending)
        if pending.is_gone:
            assert self.queue.abandon(pending.bind.uid) is pending
            self.waiting.discard(pending)
            self.ended += 1

    def slow(self) -> None:
        if (pending := self.one_of(self.active - self.hanging)) is not None:
            self.queue.note_slow(pending, self.now_s)
            self.hanging.add(pending)

    def give_up(self) -> None:
        if (pending := self.queue.surplus()) is not None:
            assert pending in self.hanging - self.leaving, (
                f"{pending.bind} does not hang, or is given up twice"
            )
            self.leaving.add(pending)

    def cancel(self) -> None:
        pending = self.one_of(self.queued | self.active | self.waiting)
        if pending is None:
            return
        is_first = pending in self.queued and pending not in self.retried
        assert self.queue.cancel(pending.bind.uid) is is_first
        if is_first:
            self.queued.discard(pending)
            self.ended += 1

    def abandon(self) -> None:
        pending = self.one_of(self.queued | self.active | self.waiting)
        if pending is None:
            return
        is_active = pending in self.active
        assert self.queue.abandon(pending.bind.uid) is (None if is_active else pending)
        if not is_active:
            self.queued.discard(pending)
            self.waiting.discard(pending)
            self.ended += 1

    def wait(self) -> None:
        self.now_s += self.random.choice((0.05, 0.5, 3.0, 70.0, 700.0))
        self.release()

    def release(self) -> None:
        self.queue.release_due(self.now_s)
        due = {pending for pending in self.waiting if not pending.is_waiting}
        self.waiting -= due
        self.queued |= due

    def check(self) -> None:
        queue, places = self.queue, self.queue.places
        assert len(queue) == len(self.queued) + len(self.active) + len(self.waiting)
        assert len(queue) + self.ended == self.put_count, "one outcome for each"
        placed = self.active - self.hanging - {each for each in self.active if each.throttled}
        counts = [sum(each.standing is standing for each in placed) for standing in Standing]
        assert places._placed == counts, f"{places._placed}, not {counts}"
        assert places._throttled == len(self.active) - len(placed)
        assert places._leaving == len(self.leaving) <= LEAVING_MAX
        assert set(places._surplus) <= self.hanging - self.leaving
        fallen = sum(each.throttled and each.standing is Standing.TRUSTED for each in self.active)
        assert places._fallen == fallen
        first = [each for each in self.queued if each not in self.retried]
        assert queue.queued == sum(not queue.is_set_aside(each.bind.namespace) for each in first)
        for name, namespace in queue._namespaces.items():
            self.check_namespace(name, namespace)
        for standing, turns in zip(Standing, queue._turns_of, strict=True):
            self.check_turns(standing, turns)

    def check_turns(self, standing: Standing, turns: BindTurns) -> None:
        """By charged time, and none owes more than one bind."""
        assert turns._turns == sorted(turns._turns, key=lambda turn: turn[:2])
        for turn in turns._turns:
            namespace = turn[2]
            assert turn is namespace.turn
            if standing is not Standing.UNKNOWN:
                assert turn[0] == namespace.charged_s + namespace.answer_s
                assert namespace.charged_s <= turns._reached_s + SLOW_AFTER_S

    def check_namespace(self, name: str, namespace: NamespaceBinds) -> None:
        queue = self.queue
        own = [each for each in self.active if each.bind.namespace == name]
        assert namespace.active == len(own)
        assert namespace.throttled_active == sum(each.throttled for each in own)
        assert namespace.waiting == sum(each.bind.namespace == name for each in self.waiting)
        has_more = any(each.bind.namespace == name for each in self.queued)
        assert has_more == bool(namespace.first or namespace.due)
        rings = [each for each in Standing if namespace in list(queue._turns_of[each].in_order())]
        assert rings == ([] if namespace.standing is None else [namespace.standing])
        if has_more and not namespace.set_aside:
            assert rings, f"{name} has no turn"
        if has_more and namespace.set_aside and namespace.rests_until_s is None:
            assert namespace in queue._throttled_ring, f"{name} has no turn"
        if namespace.rests_until_s is not None:
            assert any(namespace is each for _, _, each in queue._resting), f"{name} rests for ever"

    def drain(self) -> None:
        """All are answered now."""
        for _ in range(10_000):
            if not len(self.queue):
                break
            while self.take():
                pass
            for pending in sorted(self.active, key=lambda each: each.bind.uid):
                self.queue.finish(pending, self.now_s, answered=True, prompt=True)
                self.queue.remove(pending)
                self.ended += 1
            for each in (self.active, self.hanging, self.leaving):
                each.clear()
            self.check()
            self.now_s += 0.1
            self.release()
        assert len(self.queue) == 0, "a bind is never sent"
        places = self.queue.places
        assert (sum(places._placed), places._throttled, places._fallen, places._leaving) == (0, 0, 0, 0)
        self.now_s += 2_000.0
        self.queue.release_due(self.now_s)
        assert self.queue.take(self.now_s) is None
        assert not self.queue._namespaces, "all are forgotten"


def run(seeds: range) -> None:
    given_up = 0
    for seed in seeds:
        model = Model(seed)
        for _ in range(400):
            model.step()
            given_up += len(model.leaving)
        model.drain()
    assert given_up, "some requests are given up"


def test_each_bind_has_one_outcome_and_each_place_is_given_back() -> None:
    run(range(60))


def test_a_place_that_is_not_given_back_when_a_request_is_given_up_is_caught() -> None:
    """The planted bug: it counts as leaving for ever."""
    give_back = BindPlaces.give_back

    def forgets(places: BindPlaces, pending: PendingBind, namespace: NamespaceBinds) -> None:
        pending.is_leaving = False
        give_back(places, pending, namespace)

    with patch.object(BindPlaces, "give_back", forgets), pytest.raises(AssertionError):
        run(range(60))

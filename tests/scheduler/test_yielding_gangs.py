"""The attempt of a gang that has yielded to earlier entries, and of those that it yielded to: both pause, and nobody starves."""

import pytest

from policysched.model.pods import Pod
from policysched.scheduler import events as e
from policysched.scheduler.gangs.gang_attempt import GangAttempts
from policysched.scheduler.queue.entries import QueueState
from policysched.scheduler.queue.gang_registry import QueuedGang
from policysched.scheduler.queue.scheduling_queue import SchedulingQueue
from tests.builders import node, pod
from tests.scheduler.rig import Rig
from tests.scheduler.test_pauses import (
    ALONE,
    POLICIES,
    attempts_pause,
    decide_until_pause,
    gang,
    plain,
    rig,
)
from tests.simulation.order_checker import OrderChecker

BY_PRIORITY = {**POLICIES, "gangs.policy": ALONE + "queue by pod.priority desc, pod.created\n"}


def forget_waiting(self: SchedulingQueue, gang: QueuedGang) -> None:
    self.attempting, self.yielded = [gang], None


def impossible(name: str) -> list[Pod]:
    """A gang ahead of the others, which no pause decides, and no node takes."""
    return gang(1, name=name, cpu="64", priority=10)


def yielded(*more: Pod) -> tuple[Rig, QueuedGang]:
    """A gang of eight has its nodes, and yields to one that came ahead of it in a pause. Nothing of it is attempted again yet."""
    scheduler = rig(
        *[node(f"n{index}", cpu="4") for index in range(4)], *gang(8), *more, policies=BY_PRIORITY
    )
    decide_until_pause(scheduler)
    entry = attempts_pause(scheduler).gang
    scheduler.observe(*impossible("ahead"))
    while entry.state is QueueState.ATTEMPTING:
        scheduler.commands += scheduler.scheduler.decide(scheduler.now_ns)
    assert entry.state is QueueState.ACTIVE and not scheduler.placements()
    return scheduler, entry


def bound_in_pauses(scheduler: Rig, members: int = 8) -> int:
    """A pod of another policy is created in each pause. Returns how many are bound before a member."""
    for number in range(200):
        if scheduler.scheduler.attempt_paused:
            scheduler.observe(plain(f"p{number}", cpu="1m"))
        if not scheduler.scheduler.ready(scheduler.now_ns):
            break
        scheduler.commands += scheduler.scheduler.decide(scheduler.now_ns)
        scheduler.check_invariants()
    order = scheduler.bind_order()
    assert sum(name.startswith("g") for name in order) == members
    return next((index for index, name in enumerate(order) if name.startswith("g")), len(order))


def test_pods_are_bound_while_a_gang_that_has_yielded_is_attempted_again() -> None:
    """Before, none was until that attempt ended."""
    scheduler, _ = yielded()

    assert bound_in_pauses(scheduler) >= 4


def check_no_starvation() -> None:
    """In each pause an entry comes ahead of the gang, which it does not find room for."""
    scheduler = rig(*[node(f"n{index}", cpu="4") for index in range(2)], *gang(8), policies=BY_PRIORITY)
    problems: list[str] = []
    OrderChecker(scheduler.scheduler, problems.append)
    for number in range(100):
        if not scheduler.scheduler.ready(scheduler.now_ns):
            break
        if scheduler.scheduler.attempt_paused and len(attempts_pause(scheduler).gang.terms) == 8:
            scheduler.observe(*impossible(f"impossible{number}-"))
        scheduler.commands += scheduler.scheduler.decide(scheduler.now_ns)
        scheduler.check_invariants()

    assert len(scheduler.placements()) == 8
    assert not problems


def test_entries_that_come_ahead_of_a_gang_in_every_pause_do_not_keep_it_from_its_nodes() -> None:
    check_no_starvation()


def test_a_gang_that_yields_again_and_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted mistake."""
    yields = GangAttempts._yields

    def forget(self: GangAttempts, gang: QueuedGang, was_last: bool, now_ns: int) -> bool:
        has_yielded = yields(self, gang, was_last, now_ns)
        gang.yields_first = False
        return has_yielded

    monkeypatch.setattr(GangAttempts, "_yields", forget)
    monkeypatch.setattr(SchedulingQueue, "pause_beside", forget_waiting)  # the impossible ones pause, too

    with pytest.raises(AssertionError):
        check_no_starvation()


def test_a_gang_is_given_up_and_yields_before_its_next_attempt() -> None:
    """A node of a member goes in the attempt that does not yield. Before the next one, the gang yields to what came meanwhile."""
    scheduler, entry = yielded()
    decide_until_pause(scheduler, 3)
    assert entry.yields_no_more
    (_, success), *_ = attempts_pause(scheduler).search.fits

    scheduler.handle(e.NodeDeleted(success.node))
    while entry.state is QueueState.ATTEMPTING:
        scheduler.commands += scheduler.scheduler.decide(scheduler.now_ns)

    assert entry.yields_first and not entry.yields_no_more
    scheduler.settle()
    scheduler.pass_time(5)
    assert len(scheduler.placements()) == 8
    assert not (entry.yields_first or entry.yields_no_more)


# ── behind an entry that has yielded ───────────────────────────────────────────────────────────────────────────────


def behind_a_failing_gang() -> tuple[Rig, QueuedGang, QueuedGang]:
    """A gang of nine backs off, since one of its members fits nowhere. A gang behind it fits and yields to it."""
    scheduler = rig(
        *[node(f"n{index}", cpu="4") for index in range(4)],
        *gang(9, name="a", priority=5)[:8],
        pod("a8", cpu="64", labels={"group": "a", "least": "9"}, priority=5, created="2026-01-01T00:00:00Z"),
        policies=BY_PRIORITY,
    )
    scheduler.settle()
    (failing,) = scheduler.scheduler._core.gangs
    scheduler.observe(node("new", cpu="1"))
    assert failing.state is QueueState.BACKING_OFF
    scheduler.observe(*gang(2, name="g"))
    (behind,) = [each for each in scheduler.scheduler._core.gangs if each is not failing]
    while failing.state is not QueueState.ATTEMPTING:
        scheduler.commands += scheduler.scheduler.decide(scheduler.now_ns)
    return scheduler, failing, behind


def test_pods_are_bound_while_a_gang_is_attempted_that_another_one_has_yielded_to() -> None:
    """Before, the cluster did not change until the other one was attempted again."""
    scheduler, _, _ = behind_a_failing_gang()

    assert bound_in_pauses(scheduler, members=2) >= 4


def check_behind_a_failing_gang() -> None:
    """In each pause an event requeues the gang ahead: the other one would yield to it for ever."""
    scheduler, _, behind = behind_a_failing_gang()
    for number in range(300):
        if scheduler.scheduler.attempt_paused and number % 2:
            scheduler.observe(node(f"more{number}", cpu="1m"))
        if not behind.pending_members:
            break
        scheduler.commands += scheduler.scheduler.decide(scheduler.now_ns)
        scheduler.check_invariants()

    assert sorted(scheduler.placements()) == ["g0", "g1"]


def test_an_entry_is_placed_after_one_attempt_of_the_gang_that_it_has_yielded_to() -> None:
    check_behind_a_failing_gang()


def test_an_entry_that_waits_for_ever_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted mistake."""
    monkeypatch.setattr(SchedulingQueue, "pause_beside", forget_waiting)

    with pytest.raises(AssertionError):
        check_behind_a_failing_gang()


def check_order_of_parked_entries() -> None:
    """A gang is parked ahead of one that does not yield again. It fits on a node that is new in a pause."""
    scheduler, entry = yielded()
    problems: list[str] = []
    OrderChecker(scheduler.scheduler, problems.append)
    while entry.state is not QueueState.ATTEMPTING or not entry.yields_no_more:
        scheduler.commands += scheduler.scheduler.decide(scheduler.now_ns)
    while not scheduler.scheduler.attempt_paused:
        scheduler.commands += scheduler.scheduler.decide(scheduler.now_ns)

    scheduler.observe(node("n9", cpu="64"))
    scheduler.settle()

    assert not problems
    assert len(scheduler.placements()) == 9


def test_an_entry_that_an_event_requeued_in_a_pause_is_no_problem_of_the_order() -> None:
    check_order_of_parked_entries()


def test_an_entry_that_no_event_requeued_is_a_problem_of_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted mistake."""
    monkeypatch.setattr(SchedulingQueue, "requeue", lambda *_, **__: None)

    with pytest.raises(AssertionError, match="stands ahead of it"):
        check_order_of_parked_entries()

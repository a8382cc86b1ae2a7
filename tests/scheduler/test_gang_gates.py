"""The gate of a large gang in mode `gate` opens and closes in slices, between which none of its members is attempted."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policysched.model.pods import Pod
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler import sliced_changes
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.gang_gates import GangGates
from policysched.scheduler.queue.entries import QueueState
from policysched.scheduler.queue.gang_registry import GangRegistry
from policysched.scheduler.queue.scheduling_queue import SchedulingQueue
from policysched.scheduler.sliced_changes import PODS_PER_SLICE
from tests.builders import node, pending, pod
from tests.scheduler.calls import count_calls
from tests.scheduler.rig import GANG, Rig

MANY = 6 * PODS_PER_SLICE
GATE = GANG.format(more="mode = gate")
FAILING = GANG.format(more="mode = gate\n timeout = 5m\n on_timeout = fail")
ROOM = node("b", cpu="1000", pods="1000")


def member(number: int, least: int = MANY) -> Pod:
    return pod(f"w{number}", cpu="1", labels={"group": "train", "least": str(least)})


def large_gang(policy: str = GATE) -> Rig:
    """Its gate is open, and its members wait for room."""
    rig = Rig(policy, node("a", cpu="500m"))
    rig.observe(*map(member, range(MANY)))
    rig.settle()
    assert rig.counts() == {"unschedulable": MANY}
    return rig


def left(rig: Rig) -> int:
    return sum(
        len(rig.scheduler._attempts._enqueuer.gates.moves.left(gang.id)) for gang in rig.scheduler.core.gangs
    )


@pytest.fixture
def slices_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sliced_changes, "PODS_PER_SLICE", 1)


class Moves:
    """How many pods entered or left the queue in each call of the scheduler."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._moved = 0
        for name in ("enqueue", "remove"):
            monkeypatch.setattr(SchedulingQueue, name, self._counting(getattr(SchedulingQueue, name)))

    def _counting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*of: Any, **more: Any) -> Any:
            self._moved += 1
            return original(*of, **more)

        return counting

    def of(self, call: Callable[[], object]) -> int:
        self._moved = 0
        call()
        return self._moved

    def until_settled(self, rig: Rig) -> list[int]:
        counts = []
        while rig.scheduler.ready(rig.now_ns):
            counts.append(self.of(lambda: rig.commands.extend(rig.scheduler.decide(rig.now_ns))))
        return counts


def test_a_large_gang_opens_and_closes_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, moves = large_gang(), Moves(monkeypatch)
    few = 4  # the member itself, and the gang

    closing = [moves.of(lambda: rig.handle(e.PodDeleted(member(0).uid))), *moves.until_settled(rig)]
    closed = rig.counts()
    opening = [moves.of(lambda: rig.observe(member(0))), *moves.until_settled(rig)]

    assert closed == {"gated": MANY - 1}
    assert rig.counts() == {"unschedulable": MANY}
    assert sum(closing) >= MANY - 1 and sum(opening) >= MANY
    assert max(closing) <= PODS_PER_SLICE + few
    assert max(opening) <= PODS_PER_SLICE + few


def test_a_gate_that_opens_and_closes_again_and_again_moves_a_slice_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig, moves = large_gang(), Moves(monkeypatch)

    counts = [
        moves.of(lambda event=event: rig.handle(event))  # type: ignore[misc]
        for _ in range(5)
        for event in (e.PodDeleted(member(0).uid), e.PodUpdated(pending(member(0))))
    ]

    assert max(counts) <= PODS_PER_SLICE + 4
    rig.settle()
    assert rig.counts() == {"unschedulable": MANY}


def test_no_member_is_bound_while_its_gang_closes_though_there_is_room() -> None:
    rig = large_gang()

    rig.handle(e.PodDeleted(member(0).uid))
    halfway = left(rig)
    rig.observe(ROOM)
    rig.settle()

    assert 0 < halfway < MANY
    assert rig.placements() == {}
    assert rig.counts() == {"gated": MANY - 1}


def test_members_that_come_and_go_between_slices_are_where_the_others_are() -> None:
    rig = large_gang()

    rig.handle(e.PodDeleted(member(0).uid), e.PodDeleted(member(MANY - 1).uid))
    rig.observe(member(MANY))
    closing = left(rig)
    rig.settle()
    closed = rig.counts()
    rig.observe(member(0))
    rig.observe(member(MANY + 1))
    rig.handle(e.PodDeleted(member(5).uid))  # enough are left
    opening = left(rig)
    rig.observe(ROOM)
    rig.settle()

    assert closing and opening
    assert closed == {"gated": MANY - 1}
    assert len(rig.placements()) == MANY


def test_a_gang_whose_members_are_all_deleted_between_slices_is_gone() -> None:
    rig = large_gang()

    rig.handle(*[e.PodDeleted(member(number).uid) for number in range(MANY)])

    assert left(rig) == 0
    assert [*rig.scheduler.core.gangs] == []
    rig.settle()
    assert rig.counts() == {}


@pytest.mark.parametrize(
    "text", [GATE + 'filter no reject pod.priority > 5 says "no"\n', GANG.format(more="")]
)
@pytest.mark.parametrize("opens", [False, True])
@pytest.mark.usefixtures("slices_of_one")
def test_a_new_text_between_slices_forms_the_gang_anew(
    text: str, monkeypatch: pytest.MonkeyPatch, *, opens: bool
) -> None:
    rig, left_then = large_gang(), list[int]()
    replacing = GangRegistry.begin_replacing

    def noting(*of: Any) -> Any:
        left_then.append(left(rig))
        return replacing(*of)

    monkeypatch.setattr(GangRegistry, "begin_replacing", noting)
    rig.handle(e.PodDeleted(member(0).uid))
    if opens:
        rig.settle()
        rig.observe(member(0))

    rig.apply_policies(text)
    rig.observe(ROOM)
    while not left_then:
        rig.commands += rig.scheduler.decide(rig.now_ns)
    begun_anew = left(rig)
    rig.settle()

    assert 0 < left_then[0] < MANY and not begun_anew
    assert len(rig.placements()) == (MANY if opens else 0)
    assert rig.counts() == ({} if opens else {"gated": MANY - 1})


def test_a_process_that_does_not_lead_keeps_up_and_goes_on_once_it_does() -> None:
    """It applies events, and decides nothing."""
    rig = large_gang()

    rig.handle(e.PodDeleted(member(0).uid))
    rig.scheduler.decide(rig.now_ns)
    rig.commands += rig.scheduler.requeue_current_attempt(rig.now_ns)
    rig.observe(ROOM, member(0))
    rig.handle(e.PodDeleted(member(1).uid))
    rig.observe(member(1), member(2, least=MANY + 1))
    assert left(rig) and rig.placements() == {}

    rig.settle()
    assert rig.counts() == {"gated": MANY}
    rig.observe(member(2))
    rig.settle()
    assert len(rig.placements()) == MANY


def test_the_timeout_of_a_gang_that_closes_reaches_all_members() -> None:
    rig = large_gang(FAILING)

    rig.now_ns += 301 * 10**9
    rig.handle(e.PodDeleted(member(0).uid))
    assert left(rig)
    rig.pass_time(5)
    rig.observe(ROOM, member(0, least=1))
    rig.pass_time(5)

    timed_out = [command for command in rig.of(c.ReportPodEvent) if command.reason == "GangTimedOut"]
    assert len(timed_out) == 1
    assert rig.placements() == {"w0": "b"}
    assert all("has failed" in str(rig.pending_message(f"w{number}")) for number in range(1, MANY))


def test_members_of_a_gang_that_opens_are_not_reported_as_incomplete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The reports had begun, a part at a time."""
    rig = large_gang()
    rig.handle(e.PodDeleted(member(0).uid))
    rig.settle()
    rig.now_ns += 2 * 10**9
    rig.scheduler.decide(rig.now_ns)
    rig.observe(member(0))
    assert left(rig)

    reports = count_calls(
        monkeypatch, SchedulerCore, "report_pending", lambda: rig.scheduler.decide(rig.now_ns)
    )

    assert reports == 0


# ── any history ──────────────────────────────────────────────────────────────────────────────────────────────────────

FEW, LEAST = 6, 4
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["delete", "create", "needs all", "edit"]), st.integers(0, FEW - 1)),
        st.just(("decide", 0)),
        st.just(("decide", 0)),
        st.just(("room", 0)),
    ),
    max_size=40,
)


def check_history(steps: list[tuple[str, int]]) -> None:
    """Slices of one member."""
    rig = Rig(GATE, node("a", cpu="500m"))
    least = dict.fromkeys(range(FEW), LEAST)
    rig.observe(*[member(number, LEAST) for number in least])
    rig.settle()
    for name, number in steps:
        match name:
            case "delete":
                least.pop(number, None)
                rig.handle(e.PodDeleted(member(number).uid))
            case "create" | "needs all":
                if f"w{number}" not in rig.placements():
                    least[number] = FEW if name == "needs all" else LEAST
                    rig.observe(member(number, least[number]))
            case "edit":
                rig.apply_policies(GATE + f'filter no reject pod.priority > {5 + number} says "no"\n')
            case "room":
                rig.observe(ROOM)
            case _:
                check_decision(rig, len(least) >= max(least.values(), default=0))
    rig.observe(ROOM)
    while rig.scheduler.ready(rig.now_ns):
        check_decision(rig, len(least) >= max(least.values(), default=0))
    assert left(rig) == 0
    waiting = {f"w{number}" for number in least} - rig.placements().keys()
    if len(least) >= max(least.values(), default=0):
        assert not waiting
    else:
        assert rig.counts() == ({"gated": len(waiting)} if waiting else {})


def check_decision(rig: Rig, is_complete: bool) -> None:
    halves = {pod.state is QueueState.GANG_MEMBER for pod in rig.scheduler.core.pods.values()}
    commands = rig.scheduler.decide(rig.now_ns)
    rig.commands += commands
    rig.check_invariants()
    if any(isinstance(command, c.Bind) for command in commands):
        assert is_complete, "a member of an incomplete gang is bound"
        assert True not in halves, "a member is bound while others are outside the queue"


@pytest.mark.usefixtures("slices_of_one")
@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_no_member_is_bound_beside_others_outside_the_queue(steps: list[tuple[str, int]]) -> None:
    check_history(steps)


CLOSING = [("delete", 0), ("delete", 1), ("room", 0), ("delete", 2), *[("decide", 0)] * 3]
OPENING = [*[("delete", number) for number in range(3)], *[("decide", 0)] * 9, ("create", 0), ("room", 0)]


@pytest.mark.usefixtures("slices_of_one")
@pytest.mark.parametrize("steps", [CLOSING, OPENING])
def test_a_planted_bug_in_the_gates_is_found(
    steps: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    check_history(steps)
    monkeypatch.setattr(GangGates, "has_reached", lambda *_: True)
    with pytest.raises(AssertionError, match="is bound"):
        check_history(steps)

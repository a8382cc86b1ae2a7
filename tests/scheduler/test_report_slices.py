"""Reports of thousands of pods that are due at one time: in slices, between which others are decided."""

from collections.abc import Hashable
from typing import Any

import pytest

from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.gangs import member_order
from policysched.scheduler.limits import REPORTS_PER_SLICE_MAX
from policysched.scheduler.queue.entries import PendingPod
from policysched.scheduler.queue.gang_registry import QueuedGang
from tests.builders import node
from tests.scheduler.rig import Rig
from tests.scheduler.test_gangs import WHOLE, member, members

MANY = 3 * REPORTS_PER_SLICE_MAX


def decide(rig: Rig) -> int:
    """One call. How many reports it makes."""
    commands = rig.scheduler.decide(rig.now_ns)
    rig.commands += commands
    rig.check_invariants()
    return sum(isinstance(command, c.ReportPending) for command in commands)


def slices(rig: Rig, seconds: int = 0) -> list[int]:
    """How many reports each call makes that time makes due."""
    rig.now_ns += seconds * 10**9
    counts = []
    while rig.scheduler.ready(rig.now_ns):
        counts.append(decide(rig))
    return counts


def test_members_of_an_incomplete_gang_are_reported_in_slices() -> None:
    rig = Rig(WHOLE, *members(MANY, least=5000))
    rig.settle()

    counts = slices(rig, 1)

    assert sum(counts) == MANY
    assert max(counts) == REPORTS_PER_SLICE_MAX


def test_the_message_of_an_incomplete_gang_is_made_once_for_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks at the minimum of each member: a second for 5,000 that name different ones, whenever one more comes."""
    calls: list[None] = []
    original = QueuedGang.incomplete_message

    def counted(gang: QueuedGang) -> Any:
        calls.append(None)
        return original.fget(gang)  # type: ignore[attr-defined]

    monkeypatch.setattr(QueuedGang, "incomplete_message", property(counted))
    rig = Rig(WHOLE, *[member(f"w{number}", least=5000 + number) for number in range(MANY)])
    rig.settle()

    counts = slices(rig, 1)

    assert sum(counts) == MANY
    assert len(calls) <= len(counts)


def test_reports_that_were_deferred_to_one_time_are_made_in_slices() -> None:
    rig = Rig(WHOLE, *members(MANY, least=5000))
    rig.settle()
    slices(rig, 1)
    rig.observe(member("more", least=5000))
    slices(rig, 1)

    counts = slices(rig, 10)

    assert sum(counts) == MANY
    assert max(counts) == REPORTS_PER_SLICE_MAX
    assert (
        rig.pending_message("w0") == f"gang default/train: only {MANY + 1} of the 5000 needed members exist"
    )


def test_a_member_that_is_gone_or_has_a_node_when_its_slice_comes_is_not_reported() -> None:
    rig = Rig(WHOLE, *members(MANY, least=MANY))
    rig.settle()
    rig.handle(e.PodDeleted(member("w0").uid))
    rig.now_ns += 10**9
    reported = decide(rig)

    rig.observe(node("a", cpu="9999", pods="9999"), member("last", least=MANY))
    counts = slices(rig)

    assert reported == REPORTS_PER_SLICE_MAX
    assert counts and sum(counts) == 0
    assert len(rig.placements()) == MANY


def test_what_equal_members_of_a_gang_demand_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    original = member_order._demand

    def counted(core: SchedulerCore, pod: PendingPod) -> Hashable:
        asked.append(pod.pod.name)
        return original(core, pod)

    monkeypatch.setattr(member_order, "_demand", counted)
    rig = Rig(WHOLE, node("a", cpu="1"), *members(50, least=50))

    rig.settle()

    assert len(set(asked)) <= 1

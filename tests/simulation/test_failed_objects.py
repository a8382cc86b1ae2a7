"""An exception at any line while an event is applied: its object is left out, what it uses counts, and all others go on."""

import asyncio
import sys
from types import FrameType
from typing import Any
from unittest.mock import patch

import pytest

from policysched.evaluate.columns.pod_totals import PodTotals
from policysched.evaluate.scalar.eval_context import EvalContext
from policysched.scheduler.events import Event, PodUpdated
from policysched.scheduler.scheduler import Scheduler
from tests.simulation.churn import OTHER_SCHEDULER
from tests.simulation.scenario import BETA, Scenario, play

HANDLE = Scheduler.handle
PARTS = ("/policysched/scheduler/", "/policysched/cluster/")
POISON = "poison"
LINES = (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233)


class Planted:
    """While an update of a pod with the word is applied, a line of the scheduler or of its caches raises."""

    def __init__(self, line: int) -> None:
        self._line, self._left = line, 0
        self.raised = 0

    def handle(self, scheduler: Scheduler, event: Event, now_ns: int) -> Any:
        if not isinstance(event, PodUpdated) or POISON not in repr(event):
            return HANDLE(scheduler, event, now_ns)
        self._left = self._line
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            return HANDLE(scheduler, event, now_ns)
        finally:
            sys.settrace(before)

    def _trace(self, frame: FrameType, kind: str, _argument: object) -> Any:
        if not any(part in frame.f_code.co_filename for part in PARTS):
            return None
        if kind == "line":
            self._left -= 1
            if self._left == 0:
                self.raised += 1
                raise OverflowError("planted")
        return self._trace


def play_with_exceptions(line: int, *, name: str, label: str) -> tuple[Scenario, Planted]:
    """On node `a` a pod takes 3 of 4 cpu, on `b` there is room for two pods. The third waits until the first pod is deleted."""
    planted = Planted(line)

    async def script(world: Scenario) -> None:
        world.policies(beta=BETA)
        world.node("a", cpu="4")
        world.node("b", cpu="4")
        labels = {"x": label}
        world.local.create("namespaces", "", {"metadata": {"name": "tenant"}})
        of_tenant = {"namespace": "tenant", "labels": labels}
        world.pod(f"{name}-placed", cpu="3", node="a", scheduler=OTHER_SCHEDULER, **of_tenant)
        world.pod(f"{name}-pending", cpu="8", **of_tenant)
        leader = world.start("leader")
        leader.expects_failed_objects = True
        for pod in ("first", "second"):
            world.pod(pod, cpu="2")
            await world.until(lambda pod=pod: world.nodes_by_pod()[pod], f"node of {pod}")  # type: ignore[misc]
        world.pod("third", cpu="2")
        await asyncio.sleep(20.0)
        nodes = world.nodes_by_pod()
        assert [nodes[pod] for pod in ("first", "second", "third")] == ["b", "b", None]

        taken = world.local.get("pods", "tenant", f"{name}-placed")
        assert taken is not None
        world.local.delete("pods", taken, grace_period_s=0)
        await world.until(lambda: world.nodes_by_pod()["third"], "node of the third", within_s=150.0)
        assert leader.app is not None
        assert leader.app.scheduler.check() == []

    with patch.object(Scheduler, "handle", lambda *call: planted.handle(*call)):
        world = play(script)
    return world, planted


@pytest.mark.parametrize("line", LINES)
def test_a_pod_counts_on_its_node_and_others_are_scheduled(line: int) -> None:
    world, planted = play_with_exceptions(line, name="bad", label=POISON)

    assert world.problems == []
    assert planted.raised == 2 or line > 34  # each pod once: nothing is applied again as it is


@pytest.mark.parametrize("line", LINES)
def test_a_node_is_left_out_if_not_even_the_room_of_its_pod_can_be_counted(line: int) -> None:
    world, planted = play_with_exceptions(line, name=POISON, label="fine")

    assert world.problems == []
    assert planted.raised == 3 or line > 34


def test_others_are_scheduled_while_a_placed_pod_cannot_be_counted() -> None:
    right = PodTotals.adjust_by

    def adjust_by(totals: PodTotals, other: EvalContext, delta: int) -> Any:
        if POISON in other.pod.labels.values():
            raise OverflowError("planted")
        return right(totals, other, delta)

    async def script(world: Scenario) -> None:
        counting = 'filter few require count(placed pods where other.labels["x"] == pod.labels["y"]) < 9\n'
        world.policies(beta=BETA + counting)
        world.node("a", cpu="4")
        leader = world.start("leader")
        leader.expects_failed_objects = True
        world.pod("first", cpu="1", labels={"y": "z"})
        await world.until(lambda: world.nodes_by_pod()["first"], "node of the first")
        world.pod("bad", cpu="2", node="a", scheduler=OTHER_SCHEDULER, labels={"x": POISON})
        world.pod("second", cpu="1", labels={"y": "z"})
        world.pod("third", cpu="1", labels={"y": "z"})
        await world.until(lambda: sum(map(bool, world.nodes_by_pod().values())) == 3, "a second node")
        await asyncio.sleep(20.0)
        assert sum(map(bool, world.nodes_by_pod().values())) == 3
        assert leader.exits == 1

    with patch.object(PodTotals, "adjust_by", adjust_by):
        world = play(script)

    assert world.problems == []


def test_the_pod_is_told() -> None:
    world, _ = play_with_exceptions(5, name="bad", label=POISON)

    notes = [event.get("message", "") for event in world.local.list("events")]
    assert [note for note in notes if note.startswith("internal error: OverflowError: planted; the pod")]

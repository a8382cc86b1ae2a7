"""The main loop's slices: neither events nor decisions keep the other waiting."""

import asyncio
from dataclasses import replace
from itertools import count
from typing import Any
from unittest.mock import patch

from policysched.runtime import scheduler_app
from policysched.runtime.scheduler_app import SchedulerApp
from policysched.scheduler.commands import Bind, Command
from policysched.scheduler.events import NodeUpdated, PodUpdated
from policysched.scheduler.scheduler import Scheduler
from tests.builders import node, pending, pod
from tests.kube.world import World, on_virtual_time, running, until
from tests.runtime.test_scheduler_app import PLAIN, app_on, put_policies

EVENTS_MAX = 4_000


class Flooded:
    """Each event of the app takes a millisecond, and brings the next one, up to `EVENTS_MAX`."""

    def __init__(self, app: SchedulerApp, world: World) -> None:
        self.handled, self.handled_before_bind = 0, EVENTS_MAX
        self.world = world
        self._app, self._numbers = app, count(1)
        self._elapsed_s = 0.0
        self.floods = False
        self.event_s, self.decision_s = 0.001, 0.0
        self.decided = 0
        self._handle, self._decide = app.scheduler.handle, app.scheduler.decide
        app.scheduler.handle = self.handle  # type: ignore[method-assign]
        app.scheduler.decide = self.decide  # type: ignore[method-assign]
        app.runtime = replace(app.runtime, monotonic_s=lambda: world.loop.time() + self._elapsed_s)

    def take(self, span_s: float) -> None:
        self._elapsed_s += span_s

    def handle(self, event: Any, now_ns: int) -> list[Command]:
        self.take(self.event_s)
        if self.floods and self.handled < EVENTS_MAX:
            self.handled += 1
            self._app.post(NodeUpdated(node("other", labels={"n": str(next(self._numbers))})))
        return self._handle(event, now_ns)

    def decide(self, now_ns: int) -> list[Command]:
        self.take(self.decision_s)
        self.decided += 1
        commands = self._decide(now_ns)
        if any(isinstance(command, Bind) for command in commands):
            self.handled_before_bind = self.handled
        return commands


def flooded_app() -> tuple[SchedulerApp, Flooded]:
    """With a node and a first pod; the flood has not begun."""
    world = World()
    put_policies(world, main=PLAIN)
    world.add_node("a")
    world.add_pod("first")
    app = app_on(world, world.transport())
    return app, Flooded(app, world)


def test_a_pod_is_decided_while_events_arrive_faster_than_they_are_handled() -> None:
    async def scenario() -> None:
        app, flooded = flooded_app()
        async with running(app.run()):
            await until(lambda: app.binder.counts.confirmed, "the first bind")
            flooded.floods = True
            app.post(PodUpdated(pending(pod("second"))))
            app.post(NodeUpdated(node("other")))
            await asyncio.sleep(1)

        assert flooded.handled == EVENTS_MAX
        assert flooded.handled_before_bind < 100

    on_virtual_time(scenario)


def test_after_a_stall_everything_that_arrived_meanwhile_is_handled_before_a_decision() -> None:
    async def scenario() -> None:
        app, flooded = flooded_app()
        stalls = 0
        app.leadership.stalls = lambda: stalls  # type: ignore[method-assign]
        async with running(app.run()):
            await until(lambda: app.binder.counts.confirmed, "the first bind")
            stalls = 1
            app.post(PodUpdated(pending(pod("second"))))
            for _ in range(50):
                app.post(NodeUpdated(node("other")))
            flooded.floods, flooded.handled = True, EVENTS_MAX - 3_000
            await asyncio.sleep(3)

        assert flooded.handled_before_bind == EVENTS_MAX

    on_virtual_time(scenario)


PASSES = 12
"""Of the event loop: about as many as a new pod takes from the socket to its bind."""


def test_other_tasks_run_several_passes_between_two_slices() -> None:
    assert slices_during_a_chain_of_passes() <= 2


def test_planted_single_pass_between_two_slices_is_detected() -> None:
    with patch.object(scheduler_app, "PASSES_BETWEEN_SLICES", 1):
        assert slices_during_a_chain_of_passes() >= PASSES - 1


def slices_during_a_chain_of_passes() -> int:
    """While each event takes a millisecond, and brings the next one."""
    slices: list[int] = []

    async def scenario() -> None:
        app, flooded = flooded_app()
        clock_s = app.runtime.monotonic_s

        def advancing_s() -> float:
            flooded.take(1e-6)
            return clock_s()

        app.runtime = replace(app.runtime, monotonic_s=advancing_s)
        async with running(app.run()):
            await until(lambda: app.binder.counts.confirmed, "the first bind")
            flooded.floods = True
            app.post(NodeUpdated(node("other")))
            await asyncio.sleep(0)
            before = flooded.handled
            for _ in range(PASSES):
                await asyncio.sleep(0)
            slices.append((flooded.handled - before) // 5)

    on_virtual_time(scenario)
    return slices[0]


def test_the_clock_is_read_after_each_decision() -> None:
    """A slice of long decisions ends with the first one beyond its time."""
    assert max(decisions_by_slice(decision_s=0.003)) == 2


def decisions_by_slice(*, decision_s: float) -> list[int]:
    decided: list[int] = []

    async def scenario() -> None:
        app, flooded = flooded_app()
        for number in range(8):
            flooded.world.add_pod(f"p{number}", labels={"n": str(number)})
        flooded.decision_s, flooded.event_s = decision_s, 0.0
        run_slice = app._run_slice

        def counted() -> bool:
            before = flooded.decided
            more = run_slice()
            decided.append(flooded.decided - before)
            return more

        app._run_slice = counted  # type: ignore[method-assign]
        async with running(app.run()):
            await until(lambda: flooded.decided >= 9, "all decisions")

    on_virtual_time(scenario)
    return decided


def test_others_wait_for_one_decision_of_an_overdrawn_namespace() -> None:
    """Of its pods each slice attempts one, although there is time for more: what arrives meanwhile is read and sent."""
    assert max(attempts_by_slice_of_an_overdrawn_namespace()) == 1


def test_planted_whole_slices_for_an_overdrawn_namespace_are_detected() -> None:
    with patch.object(Scheduler, "only_overdrawn_left", False):
        assert max(attempts_by_slice_of_an_overdrawn_namespace()) > 1


def attempts_by_slice_of_an_overdrawn_namespace() -> list[int]:
    decided: list[int] = []

    async def scenario() -> None:
        app, flooded = flooded_app()
        async with running(app.run()):
            await until(lambda: app.binder.counts.confirmed, "the first bind")
            flooded.decision_s, flooded.event_s = 0.001, 0.0
            app.scheduler.core.queue.decision_time.charge_failed_attempt("tenant", 10**10)
            for number in range(20):
                app.post(PodUpdated(pending(pod(f"p{number}", namespace="tenant", cpu=str(100 + number)))))
            run_slice, before = app._run_slice, flooded.decided

            def counted() -> bool:
                decided_before = flooded.decided
                more = run_slice()
                decided.append(flooded.decided - decided_before)
                return more

            app._run_slice = counted  # type: ignore[method-assign]
            await until(lambda: flooded.decided >= before + 20, "all decisions")

    on_virtual_time(scenario)
    return decided

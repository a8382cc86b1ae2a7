"""The clock that decisions use, where the wall clock jumps."""

import asyncio
import logging
from dataclasses import dataclass
from itertools import pairwise

import pytest

from policysched.daemon.clock import NonDecreasingClock, wait_until_stepped
from tests.kube.world import on_virtual_time

SECOND_NS = 10**9


@dataclass
class Machine:
    """A machine whose time passes when it is told to, and whose wall clock can be set."""

    monotonic: int = 5 * SECOND_NS
    wall: int = 1_000_000 * SECOND_NS

    def clock(self) -> NonDecreasingClock:
        return NonDecreasingClock(lambda: self.wall, lambda: self.monotonic)

    def passes(self, span_ns: int) -> None:
        self.monotonic += span_ns
        self.wall += span_ns


def test_the_clock_is_the_wall_clock_unless_that_is_set() -> None:
    machine = Machine()
    clock = machine.clock()

    machine.passes(7 * SECOND_NS)
    ordinary = clock.now_ns()
    machine.passes(3600 * SECOND_NS)  # suspended for an hour
    after_the_suspension = clock.now_ns()

    assert ordinary == 1_000_007 * SECOND_NS
    assert after_the_suspension == 1_003_607 * SECOND_NS
    assert clock.offset_s() == 0


def test_a_step_forward_ends_no_wait_before_its_time() -> None:
    machine = Machine()
    clock = machine.clock()
    before = clock.now_ns()

    machine.wall += 3600 * SECOND_NS
    at_once = clock.now_ns()
    machine.passes(8 * SECOND_NS)

    assert at_once == before
    assert clock.now_ns() == before + 9 * SECOND_NS


def test_a_small_step_forward_is_caught_up_an_eighth_faster() -> None:
    machine = Machine()
    clock = machine.clock()

    machine.wall += 2 * SECOND_NS
    for _ in range(16):
        assert clock.offset_s() < 0
        machine.passes(SECOND_NS)

    assert clock.offset_s() == 0


def test_a_step_back_is_slept_off_at_half_speed_and_then_it_is_the_wall_clock_again() -> None:
    machine = Machine()
    clock = machine.clock()
    before = clock.now_ns()

    machine.wall -= 10 * SECOND_NS
    readings = [clock.now_ns()]
    for _ in range(25):
        machine.passes(SECOND_NS)
        readings.append(clock.now_ns())

    assert readings[0] == before
    assert all(0 < later - earlier <= SECOND_NS for earlier, later in pairwise(readings))
    assert readings[10] == before + 5 * SECOND_NS
    assert readings[20] == readings[-1] - 5 * SECOND_NS == machine.wall - 5 * SECOND_NS
    assert clock.offset_s() == 0


def test_frequent_reads_do_not_stop_the_clock() -> None:
    machine = Machine()
    clock = machine.clock()
    machine.wall -= 10 * SECOND_NS
    before = clock.now_ns()

    for _ in range(1000):
        machine.passes(100)
        clock.now_ns()

    assert clock.now_ns() == before + 1000 * 50


@pytest.mark.parametrize(
    ("step_s", "ends"),
    [(-3600, True), (-61, True), (-50, False), (-1, False), (1, False), (50, False), (3600, True)],
)
def test_only_a_step_that_is_too_large_to_sleep_off_ends_the_process(step_s: int, *, ends: bool) -> None:
    machine = Machine()
    clock = machine.clock()

    ended = []

    async def scenario() -> None:
        watching = asyncio.create_task(wait_until_stepped(clock))
        await asyncio.sleep(0.5)
        machine.wall += step_s * SECOND_NS
        for _ in range(500):
            machine.passes(SECOND_NS)
            await asyncio.sleep(1)
        ended.append(watching.done())
        watching.cancel()

    on_virtual_time(scenario)

    assert ended == [ends]


def test_a_backward_step_that_is_waited_out_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    clock = machine.clock()

    async def scenario() -> None:
        watching = asyncio.create_task(wait_until_stepped(clock))
        machine.wall -= 30 * SECOND_NS
        for _ in range(100):
            machine.passes(SECOND_NS)
            await asyncio.sleep(1)
        watching.cancel()

    with caplog.at_level(logging.INFO, "policysched.daemon.clock"):
        on_virtual_time(scenario)

    assert [(record.levelname, record.getMessage()[:21]) for record in caplog.records] == [
        ("WARNING", "the wall clock jumped")
    ]

"""Faults between policysched and a real API server: safety holds, and planted bugs are detected."""

import asyncio
import os
import re
from collections import Counter
from collections.abc import Sequence
from typing import cast

import pytest

from tests.controlplane.api import Json
from tests.controlplane.cluster import ControlPlane
from tests.e2e.chaos.bugs import BUGS
from tests.e2e.chaos.fair_clock import SAMPLE_INTERVAL_S, FairClock, Share, share_of, without_stops
from tests.e2e.chaos.fault_profile import Fault, profile_of
from tests.e2e.chaos.safety_checker import Broken, SafetyChecker
from tests.e2e.chaos.seed import PATIENCE_S, Result, run_seeds
from tests.e2e.chaos.workload import Admin, plan

SEEDS = range(7)
"""With every fault of `MOMENTS`; the eighth has the profile of the fourth. `make chaos` runs 500."""

AT_ONCE = 5
BUGS_AT_ONCE = 4
SEEDS_TO_FIND_A_BUG = 25
PATIENCE_WITH_A_BUG_S = 15.0


async def run(
    control_plane: ControlPlane, seeds: Sequence[int], bug: str = "", until: str = ""
) -> list[Result]:
    """Run all seeds, or stop when the checker's message matches `until`."""
    results, patience_s = [], PATIENCE_WITH_A_BUG_S if bug else PATIENCE_S
    async for result in run_seeds(control_plane, seeds, at_once=AT_ONCE, bug=bug, patience_s=patience_s):
        results.append(result)
        if until and re.search(until, result.broken):
            break
    return results


@pytest.fixture(scope="module")
def results_with_a_bug(control_plane_of_the_session: ControlPlane) -> dict[str, list[Result]]:
    """By bug, of its first seeds. Some run at once: a bug shows after seconds in which nothing happens."""
    assert len({*(seeds := [seed for bug in BUGS.values() for seed in bug.seeds])}) == len(seeds)
    control_plane = control_plane_of_the_session
    control_plane.have_features()

    async def run_all() -> list[list[Result]]:
        allowed = asyncio.Semaphore(BUGS_AT_ONCE)

        async def limited(name: str) -> list[Result]:
            async with allowed:
                return await run(control_plane, BUGS[name].seeds, name, until=BUGS[name].noticed)

        return await asyncio.gather(*map(limited, BUGS))

    return dict(zip(BUGS, asyncio.run(run_all()), strict=True))


def test_under_faults_no_node_overflows_no_gang_is_split_and_no_pod_is_forgotten(
    control_plane: ControlPlane,
) -> None:
    results = asyncio.run(run(control_plane, SEEDS))

    assert [(result.seed, result.broken) for result in results if result.broken] == []
    injected = sum((result.injected for result in results), start=Counter[Fault]())
    assert {fault for fault in Fault if not injected[fault]} == set(), f"too few faults: {injected}"


@pytest.mark.parametrize("bug", list(BUGS))
def test_a_planted_bug_is_detected(
    control_plane: ControlPlane, results_with_a_bug: dict[str, list[Result]], bug: str
) -> None:
    first, noticed = BUGS[bug].seeds, BUGS[bug].noticed
    others = [seed for seed in range(SEEDS_TO_FIND_A_BUG) if seed not in first]

    results = results_with_a_bug[bug]
    if not re.search(noticed, results[-1].broken):  # faults interleave differently each time
        results = [*results, *asyncio.run(run(control_plane, others, bug, until=noticed))]

    assert re.search(noticed, results[-1].broken), [result.broken for result in results]


def test_a_pod_that_moves_to_another_node_is_detected() -> None:
    """The API server refuses a second binding, so the change is passed to the checker directly."""
    planned = plan(0)
    checker = SafetyChecker(cast("Admin", None), planned)
    first, second, *_ = planned.nodes

    checker._check(_modified("web", first))

    with pytest.raises(Broken, match=f"web was on {first} and is on {second}"):
        checker._check(_modified("web", second))


def test_the_clock_stands_still_while_the_process_is_stopped() -> None:
    idle, busy = Share(1.0, 0.5), Share(4.0, 1.5)

    assert without_stops(300.0, idle, idle) == SAMPLE_INTERVAL_S
    assert without_stops(0.5, idle, idle) == 0.5
    assert without_stops(4.4, idle, busy) == 4.4
    assert without_stops(300.0, idle, busy) == SAMPLE_INTERVAL_S + 4.0


def test_the_clock_is_as_slow_as_the_slowest_process() -> None:
    clock = FairClock()
    before = {1: Share(5.0, 5.0), 2: Share(8.0, 0.0), 3: None}
    after = {1: Share(5.5, 9.5), 2: Share(8.2, 0.2), 3: Share(1.0, 1.0)}

    clock.pass_time(5.0, before, after)

    assert clock.now_s == pytest.approx(0.5), "the first waited nine times as long as it ran"


def test_the_clock_of_sleeping_processes_loses_what_all_of_them_waited() -> None:
    clock = FairClock()
    before = {1: Share(5.0, 5.0), 2: Share(8.0, 0.0)}

    clock.pass_time(5.0, before, {1: Share(5.1, 5.9), 2: Share(8.1, 0.3)})

    assert clock.now_s == pytest.approx(5.0 - 0.9 - 0.3), (
        "and not a tenth, though the first was ten times slower"
    )


def test_the_clock_follows_wall_time_when_no_process_waits() -> None:
    clock = FairClock()
    idle = {1: Share(5.0, 5.0), 2: Share(8.0, 0.0)}

    clock.pass_time(5.0, idle, {**idle, 2: Share(9.0, 0.0)})

    assert clock.now_s == 5.0


def test_the_kernel_reports_the_share_of_a_live_process() -> None:
    share = share_of(os.getpid())

    assert share is not None and share.ran_s > 0.0
    assert share_of(2**30) is None


def _modified(name: str, node: str) -> Json:
    """A watch event of the server."""
    containers = [{"resources": {"requests": {"cpu": "100m"}}}]
    spec = {"nodeName": node, "containers": containers}
    return {"type": "MODIFIED", "object": {"metadata": {"name": name, "uid": name}, "spec": spec}}


def test_a_seed_has_the_same_fault_profile_each_time() -> None:
    assert [profile_of(seed) for seed in SEEDS] == [profile_of(seed) for seed in SEEDS]
    assert len({repr(profile_of(seed)) for seed in SEEDS}) > len(SEEDS) // 2

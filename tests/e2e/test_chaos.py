"""A bad road to a real API server: whatever it does, what must hold holds, and what is planted is noticed."""

import asyncio
import os
import re
from collections import Counter
from typing import cast

import pytest

from tests.controlplane.api import Json
from tests.controlplane.cluster import ControlPlane
from tests.e2e.chaos.bugs import BUGS
from tests.e2e.chaos.fair_clock import FairClock, Share, share_of
from tests.e2e.chaos.fault_profile import Fault, climate
from tests.e2e.chaos.safety_checker import Broken, Watchman
from tests.e2e.chaos.seed import PATIENCE_S, Result, run_seeds
from tests.e2e.chaos.workload import Admin, plan

SEEDS = range(20)
AT_ONCE = 5
SEEDS_TO_FIND_A_BUG = 25
PATIENCE_WITH_A_BUG_S = 15.0


def run(control_plane: ControlPlane, seeds: range, bug: str = "", until: str = "") -> list[Result]:
    """All of them, or until what the watchman says matches."""

    async def every() -> list[Result]:
        found, patience_s = [], PATIENCE_WITH_A_BUG_S if bug else PATIENCE_S
        async for one in run_seeds(control_plane, seeds, at_once=AT_ONCE, bug=bug, patience_s=patience_s):
            found.append(one)
            if until and re.search(until, one.broken):
                break
        return found

    return asyncio.run(every())


def test_over_a_bad_road_no_node_overflows_no_gang_is_halved_and_no_pod_is_forgotten(
    control_plane: ControlPlane,
) -> None:
    results = run(control_plane, SEEDS)

    assert [(one.seed, one.broken) for one in results if one.broken] == []
    met = sum((one.met for one in results), start=Counter[Fault]())
    assert all(met[fault] > 0 for fault in Fault), f"the road was too good: {met}"


@pytest.mark.parametrize("bug", list(BUGS))
def test_a_planted_bug_is_noticed(control_plane: ControlPlane, bug: str) -> None:
    results = run(control_plane, range(SEEDS_TO_FIND_A_BUG), bug, until=BUGS[bug].noticed)

    assert re.search(BUGS[bug].noticed, results[-1].broken), [one.broken for one in results]


def test_a_pod_that_is_on_another_node_than_before_is_noticed() -> None:
    """No bug of ours could show it here, for the API server refuses a second binding: so the watchman is told of one."""
    planned = plan(0)
    watchman = Watchman(cast("Admin", None), planned)
    first, second, *_ = planned.nodes

    watchman._take(_shown("web", first))

    with pytest.raises(Broken, match=f"web was on {first} and is on {second}"):
        watchman._take(_shown("web", second))


def test_the_clock_goes_as_slowly_as_the_slowest_of_the_processes() -> None:
    clock = FairClock((1, 2, 3))
    before = {1: Share(5.0, 5.0), 2: Share(8.0, 0.0), 3: None}
    after = {1: Share(5.5, 9.5), 2: Share(8.2, 0.2), 3: Share(1.0, 1.0)}

    clock.pass_time(5.0, before, after)

    assert clock.now_s == pytest.approx(0.5), "the first waited nine times as long as it ran"


def test_the_clock_goes_as_any_other_where_nobody_waits() -> None:
    clock = FairClock((1, 2))
    idle = {1: Share(5.0, 5.0), 2: Share(8.0, 0.0)}

    clock.pass_time(5.0, idle, {**idle, 2: Share(9.0, 0.0)})

    assert clock.now_s == 5.0


def test_the_kernel_counts_for_processes_that_are_there() -> None:
    ours = share_of(os.getpid())

    assert ours is not None and ours.ran_s > 0.0
    assert share_of(2**30) is None


def _shown(name: str, node: str) -> Json:
    """A change as the server's watch has it."""
    containers = [{"resources": {"requests": {"cpu": "100m"}}}]
    spec = {"nodeName": node, "containers": containers}
    return {"type": "MODIFIED", "object": {"metadata": {"name": name, "uid": name}, "spec": spec}}


def test_a_seed_has_the_same_climate_each_time() -> None:
    assert [climate(seed) for seed in SEEDS] == [climate(seed) for seed in SEEDS]
    assert len({repr(climate(seed)) for seed in SEEDS}) > len(SEEDS) // 2

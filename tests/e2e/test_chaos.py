"""A bad road to a real API server: whatever it does, what must hold holds, and what is planted is noticed."""

import asyncio
import re
from collections import Counter
from typing import cast

import pytest

from tests.controlplane.api import Json
from tests.controlplane.cluster import ControlPlane
from tests.e2e.chaos.bugs import BUGS
from tests.e2e.chaos.climate import Fault, climate
from tests.e2e.chaos.seed import PATIENCE_S, Result, run_seeds
from tests.e2e.chaos.watchman import Broken, Watchman
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


def _shown(name: str, node: str) -> Json:
    """A change as the server's watch has it."""
    containers = [{"resources": {"requests": {"cpu": "100m"}}}]
    spec = {"nodeName": node, "containers": containers}
    return {"type": "MODIFIED", "object": {"metadata": {"name": name, "uid": name}, "spec": spec}}


def test_a_seed_has_the_same_climate_each_time() -> None:
    assert [climate(seed) for seed in SEEDS] == [climate(seed) for seed in SEEDS]
    assert len({repr(climate(seed)) for seed in SEEDS}) > len(SEEDS) // 2

"""Scenarios of pods that are decided in the pauses of a gang's attempt."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from policysched.scheduler.gangs.gang_overlay import present_overlay
from policysched.scheduler.gangs.pause import Pause
from policysched.scheduler.steps import Steps
from tests.simulation.churn_teams import TeamProfile
from tests.simulation.scenario import BETA, GAMMA, Scenario, ScenarioBug

PLAIN = BETA + "filter node_affinity\npreemption never\n"
LAYERED = PLAIN + "layer large when pod.requests.cpu >= 1 {\n  filter few require node.pods < 90\n}\n"
HEAD_START_COST = 50
"""Above the cost of one member's search and not above that of two: the plain pod is decided in the second pause."""
ROOMY_GANGS = f"""{GAMMA}
input rank: int = pod.labels["rank"] default 0 invalid reject "rank must be a number"
queue by rank asc
filter node_affinity
filter room require node.free.cpu - pod.requests.cpu >= 100m
"""

# ── scenarios ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def a_pod_fits_where_a_member_has_its_node(world: Scenario) -> None:
    """It is decided after the first member of two, and waits for the end of the attempt."""
    await _decide_beside_a_gang(world, cpu_of_node="1200m")
    await world.until(lambda: world.nodes_by_pod()["two"], "the gang")
    await world.check_at_rest()


async def a_pod_takes_the_room_that_a_member_wanted_beside_it(world: Scenario) -> None:
    """It fits with the member and without it. The member would not have got the node after it, and came first."""
    await _decide_beside_a_gang(world, cpu_of_node="2")
    await world.until(lambda: all(world.nodes_by_pod().values()), "all pods")
    await world.check_at_rest()


async def an_interrupting_pod_takes_the_node_of_a_member(world: Scenario) -> None:
    """Its attempt is as if there were no gang. The gang waits for room for that member."""
    await _decide_beside_a_gang(world, cpu_of_node="1200m", plain=LAYERED, piece_cost=30)
    await world.until(lambda: world.nodes_by_pod()["web"], "the interrupting pod")
    await world.check_at_rest()


async def _decide_beside_a_gang(
    world: Scenario, *, cpu_of_node: str, plain: str = PLAIN, piece_cost: int = 1
) -> None:
    """`piece_cost`: also of what a pause decides. 30: one member, and slices of rules for a pod with layers."""
    teams = TeamProfile({}, 1.0, 0.0, gang_piece_cost_max=piece_cost, gang_head_start_cost=HEAD_START_COST)
    world.profile = replace(world.profile, teams=teams)
    world.policies(beta=plain, gamma=ROOMY_GANGS)
    for name in ("a", "b"):
        world.node(name, cpu=cpu_of_node, labels={"name": name})
    for name, node, rank in (("one", "a", "1"), ("two", "b", "2")):
        labels = {"group": "pair", "least": "2", "rank": rank}
        world.pod(name, cpu="1", scheduler="gamma", labels=labels, node_selector={"name": node}, urgent=True)
    world.pod("web", cpu="1", node_selector={"name": "a"})
    world.start("leader")


# ── bugs ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def pods_in_a_pause_do_not_see_the_members() -> AbstractContextManager[Any]:
    return patch.object(Pause, "_overlay_for", lambda self, _: nullcontext(self.core.evaluator.overlay()))


def members_need_not_fit_after_a_pause() -> AbstractContextManager[Any]:
    def fit(self: Pause, now_ns: int) -> Steps[bool]:
        self.search.overlay = yield from present_overlay(self.core, self.gang, self.search)
        return True

    return patch.object(Pause, "_still_fit", fit)


SCENARIO_BUGS = (
    ScenarioBug(
        pods_in_a_pause_do_not_see_the_members,
        a_pod_fits_where_a_member_has_its_node,
        (r"^a holds 2000 of cpu in our pods",),
    ),
    ScenarioBug(
        members_need_not_fit_after_a_pause,
        an_interrupting_pod_takes_the_node_of_a_member,
        (r"^a holds 2000 of cpu in our pods",),
    ),
)

MORE_SCRIPTS = (a_pod_takes_the_room_that_a_member_wanted_beside_it,)

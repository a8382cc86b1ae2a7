"""Scenarios of quotas on the whole stack: watches, binds, evictions and their answers."""

from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from policysched.scheduler.quotas.quota_accounts import QuotaAccounts
from tests.simulation.bugs_of_teams import (
    no_gang_takes_back,
    no_gang_takes_back_by_node,
    no_quota_refuses,
    nothing_is_taken_back,
    who_borrows_evicts_owners_by_priority,
    who_borrows_takes_the_room_of_owners,
)
from tests.simulation.scenario import BETA, Scenario, ScenarioBug

TEAMS = (
    BETA
    + """\
quota team by pod.labels["team"] else "none" {
  "one" { cpu = 4 borrow any }
  "two" { cpu = 4 borrow any }
  others { cpu = 0 }
}
"""
)

TEAMS_WITH_GANGS = (
    TEAMS
    + """\
input group: string = pod.labels["group"] optional
input least: int = pod.labels["least"] default 1 invalid reject "least must be a number"
gang by group {
  min = least
  timeout = 1h
}
"""
)


async def a_team_takes_back_what_another_borrows(world: Scenario) -> None:
    world.policies(beta=TEAMS)
    world.node("a", cpu="16")
    world.start("leader")
    for index in range(9):
        world.pod(f"one-{index}", cpu="1", labels={"team": "one"})
    await world.until(lambda: sum(map(bool, world.nodes_by_pod().values())) >= 8, "eight pods to run")
    world.pod("two-0", cpu="3", labels={"team": "two"}, urgent=True)
    await world.check_at_rest()
    if not world.nodes_by_pod().get("two-0"):
        world.fail("team two is entitled to 3 cpu and waits")


async def a_gang_takes_back_what_another_team_borrows(world: Scenario) -> None:
    world.policies(beta=TEAMS_WITH_GANGS)
    world.node("a", cpu="16")
    world.start("leader")
    for index in range(8):
        world.pod(f"one-{index}", cpu="1", labels={"team": "one"})
    await world.until(lambda: sum(map(bool, world.nodes_by_pod().values())) == 8, "eight pods to run")
    for index in range(2):
        world.pod(f"two-{index}", cpu="1", labels={"team": "two", "group": "g", "least": "2"}, urgent=True)
    await world.check_at_rest()
    if not world.nodes_by_pod().get("two-1"):
        world.fail("the gang of team two is entitled to 2 cpu and waits")


async def a_gang_takes_back_what_was_used_up_while_it_waited_for_a_node(world: Scenario) -> None:
    """Its quota admits it, and the node does not, until another pod has used up what was idle of the quota."""
    world.policies(beta=TEAMS_WITH_GANGS)
    world.node("a", cpu="7")
    world.start("leader")
    for index, cpu in enumerate(("4", "1")):
        world.pod(f"one-{index}", cpu=cpu, labels={"team": "one"})
    await world.until(lambda: all(map(world.nodes_by_pod().get, ("one-0", "one-1"))), "two pods to run")
    for index in range(2):
        world.pod(f"two-{index}", cpu="1500m", labels={"team": "two", "group": "g", "least": "2"})
    await world.until(lambda: world.trace_count("of 2 members fit now"), "the gang to wait for a node")
    world.pod("one-2", cpu="1", labels={"team": "one"})
    await world.check_at_rest()
    if not world.nodes_by_pod().get("two-1"):
        world.fail("the gang of team two is entitled to 3 cpu and waits")


async def a_gang_takes_back_where_its_members_fit(world: Scenario) -> None:
    """The borrowers that count least are on nodes that are too small for it."""
    world.policies(beta=TEAMS_WITH_GANGS)
    world.node("large", cpu="4")
    for index in range(4):
        world.node(f"small-{index}", cpu="1")
    world.start("leader")
    for index in range(2):
        world.pod(f"one-{index}", cpu="2", labels={"team": "one"}, urgent=True)
    await world.until(lambda: all(map(world.nodes_by_pod().get, ("one-0", "one-1"))), "two pods to run")
    for index in range(2, 6):
        world.pod(f"one-{index}", cpu="1", labels={"team": "one"})
    await world.until(lambda: sum(map(bool, world.nodes_by_pod().values())) == 6, "six pods to run")
    for index in range(2):
        world.pod(f"two-{index}", cpu="1500m", labels={"team": "two", "group": "g", "least": "2"})
    await world.check_at_rest()


async def an_owner_keeps_the_node_where_it_took_quota_back(world: Scenario) -> None:
    """A pod that borrows waits for a node as well, with a higher priority."""
    world.policies(beta=TEAMS.replace('"two" { cpu = 4', '"two" { cpu = 5'))
    world.node("a", cpu="4")
    world.node("b", cpu="4")
    world.start("leader")
    for index in range(2):
        world.pod(f"one-{index}", cpu="4", labels={"team": "one"}, urgent=True)
    await world.until(lambda: all(map(world.nodes_by_pod().get, ("one-0", "one-1"))), "two pods to run")
    world.pod("one-2", cpu="1", labels={"team": "one"}, urgent=True)
    await world.until(lambda: world.trace_count("Insufficient cpu"), "the third pod to wait for a node")
    world.pod("two-0", cpu="4", labels={"team": "two"})
    await world.check_at_rest()
    if not world.nodes_by_pod().get("two-0"):
        world.fail("team two is entitled to 4 cpu and waits")


async def who_would_borrow_waits_for_the_node_of_an_owner(world: Scenario) -> None:
    """It is more important than the owner."""
    world.policies(beta=TEAMS.replace('"two" { cpu = 4', '"two" { cpu = 8'))
    world.node("a", cpu="4")
    world.node("b", cpu="4")
    world.start("leader")
    world.pod("one-0", cpu="4", labels={"team": "one"}, urgent=True)
    world.pod("two-0", cpu="3", labels={"team": "two"})
    await world.until(lambda: all(map(world.nodes_by_pod().get, ("one-0", "two-0"))), "two pods to run")
    world.pod("one-1", cpu="2", labels={"team": "one"}, urgent=True)
    await world.check_at_rest()
    if not world.nodes_by_pod().get("two-0"):
        world.fail("team two is entitled to 3 cpu and was evicted")


def no_placement_wakes_a_gang() -> AbstractContextManager[Any]:
    return patch.object(QuotaAccounts, "gang_admitted", lambda *_: None)


def a_release_wakes_nobody() -> AbstractContextManager[Any]:
    return patch.object(QuotaAccounts, "take_released", lambda *_: {})


SCENARIO_BUGS = (
    ScenarioBug(no_quota_refuses, a_team_takes_back_what_another_borrows, (r"is bound above a quota",)),
    ScenarioBug(
        nothing_is_taken_back, a_team_takes_back_what_another_borrows, (r"is entitled to 3 cpu and waits",)
    ),
    ScenarioBug(
        a_release_wakes_nobody, a_team_takes_back_what_another_borrows, (r"is entitled to 3 cpu and waits",)
    ),
    ScenarioBug(
        no_gang_takes_back,
        a_gang_takes_back_what_another_team_borrows,
        (
            r"gang .* is entitled to its quota and waits for what",
            r"the gang of team two is entitled to 2 cpu and waits",
        ),
    ),
    ScenarioBug(
        no_gang_takes_back_by_node,
        a_gang_takes_back_where_its_members_fit,
        (r"gang .* is entitled to its quota and waits for what",),
    ),
    ScenarioBug(
        who_borrows_takes_the_room_of_owners,
        an_owner_keeps_the_node_where_it_took_quota_back,
        (r"team two is entitled to 4 cpu and waits",),
    ),
    ScenarioBug(
        who_borrows_evicts_owners_by_priority,
        who_would_borrow_waits_for_the_node_of_an_owner,
        (
            r"would borrow and evicts .*, an owner",
            r"team two is entitled to 3 cpu and was evicted",
        ),
    ),
    ScenarioBug(
        no_placement_wakes_a_gang,
        a_gang_takes_back_what_was_used_up_while_it_waited_for_a_node,
        (
            r"gang .* is entitled to its quota and waits for what",
            r"the gang of team two is entitled to 3 cpu and waits",
        ),
    ),
)

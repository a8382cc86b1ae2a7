"""Each bug planted in a scenario is reported by the checker of its invariant; without it nothing is reported."""

import re

import pytest

from tests.simulation import (
    scenarios_canaries,
    scenarios_decisions,
    scenarios_devices,
    scenarios_last_good,
    scenarios_leaders,
    scenarios_liveness,
    scenarios_neighbours,
    scenarios_pauses,
    scenarios_quotas,
    scenarios_volumes,
)
from tests.simulation.scenario import Scenario, ScenarioBug, Script, play, play_unchanged

SCENARIO_BUGS: tuple[ScenarioBug, ...] = (
    *scenarios_liveness.SCENARIO_BUGS,
    *scenarios_decisions.SCENARIO_BUGS,
    *scenarios_canaries.SCENARIO_BUGS,
    *scenarios_devices.SCENARIO_BUGS,
    *scenarios_last_good.SCENARIO_BUGS,
    *scenarios_leaders.SCENARIO_BUGS,
    *scenarios_neighbours.SCENARIO_BUGS,
    *scenarios_pauses.SCENARIO_BUGS,
    *scenarios_quotas.SCENARIO_BUGS,
    *scenarios_volumes.SCENARIO_BUGS,
)
SCRIPTS = [
    *dict.fromkeys(bug.script for bug in SCENARIO_BUGS),
    *scenarios_canaries.MORE_SCRIPTS,
    *scenarios_neighbours.MORE_SCRIPTS,
    *scenarios_pauses.MORE_SCRIPTS,
]


@pytest.mark.parametrize("bug", SCENARIO_BUGS, ids=lambda bug: f"{bug.plant.__name__}-{bug.script.__name__}")
def test_a_scenario_reports_its_planted_bug(bug: ScenarioBug) -> None:
    with bug.plant():
        world = play(bug.script)

    missing = [
        message
        for message in bug.messages
        if not any(re.search(message, problem) for problem in world.problems)
    ]
    assert not missing, _last_lines(world)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: str(script.__name__))
def test_a_scenario_without_a_bug_reports_nothing(script: Script) -> None:
    world = play_unchanged(script)

    assert world.problems == []


def _last_lines(world: Scenario) -> str:
    return "\n".join([f"reported: {world.problems}", *world.trace[-20:]])

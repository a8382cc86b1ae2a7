"""The tables in README.md name every planted bug, and every message of a checker has a planted bug."""

import ast
import re
from pathlib import Path

from tests.e2e.chaos.bugs import BUGS as CHAOS_BUGS
from tests.simulation.checker_messages import GAP, matched_messages, messages_in, messages_of
from tests.simulation.seed_bugs import PLANTED_BUGS
from tests.simulation.test_scenario_bugs import SCENARIO_BUGS

HERE = Path(__file__).parent
REPOSITORY = HERE.parent.parent
TEXT = (HERE / "README.md").read_text(encoding="utf-8")

CHECKERS = sorted({*HERE.glob("*_checker.py"), HERE / "replica.py", HERE / "world.py"})
CHAOS_CHECKERS = [REPOSITORY / "tests/e2e/chaos/safety_checker.py"]

FORWARDED = {f"at rest: {GAP}", f"{GAP}: {GAP}", f"{GAP} s after the last fault: {GAP}"}
"""Messages that only put a time or a name before another message."""
TESTED_DIRECTLY = {f"{GAP} was on {GAP} and is on {GAP}"}
"""No API server allows it; `tests/e2e/test_chaos.py` gives the checker such a change."""


def test_the_tables_name_every_planted_bug_and_no_other() -> None:
    simulation, scenarios, chaos = re.split(r"## Simulation|## Scenarios|## Chaos", TEXT)[1:]

    in_simulation = {name.strip() for _, bugs in _rows(simulation) for name in bugs.split(";")}
    in_scenarios = {name.strip() for _, bugs in _rows(scenarios) for name in bugs.split(";")}
    in_chaos = {name for _, bugs in _rows(chaos) for name in re.findall(r"\w+_\w+", bugs)}

    assert in_simulation == {_with_spaces(bug.name) for bug in PLANTED_BUGS}
    assert in_scenarios == {
        _with_spaces(bug.plant.__name__) + _component(bug.component) for bug in SCENARIO_BUGS
    }
    assert in_chaos == set(CHAOS_BUGS)


def test_a_planted_bug_matches_each_message_of_the_simulations_checkers() -> None:
    messages = messages_of(CHECKERS) - FORWARDED
    scenario_patterns = [pattern for bug in SCENARIO_BUGS for pattern in bug.messages]

    matched = matched_messages(messages, [*(bug.message for bug in PLANTED_BUGS), *scenario_patterns])

    assert len(messages) > 70
    assert sorted(messages - matched) == []


def test_a_planted_bug_matches_each_message_of_the_chaos_checker() -> None:
    messages = messages_of(CHAOS_CHECKERS) - FORWARDED - TESTED_DIRECTLY

    matched = matched_messages(messages, [bug.noticed for bug in CHAOS_BUGS.values()])

    assert len(messages) >= 5
    assert sorted(messages - matched) == []


def test_a_message_without_a_planted_bug_is_found() -> None:
    checker = """
class Checker:
    def _check(self, pod: Pod) -> None:
        self._fail(f"{pod.name} is odd")
        raise Broken(f"{pod.name} is even, {pod.age}")

    def problems(self) -> list[str]:
        problems = [f"{pod} is red" for pod in self.pods]
        problems += ["no pod exists"]
        problems.append(f"{self.last} is blue")
        return problems if problems else [f"{self.first} is green"]

    def description(self) -> str:
        return f"{self.first} is no message"
"""
    messages = set(messages_in(ast.parse(checker)))

    matched = matched_messages(messages, [r"is (odd|even)", r"is blue", r"is green$", r"^no pod", r"is red"])

    assert sorted(messages - matched) == ["… is even, …", "… is odd"]


def _with_spaces(name: str) -> str:
    return name.replace("_", " ")


def _component(name: str) -> str:
    return "" if name == "policysched" else f" ({name})"


def _rows(table: str) -> list[list[str]]:
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    return [row for row in rows if row[0] != "invariant"]

"""The tables of properties name every planted bug and no other, and every message of a checker has a bug."""

import ast
import re
from pathlib import Path

from tests.e2e.chaos.bugs import BUGS as CHAOS
from tests.simulation.bugs import PLANTED
from tests.simulation.sentences import GAP, asked_for, in_module, sentences_of
from tests.simulation.test_stories import TOLD

HERE = Path(__file__).parent
REPOSITORY = HERE.parent.parent
TEXT = (HERE / "README.md").read_text(encoding="utf-8")

WATCHERS = sorted(
    {
        *HERE.glob("*_checker.py"),
        *HERE.glob("*_watch.py"),
        *(HERE / f"{name}.py" for name in ("listening", "replica", "world")),
    }
)
CHAOS_WATCHERS = [REPOSITORY / "tests/e2e/chaos/safety_checker.py"]

PASSED_ON = {f"at rest: {GAP}", f"{GAP}: {GAP}", f"{GAP} s after the last fault: {GAP}"}
"""Who said it, or when, and then what another has said."""
TOLD_DIRECTLY = {f"{GAP} was on {GAP} and is on {GAP}"}
"""What no API server lets happen: `tests/e2e/test_chaos.py` reports it to the checker."""


def test_each_planted_bug_stands_in_the_tables_and_no_other() -> None:
    simulation, stories, chaos = re.split(r"## Simulation|## Stories|## Chaos", TEXT)[1:]

    in_simulation = {name.strip() for _, bugs in _lines(simulation) for name in bugs.split(";")}
    in_stories = {name.strip() for _, bugs in _lines(stories) for name in bugs.split(";")}
    in_chaos = {name for _, bugs in _lines(chaos) for name in re.findall(r"\w+_\w+", bugs)}

    assert in_simulation == {_spoken(bug.__name__) for bug in PLANTED}
    assert in_stories == {_spoken(one.bug.__name__) + _whose(one.whose) for one in TOLD}
    assert in_chaos == set(CHAOS)


def test_each_sentence_of_the_simulations_watchers_is_asked_for_by_a_planted_bug() -> None:
    sentences = sentences_of(WATCHERS) - PASSED_ON

    asked = asked_for(sentences, [*PLANTED.values(), *(one.says for one in TOLD)])

    assert len(sentences) > 70
    assert sorted(sentences - asked) == []


def test_each_sentence_of_the_watchman_of_chaos_is_asked_for_by_a_planted_bug() -> None:
    sentences = sentences_of(CHAOS_WATCHERS) - PASSED_ON - TOLD_DIRECTLY

    asked = asked_for(sentences, [bug.noticed for bug in CHAOS.values()])

    assert len(sentences) >= 5
    assert sorted(sentences - asked) == []


def test_a_sentence_without_a_bug_is_noticed() -> None:
    watcher = """
class Watch:
    def _look(self, pod: Pod) -> None:
        self._fail(f"{pod.name} is odd")
        raise Broken(f"{pod.name} is even, {pod.age}")

    def wrong(self) -> list[str]:
        found = [f"{one} is red" for one in self.all]
        found += ["nobody is there"]
        found.append(f"{self.last} is blue")
        return found if found else [f"{self.first} is green"]

    def told(self) -> str:
        return f"{self.first} is no sentence"
"""
    sentences = set(in_module(ast.parse(watcher)))

    asked = asked_for(sentences, [r"is (odd|even)", r"is blue", r"is green$", r"^nobody", r"is red"])

    assert sorted(sentences - asked) == ["… is even, …", "… is odd"]


def _spoken(name: str) -> str:
    return name.replace("_", " ")


def _whose(whose: str) -> str:
    return "" if whose == "policysched" else f" ({whose})"


def _lines(table: str) -> list[list[str]]:
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    return [row for row in rows if row[0] != "property"]

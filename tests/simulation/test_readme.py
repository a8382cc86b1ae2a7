"""The table of what must hold names every planted bug, and no other."""

import re
from pathlib import Path

from tests.e2e.chaos.bugs import BUGS as CHAOS
from tests.simulation.bugs import PLANTED

TEXT = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")


def test_each_planted_bug_stands_in_the_table_and_no_other() -> None:
    simulation, chaos = TEXT.split("## Simulation")[1].split("## Chaos")

    in_simulation = {name.strip() for _, bugs in _lines(simulation) for name in bugs.split(";")}
    in_chaos = {name for _, bugs in _lines(chaos) for name in re.findall(r"\w+_\w+", bugs)}

    planted = {bug.__name__.replace("_", " ") for bug in PLANTED}
    assert in_simulation == planted
    assert in_chaos == set(CHAOS)


def _lines(table: str) -> list[list[str]]:
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    return [row for row in rows if row[0] != "what must hold"]

"""One cluster, decided by the real kube-scheduler and by policysched."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from policysched.lang.ir.program import Program
from tests.conformance.compare import Disagreement, compare
from tests.conformance.live.draw import Drawn, draw
from tests.conformance.live.record import Recorder

SHOWN = 6
"""Disagreements of a cluster in a summary; the command shows all."""


@dataclass(frozen=True, slots=True)
class Checked:
    """`case` is the cluster with what kube-scheduler decided, in the form of the recorded ones. `at_first` is how it differed from
    a kube-scheduler that had seen other clusters before, where one that starts on this cluster agrees."""

    seed: int
    pods: int
    case: dict[str, Any]
    differences: list[Disagreement]
    at_first: list[Disagreement]
    drawn: Drawn = Drawn.ALL

    @property
    def again(self) -> str:
        less = "" if self.drawn is Drawn.ALL else f" --draw {self.drawn}"
        return f"python -m tests.conformance.live --seed {self.seed} --clusters 1{less}"

    @property
    def aspects(self) -> str:
        return ", ".join(sorted({one.aspect for one in self.differences}))

    def __str__(self) -> str:
        said = "\n".join(f"  {one}" for one in self.differences)
        return f"seed {self.seed}:\n{said}\n  again: {self.again}"


def check(recorder: Recorder, program: Program, seed: int, drawn: Drawn = Drawn.ALL) -> Checked:
    """Where they differ kube-scheduler is asked once more, by a process that starts on this very cluster: its decision
    counts, for what it was told of a moment before may not have reached the other. That it was so is kept, to be looked at."""
    case = recorder.record(draw(seed, drawn))
    differences, at_first = compare_case(case, program), list[Disagreement]()
    if differences:
        at_first = differences
        case = recorder.record(draw(seed, drawn), fresh=True)
        differences = compare_case(case, program)
    return Checked(seed, len(case["pending"]), case, differences, [] if differences else at_first, drawn)


def compare_case(case: dict[str, Any], program: Program) -> list[Disagreement]:
    found = compare([case], program)
    assert not found.waiting, "no drawn pod waits for others"
    return found.disagreements


def summary(checked: Iterable[Checked]) -> str:
    """Of clusters that differ. All of them stand in the first line, which is what a report that is cut off still shows."""
    wrong = [one for one in checked if one.differences]
    if not wrong:
        return ""
    seeds = ", ".join(f"{one.seed} ({one.aspects})" for one in wrong)
    lines = [f"seeds {seeds} differ from kube-scheduler: {wrong[0].again}"]
    for one in wrong:
        lines += [f"  {one.seed} {said}" for said in one.differences[:SHOWN]]
        if len(one.differences) > SHOWN:
            lines.append(f"  {one.seed} and {len(one.differences) - SHOWN} more")
    return "\n".join(lines)

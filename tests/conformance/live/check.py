"""One cluster, decided by the real kube-scheduler and by policysched."""

from dataclasses import dataclass
from typing import Any

from policysched.lang.program import Program
from tests.conformance.compare import compare
from tests.conformance.live.draw import draw
from tests.conformance.live.record import Recorder


@dataclass(frozen=True, slots=True)
class Checked:
    """`case` is the cluster with what kube-scheduler decided, in the form of the recorded ones."""

    seed: int
    pods: int
    case: dict[str, Any]
    differences: list[str]

    def __str__(self) -> str:
        said = "\n".join(f"  {one}" for one in self.differences)
        return f"seed {self.seed}:\n{said}\n  again: {again(self.seed)}"


def check(recorder: Recorder, program: Program, seed: int) -> Checked:
    """Where they differ kube-scheduler is asked once more, by a process that starts on this very cluster: its decision
    counts, for what it was told of a moment before may not have reached the other."""
    case = recorder.record(draw(seed))
    differences = compare_case(case, program)
    if differences:
        case = recorder.record(draw(seed), fresh=True)
        differences = compare_case(case, program)
    return Checked(seed, len(case["pending"]), case, differences)


def compare_case(case: dict[str, Any], program: Program) -> list[str]:
    found = compare([case], program)
    assert not found.waiting, "no drawn pod waits for others"
    return [str(one) for one in found.disagreements]


def again(seed: int) -> str:
    return f"python -m tests.conformance.live --seed {seed} --clusters 1"

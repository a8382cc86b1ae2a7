"""One cluster, decided by the real kube-scheduler and by policysched."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tests.conformance.compare import Disagreement, compare
from tests.conformance.live.draw import Drawn, draw
from tests.conformance.live.record import Recorder

SHOWN = 6
"""Disagreements per cluster in a summary; the command shows all."""


@dataclass(frozen=True, slots=True)
class Checked:
    """`case`: the cluster with the decisions of kube-scheduler, in the format of the recorded cases.
    `at_first`: differences from a kube-scheduler that had run on other clusters before, if one freshly
    started on this cluster agrees.
    """

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
        return ", ".join(sorted({difference.aspect for difference in self.differences}))

    def __str__(self) -> str:
        differences = "\n".join(f"  {difference}" for difference in self.differences)
        return f"seed {self.seed}:\n{differences}\n  again: {self.again}"


def check(recorder: Recorder, seed: int, drawn: Drawn = Drawn.ALL) -> Checked:
    """A difference is checked again with a kube-scheduler freshly started on this cluster: the running
    one may not have received the latest objects yet. The first difference is kept in `at_first`.
    """
    case = recorder.record(_drawn(recorder, seed, drawn))
    differences, at_first = compare_case(case), list[Disagreement]()
    if differences:
        at_first = differences
        case = recorder.record(_drawn(recorder, seed, drawn), fresh=True)
        differences = compare_case(case)
    return Checked(seed, len(case["pending"]), case, differences, [] if differences else at_first, drawn)


def _drawn(recorder: Recorder, seed: int, drawn: Drawn) -> dict[str, Any]:
    """Before 1.37 without resizes of pods with several containers: what those count is not told apart (docs/builtins.md)."""
    case = draw(seed, drawn)
    if recorder.kubernetes_version.startswith("v1.36."):
        for pod in case["bound"]:
            spec = pod["spec"]
            if (
                "containerStatuses" in pod.get("status", {})
                and len(spec["containers"] + spec.get("initContainers", [])) > 1
            ):
                del pod["status"]
    return case


def compare_case(case: dict[str, Any]) -> list[Disagreement]:
    compared = compare([case])
    assert not compared.waiting, "no drawn pod waits for others"
    return compared.disagreements


def summary(checked: Iterable[Checked]) -> str:
    """Summary of the clusters that differ. The first line names all seeds, in case the report is truncated."""
    differing = [cluster for cluster in checked if cluster.differences]
    if not differing:
        return ""
    seeds = ", ".join(f"{cluster.seed} ({cluster.aspects})" for cluster in differing)
    lines = [f"seeds {seeds} differ from kube-scheduler: {differing[0].again}"]
    for cluster in differing:
        lines += [f"  {cluster.seed} {difference}" for difference in cluster.differences[:SHOWN]]
        if len(cluster.differences) > SHOWN:
            lines.append(f"  {cluster.seed} and {len(cluster.differences) - SHOWN} more")
    return "\n".join(lines)

"""The comparison of two policies on one cluster, and its record."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from policysched.comparison.causes import ChangeSet, find_causes
from policysched.comparison.decisive_rules import DecisiveRule, DecisiveRules
from policysched.comparison.measures import Measures, measure
from policysched.comparison.outcomes import CHANGE_KINDS, Outcomes, PodChange, pod_changes
from policysched.comparison.policy_changes import PolicyChange, mixed_program, policy_changes, under_name
from policysched.comparison.runner import ComparedCluster, Progress, no_progress
from policysched.from_files.inputs import with_assumed_load
from policysched.lang.ir.program import Program

RUNS_MAX_DEFAULT = 64
_EXAMPLES_OF_CAUSE = 3
_EXAMPLES_MAX = 30


@dataclass(frozen=True, slots=True)
class Comparison:
    """`pods`: those that were decided. `causes`: by changed pod, the sets of changes of the policy of which each alone does
    the same to the pod; empty where they were not found within the allowed simulations. `decisive`: for some pods of each cause, the rule."""

    old: Program
    new: Program
    changes: tuple[PolicyChange, ...]
    pods: int
    changed: Mapping[str, PodChange]
    causes: Mapping[str, tuple[ChangeSet, ...]]
    decisive: Mapping[str, DecisiveRule]
    before: Measures
    after: Measures
    simulations: int

    def counts(self) -> dict[str, int]:
        """How many pods changed, by kind."""
        counted = Counter(change.kind for change in self.changed.values())
        return {kind: counted[kind] for kind in CHANGE_KINDS}

    def causes_by_pods(self) -> list[tuple[tuple[ChangeSet, ...], list[str]]]:
        """The pods of each cause, the largest group first."""
        pods: dict[tuple[ChangeSet, ...], list[str]] = defaultdict(list)
        for pod in self.changed:
            pods[self.causes[pod]].append(pod)
        return sorted(pods.items(), key=lambda item: (-len(item[1]), item[1]))

    def record(self) -> dict[str, Any]:
        """The JSON output; schema: `schemas/diff.json`."""
        return {
            "format_version": 1,
            "old": _policy_record(self.old),
            "new": _policy_record(self.new),
            "pods": self.pods,
            "same": not self.changed,
            "counts": self.counts(),
            "changes": [change.record() for change in self.changes],
            "causes": [
                {
                    "changes": [sorted(chosen) for chosen in causes],
                    "pods": len(pods),
                    "counts": dict(Counter(self.changed[pod].kind for pod in pods)),
                    "examples": [self.decisive[pod].record() for pod in pods if pod in self.decisive],
                }
                for causes, pods in self.causes_by_pods()
            ],
            "changed_pods": [
                {
                    "pod": change.pod,
                    "change": change.kind,
                    "before": change.before.record(),
                    "after": change.after.record(),
                    "causes": [sorted(chosen) for chosen in self.causes[change.pod]],
                }
                for change in self.changed.values()
            ],
            "before": self.before.record(),
            "after": self.after.record(),
            "simulations": self.simulations,
        }


def _policy_record(program: Program) -> dict[str, Any]:
    return {"name": program.name, "sha256": program.sha256, "source": program.name_span.source.name}


def compare(
    old: Program,
    new: Program,
    cluster: ComparedCluster,
    *,
    runs_max: int = RUNS_MAX_DEFAULT,
    progress: Progress = no_progress,
) -> Comparison:
    """Simulates both policies on the same pods, under the name of the old one, and finds the causes of the differences
    with at most `runs_max` further simulations."""
    changes = policy_changes(old, new)
    renamed = under_name(new, old.name)
    both = list(cluster.run_each((old, renamed), "placing pods by both policies", progress))
    before, after = (result for result in both if result is not None)
    changed = pod_changes(before, after)
    simulated = 2

    def run_mixtures(sets: Sequence[ChangeSet]) -> Iterator[Outcomes | None]:
        nonlocal simulated
        programs = [mixed_program(old, renamed, changes, chosen) for chosen in sets]
        simulated += sum(program is not None for program in programs)
        yield from cluster.run_each(programs, f"finding the causes ({len(sets)} sets)", progress)

    numbers = [change.number for change in changes]
    causes = find_causes(numbers, before, changed, run_mixtures, runs_max=runs_max)
    wanted = _examples(changed, causes)
    decisive: Mapping[str, DecisiveRule] = {}
    if wanted:
        observer = DecisiveRules(
            old,
            new,
            wanted,
            old_samples=with_assumed_load(cluster.present_of(old).samples),
            now_ns=cluster.now_ns,
        )
        cluster.run(
            renamed, lambda done, total: progress("finding the decisive rules", done, total), observer.observe
        )
        decisive = observer.by_pod
        simulated += 1
    measures = [
        measure(
            program,
            cluster.files,
            result,
            samples=cluster.present_of(program).samples,
            now_ns=cluster.now_ns,
        )
        for program, result in ((old, before), (renamed, after))
    ]
    decided = {
        pod for result in (before, after) for pod, outcome in result.items() if outcome.kind != "evicted"
    }
    return Comparison(
        old, new, changes, len(decided), changed, causes, decisive, measures[0], measures[1], simulated
    )


def _examples(
    changed: Mapping[str, PodChange], causes: Mapping[str, tuple[ChangeSet, ...]]
) -> list[PodChange]:
    """Some pods of each cause and kind of change, those that were decided first: the earliest follow from no other pod."""
    seen: Counter[object] = Counter()
    wanted = []
    by_order = sorted(changed.values(), key=lambda change: (change.after.order or 2**62, change.pod))
    for change in by_order:
        group = causes[change.pod], change.kind
        if change.kind == "reordered" or change.after.kind == "evicted" or seen[group] == _EXAMPLES_OF_CAUSE:
            continue
        seen[group] += 1
        wanted.append(change)
    return wanted[:_EXAMPLES_MAX]

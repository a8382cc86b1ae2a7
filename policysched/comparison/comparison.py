"""The comparison of two policies on one cluster, and its record."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from policysched.comparison.causes import ChangeSet, find_causes
from policysched.comparison.decisive_rules import DecisiveRule, DecisiveRules
from policysched.comparison.forked import Progress, no_progress
from policysched.comparison.measures import Measures
from policysched.comparison.outcomes import CHANGE_KINDS, Outcomes, PodChange, pod_changes
from policysched.comparison.policy_changes import PolicyChange, mixed_program, policy_changes, under_name
from policysched.comparison.runner import Compared
from policysched.lang.ir.program import Program

RUNS_MAX_DEFAULT = 64
_EXAMPLES_OF_CAUSE = 3
_EXAMPLES_MAX = 30


@dataclass(frozen=True, slots=True)
class Comparison:
    """`pods`: those that were decided. `causes`: by changed pod, the sets of changes of the policy of which each alone does
    the same to the pod; empty where they were not found within the allowed simulations. `decisive`: for some pods of each cause, the rule. `as_recorded`:
    how many pods have the node of the recording with the old policy, of how many."""

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
    as_recorded: tuple[int, int] | None = None

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
            "as_recorded": None
            if self.as_recorded is None
            else {"pods": self.as_recorded[1], "same": self.as_recorded[0]},
        }


def _policy_record(program: Program) -> dict[str, Any]:
    return {"name": program.name, "sha256": program.sha256, "source": program.name_span.source.name}


def compare(
    old: Program,
    new: Program,
    compared: Compared,
    *,
    runs_max: int = RUNS_MAX_DEFAULT,
    progress: Progress = no_progress,
) -> Comparison:
    """Runs both policies for the same pods, under one name, and finds the causes of the differences with at most `runs_max`
    further simulations."""
    changes = policy_changes(old, new)
    name = compared.policy_name or old.name
    base, renamed = under_name(old, name), under_name(new, name)
    first, second = compared.run_both(base, renamed, progress)
    before, after = first.outcomes, second.outcomes
    changed = pod_changes(before, after)
    simulated = 2

    def run_mixtures(sets: Sequence[ChangeSet]) -> Iterator[Outcomes | None]:
        nonlocal simulated
        programs = [mixed_program(base, renamed, changes, chosen) for chosen in sets]
        simulated += sum(program is not None for program in programs)
        yield from compared.run_each(programs, f"finding the causes ({len(sets)} sets)", progress)

    numbers = [change.number for change in changes]
    causes = find_causes(numbers, before, changed, run_mixtures, runs_max=runs_max)
    wanted = _examples(changed, causes)
    decisive: Mapping[str, DecisiveRule] = {}
    if wanted:
        observer = DecisiveRules(old, new, wanted, name, partial(compared.present, old))
        compared.observe(renamed, observer.observe, progress, lambda: observer.is_done)
        decisive = observer.by_pod
        simulated += 1
    decided = {
        pod for result in (before, after) for pod, outcome in result.items() if outcome.kind != "evicted"
    }
    return Comparison(
        old,
        new,
        changes,
        len(decided),
        changed,
        causes,
        decisive,
        first.measures,
        second.measures,
        simulated,
        first.as_recorded,
    )


def _examples(
    changed: Mapping[str, PodChange], causes: Mapping[str, tuple[ChangeSet, ...]]
) -> list[PodChange]:
    """Some pods of each cause and kind of change, those that were decided first: the earliest follow from no other pod."""
    shown_by_group: Counter[object] = Counter()
    wanted = []
    by_order = sorted(changed.values(), key=lambda change: (change.after.order or 2**62, change.pod))
    for change in by_order:
        group = causes[change.pod], change.kind
        if (
            change.kind == "reordered"
            or change.after.kind == "evicted"
            or shown_by_group[group] == _EXAMPLES_OF_CAUSE
        ):
            continue
        shown_by_group[group] += 1
        wanted.append(change)
    return wanted[:_EXAMPLES_MAX]

"""Compare policysched's decisions with recorded decisions of kube-scheduler.

    python tests/conformance/compare.py FILE.jsonl... [--verbose]

Prints for each file how many pods agree on the feasible nodes, on each plugin's weighted scores, on
the totals, on the node, on the devices allocated to claims, on the victims and on the message.
`--verbose` prints every disagreement. Each decision is computed twice, by the compiled plan and by
the reference implementation, and both have to agree with the recording. The last line is `N of M
pods agree on everything but wording`. Exits 1 if N < M, and 2 if a file or one of its lines cannot
be read; the other lines are compared nevertheless.

Nothing is left out: a pod that uses a feature without a built-in, or an object that cannot be
decoded, is a disagreement. The only exception is a pod that is recorded as `waits` without further
details; such pods are counted separately.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from policysched import evaluate as plan
from policysched.builtins.registry import BUILTINS
from policysched.kube.decode.errors import MalformedObject
from policysched.lang.ir.program import Program
from policysched.lang.ir.rules import BuiltinScore
from policysched.lang.ir.verdict import PlacementExplanation
from policysched.model.identifiers import NodeName
from policysched.model.pods import QueuedPodInfo
from policysched.scheduler.preemption.post_filter_messages import message_after_rejection
from policysched.scheduler.unschedulable_message import filter_error_message, pod_rejected_message
from tests.conformance.cluster_case import BadLine, Decision, read, replay
from tests.conformance.device_cases import compare_devices
from tests.conformance.kube_default import default_of_case
from tests.conformance.nominated_cases import explanations_beside_nominated
from tests.conformance.preemption_cases import compare_preemption
from tests.reference import evaluate

FACTS = QueuedPodInfo(queued_ns=0, attempts=0)

Aspect = Literal["feasible nodes", "weighted scores", "totals", "place", "devices", "victims", "message"]
ASPECTS: tuple[Aspect, ...] = (
    "feasible nodes",
    "weighted scores",
    "totals",
    "place",
    "devices",
    "victims",
    "message",
)
WORDING: Aspect = "message"

SHOWN = 10
"""Disagreements printed for each file without --verbose."""

_UNREADABLE = (MalformedObject, KeyError, TypeError, ValueError, AttributeError, IndexError, AssertionError)
"""What replaying a malformed case can raise. A failed assertion is a bug of policysched, and counts
as a disagreement too.
"""


@dataclass(frozen=True, slots=True)
class Disagreement:
    pod: str
    aspect: Aspect
    sentence: str

    def __str__(self) -> str:
        return f"{self.pod}: {self.aspect}: {self.sentence}"


@dataclass(slots=True)
class Compared:
    """The result for one file. `asked` and `agree` count pods by aspect; not every recording has
    every aspect. `agreeing` are the pods that agree on every aspect but wording, `waiting` those
    that were not compared. `diced` counts decisions whose victims are right for another random
    order of equal pods than policysched's.
    """

    cases: int = 0
    pods: int = 0
    agreeing: int = 0
    waiting: int = 0
    diced: int = 0
    preempting: int = 0
    asked: Counter[Aspect] = field(default_factory=Counter)
    agree: Counter[Aspect] = field(default_factory=Counter)
    disagreements: list[Disagreement] = field(default_factory=list)

    @property
    def comparable(self) -> int:
        return self.pods - self.waiting


def compare(cases: Iterable[Mapping[str, Any]], program: Program | None = None) -> Compared:
    """Without a program, each case is compared with the defaults of the release that decided it."""
    comparison = Compared()
    for case in cases:
        comparison.cases += 1
        _compare_case(case, program or default_of_case(case), comparison)
    return comparison


def _compare_case(case: Mapping[str, Any], program: Program, comparison: Compared) -> None:
    """If a case raises, its remaining pods count as disagreeing."""
    pods = max(
        len(listed) if isinstance(listed := case.get(key), list) else 0 for key in ("pending", "expected")
    )
    comparison.pods += pods
    done = 0
    try:
        for decision in replay(dict(case)):
            _compare_decision(decision, program, comparison)
            done += 1
    except _UNREADABLE as error:
        for place in range(done, pods):
            name = f"{case.get('name', '(a case without a name)')}/pod {place}"
            _disagree(comparison, name, "feasible nodes", f"cannot be compared: {error!r}")


def _compare_decision(decision: Decision, program: Program, comparison: Compared) -> None:
    if decision.expected.get("waits") and not decision.expected.keys() - {"pod", "waits", "nodeName"}:
        comparison.waiting += 1
        return
    sentences_by_aspect: dict[Aspect, list[str]] = {}
    for aspect, sentences in differences(decision, program, comparison):
        sentences_by_aspect.setdefault(aspect, []).extend(sentences)
    comparison.asked.update(sentences_by_aspect.keys())
    comparison.agree.update(aspect for aspect, sentences in sentences_by_aspect.items() if not sentences)
    comparison.agreeing += not any(
        sentences for aspect, sentences in sentences_by_aspect.items() if aspect != WORDING
    )
    for aspect, sentences in sentences_by_aspect.items():
        comparison.disagreements += [Disagreement(decision.name, aspect, sentence) for sentence in sentences]


def _disagree(comparison: Compared, pod: str, aspect: Aspect, sentence: str) -> None:
    comparison.asked[aspect] += 1
    comparison.disagreements.append(Disagreement(pod, aspect, sentence))


def differences(
    decision: Decision, program: Program, comparison: Compared
) -> Iterator[tuple[Aspect, list[str]]]:
    """Each aspect that was recorded, with a sentence for each difference."""
    by_evaluation = explanations(decision, program)
    for evaluation, explanation in by_evaluation.items():
        for aspect, sentences in _of_explanation(decision, explanation, program):
            yield aspect, [f"{evaluation}: {sentence}" for sentence in sentences]
    expected, refusal = decision.expected, by_evaluation["plan"].pod_rejection
    if "claims" in expected:
        yield "devices", compare_devices(decision)
    if by_evaluation["plan"].pod_rejected_by is not None and "message" in expected:
        assert refusal is not None, f"{decision.name} is refused without a message"
        nodes = len(decision.cache.nodes)
        message = pod_rejected_message(
            nodes,
            refusal,
            message_after_rejection(program, decision.pod, nodes, by_evaluation["plan"].pod_rejected_by),
        )
        yield (
            "victims",
            [f"recorded victims {expected['victims']}, none here"] if expected.get("victims") else [],
        )
        if by_evaluation["plan"].is_filter_error:
            message = filter_error_message(refusal)
        yield "message", _unequal(message, expected["message"])
    elif refusal is not None and "message" in expected:
        yield "message", [f"`{refusal}`, recorded `{expected['message']}`"]
    elif refusal is None and (expected.get("victims") or "message" in expected):
        preemption = compare_preemption(decision, program, refused_counts(by_evaluation["plan"]))
        comparison.preempting += bool(expected.get("victims"))
        comparison.diced += preemption.diced
        yield "victims", preemption.victims
        if "message" in expected:
            yield "message", preemption.message


def explanations(decision: Decision, program: Program) -> dict[str, PlacementExplanation]:
    """The decision explained by the reference implementation and by the compiled plan."""
    if decision.reserved:
        return explanations_beside_nominated(decision, program)
    evaluator, compiled = plan.Evaluator(decision.cache), plan.compile(program)
    evaluator.build_columns(compiled)
    return {
        "reference": evaluate(program, decision.pod, decision.cache, now_ns=0, facts=FACTS),
        "plan": evaluator.explain(compiled, decision.pod, now_ns=0, facts=FACTS, samples={}),
    }


def _of_explanation(
    decision: Decision, explanation: PlacementExplanation, program: Program
) -> Iterator[tuple[Aspect, list[str]]]:
    expected = decision.expected
    if explanation.pod_rejection is not None and explanation.pod_rejected_by is None:
        yield "feasible nodes", [f"cannot be compared, refused before any node: {explanation.pod_rejection}"]
        return
    if "feasible" in expected:
        yield "feasible nodes", _unequal(sorted(explanation.feasible), sorted(expected["feasible"] or ()))
    judged_whole = bool(explanation.scores) or not decision.reserved
    if "weightedScores" in expected and judged_whole:
        yield "weighted scores", _unequal(weighted(explanation, program), expected["weightedScores"])
    if "finalScores" in expected:
        yield "totals", _unequal(dict(explanation.totals), expected["finalScores"])
    yield "place", _of_place(explanation, expected)


def weighted(explanation: PlacementExplanation, program: Program) -> dict[str, dict[str, int]]:
    """Weighted scores by plugin and node, as recorded; a plugin that skips the pod is absent."""
    plugins = {
        score.name: BUILTINS[score.builtin].plugin
        for score in program.rules.scores
        if isinstance(score, BuiltinScore)
    }
    return {
        plugins[name]: {str(node): cell.weighted for node, cell in column.items()}
        for name, column in explanation.scores.items()
    }


def _of_place(explanation: PlacementExplanation, expected: Mapping[str, Any]) -> list[str]:
    """kube-scheduler chooses randomly among nodes with equal totals, so any of them is right."""
    node = expected["nodeName"]
    if node is None or expected.get("victims"):
        return [] if explanation.selected is None else [f"{explanation.selected}, recorded as unschedulable"]
    if explanation.selected is None:
        return [f"no node, recorded {node}"]
    if "feasible" not in expected:  # several nodes were feasible and were not recorded
        return [] if node in explanation.feasible else [f"{node} is not feasible, recorded as selected"]
    if explanation.totals[explanation.selected] == explanation.totals.get(NodeName(node)):
        return []
    return [f"{explanation.selected}, whose total differs from that of the recorded {node}"]


def _unequal(actual: object, recorded: object) -> list[str]:
    if not (isinstance(actual, dict) and isinstance(recorded, dict)):
        return [] if actual == recorded else [f"{actual}, recorded {recorded}"]
    return [
        f"{key}: {actual.get(key)}, recorded {recorded.get(key)}"
        for key in sorted(actual.keys() | recorded.keys())
        if actual.get(key) != recorded.get(key)
    ]


def refused_counts(explanation: PlacementExplanation) -> Counter[str]:
    """How many nodes each reason rejects; a node counts for the first rule that rejects it."""
    return Counter(group for rules in explanation.rejections.values() for group in rules[0].event_reasons)


# ── command line ───────────────────────────────────────────────────────────────────────────────────────────────────


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Compare with recorded decisions of kube-scheduler.",
        epilog="Exits 1 where a pod disagrees on more than wording, 2 where a file or a line cannot be read.",
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE.jsonl")
    parser.add_argument("--verbose", action="store_true", help="print every disagreement in full")
    options = parser.parse_args(arguments)
    agreeing = comparable = unread = 0
    for path in options.files:
        try:
            cases = list(read(path))
        except OSError as error:
            unread += 1
            print(f"{path}: cannot be read: {error}", file=sys.stderr)
            continue
        for bad in cases:
            if isinstance(bad, BadLine):
                unread += 1
                print(f"{path}:{bad.number}: cannot be read: {bad.why}", file=sys.stderr, flush=True)
        comparison = compare([case for case in cases if not isinstance(case, BadLine)])
        agreeing += comparison.agreeing
        comparable += comparison.comparable
        print(report(path.name, comparison, verbose=options.verbose))
    print(f"{agreeing} of {comparable} pods agree on everything but wording")
    return 2 if unread else int(agreeing < comparable)


def report(title: str, comparison: Compared, *, verbose: bool) -> str:
    lines = [f"{title}: {comparison.pods} pods in {comparison.cases} cases"]
    lines += [
        f"  {aspect:<16} {comparison.agree[aspect]:>5} of {comparison.asked[aspect]}" for aspect in ASPECTS
    ]
    if comparison.waiting:
        lines.append(f"  not compared     {comparison.waiting:>5}: recorded as `waits` without details")
    if comparison.diced:
        lines.append(
            f"  ({comparison.diced} with other victims among equal pods, which kube-scheduler orders randomly)"
        )
    shown = comparison.disagreements if verbose else comparison.disagreements[:SHOWN]
    lines += [f"    {difference}" for difference in shown]
    if len(shown) < len(comparison.disagreements):
        lines.append(f"    and {len(comparison.disagreements) - len(shown)} more: --verbose")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())

"""Compare what the built-ins say with what a kube-scheduler was recorded to have said.

    python tests/conformance/compare.py FILE.jsonl... [--verbose]

Of every decision it is asked: does each covered filter pass all nodes that were recorded as feasible; does each
covered score agree on them to the last point; and where the pod stayed pending, do the covered filters give their part
of the message with the same counts. Where nothing that is not covered has a say in the decision, the feasible nodes,
the totals, the node chosen, the victims and the whole message must agree too; other decisions are left out of that question only,
and counted by what has a say in them. Exits 1 where anything differs.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from policysched import plan
from policysched.cluster.objects import NodeName, PodFacts
from policysched.lang.builtins import BUILTINS
from policysched.lang.message import unavailable_message
from policysched.lang.program import BuiltinFilter, BuiltinScore, Program
from policysched.lang.verdict import Explanation
from policysched.oracle import evaluate
from policysched.oracle.builtins import FILTERS
from policysched.oracle.context import Context, pod_context
from policysched.oracle.evaluate import cluster_facts
from policysched.oracle.filters import refusals
from policysched.oracle.scores import cells
from tests.conformance.cluster_case import Decision, load, replay
from tests.conformance.kube_default import kube_default
from tests.conformance.making_room import compare_room

FACTS = PodFacts(queued_ns=0, attempts=0)


@dataclass(slots=True)
class Comparison:
    """`differences` are sentences; `left_out` counts decisions by what is not covered in them (one may have several),
    `diced` those whose victims kube-scheduler drew among equals."""

    decisions: int = 0
    scored: int = 0
    whole: int = 0
    messages: int = 0
    whole_messages: int = 0
    preempted: int = 0
    diced: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)


def compare(cases: Iterable[Mapping[str, Any]], program: Program) -> Comparison:
    found = Comparison()
    for case in cases:
        for decision in replay(dict(case)):
            found.decisions += 1
            found.differences += unsound_filters(decision, program)
            found.scored += "weightedScores" in decision.expected
            found.differences += score_differences(decision, program)
            found.messages += "message" in decision.expected
            found.differences += reason_differences(decision, program)
            why_not = not_covered(decision)
            if why_not:
                found.left_out.update(why_not)
                continue
            found.whole += 1
            found.whole_messages += "message" in decision.expected
            said = explanations(decision, program)
            for who, explanation in said.items():
                found.differences += [f"{who}: {one}" for one in whole_differences(decision, explanation)]
            if decision.expected.get("victims") or "message" in decision.expected:
                found.preempted += bool(decision.expected.get("victims"))
                room = compare_room(decision, program, refused_counts(said["plan"]))
                found.differences += room.differences
                found.diced += room.diced
    return found


# ── what has a say that no built-in covers ─────────────────────────────────────────────────────────────────────────


def not_covered(decision: Decision) -> list[str]:
    """By name, what other plugins than the covered ones look at in this decision."""
    return [f"the pod's {feature}" for feature in decision.pod.uncovered]


# ── each plugin by itself ──────────────────────────────────────────────────────────────────────────────────────────


def unsound_filters(decision: Decision, program: Program) -> list[str]:
    """A node that was recorded as feasible passes every covered filter."""
    found = []
    facts = cluster_facts(decision.cache)
    for rule in program.rules.filters:
        assert isinstance(rule, BuiltinFilter)
        for name in decision.expected.get("feasible") or ():
            reasons = FILTERS[rule.builtin](
                decision.pod, facts.nodes[NodeName(name)], dict(rule.params), facts
            )
            if reasons is not None:
                found.append(f"{decision.name}: {rule.name} refuses {name}: {', '.join(reasons.texts)}")
    return found


def score_differences(decision: Decision, program: Program) -> list[str]:
    """On the recorded feasible nodes each covered plugin's weighted scores are the recorded ones, or absent like them."""
    recorded = decision.expected.get("weightedScores")
    if recorded is None:
        return []
    at = _contexts(decision, program)
    candidates = {NodeName(name): at[NodeName(name)] for name in decision.expected["feasible"]}
    found = []
    for rule in program.rules.scores:
        assert isinstance(rule, BuiltinScore)
        column = cells(rule, candidates, cluster_facts(decision.cache))
        ours = None if column is None else {name: cell.weighted for name, cell in column.items()}
        theirs = recorded.get(BUILTINS[rule.builtin].plugin)
        if ours != theirs:
            found.append(f"{decision.name}: {rule.name} scores {ours}, recorded {theirs}")
    return found


def reason_differences(decision: Decision, program: Program) -> list[str]:
    """The covered filters' part of the recorded message: which reason for how many nodes."""
    if "message" not in decision.expected:
        return []
    refused = [refusals(program.rules.filters, at) for at in _contexts(decision, program).values()]
    ours = Counter(group for rules in refused if rules for group in rules[0].groups)
    theirs = reason_counts(decision.expected["message"])
    return [] if ours == theirs else [f"{decision.name}: refuses {dict(ours)}, recorded {dict(theirs)}"]


def reason_counts(message: str) -> Counter[str]:
    """`0/5 nodes are available: 2 Insufficient cpu, 3 Too many pods. ...` taken apart."""
    listed = before_preemption(message).partition(": ")[2].removesuffix(".")
    pairs = [one.partition(" ") for one in listed.split(", ")]
    return Counter({reason: int(count) for count, _, reason in pairs})


def _contexts(decision: Decision, program: Program) -> dict[NodeName, Context]:
    """Each node as the rules look at it."""
    context = pod_context(program, decision.pod, None, now_ns=0, facts=FACTS)
    facts = cluster_facts(decision.cache)
    return {
        name: replace(context, node=seen.node, usage=seen.usage, cluster=facts)
        for name, seen in facts.nodes.items()
    }


# ── the whole decision ─────────────────────────────────────────────────────────────────────────────────────────────


def explanations(decision: Decision, program: Program) -> dict[str, Explanation]:
    """What the plain meaning and the compiled plan say of the decision."""
    evaluator, compiled = plan.Evaluator(decision.cache), plan.compile(program)
    evaluator.prepare(compiled)
    return {
        "oracle": evaluate(program, decision.pod, decision.cache, now_ns=0, facts=FACTS),
        "plan": evaluator.explain(compiled, decision.pod, now_ns=0, facts=FACTS, samples={}),
    }


def whole_differences(decision: Decision, ours: Explanation) -> list[str]:
    expected, name = decision.expected, decision.name
    found = []
    if ours.pod_refusal is not None:
        return [f"{name}: refused before any node: {ours.pod_refusal}"]
    if "feasible" in expected and sorted(ours.feasible) != sorted(expected["feasible"]):
        found.append(f"{name}: feasible {sorted(ours.feasible)}, recorded {sorted(expected['feasible'])}")
    if "finalScores" in expected and dict(ours.totals) != expected["finalScores"]:
        found.append(f"{name}: totals {dict(ours.totals)}, recorded {expected['finalScores']}")
    if expected["nodeName"] is None or expected.get("victims"):
        if ours.selected is not None:
            found.append(f"{name}: chose {ours.selected}, recorded to find no node")
    elif ours.selected is None:
        found.append(f"{name}: chose nothing, recorded {expected['nodeName']}")
    elif "feasible" not in expected:
        if expected["nodeName"] not in ours.feasible:  # of which of several nothing was recorded
            found.append(f"{name}: {expected['nodeName']} is not feasible, recorded to be chosen")
    elif ours.totals[ours.selected] != ours.totals.get(expected["nodeName"]):
        found.append(f"{name}: chose {ours.selected}, which does not tie with {expected['nodeName']}")
    if "message" in expected:
        message = message_of(ours, len(decision.cache.nodes))
        if message != before_preemption(expected["message"]):
            found.append(f"{name}: says `{message}`, recorded `{expected['message']}`")
    return found


def message_of(explanation: Explanation, node_count: int) -> str:
    """Each node counts by the rule that decided."""
    return unavailable_message(node_count, refused_counts(explanation))


def refused_counts(explanation: Explanation) -> Counter[str]:
    return Counter(group for rules in explanation.rejected.values() for group in rules[0].groups)


def before_preemption(message: str) -> str:
    """What the filters said; behind it stands what claims and preemption had to say."""
    return message.partition(" no new claims to deallocate, ")[0].partition(" preemption: ")[0]


# ── the command ────────────────────────────────────────────────────────────────────────────────────────────────────


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Compare the built-ins with recorded decisions of kube-scheduler."
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE.jsonl")
    parser.add_argument(
        "--verbose", action="store_true", help="print every difference, not only the first ten"
    )
    options = parser.parse_args(arguments)
    program = kube_default()
    differing = 0
    for path in options.files:
        found = compare(load(path), program)
        differing += len(found.differences)
        print(report(path.name, found, verbose=options.verbose))
    return 1 if differing else 0


def report(title: str, found: Comparison, *, verbose: bool) -> str:
    left_out = found.decisions - found.whole
    lines = [
        f"{title}: {found.decisions} decisions",
        f"  each covered plugin compared in all: {found.scored} were scored, {found.messages} stayed pending",
        f"  compared whole: {found.whole}, of these {found.whole_messages} pending, {found.preempted} with victims; left out: {left_out}",
        *(f"    {count:4} for {feature}" for feature, count in found.left_out.most_common()),
        *([f"  victims drawn among equals, otherwise than here: {found.diced}"] if found.diced else []),
        f"  differences: {len(found.differences)}",
    ]
    shown = found.differences if verbose else found.differences[:10]
    return "\n".join([*lines, *(f"    {difference}" for difference in shown)])


if __name__ == "__main__":
    sys.exit(main())

"""The expectations of a test, compared with the result.

Every name in an expectation is resolved before the scenario runs: an unknown rule or node would make the expectation
empty, and it would pass.
"""

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from policysched.lang.ir.program import Program, rules_for
from policysched.lang.ir.verdict import PlacementExplanation
from policysched.policytest.scenario import Scenario
from policysched.policytest.scenario_runner import ScenarioResult
from policysched.policytest.short_forms import unknown_name
from policysched.policytest.yaml_document import Path, YamlDocument, unusable_diagnostic
from policysched.text import Diagnostic, Span

TOTAL_SCORE = "total"
"""The name of the sum among the scores of a node."""


@dataclass(frozen=True, slots=True)
class ExpectationFailure:
    """An expectation that was not met: its location, and what was expected and found."""

    span: Span
    message: str


class Expectations:
    """The expectations of one test. `problems` are unknown names; compare only if there are none."""

    def __init__(self, document: YamlDocument, index: int, program: Program, scenario: Scenario) -> None:
        self._document, self._at = document, ("tests", index, "expect")
        self._values: Mapping[str, Any] = document.values["tests"][index]["expect"]
        self._pods = _PodNames([arrival.pod.pod.full_name for arrival in scenario.pods])
        self._nodes = sorted(node.name for node in scenario.nodes)
        self._filters, self._scores = _rule_names(program)
        self._filters |= scenario.extenders.keys()
        self._scores |= {
            extender.name for extender in program.extenders if extender.weight is not None
        } & scenario.extenders.keys()

    def problems(self) -> list[Diagnostic]:
        return list(self._problems())

    @property
    def pods_to_explain(self) -> set[str]:
        """The pods with an expectation that needs an explanation."""
        keys = ("feasible", "rejected", "score")
        return {self._pods.full_name(pod) for key in keys for pod in self._values.get(key, {})}

    def failures(self, result: ScenarioResult) -> list[ExpectationFailure]:
        compared: tuple[Callable[[ScenarioResult], Iterator[ExpectationFailure]], ...] = (
            self._order,
            self._node,
            self._pending,
            self._feasible,
            self._rejected,
            self._score,
            self._evicted,
        )
        return [failure for compare in compared for failure in compare(result)]

    # ── names ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _problems(self) -> Iterator[Diagnostic]:
        for path, pod in self._pod_names():
            candidates = self._pods.candidates(pod)
            if not candidates:
                yield unknown_name("pod", pod, self._pods.all(), self._document.span(*self._at, *path))
            elif len(candidates) > 1:
                yield unusable_diagnostic(
                    f"`{pod}` is ambiguous: {' or '.join(candidates)}", self._document.span(*self._at, *path)
                )
        for path, node in self._node_names():
            if node not in self._nodes:
                yield unknown_name("node", node, self._nodes, self._document.span(*self._at, *path))
        for path, kind, rule in self._rules():
            rules = self._filters if kind == "filter" else self._scores
            if rule not in rules:
                yield unknown_name(kind, rule, rules, self._document.span(*self._at, *path))

    def _pod_names(self) -> Iterator[tuple[Path, str]]:
        for key in ("order", "evicted"):
            yield from (((key, index), pod) for index, pod in enumerate(self._values.get(key, ())))
        for key in ("node", "pending", "feasible", "rejected", "score"):
            yield from (((key, pod), pod) for pod in self._values.get(key, {}))

    def _node_names(self) -> Iterator[tuple[Path, str]]:
        for pod, wanted in self._values.get("node", {}).items():
            yield from ((("node", pod), node) for node in _as_list(wanted))
        for pod, nodes in self._values.get("feasible", {}).items():
            yield from ((("feasible", pod, index), node) for index, node in enumerate(nodes))
        for key in ("rejected", "score"):
            for pod, nodes in self._values.get(key, {}).items():
                yield from (((key, pod, node), node) for node in nodes)

    def _rules(self) -> Iterator[tuple[Path, str, str]]:
        for pod, nodes in self._values.get("rejected", {}).items():
            for node, wanted in nodes.items():
                path: Path = ("rejected", pod, node)
                yield from ((path, "filter", rule) for rule in _as_list(wanted))
        for pod, nodes in self._values.get("score", {}).items():
            for node, cells in nodes.items():
                yield from ((("score", pod, node, rule), "score", rule) for rule in cells)

    # ── comparing ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _order(self, result: ScenarioResult) -> Iterator[ExpectationFailure]:
        wanted = [self._pods.full_name(pod) for pod in self._values.get("order", ())]
        undecided = [pod for pod in wanted if pod not in result.decision_order]
        if undecided:
            yield self._failure(("order",), f"never decided: {', '.join(undecided)}")
            return
        actual = [pod for pod in result.decision_order if pod in wanted]
        if actual != wanted:
            yield self._failure(
                ("order",), f"expected the order {', '.join(wanted)}, found {', '.join(actual)}"
            )

    def _node(self, result: ScenarioResult) -> Iterator[ExpectationFailure]:
        for pod, wanted in self._values.get("node", {}).items():
            full = self._pods.full_name(pod)
            actual = result.node.get(full)
            if actual in _as_list(wanted) or (wanted is None and actual is None):
                continue
            expected = " or ".join(_as_list(wanted)) or "no node"
            yield self._failure(
                ("node", pod), f"{full}: expected {expected}, {_describe_outcome(full, result)}"
            )

    def _pending(self, result: ScenarioResult) -> Iterator[ExpectationFailure]:
        for pod, text in self._values.get("pending", {}).items():
            full = self._pods.full_name(pod)
            if full not in result.pending:
                yield self._failure(
                    ("pending", pod), f"{full}: expected to stay pending, {_describe_outcome(full, result)}"
                )
            elif text not in result.pending[full]:
                yield self._failure(
                    ("pending", pod),
                    f"{full}: expected a message with `{text}`, {_describe_outcome(full, result)}",
                )

    def _feasible(self, result: ScenarioResult) -> Iterator[ExpectationFailure]:
        for pod, nodes in self._values.get("feasible", {}).items():
            explanation = result.explanations.get(self._pods.full_name(pod))
            actual = [] if explanation is None else sorted(explanation.feasible)
            if actual != sorted(nodes):
                text = (
                    f"expected {', '.join(sorted(nodes)) or 'no node'}, found {', '.join(actual) or 'none'}"
                )
                yield self._failure(
                    ("feasible", pod), f"{self._pods.full_name(pod)}: {text}{_rejection_reason(explanation)}"
                )

    def _rejected(self, result: ScenarioResult) -> Iterator[ExpectationFailure]:
        for pod, nodes in self._values.get("rejected", {}).items():
            full = self._pods.full_name(pod)
            explanation = result.explanations.get(full)
            for node, wanted in nodes.items():
                path: Path = ("rejected", pod, node)
                rejections = () if explanation is None else explanation.rejections.get(node, ())
                actual = {rejection.rule: "; ".join(rejection.reasons) for rejection in rejections}
                rejections_text = (
                    ", ".join(f"{rule} ({reason})" for rule, reason in actual.items()) or "nothing"
                )
                if explanation is None or explanation.pod_rejection is not None:
                    yield self._failure(
                        path, f"{full} on {node}: not decided{_rejection_reason(explanation)}"
                    )
                elif wanted is None and actual:
                    yield self._failure(
                        path, f"{full} on {node}: expected no rejection, found {rejections_text}"
                    )
                else:
                    for rule in _as_list(wanted):
                        text = wanted[rule] if isinstance(wanted, dict) else ""
                        if rule not in actual or text not in actual[rule]:
                            expected = f"{rule} ({text})" if text else rule
                            yield self._failure(
                                path,
                                f"{full} on {node}: expected {expected} to reject it, found {rejections_text}",
                            )

    def _score(self, result: ScenarioResult) -> Iterator[ExpectationFailure]:
        for pod, nodes in self._values.get("score", {}).items():
            full = self._pods.full_name(pod)
            explanation = result.explanations.get(full)
            for node, cells in nodes.items():
                for rule, wanted in cells.items():
                    for field, condition in _conditions(wanted):
                        actual = _score_number(explanation, node, rule, field)
                        if actual is None or not _condition_holds(condition, actual):
                            label = f"{rule} {field}" if field != "score" else rule
                            shown = "none" if actual is None else f"{actual:g}"
                            yield self._failure(
                                ("score", pod, node, rule),
                                f"{full} on {node}: expected {label} {condition}, found {shown}"
                                + (_rejection_reason(explanation, node) if actual is None else ""),
                            )

    def _evicted(self, result: ScenarioResult) -> Iterator[ExpectationFailure]:
        if "evicted" in self._values:
            wanted = sorted(self._pods.full_name(pod) for pod in self._values["evicted"])
            actual = sorted(result.evicted)
            if wanted != actual:
                yield self._failure(
                    ("evicted",),
                    f"expected {', '.join(wanted) or 'no pod'}, found {', '.join(actual) or 'none'}",
                )

    def _failure(self, path: Path, message: str) -> ExpectationFailure:
        return ExpectationFailure(self._document.span(*self._at, *path), f"{path[0]}: {message}")


class _PodNames:
    """Pods by `namespace/name`, or by name where it is unique."""

    def __init__(self, full_names: list[str]) -> None:
        self._by_name: dict[str, list[str]] = {}
        for full in full_names:
            for name in (full, full.partition("/")[2]):
                self._by_name.setdefault(name, []).append(full)

    def candidates(self, name: str) -> list[str]:
        return self._by_name.get(name, [])

    def full_name(self, name: str) -> str:
        """The full name for a name that exactly one pod has."""
        (full,) = self._by_name[name]
        return full

    def all(self) -> list[str]:
        return [name for name, full_names in self._by_name.items() if len(full_names) == 1]


def _rule_names(program: Program) -> tuple[set[str], set[str]]:
    """The rules that can reject a node (node inputs included), and those that score, with any layer active."""
    filters = {declared.name for declared in program.inputs.values() if declared.owner == "node"}
    scores = {TOTAL_SCORE}
    for active in [(), *((index,) for index in range(len(program.layers)))]:
        rules = rules_for(program, active)
        filters |= {rule.name for rule in rules.filters}
        scores |= {rule.name for rule in rules.scores}
    return filters, scores


def _as_list(wanted: Any) -> list[str]:
    match wanted:
        case None:
            return []
        case str():
            return [wanted]
        case _:
            return list(wanted)


_CONDITION = re.compile(r"(>=|<=|>|<|==|!=)? *(.*)\Z")
_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "==": operator.eq,
    "!=": operator.ne,
}


def _conditions(wanted: Any) -> list[tuple[str, str]]:
    cells = wanted if isinstance(wanted, dict) else {"score": wanted}
    return [(field, str(condition)) for field, condition in cells.items()]


def _condition_holds(condition: str, actual: float) -> bool:
    match = _CONDITION.match(condition)
    assert match is not None, f"the schema lets `{condition}` pass as a condition"
    return _OPERATORS[match[1] or "=="](actual, float(match[2]))


def _score_number(explanation: PlacementExplanation | None, node: str, rule: str, field: str) -> float | None:
    if explanation is None:
        return None
    if rule == TOTAL_SCORE and TOTAL_SCORE not in explanation.scores:
        return explanation.totals.get(node)
    cell = explanation.scores.get(rule, {}).get(node)
    value: float | None = None if cell is None else getattr(cell, field)
    return value


def _describe_outcome(pod: str, result: ScenarioResult) -> str:
    if pod in result.evicted:
        return "it was evicted"
    if pod in result.node:
        return f"it went to {result.node[pod]}"
    return f"it is pending: {result.pending.get(pod) or 'not of this policy'}"


def _rejection_reason(explanation: PlacementExplanation | None, node: str | None = None) -> str:
    if explanation is None:
        return " (never decided)"
    if explanation.pod_rejection is not None:
        return f" (the pod is rejected: {explanation.pod_rejection})"
    rejected = (
        explanation.rejections
        if node is None
        else {node: explanation.rejections[node]}
        if node in explanation.rejections
        else {}
    )
    by_rule = [f"{name} by {rejections[0].rule}" for name, rejections in sorted(rejected.items())]
    return f" ({', '.join(by_rule)})" if by_rule else ""

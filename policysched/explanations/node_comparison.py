"""Why a policy prefers one node to another for a pod: a rule that rejects it, or the scores that put the other ahead."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from policysched.lang.ir.program import Program
from policysched.lang.ir.rules import location_of
from policysched.lang.ir.verdict import PlacementExplanation

PreferenceKind = Literal["rejection", "score", "equal"]


@dataclass(frozen=True, slots=True)
class NodePreference:
    """`rule` decides: it rejects the node, or has the largest lead (empty: an input rejects the pod, or no rule leads). `points`: by how
    much the preferred node leads."""

    kind: PreferenceKind
    rule: str
    points: int
    text: str


def rejection_of(explanation: PlacementExplanation, node: str) -> NodePreference | None:
    """What rejects the pod, or the node; None: the node is feasible, or unknown."""
    if explanation.pod_rejection is not None:
        return NodePreference("rejection", explanation.pod_rejected_by or "", 0, explanation.pod_rejection)
    for rejection in explanation.rejections.get(node, ()):
        return NodePreference(
            "rejection", rejection.rule, 0, f"rejects {node}: {', '.join(rejection.reasons)}"
        )
    return None


def preference(explanation: PlacementExplanation, preferred: str, other: str) -> NodePreference | None:
    """Between two feasible nodes; None if one of them is not."""
    if not {preferred, other} <= explanation.totals.keys():
        return None
    points = explanation.totals[preferred] - explanation.totals[other]
    leads = {
        rule: by_node[preferred].weighted - by_node[other].weighted
        for rule, by_node in explanation.scores.items()
    }
    if points == 0:
        return NodePreference("equal", "", 0, f"{preferred} and {other} have equal scores")
    rule = max(leads, key=lambda name: leads[name], default="")
    parts = ", ".join(f"{name} {lead:+}" for name, lead in sorted(leads.items()) if lead)
    return NodePreference("score", rule, points, f"puts {preferred} ahead of {other} by {points} ({parts})")


def rule_locations(program: Program) -> Mapping[str, str]:
    """`my.policy:34` by rule, without those that only layers add."""
    rules = program.rules
    return {rule.name: location_of(rule.span) for rule in (*rules.filters, *rules.scores)}

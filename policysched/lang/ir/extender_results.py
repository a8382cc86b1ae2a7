"""Results of extenders for a pod and how they combine with the rules: the semantics of `extender NAME`.

Extenders run after the filters. A node that an extender rejects is not feasible; the scores of the rules are normalised
over the remaining nodes. An extender's score (0..10) is scaled by ten, as in kube-scheduler
(`MaxNodeScore / MaxExtenderPriority`), and multiplied by its weight.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from policysched.lang.ir.program import Extender
from policysched.lang.ir.verdict import NodeRejection, NodeSubsetVerdict

EXTENDER_SCORE_MAX = 10
EXTENDER_SCORE_SCALE = 10
NEUTRAL_SCORE_DEFAULT = 50


@dataclass(frozen=True, slots=True)
class ExtenderRejection:
    """`resolvable`: preemption could help."""

    message: str
    resolvable: bool


@dataclass(frozen=True, slots=True)
class ExtenderResult:
    """By node. A node in neither mapping passes and gets the score of the `missing` clause. Scores are integers 0..10."""

    rejections: Mapping[str, ExtenderRejection]
    scores: Mapping[str, int]


ExtenderResults = Mapping[str, ExtenderResult]
"""By extender. An extender that is not interested in the pod is absent: it rejects and scores no node."""


def nodes_passing_extenders(nodes: Iterable[str], results: ExtenderResults) -> tuple[str, ...]:
    """The nodes that no extender rejects."""
    return tuple(
        [node for node in nodes if not any(node in result.rejections for result in results.values())]
    )


def extender_rejection(
    node: str, extenders: Iterable[Extender], results: ExtenderResults
) -> NodeRejection | None:
    """The rejection by the first extender that rejects the node."""
    for extender in extenders:
        rejection = results[extender.name].rejections.get(node) if extender.name in results else None
        if rejection is not None:
            message = (rejection.message,)
            return NodeRejection(extender.name, message, message, rejection.resolvable, scaleup=True)
    return None


def add_extender_scores(
    verdict: NodeSubsetVerdict, extenders: Iterable[Extender], results: ExtenderResults
) -> Mapping[str, int]:
    """The totals of the verdict plus the weighted scores of the extenders."""
    totals = dict(verdict.totals)
    for extender in extenders:
        if extender.weight is None or extender.name not in results:
            continue
        scores = {
            node: EXTENDER_SCORE_SCALE * score
            for node, score in results[extender.name].scores.items()
            if node in totals
        }
        default = _score_if_missing(extender, scores)
        for node in totals:
            totals[node] += extender.weight * scores.get(node, default)
    return totals


def _score_if_missing(extender: Extender, scores: Mapping[str, int]) -> int:
    if extender.missing == "neutral":
        return sum(scores.values()) // len(scores) if scores else NEUTRAL_SCORE_DEFAULT
    assert extender.missing is not None, f"{extender.name} has a weight but no score for missing nodes"
    return extender.missing

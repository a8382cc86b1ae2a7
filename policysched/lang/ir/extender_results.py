"""What extenders said of a pod, and what that does to what the policy itself says: the definition of `extender NAME`.

Extenders come behind the rules. Who is refused by one is refused whatever it scores; the scores of the rules are
normalised over the nodes that are left. An extender's score, 0 to 10, counts ten times that beside the rules' 0 to 100, as in
kube-scheduler (`MaxNodeScore / MaxExtenderPriority`), times its weight.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from policysched.lang.ir.program import Extender
from policysched.lang.ir.verdict import NodeRefusal, NodeSubsetVerdict

EXTENDER_SCORE_MAX = 10
EXTENDER_SCORE_SCALE = 10
NEUTRAL_SCORE_DEFAULT = 50


@dataclass(frozen=True, slots=True)
class ExtenderRefusal:
    """`resolvable`: evicting pods could help."""

    message: str
    resolvable: bool


@dataclass(frozen=True, slots=True)
class ExtenderResult:
    """By node. A node that is in neither passes, and has no score: what its `missing` clause is for. `scores` are whole
    numbers from 0 to 10."""

    refusals: Mapping[str, ExtenderRefusal]
    scores: Mapping[str, int]


ExtenderResults = Mapping[str, ExtenderResult]
"""By extender. One that has no say about the pod is not among them: it refuses nothing and scores nothing."""


def nodes_passing_extenders(nodes: Iterable[str], answers: ExtenderResults) -> tuple[str, ...]:
    """The nodes that no extender refuses: the candidates of the rules."""
    return tuple([node for node in nodes if not any(node in answer.refusals for answer in answers.values())])


def extender_refusal(
    node: str, extenders: Iterable[Extender], answers: ExtenderResults
) -> NodeRefusal | None:
    """That of the first extender that refuses the node."""
    for one in extenders:
        found = answers[one.name].refusals.get(node) if one.name in answers else None
        if found is not None:
            return NodeRefusal(one.name, (found.message,), (found.message,), found.resolvable, scaleup=True)
    return None


def add_extender_scores(
    found: NodeSubsetVerdict, extenders: Iterable[Extender], answers: ExtenderResults
) -> Mapping[str, int]:
    """The totals of what was judged among the nodes let through, with what the extenders add."""
    totals = dict(found.totals)
    for one in extenders:
        if one.weight is None or one.name not in answers:
            continue
        scores = {
            node: EXTENDER_SCORE_SCALE * score
            for node, score in answers[one.name].scores.items()
            if node in totals
        }
        instead = _score_if_missing(one, scores)
        for node in totals:
            totals[node] += one.weight * scores.get(node, instead)
    return totals


def _score_if_missing(one: Extender, known: Mapping[str, int]) -> int:
    if one.missing == "neutral":
        return sum(known.values()) // len(known) if known else NEUTRAL_SCORE_DEFAULT
    assert one.missing is not None, f"{one.name} has a weight and no word on missing scores"
    return one.missing

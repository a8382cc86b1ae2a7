"""What extenders said of a pod, and what that does to what the policy itself says: the definition of `extender NAME`.

Extenders come behind the rules. Who is refused by one is refused whatever it scores; the scores of the rules are
normalised over the nodes that are left. An extender's score, 0 to 10, counts ten times that beside the rules' 0 to 100, as in
kube-scheduler (`MaxNodeScore / MaxExtenderPriority`), times its weight.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from policysched.lang.ir.program import Extender
from policysched.lang.ir.verdict import Judgement, Refusal

SCORE_MAX = 10
TIMES = 10
NEUTRAL_OF_NOTHING = 50


@dataclass(frozen=True, slots=True)
class ExtenderRefusal:
    """`resolvable`: evicting pods could help."""

    words: str
    resolvable: bool


@dataclass(frozen=True, slots=True)
class ExtenderAnswer:
    """By node. A node that is in neither passes, and has no score: what its `missing` clause is for. `scores` are whole
    numbers from 0 to 10."""

    refused: Mapping[str, ExtenderRefusal]
    scores: Mapping[str, int]


Answers = Mapping[str, ExtenderAnswer]
"""By extender. One that has no say about the pod is not among them: it refuses nothing and scores nothing."""


def let_through(nodes: Iterable[str], answers: Answers) -> tuple[str, ...]:
    """The nodes that no extender refuses: the candidates of the rules."""
    return tuple([node for node in nodes if not any(node in answer.refused for answer in answers.values())])


def refusal(node: str, extenders: Iterable[Extender], answers: Answers) -> Refusal | None:
    """That of the first extender that refuses the node."""
    for one in extenders:
        found = answers[one.name].refused.get(node) if one.name in answers else None
        if found is not None:
            return Refusal(one.name, (found.words,), (found.words,), found.resolvable, scaleup=True)
    return None


def with_scores(found: Judgement, extenders: Iterable[Extender], answers: Answers) -> Mapping[str, int]:
    """The totals of what was judged among the nodes let through, with what the extenders add."""
    totals = dict(found.totals)
    for one in extenders:
        if one.weight is None or one.name not in answers:
            continue
        scores = {node: TIMES * score for node, score in answers[one.name].scores.items() if node in totals}
        instead = _instead_of_missing(one, scores)
        for node in totals:
            totals[node] += one.weight * scores.get(node, instead)
    return totals


def _instead_of_missing(one: Extender, known: Mapping[str, int]) -> int:
    if one.missing == "neutral":
        return sum(known.values()) // len(known) if known else NEUTRAL_OF_NOTHING
    assert one.missing is not None, f"{one.name} has a weight and no word on missing scores"
    return one.missing

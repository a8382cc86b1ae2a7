"""The score of each candidate by one rule: integers from 0 to 100, times the weight."""

import math
from collections.abc import Mapping, Sequence

from policysched.lang.ir.rules import (
    BuiltinScore,
    Direction,
    MaxNormalize,
    MinMaxNormalize,
    RangeNormalize,
    ScoreRule,
)
from policysched.lang.ir.verdict import NodeRuleScore
from policysched.model.identifiers import NodeName
from tests.reference.builtin_interface import MAX_SCORE, ClusterFacts, NodeInfo, NodeScore
from tests.reference.builtins import SCORES
from tests.reference.context import CandidateNodes, ExpressionContext
from tests.reference.expressions import holds, value
from tests.reference.values import MISSING, Number, Value, finite

ScoreCells = Mapping[NodeName, NodeRuleScore]

NEUTRAL_SCORE_DEFAULT = 50


def score_cells(
    rule: ScoreRule | BuiltinScore, candidates: Mapping[NodeName, ExpressionContext], facts: ClusterFacts
) -> ScoreCells | None:
    """One cell per candidate, or None if the rule skips the pod: its `when` is True for no
    candidate, or a built-in has nothing to score. Candidates for which `when` is not True get 0 and
    do not count in maxima and means."""
    scored = {name: context for name, context in candidates.items() if holds(rule.when, context)}
    if not scored:
        return None
    if isinstance(rule, BuiltinScore):
        built_in = _builtin_scores(rule, scored, facts)
        if built_in is None:
            return None
        scores: Mapping[NodeName, tuple[Number | None, int]] = {
            name: (node_score.raw, node_score.score) for name, node_score in built_in.items()
        }
    else:
        scores = _expression_scores(rule, scored, candidates)
    nothing: tuple[Number | None, int] = (None, 0)
    return {name: _cell(*scores.get(name, nothing), rule.weight) for name in candidates}


def _cell(raw: Number | None, score: int, weight: int) -> NodeRuleScore:
    assert 0 <= score <= MAX_SCORE, f"a score of {score}"
    return NodeRuleScore(raw, score, weight, weight * score)


def _builtin_scores(
    rule: BuiltinScore, scored: Mapping[NodeName, ExpressionContext], facts: ClusterFacts
) -> Mapping[NodeName, NodeScore] | None:
    node_infos = []
    for context in scored.values():
        assert context.node is not None and context.usage is not None, "candidates are nodes"
        node_infos.append(NodeInfo(context.node, context.usage))
    pod = next(iter(scored.values())).pod
    return SCORES[rule.builtin](pod, node_infos, dict(rule.params), facts)


def _expression_scores(
    rule: ScoreRule,
    scored: Mapping[NodeName, ExpressionContext],
    candidates: Mapping[NodeName, ExpressionContext],
) -> Mapping[NodeName, tuple[Number | None, int]]:
    among = CandidateNodes(candidates)
    values = {name: value(rule.value, context._replace(candidates=among)) for name, context in scored.items()}
    known: dict[NodeName, tuple[Number | None, int]]
    if rule.direction is Direction.PREFER:
        known = {
            name: (None, MAX_SCORE if holds_there else 0)
            for name, holds_there in values.items()
            if holds_there is not MISSING
        }
    else:
        known = _normalized(rule, _numbers(values))
    instead = _score_of_missing(rule, [score for _, score in known.values()])
    return {name: known.get(name, (None, instead)) for name in scored}


def _numbers(values: Mapping[NodeName, Value]) -> dict[NodeName, Number]:
    numbers = {}
    for name, number in values.items():
        if number is not MISSING:
            assert isinstance(number, int | float), f"a score of {number!r}"
            numbers[name] = number
    return numbers


def _score_of_missing(rule: ScoreRule, known: Sequence[int]) -> int:
    """None as a clause: the value can be missing only where an input has rejected the node, or
    nowhere."""
    if rule.missing == "neutral":
        return sum(known) // len(known) if known else NEUTRAL_SCORE_DEFAULT
    return rule.missing or 0


def _normalized(
    rule: ScoreRule, numbers: Mapping[NodeName, Number]
) -> dict[NodeName, tuple[Number | None, int]]:
    lower = rule.direction is Direction.LOWER
    match rule.normalize:
        case RangeNormalize(low=low, high=high):
            marks = {name: scaled_score(number, low, high) for name, number in numbers.items()}
        case MaxNormalize():
            most = max(numbers.values(), default=0)
            marks = {
                name: scaled_score(number, 0, most) if most > 0 else 0 for name, number in numbers.items()
            }
        case MinMaxNormalize():
            least, most = min(numbers.values(), default=0), max(numbers.values(), default=0)
            if least == most:
                return {name: (number, MAX_SCORE) for name, number in numbers.items()}
            marks = {name: scaled_score(number, least, most) for name, number in numbers.items()}
        case None:
            raise AssertionError(f"score {rule.name} has no normalization")
    return {
        name: (number, MAX_SCORE - marks[name] if lower else marks[name]) for name, number in numbers.items()
    }


def scaled_score(number: Number, low: Number, high: Number) -> int:
    """`floor(100 * (number - low) / (high - low))`, clamped to 0..100.

    Exact for integers. If any of the three is a float64, all are, and the operations are done in
    the order written.
    """
    if number <= low:
        return 0
    if number >= high:
        return MAX_SCORE
    if isinstance(number, int) and isinstance(low, int) and isinstance(high, int):
        return MAX_SCORE * (number - low) // (high - low)
    part = finite(MAX_SCORE * finite(float(number) - float(low)))
    return min(MAX_SCORE, math.floor(part / finite(float(high) - float(low))))

"""Explanations: an evaluation in full, with the message of every rejection and every score. Equal to
the reference implementation's.
"""

from collections.abc import Iterable, Mapping, Sequence

from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.snapshot import Snapshot
from policysched.evaluate.columns.view import View
from policysched.evaluate.diagnosis import rejections_in_order
from policysched.evaluate.evaluation import Evaluation
from policysched.evaluate.rules.raw_scores import RawScores
from policysched.evaluate.rules.rejection_gaps import resource_gaps
from policysched.evaluate.rules.specialized_rules import SpecializedFilter, SpecializedScore
from policysched.evaluate.scalar.eval_context import EvalContext
from policysched.lang.ir.verdict import (
    NodeRejection,
    NodeRuleScore,
    PlacementExplanation,
    RejectionGap,
)
from policysched.model.identifiers import NodeName

ReasonMasks = Sequence[tuple[str, Array]]


class ExplanationTooLong(Exception):
    """Rules reject nodes more often than may be explained."""


def explanation(
    evaluation: Evaluation,
    snapshot: Snapshot,
    context: EvalContext,
    selected: NodeName | None,
    rejections_max: int | None = None,
) -> PlacementExplanation:
    """Raises ExplanationTooLong if rules reject nodes more often than `rejections_max`."""
    view, columns = snapshot.view(), snapshot.columns
    rows = sorted(
        (row for row in range(columns.size) if columns.valid[row]), key=lambda row: columns.names[row]
    )
    feasible = [row for row in rows if evaluation.feasible[row]]
    found = list(rejections_in_order(evaluation, view))
    if rejections_max is not None and sum(int(rejected.sum()) for _, rejected, _ in found) > rejections_max:
        raise ExplanationTooLong
    names = columns.names
    scores = _scores(evaluation, feasible, view, names)
    rules: tuple[SpecializedFilter | SpecializedScore, ...] = (
        *evaluation.rules.filters,
        *evaluation.rules.scores,
    )
    return PlacementExplanation(
        pod_rejection=None,
        feasible=tuple(names[row] for row in feasible),
        rejections=_rejected(found, view, context, rows),
        scores=scores,
        totals={names[row]: int(evaluation.total[row]) for row in feasible},
        selected=selected,
        metrics_in_outage=tuple(sorted(evaluation.outage_metrics)),
        disabled_rules=tuple(
            rule.name for rule in rules if evaluation.outage_metrics.intersection(rule.metrics)
        ),
    )


def _rejected(
    found: Iterable[tuple[SpecializedFilter, Array, Array | None]],
    view: View,
    context: EvalContext,
    rows: list[int],
) -> Mapping[str, tuple[NodeRejection, ...]]:
    rejections: dict[int, dict[str, NodeRejection]] = {}
    for rule, rejected, _ in found:
        unresolvable, reasons = rule.kernel.unresolvable(view), rule.kernel.reasons(view)
        shortfalls = rule.kernel.shortfall(view)
        for row in rows:
            # A rule that has rejected a node early does not reject it again.
            if rejected[row] and rule.name not in rejections.get(row, {}):
                rejections.setdefault(row, {})[rule.name] = rejection_at(
                    row, rule, unresolvable, reasons, view, context, shortfalls
                )
    return {_name(view, row): tuple(rejections[row].values()) for row in rows if row in rejections}


def rejection_at(
    row: int,
    rule: SpecializedFilter,
    unresolvable: Array,
    reasons: ReasonMasks,
    view: View,
    context: EvalContext,
    shortfalls: Mapping[str, Array] | None = None,
) -> NodeRejection:
    """One rejection with its messages. `unresolvable`, `reasons` and `shortfalls` are the kernel's
    answers for the whole view.
    """
    groups = tuple(group for group, mask in reasons if mask[row])
    texts = _texts(rule, groups, view, row, context)
    gaps = _gaps(rule, view, row, context, shortfalls or {})
    return NodeRejection(rule.name, texts, groups, not unresolvable[row], rule.scaleup, gaps)


def _gaps(
    rule: SpecializedFilter, view: View, row: int, context: EvalContext, shortfalls: Mapping[str, Array]
) -> tuple[RejectionGap, ...]:
    if shortfalls:
        return resource_gaps(
            context.pod.requests, {name: int(amounts[row]) for name, amounts in shortfalls.items()}
        )
    at = view.node_at(row)
    gap = None if rule.gap_at is None or at is None else rule.gap_at(context.with_node(*at))
    return () if gap is None else (gap,)


def _texts(
    rule: SpecializedFilter, groups: tuple[str, ...], view: View, row: int, context: EvalContext
) -> tuple[str, ...]:
    at = view.node_at(row)
    assert at is not None, f"row {row} is rejected but holds no node"
    if rule.message_at is None:
        return groups
    return tuple(
        rule.message_at(context.with_node(*at)) if group == rule.reason_group else group for group in groups
    )


def _name(view: View, row: int) -> str:
    at = view.node_at(row)
    assert at is not None, f"row {row} holds no node"
    return at[0].name


def _scores(
    evaluation: Evaluation, feasible: list[int], view: View, names: list[NodeName]
) -> dict[str, Mapping[str, NodeRuleScore]]:
    scores_by_rule: dict[str, Mapping[str, NodeRuleScore]] = {}
    candidates = evaluation.feasible[: view.count]
    for rule in evaluation.rules.scores:
        if evaluation.outage_metrics.intersection(rule.metrics) or not feasible:
            continue
        raw_scores = rule.raw_scores(view, candidates)
        if raw_scores.applies is not None and not (raw_scores.applies & candidates).any():
            continue
        if rule.node_local:
            scores, shown = rule.node_local_scores(raw_scores), raw_scores.raw
        else:
            stats = rule.candidate_stats(raw_scores, candidates)
            scores = rule.candidate_scores(raw_scores, stats)
            shown = raw_scores.raw if stats is None else rule.display_raw(raw_scores.raw, stats[0])
        scores_by_rule[rule.name] = {
            names[row]: _cell(rule, raw_scores, scores, shown, row) for row in feasible
        }
    return scores_by_rule


def _cell(
    rule: SpecializedScore, raw_scores: RawScores, scores: Array, shown: Array, row: int
) -> NodeRuleScore:
    has_value = (raw_scores.known is None or bool(raw_scores.known[row])) and (
        raw_scores.applies is None or bool(raw_scores.applies[row])
    )
    raw = shown[row].item() if has_value and rule.has_raw else None
    score = int(scores[row])
    return NodeRuleScore(raw, score, rule.weight, rule.weight * score)

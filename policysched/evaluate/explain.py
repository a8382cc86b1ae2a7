"""An evaluation in full, equal to the oracle's: every refusal in words, every score as a cell."""

from collections.abc import Mapping, Sequence

from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.snapshot import Snapshot
from policysched.evaluate.columns.view import View
from policysched.evaluate.diagnosis import refusals_in_order
from policysched.evaluate.evaluation import Evaluation
from policysched.evaluate.rules.specialized_rules import (
    RawScores,
    SpecializedFilter,
    SpecializedScore,
)
from policysched.evaluate.scalar.eval_context import EvalContext
from policysched.lang.ir.verdict import NodeRefusal, NodeRuleScore, PlacementExplanation
from policysched.model.identifiers import NodeName

ReasonMasks = Sequence[tuple[str, Array]]


def explanation(
    state: Evaluation, world: Snapshot, seen: EvalContext, selected: NodeName | None
) -> PlacementExplanation:
    view, columns = world.view(), world.columns
    rows = sorted(
        (row for row in range(columns.size) if columns.valid[row]), key=lambda row: columns.names[row]
    )
    feasible = [row for row in rows if state.feasible[row]]
    names = columns.names
    scores = _scores(state, feasible, view, names)
    rules: tuple[SpecializedFilter | SpecializedScore, ...] = (*state.rules.filters, *state.rules.scores)
    return PlacementExplanation(
        pod_refusal=None,
        feasible=tuple(names[row] for row in feasible),
        refusals=_rejected(state, view, seen, rows),
        scores=scores,
        totals={names[row]: int(state.total[row]) for row in feasible},
        selected=selected,
        metrics_in_outage=tuple(sorted(state.outage_metrics)),
        disabled_rules=tuple(rule.name for rule in rules if state.outage_metrics.intersection(rule.metrics)),
    )


def _rejected(
    state: Evaluation, view: View, seen: EvalContext, rows: list[int]
) -> Mapping[str, tuple[NodeRefusal, ...]]:
    found: dict[int, dict[str, NodeRefusal]] = {}
    for rule, refused, _ in refusals_in_order(state, view):
        hopeless, reasons = rule.kernel.unresolvable(view), rule.kernel.reasons(view)
        for row in rows:
            # A rule that has refused a node ahead of the others does not refuse it a second time.
            if refused[row] and rule.name not in found.get(row, {}):
                found.setdefault(row, {})[rule.name] = refusal_at(row, rule, hopeless, reasons, view, seen)
    return {_name(view, row): tuple(found[row].values()) for row in rows if row in found}


def refusal_at(
    row: int, rule: SpecializedFilter, hopeless: Array, reasons: ReasonMasks, view: View, seen: EvalContext
) -> NodeRefusal:
    """One refusal in words. `hopeless` and `reasons` are what the rule's kernel says of the whole view."""
    groups = tuple(group for group, mask in reasons if mask[row])
    texts = _texts(rule, groups, view, row, seen)
    return NodeRefusal(rule.name, texts, groups, not hopeless[row], rule.scaleup)


def _texts(
    rule: SpecializedFilter, groups: tuple[str, ...], view: View, row: int, seen: EvalContext
) -> tuple[str, ...]:
    at = view.node_at(row)
    assert at is not None, f"row {row} is refused and holds no node"
    if rule.message_at is None:
        return groups
    return tuple(
        rule.message_at(seen.with_node(*at)) if group == rule.reason_group else group for group in groups
    )


def _name(view: View, row: int) -> str:
    at = view.node_at(row)
    assert at is not None, f"row {row} holds no node"
    return at[0].name


def _scores(
    state: Evaluation, feasible: list[int], view: View, names: list[NodeName]
) -> dict[str, Mapping[str, NodeRuleScore]]:
    found: dict[str, Mapping[str, NodeRuleScore]] = {}
    candidates = state.feasible[: view.count]
    for rule in state.rules.scores:
        if state.outage_metrics.intersection(rule.metrics) or not feasible:
            continue
        measures = rule.raw_scores(view, candidates)
        if measures.applies is not None and not (measures.applies & candidates).any():
            continue
        if rule.node_local:
            scores, shown = rule.node_local_scores(measures), measures.raw
        else:
            facts = rule.candidate_stats(measures, candidates)
            scores = rule.candidate_scores(measures, facts)
            shown = measures.raw if facts is None else rule.display_raw(measures.raw, facts[0])
        found[rule.name] = {names[row]: _cell(rule, measures, scores, shown, row) for row in feasible}
    return found


def _cell(
    rule: SpecializedScore, measures: RawScores, scores: Array, shown: Array, row: int
) -> NodeRuleScore:
    there = (measures.known is None or bool(measures.known[row])) and (
        measures.applies is None or bool(measures.applies[row])
    )
    raw = shown[row].item() if there and rule.has_raw else None
    score = int(scores[row])
    return NodeRuleScore(raw, score, rule.weight, rule.weight * score)

"""An evaluation in full, equal to the oracle's: every refusal in words, every score as a cell."""

from collections.abc import Mapping, Sequence

from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.snapshot import World
from policysched.evaluate.columns.view import View
from policysched.evaluate.evaluation import State
from policysched.evaluate.reasons import deciding
from policysched.evaluate.rules.bound_rules import BoundFilter, BoundScore, Measures
from policysched.evaluate.scalar.eval_context import Seen
from policysched.lang.ir.verdict import Explanation, Refusal, ScoreCell
from policysched.model.objects import NodeName

Reasons = Sequence[tuple[str, Array]]


def explanation(state: State, world: World, seen: Seen, selected: NodeName | None) -> Explanation:
    view, columns = world.view(), world.columns
    rows = sorted(
        (row for row in range(columns.size) if columns.valid[row]), key=lambda row: columns.names[row]
    )
    feasible = [row for row in rows if state.feasible[row]]
    names = columns.names
    scores = _scores(state, feasible, view, names)
    rules: tuple[BoundFilter | BoundScore, ...] = (*state.bound.filters, *state.bound.scores)
    return Explanation(
        pod_refusal=None,
        feasible=tuple(names[row] for row in feasible),
        rejected=_rejected(state, view, seen, rows),
        scores=scores,
        totals={names[row]: int(state.total[row]) for row in feasible},
        selected=selected,
        out=tuple(sorted(state.out)),
        off=tuple(rule.name for rule in rules if state.out.intersection(rule.metrics)),
    )


def _rejected(state: State, view: View, seen: Seen, rows: list[int]) -> Mapping[str, tuple[Refusal, ...]]:
    found: dict[int, dict[str, Refusal]] = {}
    for rule, refused, _ in deciding(state, view):
        hopeless, reasons = rule.kernel.unresolvable(view), rule.kernel.reasons(view)
        for row in rows:
            # A rule that has refused a node ahead of the others does not refuse it a second time.
            if refused[row] and rule.name not in found.get(row, {}):
                found.setdefault(row, {})[rule.name] = refusal_at(row, rule, hopeless, reasons, view, seen)
    return {_name(view, row): tuple(found[row].values()) for row in rows if row in found}


def refusal_at(
    row: int, rule: BoundFilter, hopeless: Array, reasons: Reasons, view: View, seen: Seen
) -> Refusal:
    """One refusal in words. `hopeless` and `reasons` are what the rule's kernel says of the whole view."""
    groups = tuple(group for group, mask in reasons if mask[row])
    texts = _texts(rule, groups, view, row, seen)
    return Refusal(rule.name, texts, groups, not hopeless[row], rule.scaleup)


def _texts(rule: BoundFilter, groups: tuple[str, ...], view: View, row: int, seen: Seen) -> tuple[str, ...]:
    at = view.node_at(row)
    assert at is not None, f"row {row} is refused and holds no node"
    if rule.text is None:
        return groups
    return tuple(rule.text(seen.on(*at)) if group == rule.own_group else group for group in groups)


def _name(view: View, row: int) -> str:
    at = view.node_at(row)
    assert at is not None, f"row {row} holds no node"
    return at[0].name


def _scores(
    state: State, feasible: list[int], view: View, names: list[NodeName]
) -> dict[str, Mapping[str, ScoreCell]]:
    found: dict[str, Mapping[str, ScoreCell]] = {}
    candidates = state.feasible[: view.count]
    for rule in state.bound.scores:
        if state.out.intersection(rule.metrics) or not feasible:
            continue
        measures = rule.measure(view, candidates)
        if measures.applies is not None and not (measures.applies & candidates).any():
            continue
        if rule.local:
            scores, shown = rule.local_scores(measures), measures.raw
        else:
            facts = rule.candidate_facts(measures, candidates)
            scores = rule.candidate_scores(measures, facts)
            shown = measures.raw if facts is None else rule.shown(measures.raw, facts[0])
        found[rule.name] = {names[row]: _cell(rule, measures, scores, shown, row) for row in feasible}
    return found


def _cell(rule: BoundScore, measures: Measures, scores: Array, shown: Array, row: int) -> ScoreCell:
    there = (measures.known is None or bool(measures.known[row])) and (
        measures.applies is None or bool(measures.applies[row])
    )
    raw = shown[row].item() if there and rule.has_raw else None
    score = int(scores[row])
    return ScoreCell(raw, score, rule.weight, rule.weight * score)

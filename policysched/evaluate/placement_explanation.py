"""Explanations: an evaluation in full, with the message of every rejection and every score. Equal to
the reference implementation's. Of very many rejections only some have their messages; all are counted.
"""

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import ParamSpec, TypeVar

import numpy as np

from policysched.cluster.node_usage import NodeUsage
from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.snapshot import Snapshot
from policysched.evaluate.columns.view import View
from policysched.evaluate.diagnosis import rejections_in_order
from policysched.evaluate.evaluation import Evaluation
from policysched.evaluate.rules.rejection_gaps import resource_gaps
from policysched.evaluate.rules.specialized_rules import SpecializedFilter, SpecializedScore
from policysched.evaluate.scalar.eval_context import EvalContext
from policysched.lang.ir.verdict import (
    NodeRejection,
    NodeRuleScore,
    OmittedNodes,
    PlacementExplanation,
    RejectionGap,
    ShadowEffect,
)
from policysched.model.nodes import Node

ReasonMasks = Sequence[tuple[str, Array]]
Rejections = Sequence[tuple[SpecializedFilter, Array, Array | None]]
"""As of `rejections_in_order`."""

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_REASONS_PER_STEP = 200
SCORES_PER_STEP = 2_000
_FIRST_OF_CAUSE = 3
_CHARACTERS = 256
"""A reason with a text of so many counts twice: it may quote many annotations."""
_CAUSES_MAX = 100


@dataclass(frozen=True, slots=True)
class _Found:
    """A rule and what it says about the listed rows. Copied, since the columns may change between steps."""

    rule: SpecializedFilter
    rejected: Array
    reasons: ReasonMasks
    unresolvable: Array
    shortfalls: Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class _Scored:
    """A rule and what it says about the feasible rows. `shown` without `has_value` is nothing. Copied, too."""

    rule: SpecializedScore
    has_value: Array
    shown: Array
    scores: Array


def whole(steps: Callable[Arguments, Generator[None, None, Result]]) -> Callable[Arguments, Result]:
    """The same in one step."""

    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        running = steps(*args, **kwargs)
        while True:
            try:
                next(running)
            except StopIteration as end:
                result: Result = end.value
                return result

    return run


def explanation_in_steps(
    evaluation: Evaluation,
    snapshot: Snapshot,
    context: EvalContext,
    selected_row: int | None,
    shadows: tuple[ShadowEffect, ...],
    reasons_max: int | None = None,
) -> Generator[None, None, PlacementExplanation]:
    """If rules reject nodes for more than `reasons_max` reasons, some nodes are omitted, and counted. The cluster may change
    between the steps, which list rejections and scores as they were."""
    view, columns = snapshot.view(), snapshot.columns
    rows = sorted(
        (row for row in range(columns.size) if columns.valid[row]), key=lambda row: columns.names[row]
    )
    feasible = [row for row in rows if evaluation.feasible[row]]
    found = list(rejections_in_order(evaluation, view))
    reasons = [rule.kernel.reasons(view) for rule, _, _ in found]
    listed, omitted = [row for row in rows if not evaluation.feasible[row]], None
    if reasons_max is not None:
        listed, omitted = _shorten(found, reasons, view, listed, reasons_max)
    names = columns.names
    scored = list(_scored(evaluation, np.array(feasible, np.intp), view))
    feasible_names = tuple[str, ...](names[row] for row in feasible)
    totals = dict(zip(feasible_names, map(int, evaluation.total[feasible].tolist()), strict=True))
    about = [
        _about(listed, rule, rejected, of_rule, view)
        for (rule, rejected, _), of_rule in zip(found, reasons, strict=True)
    ]
    nodes = [_node_at(view, row) for row in listed]
    selected = None if selected_row is None else names[selected_row]
    rules: tuple[SpecializedFilter | SpecializedScore, ...] = (
        *evaluation.rules.filters,
        *evaluation.rules.scores,
    )
    scores = yield from _scores(scored, feasible_names)
    rejections = yield from _rejections(about, nodes, context)
    return PlacementExplanation(
        pod_rejection=None,
        feasible=feasible_names,
        rejections=rejections,
        scores=scores,
        totals=totals,
        selected=selected,
        metrics_in_outage=tuple(sorted(evaluation.outage_metrics)),
        disabled_rules=tuple(
            rule.name for rule in rules if evaluation.outage_metrics.intersection(rule.metrics)
        ),
        shadows=shadows,
        omitted=omitted,
    )


def _shorten(
    found: Rejections, reasons: Sequence[ReasonMasks], view: View, rows: list[int], reasons_max: int
) -> tuple[list[int], OmittedNodes | None]:
    """The rows to list: the first of each cause, then those that the fewest rules reject, then the next of each cause in
    turn. A cause is the set of rules that reject a row."""
    sizes = np.zeros(view.count, np.int64)
    for (_, rejected, _), of_rule in zip(found, reasons, strict=True):
        for text, mask in of_rule:
            sizes += (rejected & mask) * (1 + len(text) // _CHARACTERS)
    if sizes.sum() <= reasons_max:
        return rows, None
    masks = np.array([rejected for _, rejected, _ in found])
    rule_counts = masks.sum(axis=0)
    fewest = rule_counts[rows].min()
    keys, seen = np.packbits(masks, axis=0).T, Counter[bytes]()
    cause_of, turns = dict[int, bytes](), list[tuple[int, int, int]]()
    for row in rows:
        cause, rule_count = keys[row].tobytes(), int(rule_counts[row])
        turn = min(seen[cause], _FIRST_OF_CAUSE) if rule_count == fewest else seen[cause]
        turns.append((turn, rule_count, row))
        cause_of[row] = cause
        seen[cause] += 1
    ordered = [row for _, _, row in sorted(turns, key=itemgetter(0, 1))]
    listed_count = int(np.searchsorted(sizes[ordered].cumsum(), reasons_max, side="right"))
    listed = set(ordered[:listed_count])
    left_out = {row: cause for row, cause in cause_of.items() if row not in listed}
    return [row for row in rows if row in listed], _omitted(found, reasons, view, left_out)


def _omitted(
    found: Rejections, reasons: Sequence[ReasonMasks], view: View, cause_of: Mapping[int, bytes]
) -> OmittedNodes:
    undecided = np.zeros(view.count, bool)
    undecided[list(cause_of)] = True
    omitted, rejected_by = undecided.copy(), dict[str, Array]()
    decided, event_reasons = Counter[str](), Counter[str]()
    for (rule, rejected, _), of_rule in zip(found, reasons, strict=True):
        # A rule that rejects some nodes early is found twice.
        rejected_by[rule.name] = rejected_by.get(rule.name, False) | (rejected & omitted)
        deciding = undecided & rejected
        decided[rule.name] += int(deciding.sum())
        for group, mask in of_rule:
            event_reasons[group] += int((deciding & mask).sum())
        undecided &= ~rejected
    row_of = {cause: row for row, cause in cause_of.items()}
    causes = [
        (tuple(dict.fromkeys(rule.name for rule, rejected, _ in found if rejected[row_of[cause]])), count)
        for cause, count in Counter(cause_of.values()).most_common(_CAUSES_MAX)
    ]
    rejected_counts = {name: int(mask.sum()) for name, mask in rejected_by.items()}
    return OmittedNodes(len(cause_of), tuple(causes), rejected_counts, +decided, +event_reasons)


def _about(
    rows: list[int], rule: SpecializedFilter, rejected: Array, reasons: ReasonMasks, view: View
) -> _Found:
    return _Found(
        rule,
        rejected[rows],
        [(group, mask[rows]) for group, mask in reasons],
        rule.kernel.unresolvable(view)[rows],
        {name: amounts[rows] for name, amounts in rule.kernel.shortfall(view).items()},
    )


def _rejections(
    found: Sequence[_Found], nodes: Sequence[tuple[Node, NodeUsage]], context: EvalContext
) -> Generator[None, None, Mapping[str, tuple[NodeRejection, ...]]]:
    rejections, work = dict[str, tuple[NodeRejection, ...]](), 0
    for index, (node, usage) in enumerate(nodes):
        at_node, by_rule = context.with_node(node, usage), dict[str, NodeRejection]()
        for each in found:
            # A rule that has rejected a node early does not reject it again.
            if each.rejected[index] and each.rule.name not in by_rule:
                by_rule[each.rule.name] = rejection = rejection_at(
                    index, each.rule, each.unresolvable, each.reasons, at_node, each.shortfalls
                )
                work += len(rejection.reasons)
        if by_rule:
            rejections[node.name] = tuple(by_rule.values())
        if work >= _REASONS_PER_STEP:
            work = 0
            yield
    return rejections


def rejection_at(
    row: int,
    rule: SpecializedFilter,
    unresolvable: Array,
    reasons: ReasonMasks,
    at_node: EvalContext,
    shortfalls: Mapping[str, Array] | None = None,
) -> NodeRejection:
    """One rejection with its messages. `unresolvable`, `reasons` and `shortfalls` are the kernel's
    answers, of which `row` is the node's.
    """
    groups = tuple(group for group, mask in reasons if mask[row])
    texts = _texts(rule, groups, at_node)
    gaps = _gaps(rule, row, at_node, shortfalls or {})
    return NodeRejection(rule.name, texts, groups, not unresolvable[row], rule.scaleup, gaps)


def _gaps(
    rule: SpecializedFilter, row: int, at_node: EvalContext, shortfalls: Mapping[str, Array]
) -> tuple[RejectionGap, ...]:
    if shortfalls:
        return resource_gaps(
            at_node.pod.requests, {name: int(amounts[row]) for name, amounts in shortfalls.items()}
        )
    gap = None if rule.gap_at is None else rule.gap_at(at_node)
    return () if gap is None else (gap,)


def _texts(rule: SpecializedFilter, groups: tuple[str, ...], at_node: EvalContext) -> tuple[str, ...]:
    if rule.message_at is None:
        return groups
    return tuple(rule.message_at(at_node) if group == rule.reason_group else group for group in groups)


def _node_at(view: View, row: int) -> tuple[Node, NodeUsage]:
    at = view.node_at(row)
    assert at is not None, f"row {row} holds no node"
    return at


def _scored(evaluation: Evaluation, feasible: Array, view: View) -> Iterator[_Scored]:
    candidates = evaluation.feasible[: view.count]
    for rule in evaluation.rules.scores:
        if evaluation.outage_metrics.intersection(rule.metrics) or not feasible.size:
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
        has_value = np.full(feasible.size, rule.has_raw)
        for mask in (raw_scores.known, raw_scores.applies):
            if mask is not None:
                has_value &= mask[feasible]
        yield _Scored(rule, has_value, shown[feasible], scores[feasible])


def _scores(
    scored: Sequence[_Scored], names: Sequence[str]
) -> Generator[None, None, Mapping[str, Mapping[str, NodeRuleScore]]]:
    scores_by_rule, work = dict[str, Mapping[str, NodeRuleScore]](), 0
    for each in scored:
        weight, cells = each.rule.weight, dict[str, NodeRuleScore]()
        for start in range(0, len(names), SCORES_PER_STEP):
            part = slice(start, start + SCORES_PER_STEP)
            arrays = (array[part].tolist() for array in (each.has_value, each.shown, each.scores))
            for name, has_value, raw, value in zip(names[part], *arrays, strict=True):
                score = int(value)
                cells[name] = NodeRuleScore(raw if has_value else None, score, weight, weight * score)
            work += len(names[part])
            if work >= SCORES_PER_STEP:
                work = 0
                yield
        scores_by_rule[each.rule.name] = cells
    return scores_by_rule

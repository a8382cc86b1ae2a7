"""The detail of a decision for recordings: a dozen microseconds for 5,000 nodes, since it is made for every decision."""

import numpy as np

from policysched.evaluate.columns.columns import Columns
from policysched.evaluate.evaluation import Evaluation
from policysched.evaluate.evaluation_rows import REJECTED_TOTAL
from policysched.evaluate.verdict import DecisionDetail, NodeTotal


def decision_detail(evaluation: Evaluation, columns: Columns) -> DecisionDetail:
    rejections: dict[str, int] = {}
    if evaluation.feasible_count < columns.node_count:
        size = columns.size
        valid = (
            columns.valid[:size] if columns.node_count < size else None
        )  # rows of deleted nodes do not count
        for index, rule in enumerate(evaluation.rules.filters):
            mask = evaluation.rejected(index)
            if mask is None:
                continue
            count = int(np.count_nonzero(mask[:size] if valid is None else mask[:size] & valid))
            if count:
                rejections[rule.name] = rejections.get(rule.name, 0) + count
    return DecisionDetail(rejections, _best_totals(evaluation, columns) if evaluation.feasible_count else ())


def _best_totals(evaluation: Evaluation, columns: Columns) -> tuple[NodeTotal, ...]:
    """The two best totals: each is one pass over the nodes for its value and one for how many have it."""
    totals = evaluation.total[: columns.size]
    row = int(totals.argmax())
    score = int(totals[row])
    tied = totals == score
    equals = int(np.count_nonzero(tied))
    best = NodeTotal(score, columns.names[row] if equals == 1 else None, equals)
    second = int(np.maximum.reduce(totals, where=~tied, initial=REJECTED_TOTAL))
    if second == REJECTED_TOTAL:
        return (best,)
    tied = totals == second
    equals = int(np.count_nonzero(tied))
    return best, NodeTotal(second, columns.names[int(tied.argmax())] if equals == 1 else None, equals)

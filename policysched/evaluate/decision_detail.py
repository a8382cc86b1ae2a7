"""The detail of a decision for recordings: a dozen microseconds for 5,000 nodes, since it is made for every decision."""

import numpy as np

from policysched.evaluate.columns.columns import Columns
from policysched.evaluate.evaluation import Evaluation
from policysched.evaluate.verdict import DecisionDetail, NodeTotal

BEST_TOTALS = 2


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
    best: list[NodeTotal] = []
    totals = evaluation.total[: columns.size]
    while evaluation.feasible_count:
        score = int(np.maximum.reduce(totals))
        if score < 0:
            break
        tied = totals == score
        equals = int(np.count_nonzero(tied))
        best.append(NodeTotal(score, columns.names[int(np.argmax(tied))] if equals == 1 else None, equals))
        if len(best) == BEST_TOTALS:
            break
        totals = np.where(tied, -1, totals)
    return DecisionDetail(rejections, tuple(best))

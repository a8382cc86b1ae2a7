"""The detail of a decision for recordings: cheap enough to be made for every one."""

from collections.abc import Sequence

import numpy as np

from policysched.evaluate.columns.columns import Array
from policysched.evaluate.evaluation import Evaluation
from policysched.evaluate.verdict import DecisionDetail, NodeTotal
from policysched.model.identifiers import NodeName

BEST_TOTALS = 3


def decision_detail(evaluation: Evaluation, names: Sequence[NodeName], name_hash: Array) -> DecisionDetail:
    """`names` and `name_hash` by row."""
    rejections: dict[str, int] = {}
    for index, rule in enumerate(evaluation.rules.filters):
        mask = evaluation.rejected(index)
        count = 0 if mask is None else int(np.count_nonzero(mask))
        if count:
            rejections[rule.name] = rejections.get(rule.name, 0) + count
    best: list[NodeTotal] = []
    totals = evaluation.total if evaluation.feasible_count else evaluation.total[:0]
    while len(totals) and len(best) < BEST_TOTALS:
        score = int(np.maximum.reduce(totals))
        if score < 0:
            break
        tied = (totals == score).nonzero()[0]
        row = tied[0] if len(tied) == 1 else tied[np.argmax(name_hash[tied])]
        best.append(NodeTotal(score, names[row], len(tied)))
        totals = np.where(totals < score, totals, -1)
    return DecisionDetail(rejections, tuple(best))

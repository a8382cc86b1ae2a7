"""Verdicts on a subset of the nodes, as the scheduler extender protocol requests them.

The other nodes are rejected before all rules, so that scores are normalized over the subset. Their
pods still count for rules that read other nodes.
"""

from collections.abc import Iterable, Mapping

import numpy as np

from policysched.evaluate.columns.columns import Array, Columns
from policysched.evaluate.columns.snapshot import Snapshot
from policysched.evaluate.diagnosis import rejections_in_order
from policysched.evaluate.evaluation import Evaluation
from policysched.evaluate.kernel import MAX_SCORE
from policysched.evaluate.nominated_rows import NominatedRejection
from policysched.evaluate.placement_explanation import rejection_at
from policysched.evaluate.scalar.eval_context import EvalContext
from policysched.lang.ir.verdict import NodeRejection, NodeSubsetVerdict
from policysched.model.identifiers import NodeName


def row_mask(columns: Columns, nodes: Iterable[NodeName]) -> Array:
    """bool[capacity]: the rows of those nodes that exist."""
    mask = np.zeros(columns.capacity, np.bool_)
    for name in nodes:
        row = columns.row(name)
        if row is not None:
            mask[row] = True
    return mask


def node_subset_result(
    evaluation: Evaluation,
    snapshot: Snapshot,
    context: EvalContext,
    among: Array,
    nominated_rows: Mapping[int, NominatedRejection],
) -> NodeSubsetVerdict:
    """`evaluation` is limited to the rows of `among`, without those in `nominated_rows`."""
    names = snapshot.columns.names
    rows = sorted(np.flatnonzero(evaluation.feasible).tolist(), key=lambda row: names[row])
    return NodeSubsetVerdict(
        pod_rejection=None,
        totals={names[row]: int(evaluation.total[row]) for row in rows},
        rejections=_rejections(evaluation, snapshot, context, among, nominated_rows),
        total_max=MAX_SCORE * sum(step.rule.weight for step in evaluation.rules.variant.scores),
    )


def _rejections(
    evaluation: Evaluation,
    snapshot: Snapshot,
    context: EvalContext,
    among: Array,
    nominated_rejections: Mapping[int, NominatedRejection],
) -> dict[str, NodeRejection]:
    view = snapshot.view()
    undecided = (among & snapshot.columns.valid)[: view.count]
    rejections: dict[str, NodeRejection] = {}
    for row, rejection in nominated_rejections.items():
        rule = rejection.rules[0]
        rejections[snapshot.columns.names[row]] = NodeRejection(
            rule.name, rejection.groups, rejection.groups, rejection.resolvable, rule.scaleup
        )
        undecided[row] = False
    for rule, rejected, _ in rejections_in_order(evaluation, view):
        rows = np.flatnonzero(undecided & rejected).tolist()
        if not rows:
            continue
        unresolvable, reasons = rule.kernel.unresolvable(view), rule.kernel.reasons(view)
        for row in rows:
            at = view.node_at(row)
            assert at is not None
            rejections[snapshot.columns.names[row]] = rejection_at(
                row, rule, unresolvable, reasons, context.with_node(*at)
            )
        undecided &= ~rejected
    return dict(sorted(rejections.items()))

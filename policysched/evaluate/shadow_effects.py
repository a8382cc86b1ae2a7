"""Shadow rules: what each of them alone would have changed about a decision, after it is made.

They are compiled to a plan of their own and evaluated on the candidates of the decision, so nothing that decides sees them.
Whatever goes wrong here is a result, and never the decision's.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from policysched.evaluate.columns.columns import Array, text_hash
from policysched.evaluate.columns.overlay import Overlay
from policysched.evaluate.columns.snapshot import Snapshot
from policysched.evaluate.evaluation import Evaluation
from policysched.evaluate.evaluation_cache import EvaluationCache
from policysched.evaluate.evaluation_rows import REJECTED_TOTAL, best_row
from policysched.evaluate.plan.plan import Plan
from policysched.evaluate.rules.specialized_rules import NodeInputFilter
from policysched.evaluate.scalar.eval_context import EvalContext
from policysched.lang.ir.verdict import ShadowEffect


@dataclass(frozen=True, slots=True)
class MadeDecision:
    """A decision: its evaluation, the selected row (None: no node), the row that was preferred because the pod is nominated to it
    (None: none was), and the rows that could be selected (bool by row; None: all)."""

    evaluation: Evaluation
    snapshot: Snapshot
    row: int | None
    nominated_row: int | None = None
    row_mask: Array | None = None


def shadow_effects(
    plan: Plan,
    evaluations: EvaluationCache,
    context: EvalContext,
    overlay: Overlay | None,
    decision: MadeDecision,
) -> tuple[ShadowEffect, ...]:
    """The effects of the plan's shadow rules that apply to the pod; none where no node is selected."""
    shadow = plan.shadow
    if shadow is None or decision.row is None:
        return ()
    try:
        evaluation, snapshot = evaluations.get(shadow, shadow.variant(()), context, overlay)
        return tuple(_effects(evaluation, snapshot, decision, text_hash(context.pod.uid)))
    except Exception as error:  # noqa: BLE001 (a rule that is not used must not fail a decision, whatever it raises)
        evaluations.forget(shadow)
        rules = shadow.program.rules
        text = f"{type(error).__name__}: {error}"
        return (
            *(ShadowEffect(rule.name, "filter", 0, None, text) for rule in rules.filters),
            *(ShadowEffect(rule.name, "score", 0, None, text) for rule in rules.scores),
        )


def _effects(
    shadow: Evaluation, snapshot: Snapshot, decision: MadeDecision, pod_hash: int
) -> Iterator[ShadowEffect]:
    columns = snapshot.columns
    candidates = decision.evaluation.feasible
    for index, rule in enumerate(shadow.rules.filters):
        if isinstance(rule.kernel, NodeInputFilter):
            continue  # the decision has counted it
        rejected = candidates & shadow.rejected_rows(index)
        row = _row_without(rejected, decision, pod_hash)
        selected = None if row is None else columns.names[row]
        yield ShadowEffect(rule.name, "filter", int(np.count_nonzero(rejected)), selected)
    for index, score in enumerate(shadow.rules.scores):
        added = shadow.weighted_scores(index, candidates, snapshot)
        total = np.where(candidates, decision.evaluation.total + added, REJECTED_TOTAL)
        row = decision.nominated_row
        if row is None:
            row = best_row(total, pod_hash, columns.name_hash, decision.row_mask)
        yield ShadowEffect(score.name, "score", 0, None if row is None else columns.names[row])


def _row_without(rejected: Array, decision: MadeDecision, pod_hash: int) -> int | None:
    """The row that is selected if these are no candidates. Scores that are relative to the candidates change with them."""
    if not rejected.any():
        return decision.row
    if decision.nominated_row is not None and not rejected[decision.nominated_row]:
        return decision.nominated_row
    left = decision.evaluation.feasible & ~rejected
    if not left.any():
        return None
    total = decision.evaluation.totals_among(left, decision.snapshot)
    return best_row(total, pod_hash, decision.snapshot.columns.name_hash, decision.row_mask)

"""What a policy says of a pod on some nodes alone: what somebody else's scheduler asks (the extender protocol).

The nodes that were not asked about are refused ahead of all rules, so that scores are normalised over those that were;
their pods count where a rule looks around.
"""

from collections.abc import Iterable, Mapping

import numpy as np

from policysched.evaluate.columns.columns import Array, Columns
from policysched.evaluate.columns.snapshot import Snapshot
from policysched.evaluate.diagnosis import refusals_in_order
from policysched.evaluate.evaluation import Evaluation
from policysched.evaluate.explain import refusal_at
from policysched.evaluate.nominated_rows import NominatedRefusal
from policysched.evaluate.scalar.eval_context import EvalContext
from policysched.lang.ir.verdict import NodeRefusal, NodeSubsetVerdict
from policysched.model.identifiers import NodeName

MAX_SCORE = 100


def row_mask(columns: Columns, nodes: Iterable[NodeName]) -> Array:
    """bool[capacity]: the rows of those of the nodes that exist."""
    mask = np.zeros(columns.capacity, np.bool_)
    for name in nodes:
        row = columns.row(name)
        if row is not None:
            mask[row] = True
    return mask


def node_subset_result(
    state: Evaluation,
    world: Snapshot,
    seen: EvalContext,
    among: Array,
    nominated_rows: Mapping[int, NominatedRefusal],
) -> NodeSubsetVerdict:
    """`state` was made for `among` alone, less what is `nominated_rows`."""
    names = world.columns.names
    rows = sorted(np.flatnonzero(state.feasible).tolist(), key=lambda row: names[row])
    return NodeSubsetVerdict(
        pod_refusal=None,
        totals={names[row]: int(state.total[row]) for row in rows},
        refusals=_refusals(state, world, seen, among, nominated_rows),
        total_max=MAX_SCORE * sum(step.rule.weight for step in state.rules.variant.scores),
    )


def _refusals(
    state: Evaluation,
    world: Snapshot,
    seen: EvalContext,
    among: Array,
    withheld: Mapping[int, NominatedRefusal],
) -> dict[str, NodeRefusal]:
    view = world.view()
    left = (among & world.columns.valid)[: view.count]
    found: dict[str, NodeRefusal] = {}
    for row, one in withheld.items():
        rule = one.rules[0]
        found[world.columns.names[row]] = NodeRefusal(
            rule.name, one.groups, one.groups, one.resolvable, rule.scaleup
        )
        left[row] = False
    for rule, refused, _ in refusals_in_order(state, view):
        here = np.flatnonzero(left & refused).tolist()
        if not here:
            continue
        hopeless, reasons = rule.kernel.unresolvable(view), rule.kernel.reasons(view)
        for row in here:
            found[world.columns.names[row]] = refusal_at(row, rule, hopeless, reasons, view, seen)
        left &= ~refused
    return dict(sorted(found.items()))

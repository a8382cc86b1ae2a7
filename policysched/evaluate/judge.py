"""What a policy says of a pod on some nodes alone: what somebody else's scheduler asks (the extender protocol).

The nodes that were not asked about are refused ahead of all rules, so that scores are normalised over those that were;
their pods count where a rule looks around.
"""

from collections.abc import Iterable, Mapping

import numpy as np

from policysched.evaluate.columns.columns import Array, Columns
from policysched.evaluate.columns.snapshot import World
from policysched.evaluate.evaluation import State
from policysched.evaluate.explain import refusal_at
from policysched.evaluate.nominated import Withheld
from policysched.evaluate.reasons import deciding
from policysched.evaluate.scalar.eval_context import Seen
from policysched.lang.ir.verdict import Judgement, Refusal
from policysched.model.objects import NodeName

MAX_SCORE = 100


def rows_of(columns: Columns, nodes: Iterable[NodeName]) -> Array:
    """bool[capacity]: the rows of those of the nodes that exist."""
    mask = np.zeros(columns.capacity, np.bool_)
    for name in nodes:
        row = columns.row(name)
        if row is not None:
            mask[row] = True
    return mask


def judgement(
    state: State, world: World, seen: Seen, among: Array, withheld: Mapping[int, Withheld]
) -> Judgement:
    """`state` was made for `among` alone, less what is `withheld`."""
    names = world.columns.names
    rows = sorted(np.flatnonzero(state.feasible).tolist(), key=lambda row: names[row])
    return Judgement(
        pod_refusal=None,
        totals={names[row]: int(state.total[row]) for row in rows},
        refusals=_refusals(state, world, seen, among, withheld),
        total_max=MAX_SCORE * sum(step.rule.weight for step in state.bound.variant.scores),
    )


def _refusals(
    state: State, world: World, seen: Seen, among: Array, withheld: Mapping[int, Withheld]
) -> dict[str, Refusal]:
    view = world.view()
    left = (among & world.columns.valid)[: view.count]
    found: dict[str, Refusal] = {}
    for row, one in withheld.items():
        rule = one.rules[0]
        found[world.columns.names[row]] = Refusal(
            rule.name, one.groups, one.groups, one.curable, rule.scaleup
        )
        left[row] = False
    for rule, refused, _ in deciding(state, view):
        here = np.flatnonzero(left & refused).tolist()
        if not here:
            continue
        hopeless, reasons = rule.kernel.unresolvable(view), rule.kernel.reasons(view)
        for row in here:
            found[world.columns.names[row]] = refusal_at(row, rule, hopeless, reasons, view, seen)
        left &= ~refused
    return dict(sorted(found.items()))

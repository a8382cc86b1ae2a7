"""Why no node would do, counted as kube-scheduler counts: each node under the first rule that refuses it."""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from policysched.lang.events import ClusterEvent
from policysched.plan.columns import Array
from policysched.plan.rules import BoundFilter, NodeInputs
from policysched.plan.state import State, World
from policysched.plan.verdict import NoNode
from policysched.plan.view import View


def why_not(state: State, world: World, layer_wakes: frozenset[ClusterEvent]) -> NoNode:
    """`layer_wakes`: what could bring other rules into force."""
    view = world.view()
    left = world.columns.valid[: view.count].copy()
    counts: Counter[str] = Counter()
    for rule, refused, only in deciding(state, view):
        here = left & refused
        if here.any():
            for group, mask in rule.kernel.reasons(view):
                found = int(np.count_nonzero(here & mask if only is None else here & mask & only))
                if found:
                    counts[group] += found
            left &= ~refused
    return NoNode(dict(counts), _only_scaleup_no(state, world), _wakes(state, world) | layer_wakes)


def deciding(state: State, view: View) -> Iterator[tuple[BoundFilter, Array, Array | None]]:
    """Rules with the rows that they refuse, in the order in which a refusal decides: inputs of the node, then what a rule finds
    ahead of all others, then the filters in the order of the file."""
    inputs, ahead, rest = [], [], []
    for place, rule in enumerate(state.bound.filters):
        refused = state.refused(place)
        if refused is None:
            continue
        refused = refused[: view.count]
        early = rule.kernel.ahead(view)
        if isinstance(rule.kernel, NodeInputs):
            inputs.append((rule, refused, None))
        elif early is None:
            rest.append((rule, refused, None))
        else:
            ahead.append((rule, early, early))
            rest.append((rule, refused, None))
    yield from inputs
    yield from ahead
    yield from rest


def _only_scaleup_no(state: State, world: World) -> bool:
    """Whether every refused node is held back by rules alone that a new node would not satisfy either."""
    refused = world.columns.valid & ~state.feasible
    if not refused.any():
        return False
    for place, rule in enumerate(state.bound.filters):
        mask = state.refused(place)
        if rule.scaleup and mask is not None and (refused & mask).any():
            return False
    return True


def _wakes(state: State, world: World) -> frozenset[ClusterEvent]:
    """Every rule that refuses some node may be the last one that does."""
    found = {ClusterEvent.NODE_ADD}
    for place, rule in enumerate(state.bound.filters):
        mask = state.refused(place)
        if mask is None or (mask & world.columns.valid).any():
            found |= rule.wakes
    return frozenset(found)

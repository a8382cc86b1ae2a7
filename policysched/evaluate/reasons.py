"""Why no node would do, counted as kube-scheduler counts: each node under the first rule that refuses it."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.snapshot import World
from policysched.evaluate.columns.view import View
from policysched.evaluate.evaluation import State
from policysched.evaluate.nominated import NOTHING_WITHHELD, Withheld
from policysched.evaluate.rules.bound_rules import BoundFilter, NodeInputs
from policysched.evaluate.verdict import NoNode
from policysched.model.cluster_events import ClusterEvent
from policysched.model.messages import OUTAGE, waiting_for_metrics


def why_not(
    state: State,
    world: World,
    layer_wakes: frozenset[ClusterEvent],
    withheld: Mapping[int, Withheld] = NOTHING_WITHHELD,
) -> NoNode:
    """`layer_wakes`: what could bring other rules into force. `withheld` rows are refused for their own reasons."""
    view = world.view()
    left = world.columns.valid[: view.count].copy()
    left[list(withheld)] = False
    counts = Counter(group for one in withheld.values() for group in one.groups)
    for rule, refused, only in deciding(state, view):
        here = left & refused
        if here.any():
            for group, mask in rule.kernel.reasons(view):
                found = int(np.count_nonzero(here & mask if only is None else here & mask & only))
                if found:
                    counts[group] += found
            left &= ~refused
    rules = [rule for one in withheld.values() for rule in one.rules]
    wakes = _wakes(state, world).union(layer_wakes, *(rule.wakes for rule in rules))
    held_back = _only_scaleup_no(state, world, withheld) and not any(rule.scaleup for rule in rules)
    return NoNode(dict(counts), held_back, wakes)


@dataclass(frozen=True, slots=True)
class Beforehand:
    """Why a pod is refused whatever the node, and by which rule. `waits` for a metric: neither a new node nor evicting would help."""

    rule: str
    words: str
    wakes: frozenset[ClusterEvent]
    waits: bool = False


_OUTAGE_WAKES = frozenset({ClusterEvent.SAMPLES, ClusterEvent.NODE_ADD, ClusterEvent.NODE_DELETE})


def refused_beforehand(state: State, world: World) -> Beforehand | None:
    """The first filter that refuses the pod whatever the node, or the metrics that it waits for."""
    if state.bound.refusing_beforehand:
        view = world.view()
        for rule in state.bound.refusing_beforehand:
            words = rule.kernel.beforehand(view)
            if words is not None:
                return Beforehand(rule.name, words, rule.wakes)
    if state.waits_for:
        # Which nodes are candidates decides as well: whatever changes that may end it.
        wakes = _OUTAGE_WAKES.union(*(rule.wakes for rule in state.bound.filters))
        words = waiting_for_metrics(state.waits_for, state.waiting_candidates)
        return Beforehand(OUTAGE, words, wakes, waits=True)
    return None


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


def _only_scaleup_no(state: State, world: World, withheld: Mapping[int, Withheld]) -> bool:
    """Whether every refused node is held back by rules alone that a new node would not satisfy either."""
    refused = world.columns.valid & ~state.feasible
    refused[list(withheld)] = False
    if not refused.any():
        return bool(withheld)
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
    would_wait = state.would_wait(world)
    if would_wait is not None and would_wait.any():
        found.add(ClusterEvent.SAMPLES)  # then evicting may help there
    return frozenset(found)

"""Why no node would do, counted as kube-scheduler counts: each node under the first rule that refuses it."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.snapshot import Snapshot
from policysched.evaluate.columns.view import View
from policysched.evaluate.evaluation import Evaluation
from policysched.evaluate.nominated_rows import NO_NOMINATED_ROWS, NominatedRefusal
from policysched.evaluate.rules.specialized_rules import NodeInputFilter, SpecializedFilter
from policysched.evaluate.verdict import UnschedulableDiagnosis
from policysched.model.cluster_events import ClusterEvent
from policysched.model.messages import OUTAGE_RULE, metric_outage_message


def diagnose(
    state: Evaluation,
    world: Snapshot,
    layer_wakes: frozenset[ClusterEvent],
    nominated_rows: Mapping[int, NominatedRefusal] = NO_NOMINATED_ROWS,
) -> UnschedulableDiagnosis:
    """`layer_wakes`: what could bring other rules into force. `nominated_rows` rows are refused for their own reasons."""
    view = world.view()
    left = world.columns.valid[: view.count].copy()
    left[list(nominated_rows)] = False
    counts = Counter(group for one in nominated_rows.values() for group in one.groups)
    for rule, refused, only in refusals_in_order(state, view):
        here = left & refused
        if here.any():
            for group, mask in rule.kernel.reasons(view):
                found = int(np.count_nonzero(here & mask if only is None else here & mask & only))
                if found:
                    counts[group] += found
            left &= ~refused
    rules = [rule for one in nominated_rows.values() for rule in one.rules]
    wakes = _requeue_events(state, world).union(layer_wakes, *(rule.requeue_events for rule in rules))
    held_back = _scaleup_would_not_help(state, world, nominated_rows) and not any(
        rule.scaleup for rule in rules
    )
    return UnschedulableDiagnosis(dict(counts), held_back, wakes)


@dataclass(frozen=True, slots=True)
class PrefilterRefusal:
    """Why a pod is refused whatever the node, and by which rule. `awaits_metrics` for a metric: neither a new node nor evicting would help."""

    rule: str
    message: str
    requeue_events: frozenset[ClusterEvent]
    awaits_metrics: bool = False


_OUTAGE_REQUEUE_EVENTS = frozenset({ClusterEvent.SAMPLES, ClusterEvent.NODE_ADD, ClusterEvent.NODE_DELETE})


def prefilter_refusal(state: Evaluation, world: Snapshot) -> PrefilterRefusal | None:
    """The first filter that refuses the pod whatever the node, or the metrics that it waits for."""
    if state.rules.prefilters:
        view = world.view()
        for rule in state.rules.prefilters:
            words = rule.kernel.prefilter(view)
            if words is not None:
                return PrefilterRefusal(rule.name, words, rule.requeue_events)
    if state.awaited_metrics:
        # Which nodes are candidates decides as well: whatever changes that may end it.
        wakes = _OUTAGE_REQUEUE_EVENTS.union(*(rule.requeue_events for rule in state.rules.filters))
        words = metric_outage_message(state.awaited_metrics, state.outage_candidate_count)
        return PrefilterRefusal(OUTAGE_RULE, words, wakes, awaits_metrics=True)
    return None


def refusals_in_order(
    state: Evaluation, view: View
) -> Iterator[tuple[SpecializedFilter, Array, Array | None]]:
    """Rules with the rows that they refuse, in the order in which a refusal decides: inputs of the node, then what a rule finds
    ahead of all others, then the filters in the order of the file."""
    inputs, ahead, rest = [], [], []
    for place, rule in enumerate(state.rules.filters):
        refused = state.refused(place)
        if refused is None:
            continue
        refused = refused[: view.count]
        early = rule.kernel.early_reject(view)
        if isinstance(rule.kernel, NodeInputFilter):
            inputs.append((rule, refused, None))
        elif early is None:
            rest.append((rule, refused, None))
        else:
            ahead.append((rule, early, early))
            rest.append((rule, refused, None))
    yield from inputs
    yield from ahead
    yield from rest


def _scaleup_would_not_help(
    state: Evaluation, world: Snapshot, withheld: Mapping[int, NominatedRefusal]
) -> bool:
    """Whether every refused node is held back by rules alone that a new node would not satisfy either."""
    refused = world.columns.valid & ~state.feasible
    refused[list(withheld)] = False
    if not refused.any():
        return bool(withheld)
    for place, rule in enumerate(state.rules.filters):
        mask = state.refused(place)
        if rule.scaleup and mask is not None and (refused & mask).any():
            return False
    return True


def _requeue_events(state: Evaluation, world: Snapshot) -> frozenset[ClusterEvent]:
    """Every rule that refuses some node may be the last one that does."""
    found = {ClusterEvent.NODE_ADD}
    for place, rule in enumerate(state.rules.filters):
        mask = state.refused(place)
        if mask is None or (mask & world.columns.valid).any():
            found |= rule.requeue_events
    would_wait = state.would_await_metrics(world)
    if would_wait is not None and would_wait.any():
        found.add(ClusterEvent.SAMPLES)  # then evicting may help there
    return frozenset(found)

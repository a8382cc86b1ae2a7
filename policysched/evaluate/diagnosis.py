"""Why no node is feasible, counted as kube-scheduler counts: each node under the first rule that
rejects it.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.snapshot import Snapshot
from policysched.evaluate.columns.view import View
from policysched.evaluate.evaluation import Evaluation
from policysched.evaluate.nominated_rows import NO_NOMINATED_ROWS, NominatedRejection
from policysched.evaluate.rules.specialized_rules import NodeInputFilter, SpecializedFilter
from policysched.evaluate.verdict import RejectionCause, UnschedulableDiagnosis
from policysched.lang.ir.verdict import PlacementExplanation
from policysched.model.cluster_events import ClusterEvent
from policysched.model.messages import OUTAGE_RULE, metric_outage_message

CAUSE_REASONS_MAX = 8
"""More than a line shows. A pod can request thousands of resources that no node has."""


def diagnose(
    evaluation: Evaluation,
    snapshot: Snapshot,
    layer_wakes: frozenset[ClusterEvent],
    nominated_rows: Mapping[int, NominatedRejection] = NO_NOMINATED_ROWS,
) -> UnschedulableDiagnosis:
    """`layer_wakes`: events that could activate other rules. Rows of `nominated_rows` count under
    their own reasons.
    """
    view = snapshot.view()
    reasons_of = _ReasonsOf(view)
    undecided = snapshot.columns.valid[: view.count].copy()
    undecided[list(nominated_rows)] = False
    counts = Counter(group for rejection in nominated_rows.values() for group in rejection.groups)
    for rule, rejected, rejected_alone in rejections_in_order(evaluation, view):
        rejected_here = undecided & rejected
        if rejected_here.any():
            for group, mask in reasons_of(rule):
                count = int(
                    np.count_nonzero(
                        rejected_here & mask
                        if rejected_alone is None
                        else rejected_here & mask & rejected_alone
                    )
                )
                if count:
                    counts[group] += count
            undecided &= ~rejected
    rules = [rule for rejection in nominated_rows.values() for rule in rejection.rules]
    requeue_events = _requeue_events(evaluation, snapshot).union(
        layer_wakes, *(rule.requeue_events for rule in rules)
    )
    held_back = _scaleup_would_not_help(evaluation, snapshot, nominated_rows)
    cause = None if evaluation.feasible_count else _cause(evaluation, view, reasons_of)
    return UnschedulableDiagnosis(dict(counts), held_back, requeue_events, cause)


class _ReasonsOf:
    """Asks the kernel of each rule once: with many claims of volumes it takes milliseconds."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._by_kernel: dict[int, Sequence[tuple[str, Array]]] = {}  # kernels are not hashable

    def __call__(self, rule: SpecializedFilter) -> Sequence[tuple[str, Array]]:
        key = id(rule.kernel)
        if key not in self._by_kernel:
            self._by_kernel[key] = rule.kernel.reasons(self._view)
        return self._by_kernel[key]


def _cause(evaluation: Evaluation, view: View, reasons_of: _ReasonsOf) -> RejectionCause | None:
    """Counted over the rules by whole columns: a pod that fits nowhere pays a few microseconds for each rule."""
    masks = [
        (rule, mask[: view.count])
        for index, rule in enumerate(evaluation.rules.filters)
        if (mask := evaluation.rejected(index)) is not None
    ]
    counts = np.zeros(view.count, np.int16)
    for _, mask in masks:
        counts += mask
    rejected = counts > 0  # rows without a node are rejected by no rule
    if not rejected.any():
        return None
    fewest = int(counts[rejected].min())
    nearest = counts == fewest
    sole_rules = {}
    if fewest == 1:
        by_rule = [(rule.name, int(np.count_nonzero(mask & nearest))) for rule, mask in masks]
        sole_rules = {name: count for name, count in by_rule if count}
    row = _typical_row(masks, nearest, sole_rules, reasons_of)
    rules = [rule for rule, mask in masks if mask[row]]
    reasons = (group for rule in rules for group, mask in reasons_of(rule) if mask[row])
    return RejectionCause(
        tuple(rule.name for rule in rules), tuple(islice(reasons, CAUSE_REASONS_MAX)), sole_rules
    )


def _typical_row(
    masks: list[tuple[SpecializedFilter, Array]],
    nearest: Array,
    sole_rules: Mapping[str, int],
    reasons_of: _ReasonsOf,
) -> int:
    """A row of the nearest ones: of the rule that alone rejects most of them, with the fewest reasons; otherwise the
    first."""
    most = max(sole_rules.values(), default=0)
    for rule, mask in masks:
        if most and sole_rules.get(rule.name) == most:
            reason_counts = np.zeros(len(nearest), np.int16)
            for _, of_reason in reasons_of(rule):
                reason_counts += of_reason
            rows = np.flatnonzero(mask & nearest)
            return int(rows[np.argmin(reason_counts[rows])])
    return int(np.argmax(nearest))


@dataclass(frozen=True, slots=True)
class PrefilterRejection:
    """Why a pod is rejected on every node, and by which rule. `awaits_metrics`: for a metric, so
    that neither a new node nor eviction helps. `is_error`: a filter failed on some node, which
    stops the attempt.
    """

    rule: str
    message: str
    requeue_events: frozenset[ClusterEvent]
    awaits_metrics: bool = False
    is_error: bool = False

    def explanation(self) -> PlacementExplanation:
        return PlacementExplanation(
            self.message, (), {}, {}, {}, None, pod_rejected_by=self.rule, is_filter_error=self.is_error
        )


_OUTAGE_REQUEUE_EVENTS = frozenset({ClusterEvent.SAMPLES, ClusterEvent.NODE_ADD, ClusterEvent.NODE_DELETE})


def prefilter_rejection(evaluation: Evaluation, snapshot: Snapshot) -> PrefilterRejection | None:
    """The first filter that rejects the pod on every node, the metrics that the pod waits for, or an
    error that stops the attempt."""
    if evaluation.rules.prefilters:
        view = snapshot.view()
        for rule in evaluation.rules.prefilters:
            message = rule.kernel.prefilter(view)
            if message is not None:
                return PrefilterRejection(rule.name, message, rule.requeue_events)
    if evaluation.awaited_metrics:
        # The outage also depends on which nodes are candidates, so their events count as well.
        requeue_events = _OUTAGE_REQUEUE_EVENTS.union(
            *(rule.requeue_events for rule in evaluation.rules.filters)
        )
        message = metric_outage_message(evaluation.awaited_metrics, evaluation.outage_candidate_count)
        return PrefilterRejection(OUTAGE_RULE, message, requeue_events, awaits_metrics=True)
    return _attempt_error(evaluation, snapshot)


def _attempt_error(evaluation: Evaluation, snapshot: Snapshot) -> PrefilterRejection | None:
    """The error of a filter on a node that no rule before it rejects; of several messages the first
    in the alphabet. kube-scheduler tries again later, whatever changes: any event requeues the pod.

    Source: `findNodesThatPassFilters` in kubernetes' `pkg/scheduler/schedule_one.go`.
    """
    view = snapshot.view()
    failing = {
        rule.name: errors
        for rule in evaluation.rules.prefilters
        if (errors := rule.kernel.attempt_errors(view))
    }
    if not failing:
        return None
    undecided = evaluation.evaluated_rows(snapshot)[: view.count].copy()
    for rule, rejected, rejected_alone in rejections_in_order(evaluation, view):
        if rejected_alone is None:
            messages = [text for text, mask in failing.get(rule.name, ()) if (mask & undecided).any()]
            if messages:
                return PrefilterRejection(rule.name, min(messages), frozenset(ClusterEvent), is_error=True)
        undecided &= ~rejected
    return None


def rejections_in_order(
    evaluation: Evaluation, view: View
) -> Iterator[tuple[SpecializedFilter, Array, Array | None]]:
    """Rules with the rows that they reject, in the order in which a rejection decides: inputs of the
    node, then early rejects, then the filters in the order of the file. The third value, where
    given, limits the rows that count.
    """
    inputs, early_rules, rest = [], [], []
    for index, rule in enumerate(evaluation.rules.filters):
        rejected = evaluation.rejected(index)
        if rejected is None:
            continue
        rejected = rejected[: view.count]
        early = rule.kernel.early_reject(view)
        if isinstance(rule.kernel, NodeInputFilter):
            inputs.append((rule, rejected, None))
        elif early is None:
            rest.append((rule, rejected, None))
        else:
            early_rules.append((rule, early, early))
            rest.append((rule, rejected, None))
    yield from inputs
    yield from early_rules
    yield from rest


def _scaleup_would_not_help(
    evaluation: Evaluation, snapshot: Snapshot, nominated_rejections: Mapping[int, NominatedRejection]
) -> bool:
    """Whether a new node of no kind that exists would pass every rule with `scaleup no`.

    A rule with `scaleup no` rejects a new node of a kind as it rejects the existing one. Kinds that taints, affinity or
    their size keep the pod from do not count, unless that holds for all: then an autoscaler may know another kind.
    """
    view = snapshot.view()
    rejected = (snapshot.columns.valid & ~evaluation.feasible)[: view.count]
    by_scaleup_no, of_other_kinds = np.zeros_like(rejected), np.zeros_like(rejected)
    for index, rule in enumerate(evaluation.rules.filters):
        mask = evaluation.rejected(index)
        if mask is not None and not rule.scaleup:
            by_scaleup_no |= mask[: view.count]
        elif mask is not None:
            of_other_kinds |= mask[: view.count] & rule.kernel.repeated_on_new_node(view)
    for row, rejection in nominated_rejections.items():
        rejected[row] = True
        by_scaleup_no[row] |= any(not rule.scaleup for rule in rejection.rules)
    possible = rejected & ~of_other_kinds
    return bool(rejected.any() and by_scaleup_no[possible if possible.any() else rejected].all())


def _requeue_events(evaluation: Evaluation, snapshot: Snapshot) -> frozenset[ClusterEvent]:
    """Any rule that rejects some node may be the last one that does."""
    events = {ClusterEvent.NODE_ADD}
    for index, rule in enumerate(evaluation.rules.filters):
        mask = evaluation.rejected(index)
        if mask is None or (mask & snapshot.columns.valid).any():
            events |= rule.requeue_events
    would_wait = evaluation.would_await_metrics(snapshot)
    if would_wait is not None and would_wait.any():
        events.add(ClusterEvent.SAMPLES)  # once the metric is known, eviction may help there
    return frozenset(events)

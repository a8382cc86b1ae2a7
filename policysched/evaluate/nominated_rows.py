"""Rows that are rejected because of pods nominated to them.

As in kube-scheduler a node must pass the filters twice: with the pods nominated to it, and without
them, since they may never arrive (a pod's affinity may depend on one of them). Nominations to other
nodes do not count, and scores ignore all of them. Source: `RunFilterPluginsWithNominatedPods` in
kubernetes' `pkg/scheduler/framework/runtime`.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.overlay import Overlay
from policysched.evaluate.columns.snapshot import Snapshot
from policysched.evaluate.columns.view import View
from policysched.evaluate.evaluation import Evaluation
from policysched.evaluate.rules.specialized_rules import NodeInputFilter, SpecializedFilter
from policysched.model.identifiers import NodeName
from policysched.model.pods import Pod

NominatedPods = Collection[tuple[Pod, NodeName]]
"""Pods, each with the node that it is nominated to."""


@dataclass(frozen=True, slots=True)
class NominatedRejection:
    """Why a row is rejected with the pods nominated to it: the reasons of the deciding rule as an
    event counts them, every rule that rejects the row then (the deciding one first), and whether
    evicting pods could help.
    """

    groups: tuple[str, ...]
    rules: tuple[SpecializedFilter, ...]
    resolvable: bool


NO_NOMINATED_ROWS: Mapping[int, NominatedRejection] = {}


def nominated_rows(
    evaluation: Evaluation,
    snapshot: Snapshot,
    nominated_pods: NominatedPods,
    overlay: Overlay,
    with_all: Overlay | None = None,
    own_row: int | None = None,
    *,
    row_mask: Array | None = None,
) -> Mapping[int, NominatedRejection]:
    """The rows that are rejected with the pods nominated to them, optionally only those of
    `row_mask` (bool[capacity]). The pods are on the overlay meanwhile; afterwards it is as
    before. `with_all`, and the pod's `own_row` there: see `NominatedOverlays`.
    """
    by_row: dict[int, list[tuple[Pod, NodeName]]] = {}
    for pod, node in nominated_pods:
        row = snapshot.columns.row(node)
        if row is not None and (row_mask is None or row_mask[row]):
            by_row.setdefault(row, []).append((pod, node))
    if not by_row:
        return NO_NOMINATED_ROWS
    filters = [
        rule for rule in evaluation.rules.filters if not evaluation.outage_metrics.intersection(rule.metrics)
    ]
    nominated_snapshot = replace(snapshot, overlay=overlay)
    if with_all is not None:
        kept_snapshot = replace(snapshot, overlay=with_all)
        everywhere, base = kept_snapshot.view(), snapshot.view()
        judging_alone = _alone(filters, everywhere, base)
        if judging_alone is not None:
            beside_own = {own_row: by_row.pop(own_row)} if own_row in by_row else {}
            view = kept_snapshot.view(by_row)
            rejections = _rejections(judging_alone, view, sorted(by_row)) if by_row else {}
            return rejections | _rejections_one_by_one(filters, beside_own, nominated_snapshot)
    with pods_added(overlay, [pod_and_node for pods in by_row.values() for pod_and_node in pods]):
        everywhere = nominated_snapshot.view()
        if all(rule.kernel.is_node_local(everywhere) for rule in filters):
            return _rejections(filters, nominated_snapshot.view(by_row), sorted(by_row))
    return _rejections_one_by_one(filters, by_row, nominated_snapshot)


def _alone(filters: list[SpecializedFilter], view: View, base: View) -> list[SpecializedFilter] | None:
    """The filters so that they judge each row with the pods nominated to it alone. None: one of them cannot."""
    judging_alone = []
    for rule in filters:
        kernel = rule.kernel.alone(view, base)
        if kernel is None:
            return None
        judging_alone.append(rule if kernel is rule.kernel else replace(rule, kernel=kernel))
    return judging_alone


def _rejections_one_by_one(
    filters: list[SpecializedFilter], by_row: Mapping[int, list[tuple[Pod, NodeName]]], snapshot: Snapshot
) -> dict[int, NominatedRejection]:
    """Each row with the pods nominated to it alone on the snapshot's overlay."""
    rejections: dict[int, NominatedRejection] = {}
    for row, pods in by_row.items():
        assert snapshot.overlay is not None, "nominated pods are added to an overlay"
        with pods_added(snapshot.overlay, pods):
            rejections |= _rejections(filters, snapshot.view([row]), [row])
    return rejections


@contextmanager
def pods_added(overlay: Overlay, nominated_pods: Iterable[tuple[Pod, NodeName]]) -> Iterator[None]:
    """Add these pods to the overlay for the duration of the block."""
    pods = [(pod, node) for pod, node in nominated_pods if not overlay.has_added_pod(pod.uid)]
    for pod, node in pods:
        overlay.add_pod(pod, node)
    try:
        yield
    finally:
        for pod, _ in pods:
            overlay.remove_pod(pod.uid)


def _rejections(
    filters: list[SpecializedFilter], view: View, rows: list[int]
) -> dict[int, NominatedRejection]:
    """`rows` in the order of the view."""
    rejected = [(rule, mask) for rule in filters if (mask := rule.kernel.rejected(view)).any()]
    rejections: dict[int, NominatedRejection] = {}
    # Among equal ranks the first in the order of the file decides.
    ranks = [_ranks(rule, view) for rule, _ in rejected]
    reasons_of = [(rule.kernel.reasons(view), rule.kernel.unresolvable(view)) for rule, _ in rejected]
    for position, row in enumerate(rows):
        rejecting = [index for index, (_, mask) in enumerate(rejected) if mask[position]]
        if rejecting:
            rejecting.sort(key=lambda index: ranks[index][position])
            reasons, unresolvable = reasons_of[rejecting[0]]
            groups = tuple(group for group, mask in reasons if np.asarray(mask)[position])
            rejections[row] = NominatedRejection(
                groups, tuple(rejected[index][0] for index in rejecting), not unresolvable[position]
            )
    return rejections


def _ranks(rule: SpecializedFilter, view: View) -> Array:
    """Inputs of the node decide first, then early rejects, then all other rules."""
    if isinstance(rule.kernel, NodeInputFilter):
        return np.zeros(view.count, np.int8)
    early = rule.kernel.early_reject(view)
    return np.full(view.count, 2, np.int8) if early is None else np.where(early, 1, 2)

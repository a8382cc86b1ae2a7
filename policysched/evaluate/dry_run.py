"""Dry runs for preemption: where a pod without a feasible node would fit on a modified cluster.

The caller removes pods from an overlay and adds them back, and asks for which nodes the filters
still reject the pod. A node with nominated pods must pass with and without them, as in
`nominated_rows`. Only filters run, and only on the nodes named. A metric that is out stays out: a
dry run varies pods, not samples. A pod that waits for a metric fits nowhere, and one that would
wait for it once a node has room does not fit there.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.overlay import Overlay
from policysched.evaluate.columns.snapshot import Snapshot
from policysched.evaluate.columns.view import View
from policysched.evaluate.diagnosis import rejections_in_order
from policysched.evaluate.evaluation import Evaluation
from policysched.evaluate.nominated_rows import (
    NominatedPods,
    NominatedRejection,
    nominated_rows,
    pods_added,
)
from policysched.evaluate.rules.specialized_rules import NodeInputFilter
from policysched.evaluate.topology_domains import NodeSelection
from policysched.model.identifiers import NodeName
from policysched.model.messages import metric_outage_message
from policysched.model.pods import Pod

Reasons = tuple[str, ...]


class DryRun:
    """Valid for one decision: only the overlay may change while it is used. Nodes outside `domain`
    are no candidates.

    `potential_node_count` counts the nodes whose first rejection eviction can resolve; every other
    node rejects for good. `node_local`: removing a pod from one node changes nothing for another,
    so that many nodes can be tried on one overlay at once.
    """

    def __init__(
        self,
        evaluation: Evaluation,
        snapshot: Snapshot,
        overlay: Overlay,
        with_all: Overlay | None = None,
        own_row: int | None = None,
        domain: NodeSelection | None = None,
        nominated_pods: NominatedPods = (),
    ) -> None:
        rules = evaluation.rules
        self._snapshot = replace(snapshot, overlay=overlay)
        self._filters = [
            rule for rule in rules.filters if not evaluation.outage_metrics.intersection(rule.metrics)
        ]
        waiting = evaluation.awaited_metrics and metric_outage_message(
            evaluation.awaited_metrics, evaluation.outage_candidate_count
        )
        self._awaited_metrics_reasons: Reasons = (waiting,) if waiting else ()
        self._filters.sort(
            key=lambda rule: not isinstance(rule.kernel, NodeInputFilter)
        )  # stable: inputs come first
        self.overlay = overlay
        self._nominated_pods: dict[NodeName, list[Pod]] = {}
        for pod, node in nominated_pods:
            self._nominated_pods.setdefault(node, []).append(pod)
        with pods_added(overlay, () if with_all is not None else nominated_pods):
            view = (self._snapshot if with_all is None else replace(snapshot, overlay=with_all)).view()
            self._node_local = [rule.kernel.is_node_local(view) for rule in self._filters]
        self.node_local = all(self._node_local)
        nominated_rejections = nominated_rows(
            evaluation, snapshot, nominated_pods, overlay, with_all, own_row
        )
        self._resolvable = _resolvable_rows(evaluation, snapshot, nominated_rejections)
        if self._awaited_metrics_reasons:
            self._resolvable &= False
        if (would_wait := evaluation.would_await_metrics(snapshot)) is not None:
            self._resolvable &= ~would_wait[: view.count]
        self._feasible = evaluation.feasible[: view.count].copy()
        self._feasible[list(nominated_rejections)] = False
        if domain is not None:
            self._resolvable &= domain.rows(view)
            self._feasible &= domain.rows(view)
        self.potential_node_count = int(np.count_nonzero(self._resolvable))

    @cached_property
    def potential_nodes(self) -> tuple[NodeName, ...]:
        """The nodes whose first rejection eviction can resolve, by name."""
        names = self._snapshot.columns.names
        return tuple(sorted(names[row] for row in np.flatnonzero(self._resolvable).tolist()))

    def filter_potential_nodes(self, nodes: Iterable[NodeName]) -> list[NodeName]:
        """Those of the nodes that are candidates, by name."""
        rows = ((node, self._snapshot.columns.row(node)) for node in nodes)
        return sorted(node for node, row in rows if row is not None and self._resolvable[row])

    @cached_property
    def potential_or_feasible_nodes(self) -> tuple[NodeName, ...]:
        """The candidates and the nodes that are feasible already, in row order."""
        names = self._snapshot.columns.names
        return tuple(names[row] for row in np.flatnonzero(self._resolvable | self._feasible).tolist())

    def shortfalls(self, nodes: Sequence[NodeName]) -> list[dict[str, int]]:
        """For each node the amounts that must at least be freed before the pod fits, by resource
        (`pods`: a number of pods), as far as the filters that account resources can tell on the
        present overlay. Other rejections are not included.
        """
        shortfalls: list[dict[str, int]] = [{} for _ in nodes]
        if not nodes:
            return shortfalls
        order, view = self._view_of(nodes)
        by_resource = next(filter(None, (rule.kernel.shortfall(view) for rule in self._filters)), {})
        for resource, amounts in by_resource.items():
            for index in np.flatnonzero(amounts > 0).tolist():
                shortfalls[order[index]][resource] = int(amounts[index])
        return shortfalls

    def rejections(self, nodes: Sequence[NodeName], *, node_local_only: bool = False) -> list[Reasons]:
        """For each node the reasons of the first rule that rejects the pod there, as an event
        counts them; empty where the pod fits. `node_local_only` stops before the first rule that
        looks across nodes.
        """
        if self._awaited_metrics_reasons:
            return [self._awaited_metrics_reasons for _ in nodes]
        nominated_pods = [(pod, node) for node in nodes for pod in self._nominated_pods.get(node, ())]
        if not nominated_pods:
            return self._rejections(nodes, node_local_only=node_local_only)
        with pods_added(self.overlay, nominated_pods):
            rejections = self._rejections(nodes, node_local_only=node_local_only)
        places = [
            index
            for index, node in enumerate(nodes)
            if node in self._nominated_pods and not rejections[index]
        ]
        again = self._rejections([nodes[index] for index in places], node_local_only=node_local_only)
        for index, reasons in zip(places, again, strict=True):
            rejections[index] = reasons
        return rejections

    def _rejections(self, nodes: Sequence[NodeName], *, node_local_only: bool) -> list[Reasons]:
        """On the present overlay."""
        order, view = self._view_of(nodes)
        reasons_by_node: list[list[str]] = [[] for _ in nodes]
        undecided = np.ones(view.count, np.bool_)
        for rule, is_node_local in zip(self._filters, self._node_local, strict=True):
            if node_local_only and not is_node_local:
                break
            rejected_here = undecided & rule.kernel.rejected(view)
            if rejected_here.any():
                for group, mask in rule.kernel.reasons(view):
                    for index in np.flatnonzero(rejected_here & mask).tolist():
                        reasons_by_node[order[index]].append(group)
                undecided &= ~rejected_here
                if not undecided.any():
                    break
        return [tuple(reasons) for reasons in reasons_by_node]

    def _view_of(self, nodes: Sequence[NodeName]) -> tuple[Array, View]:
        """A view of these nodes and, for each of its rows, the index of the node: rows are in
        ascending order.
        """
        columns = self._snapshot.columns
        rows: list[int] = []
        for node in nodes:
            row = columns.row(node)
            assert row is not None, f"unknown node {node}"
            rows.append(row)
        return np.argsort(rows, kind="stable"), self._snapshot.view(rows)


def _resolvable_rows(
    evaluation: Evaluation, snapshot: Snapshot, nominated_rejections: Mapping[int, NominatedRejection]
) -> Array:
    view = snapshot.view()
    undecided = snapshot.columns.valid[: view.count].copy()
    curable = np.zeros(view.count, np.bool_)
    for row, rejection in nominated_rejections.items():
        undecided[row], curable[row] = False, rejection.resolvable
    for rule, rejected, _ in rejections_in_order(evaluation, view):
        rejected_here = undecided & rejected
        if rejected_here.any():
            curable |= rejected_here & ~rule.kernel.unresolvable(view)
            undecided &= ~rejected
    return curable

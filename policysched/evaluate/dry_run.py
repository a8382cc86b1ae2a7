"""A pod that found no node, asked about single nodes of a cluster that is not: what preemption thinks in.

The caller lifts pods off an overlay and lays them back, and asks each time for which nodes the filters still refuse
the pod. A node to which others are nominated has to do with them and without them, as in `withheld`. Only filters are asked, and only about the nodes named. A metric that is out at the time stays out: what is
tried here is who makes room, not what is measured. A pod that waits for one fits nowhere, whoever goes, and one that would wait for it
once there is room on a node does not fit there.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from policysched.builtins.node_resources_fit.kernel import NodeResourcesFitFilter
from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.overlay import Overlay
from policysched.evaluate.columns.snapshot import Snapshot
from policysched.evaluate.columns.view import View
from policysched.evaluate.diagnosis import refusals_in_order
from policysched.evaluate.evaluation import Evaluation
from policysched.evaluate.nominated_rows import (
    NominatedPods,
    NominatedRefusal,
    nominated_rows,
    pods_added,
)
from policysched.evaluate.rules.specialized_rules import NodeInputFilter
from policysched.evaluate.topology_domains import TopologyDomain
from policysched.model.identifiers import NodeName
from policysched.model.messages import metric_outage_message
from policysched.model.pods import Pod

Reasons = tuple[str, ...]


class DryRun:
    """Good for one decision: nothing but the overlay may change while it is used. `domain`: nodes outside of the domain are no candidates.

    `potential_node_count` nodes have a first refusal that evicting could cure; every other node refuses for good. `node_local`: what is lifted off one node changes nothing for another, so that many nodes can be
    tried on one overlay at a time.
    """

    def __init__(
        self,
        state: Evaluation,
        world: Snapshot,
        overlay: Overlay,
        domain: TopologyDomain | None = None,
        nominated_pods: NominatedPods = (),
    ) -> None:
        bound = state.rules
        self._snapshot = replace(world, overlay=overlay)
        self._filters = [one for one in bound.filters if not state.outage_metrics.intersection(one.metrics)]
        waiting = state.awaited_metrics and metric_outage_message(
            state.awaited_metrics, state.outage_candidate_count
        )
        self._awaited_metrics_reasons: Reasons = (waiting,) if waiting else ()
        self._filters.sort(
            key=lambda one: not isinstance(one.kernel, NodeInputFilter)
        )  # stable: inputs come first
        self.overlay = overlay
        self._nominated_pods: dict[NodeName, list[Pod]] = {}
        for pod, node in nominated_pods:
            self._nominated_pods.setdefault(node, []).append(pod)
        with pods_added(overlay, nominated_pods):
            view = self._snapshot.view()
            self._node_local = [one.kernel.is_node_local(view) for one in self._filters]
        self.node_local = all(self._node_local)
        withheld = nominated_rows(state, world, nominated_pods, overlay)
        self._resolvable = _resolvable_rows(state, world, withheld)
        if self._awaited_metrics_reasons:
            self._resolvable &= False
        if (would_wait := state.would_await_metrics(world)) is not None:
            self._resolvable &= ~would_wait[: view.count]
        self._feasible = state.feasible[: view.count].copy()
        self._feasible[list(withheld)] = False
        if domain is not None:
            self._resolvable &= domain.rows(view)
            self._feasible &= domain.rows(view)
        self.potential_node_count = int(np.count_nonzero(self._resolvable))

    @cached_property
    def potential_nodes(self) -> tuple[NodeName, ...]:
        """The nodes whose first refusal evicting could cure, in the order of their names."""
        names = self._snapshot.columns.names
        return tuple(sorted(names[row] for row in np.flatnonzero(self._resolvable).tolist()))

    def filter_potential_nodes(self, nodes: Iterable[NodeName]) -> list[NodeName]:
        """Those of the nodes that are candidates, in the order of their names."""
        rows = ((node, self._snapshot.columns.row(node)) for node in nodes)
        return sorted(node for node, row in rows if row is not None and self._resolvable[row])

    @cached_property
    def potential_or_feasible_nodes(self) -> tuple[NodeName, ...]:
        """The candidates and the nodes that would do as it is, in the order of the rows."""
        names = self._snapshot.columns.names
        return tuple(names[row] for row in np.flatnonzero(self._resolvable | self._feasible).tolist())

    def shortfalls(self, nodes: Sequence[NodeName]) -> list[dict[str, int]]:
        """For each node what has to be freed there at least before the pod fits, by resource (`pods`: so many pods), as far as
        `node_resources_fit` says so on the overlay as it is. Whatever else refuses the pod is not in it."""
        fit = next(
            (one.kernel for one in self._filters if isinstance(one.kernel, NodeResourcesFitFilter)), None
        )
        found: list[dict[str, int]] = [{} for _ in nodes]
        if fit is None or not nodes:
            return found
        order, view = self._view_of(nodes)
        for resource, amounts in fit.shortfall(view).items():
            for place in np.flatnonzero(amounts > 0).tolist():
                found[order[place]][resource] = int(amounts[place])
        return found

    def refusals(self, nodes: Sequence[NodeName], *, node_local_only: bool = False) -> list[Reasons]:
        """For each node the reasons of the first rule that refuses the pod there, as an event counts them; none
        where the pod fits. `node_local_only` asks only the rules before the first that looks across nodes."""
        if self._awaited_metrics_reasons:
            return [self._awaited_metrics_reasons for _ in nodes]
        theirs = [(pod, node) for node in nodes for pod in self._nominated_pods.get(node, ())]
        if not theirs:
            return self._refusals(nodes, node_local_only=node_local_only)
        with pods_added(self.overlay, theirs):
            found = self._refusals(nodes, node_local_only=node_local_only)
        places = [
            place for place, node in enumerate(nodes) if node in self._nominated_pods and not found[place]
        ]
        again = self._refusals([nodes[place] for place in places], node_local_only=node_local_only)
        for place, reasons in zip(places, again, strict=True):
            found[place] = reasons
        return found

    def _refusals(self, nodes: Sequence[NodeName], *, node_local_only: bool) -> list[Reasons]:
        """On the overlay as it is."""
        order, view = self._view_of(nodes)
        found: list[list[str]] = [[] for _ in nodes]
        left = np.ones(view.count, np.bool_)
        for rule, alone in zip(self._filters, self._node_local, strict=True):
            if node_local_only and not alone:
                break
            here = left & rule.kernel.refused(view)
            if here.any():
                for group, mask in rule.kernel.reasons(view):
                    for place in np.flatnonzero(here & mask).tolist():
                        found[order[place]].append(group)
                left &= ~here
                if not left.any():
                    break
        return [tuple(reasons) for reasons in found]

    def _view_of(self, nodes: Sequence[NodeName]) -> tuple[Array, View]:
        """A view of these nodes, and which of them stands at each place of it: rows are in ascending order there."""
        columns = self._snapshot.columns
        rows: list[int] = []
        for node in nodes:
            row = columns.row(node)
            assert row is not None, f"node {node} is not known"
            rows.append(row)
        return np.argsort(rows, kind="stable"), self._snapshot.view(rows)


def _resolvable_rows(state: Evaluation, world: Snapshot, withheld: Mapping[int, NominatedRefusal]) -> Array:
    view = world.view()
    left = world.columns.valid[: view.count].copy()
    curable = np.zeros(view.count, np.bool_)
    for row, one in withheld.items():
        left[row], curable[row] = False, one.resolvable
    for rule, refused, _ in refusals_in_order(state, view):
        here = left & refused
        if here.any():
            curable |= here & ~rule.kernel.unresolvable(view)
            left &= ~refused
    return curable

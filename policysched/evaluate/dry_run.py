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

from policysched.builtins.node_resources_fit.kernel import Fit
from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.overlay import Overlay
from policysched.evaluate.columns.snapshot import World
from policysched.evaluate.columns.view import View
from policysched.evaluate.evaluation import State
from policysched.evaluate.nominated import Reserved, Withheld, laid, withheld_rows
from policysched.evaluate.reasons import deciding
from policysched.evaluate.rules.bound_rules import NodeInputs
from policysched.evaluate.topology_domains import Within
from policysched.model.messages import waiting_for_metrics
from policysched.model.objects import NodeName, Pod

Reasons = tuple[str, ...]


class DryRun:
    """Good for one decision: nothing but the overlay may change while it is used. `within`: nodes outside of the domain are no candidates.

    `candidate_count` nodes have a first refusal that evicting could cure; every other node refuses for good. `separate`: what is lifted off one node changes nothing for another, so that many nodes can be
    tried on one overlay at a time.
    """

    def __init__(
        self,
        state: State,
        world: World,
        overlay: Overlay,
        within: Within | None = None,
        reserved: Reserved = (),
    ) -> None:
        bound = state.bound
        self._world = replace(world, overlay=overlay)
        self._filters = [one for one in bound.filters if not state.out.intersection(one.metrics)]
        waiting = state.waits_for and waiting_for_metrics(state.waits_for, state.waiting_candidates)
        self._waiting: Reasons = (waiting,) if waiting else ()
        self._filters.sort(
            key=lambda one: not isinstance(one.kernel, NodeInputs)
        )  # stable: inputs come first
        self.overlay = overlay
        self._reserved: dict[NodeName, list[Pod]] = {}
        for pod, node in reserved:
            self._reserved.setdefault(node, []).append(pod)
        with laid(overlay, reserved):
            view = self._world.view()
            self._alone = [one.kernel.apart(view) for one in self._filters]
        self.separate = all(self._alone)
        withheld = withheld_rows(state, world, reserved, overlay)
        self._curable = _curable(state, world, withheld)
        if self._waiting:
            self._curable &= False
        if (would_wait := state.would_wait(world)) is not None:
            self._curable &= ~would_wait[: view.count]
        self._feasible = state.feasible[: view.count].copy()
        self._feasible[list(withheld)] = False
        if within is not None:
            self._curable &= within.rows(view)
            self._feasible &= within.rows(view)
        self.candidate_count = int(np.count_nonzero(self._curable))

    @cached_property
    def candidates(self) -> tuple[NodeName, ...]:
        """The nodes whose first refusal evicting could cure, in the order of their names."""
        names = self._world.columns.names
        return tuple(sorted(names[row] for row in np.flatnonzero(self._curable).tolist()))

    def curable(self, nodes: Iterable[NodeName]) -> list[NodeName]:
        """Those of the nodes that are candidates, in the order of their names."""
        rows = ((node, self._world.columns.row(node)) for node in nodes)
        return sorted(node for node, row in rows if row is not None and self._curable[row])

    @cached_property
    def possible(self) -> tuple[NodeName, ...]:
        """The candidates and the nodes that would do as it is, in the order of the rows."""
        names = self._world.columns.names
        return tuple(names[row] for row in np.flatnonzero(self._curable | self._feasible).tolist())

    def missing(self, nodes: Sequence[NodeName]) -> list[dict[str, int]]:
        """For each node what has to be freed there at least before the pod fits, by resource (`pods`: so many pods), as far as
        `node_resources_fit` says so on the overlay as it is. Whatever else refuses the pod is not in it."""
        fit = next((one.kernel for one in self._filters if isinstance(one.kernel, Fit)), None)
        found: list[dict[str, int]] = [{} for _ in nodes]
        if fit is None or not nodes:
            return found
        order, view = self._view_of(nodes)
        for resource, amounts in fit.missing(view).items():
            for place in np.flatnonzero(amounts > 0).tolist():
                found[order[place]][resource] = int(amounts[place])
        return found

    def refusals(self, nodes: Sequence[NodeName], *, by_node_alone: bool = False) -> list[Reasons]:
        """For each node the reasons of the first rule that refuses the pod there, as an event counts them; none
        where the pod fits. `by_node_alone` asks only the rules before the first that looks across nodes."""
        if self._waiting:
            return [self._waiting for _ in nodes]
        theirs = [(pod, node) for node in nodes for pod in self._reserved.get(node, ())]
        if not theirs:
            return self._refusals(nodes, by_node_alone=by_node_alone)
        with laid(self.overlay, theirs):
            found = self._refusals(nodes, by_node_alone=by_node_alone)
        places = [place for place, node in enumerate(nodes) if node in self._reserved and not found[place]]
        again = self._refusals([nodes[place] for place in places], by_node_alone=by_node_alone)
        for place, reasons in zip(places, again, strict=True):
            found[place] = reasons
        return found

    def _refusals(self, nodes: Sequence[NodeName], *, by_node_alone: bool) -> list[Reasons]:
        """On the overlay as it is."""
        order, view = self._view_of(nodes)
        found: list[list[str]] = [[] for _ in nodes]
        left = np.ones(view.count, np.bool_)
        for rule, alone in zip(self._filters, self._alone, strict=True):
            if by_node_alone and not alone:
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
        columns = self._world.columns
        rows: list[int] = []
        for node in nodes:
            row = columns.row(node)
            assert row is not None, f"node {node} is not known"
            rows.append(row)
        return np.argsort(rows, kind="stable"), self._world.view(rows)


def _curable(state: State, world: World, withheld: Mapping[int, Withheld]) -> Array:
    view = world.view()
    left = world.columns.valid[: view.count].copy()
    curable = np.zeros(view.count, np.bool_)
    for row, one in withheld.items():
        left[row], curable[row] = False, one.curable
    for rule, refused, _ in deciding(state, view):
        here = left & refused
        if here.any():
            curable |= here & ~rule.kernel.unresolvable(view)
            left &= ~refused
    return curable

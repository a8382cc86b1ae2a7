"""A pod that found no node, asked about single nodes of a cluster that is not: what preemption thinks in.

The caller lifts pods off an overlay and lays them back, and asks each time for which nodes the filters still refuse
the pod. Only filters are asked, and only about the nodes named. A metric that is out at the time stays out: what is
tried here is who makes room, not what is measured.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from policysched.cluster.objects import NodeName
from policysched.plan.columns import Array
from policysched.plan.overlay import Overlay
from policysched.plan.reasons import deciding
from policysched.plan.rules import NodeInputs
from policysched.plan.state import State, World
from policysched.plan.within import Within

Reasons = tuple[str, ...]


class DryRun:
    """Good for one decision: nothing but the overlay may change while it is used. `within`: nodes outside of the domain are no candidates.

    `candidate_count` nodes have a first refusal that evicting could cure; every other node refuses for good. `separate`: what is lifted off one node changes nothing for another, so that many nodes can be
    tried on one overlay at a time.
    """

    def __init__(self, state: State, world: World, overlay: Overlay, within: Within | None = None) -> None:
        bound = state.bound
        self._world = replace(world, overlay=overlay)
        self._filters = [one for one in bound.filters if not state.out.intersection(one.metrics)]
        self._filters.sort(
            key=lambda one: not isinstance(one.kernel, NodeInputs)
        )  # stable: inputs come first
        self.overlay = overlay
        view = self._world.view()
        self._alone = [one.kernel.apart(view) for one in self._filters]
        self.separate = all(self._alone)
        self._curable = _curable(state, world)
        self._feasible = state.feasible[: view.count]
        if within is not None:
            self._curable &= within.rows(view)
            self._feasible = self._feasible & within.rows(view)
        self.candidate_count = int(np.count_nonzero(self._curable))

    @cached_property
    def candidates(self) -> tuple[NodeName, ...]:
        """The nodes whose first refusal evicting could cure, in the order of their names."""
        names = self._world.columns.names
        return tuple(sorted(names[row] for row in np.flatnonzero(self._curable).tolist()))

    @cached_property
    def possible(self) -> tuple[NodeName, ...]:
        """The candidates and the nodes that would do as it is, in the order of the rows."""
        names = self._world.columns.names
        return tuple(names[row] for row in np.flatnonzero(self._curable | self._feasible).tolist())

    def refusals(self, nodes: Sequence[NodeName], *, by_node_alone: bool = False) -> list[Reasons]:
        """For each node the reasons of the first rule that refuses the pod there, as an event counts them; none
        where the pod fits. `by_node_alone` asks only the rules before the first that looks across nodes."""
        columns = self._world.columns
        rows: list[int] = []
        for node in nodes:
            row = columns.row(node)
            assert row is not None, f"node {node} is not known"
            rows.append(row)
        order = np.argsort(rows, kind="stable")  # a view has its rows in ascending order
        view = self._world.view(rows)
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


def _curable(state: State, world: World) -> Array:
    view = world.view()
    left = world.columns.valid[: view.count].copy()
    curable = np.zeros(view.count, np.bool_)
    for rule, refused, _ in deciding(state, view):
        here = left & refused
        if here.any():
            curable |= here & ~rule.kernel.unresolvable(view)
            left &= ~refused
    return curable

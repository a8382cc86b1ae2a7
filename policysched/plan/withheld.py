"""Nodes that would do for a pod but for others that are nominated to them: their room is kept.

As kube-scheduler has it, a node must pass the filters twice: with the pods on it that are nominated to it, and without
them, for they may never come (a pod may lean on one of them by its affinity). Nominations to other nodes do not count for
it, and scores know nothing of any. Source: `RunFilterPluginsWithNominatedPods` in kubernetes' `pkg/scheduler/framework/runtime`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from policysched.cluster.objects import NodeName, Pod
from policysched.plan.overlay import Overlay
from policysched.plan.rules import BoundFilter, NodeInputs
from policysched.plan.state import State, World


@dataclass(frozen=True, slots=True)
class Withheld:
    """Why a row is refused with the pods nominated to it: the deciding rule's reasons as an event counts them, and every
    rule that refuses it then."""

    groups: tuple[str, ...]
    rules: tuple[BoundFilter, ...]


Reserved = Iterable[tuple[Pod, NodeName]]


def withheld_rows(
    state: State, world: World, reserved: Reserved, overlay: Callable[[], Overlay]
) -> Mapping[int, Withheld]:
    """The rows that are refused with the pods that are `reserved` a place there."""
    by_row: dict[int, list[tuple[Pod, NodeName]]] = {}
    for pod, node in reserved:
        row = world.columns.row(node)
        if row is not None:
            by_row.setdefault(row, []).append((pod, node))
    found = {}
    for row, pods in by_row.items():
        laid = overlay()
        for pod, node in pods:
            laid.place(pod, node)
        refusal = _refusal(state, replace(world, overlay=laid), row)
        if refusal is not None:
            found[row] = refusal
    return found


def _refusal(state: State, world: World, row: int) -> Withheld | None:
    view = world.view([row])
    rules = [
        rule
        for rule in state.bound.filters
        if not state.out.intersection(rule.metrics) and bool(rule.kernel.refused(view)[0])
    ]
    if not rules:
        return None

    def rank(rule: BoundFilter) -> int:
        """Inputs of the node decide first, then what is found ahead of all rules, then the order of the file."""
        early = rule.kernel.ahead(view)
        return 0 if isinstance(rule.kernel, NodeInputs) else 1 if early is not None and early[0] else 2

    first = min(rules, key=rank)
    groups = tuple(group for group, mask in first.kernel.reasons(view) if np.asarray(mask)[0])
    return Withheld(groups, tuple(rules))

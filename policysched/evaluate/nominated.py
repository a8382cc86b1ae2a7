"""Nodes that would do for a pod but for others that are nominated to them: their room is kept.

As kube-scheduler has it, a node must pass the filters twice: with the pods on it that are nominated to it, and without
them, for they may never come (a pod may lean on one of them by its affinity). Nominations to other nodes do not count for
it, and scores know nothing of any. Source: `RunFilterPluginsWithNominatedPods` in kubernetes' `pkg/scheduler/framework/runtime`.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.overlay import Overlay
from policysched.evaluate.columns.snapshot import World
from policysched.evaluate.columns.view import View
from policysched.evaluate.evaluation import State
from policysched.evaluate.rules.bound_rules import BoundFilter, NodeInputs
from policysched.model.objects import NodeName, Pod

Reserved = Collection[tuple[Pod, NodeName]]
"""Pods, each with the node that it is nominated to."""


@dataclass(frozen=True, slots=True)
class Withheld:
    """Why a row is refused with the pods nominated to it: the deciding rule's reasons as an event counts them, every rule that
    refuses it then, the deciding one first, and whether evicting pods could help."""

    groups: tuple[str, ...]
    rules: tuple[BoundFilter, ...]
    curable: bool


NOTHING_WITHHELD: Mapping[int, Withheld] = {}


def withheld_rows(
    state: State, world: World, reserved: Reserved, overlay: Overlay, *, only: Array | None = None
) -> Mapping[int, Withheld]:
    """The rows (`only` of these, where a mask bool[capacity] is given) that are refused with the pods that are `reserved` a place
    there. These are laid on the overlay meanwhile, which is as it was afterwards."""
    by_row: dict[int, list[tuple[Pod, NodeName]]] = {}
    for pod, node in reserved:
        row = world.columns.row(node)
        if row is not None and (only is None or only[row]):
            by_row.setdefault(row, []).append((pod, node))
    if not by_row:
        return NOTHING_WITHHELD
    filters = [one for one in state.bound.filters if not state.out.intersection(one.metrics)]
    there = replace(world, overlay=overlay)
    with laid(overlay, [one for pods in by_row.values() for one in pods]):
        everywhere = there.view()
        if all(rule.kernel.apart(everywhere) for rule in filters):
            return _refusals(filters, there.view(by_row), sorted(by_row))
    found: dict[int, Withheld] = {}
    for row, pods in by_row.items():
        with laid(overlay, pods):
            found |= _refusals(filters, there.view([row]), [row])
    return found


@contextmanager
def laid(overlay: Overlay, reserved: Iterable[tuple[Pod, NodeName]]) -> Iterator[None]:
    """With these on the overlay."""
    pods = [(pod, node) for pod, node in reserved if not overlay.has_laid(pod.uid)]
    for pod, node in pods:
        overlay.place(pod, node)
    try:
        yield
    finally:
        for pod, _ in pods:
            overlay.remove(pod.uid)


def _refusals(filters: list[BoundFilter], view: View, rows: list[int]) -> dict[int, Withheld]:
    """`rows` in the order of the view."""
    refused = [(rule, mask) for rule in filters if (mask := rule.kernel.refused(view)).any()]
    found: dict[int, Withheld] = {}
    # Of equals, the first in the order of the file decides.
    ranks = [_ranks(rule, view) for rule, _ in refused]
    said = [(rule.kernel.reasons(view), rule.kernel.unresolvable(view)) for rule, _ in refused]
    for place, row in enumerate(rows):
        there = [index for index, (_, mask) in enumerate(refused) if mask[place]]
        if there:
            there.sort(key=lambda index: ranks[index][place])
            reasons, hopeless = said[there[0]]
            groups = tuple(group for group, mask in reasons if np.asarray(mask)[place])
            found[row] = Withheld(groups, tuple(refused[index][0] for index in there), not hopeless[place])
    return found


def _ranks(rule: BoundFilter, view: View) -> Array:
    """Inputs of the node decide first, then what is found ahead of all rules, then all others."""
    if isinstance(rule.kernel, NodeInputs):
        return np.zeros(view.count, np.int8)
    early = rule.kernel.ahead(view)
    return np.full(view.count, 2, np.int8) if early is None else np.where(early, 1, 2)

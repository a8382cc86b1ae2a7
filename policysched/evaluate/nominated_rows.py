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
from policysched.evaluate.columns.snapshot import Snapshot
from policysched.evaluate.columns.view import View
from policysched.evaluate.evaluation import Evaluation
from policysched.evaluate.rules.specialized_rules import NodeInputFilter, SpecializedFilter
from policysched.model.identifiers import NodeName
from policysched.model.pods import Pod

NominatedPods = Collection[tuple[Pod, NodeName]]
"""Pods, each with the node that it is nominated to."""


@dataclass(frozen=True, slots=True)
class NominatedRefusal:
    """Why a row is refused with the pods nominated to it: the deciding rule's reasons as an event counts them, every rule that
    refuses it then, the deciding one first, and whether evicting pods could help."""

    groups: tuple[str, ...]
    rules: tuple[SpecializedFilter, ...]
    resolvable: bool


NO_NOMINATED_ROWS: Mapping[int, NominatedRefusal] = {}


def nominated_rows(
    state: Evaluation,
    world: Snapshot,
    nominated_pods: NominatedPods,
    overlay: Overlay,
    *,
    row_mask: Array | None = None,
) -> Mapping[int, NominatedRefusal]:
    """The rows (`row_mask` of these, where a mask bool[capacity] is given) that are refused with the pods that are `nominated_pods` a place
    there. These are laid on the overlay meanwhile, which is as it was afterwards."""
    by_row: dict[int, list[tuple[Pod, NodeName]]] = {}
    for pod, node in nominated_pods:
        row = world.columns.row(node)
        if row is not None and (row_mask is None or row_mask[row]):
            by_row.setdefault(row, []).append((pod, node))
    if not by_row:
        return NO_NOMINATED_ROWS
    filters = [one for one in state.rules.filters if not state.outage_metrics.intersection(one.metrics)]
    there = replace(world, overlay=overlay)
    with pods_added(overlay, [one for pods in by_row.values() for one in pods]):
        everywhere = there.view()
        if all(rule.kernel.is_node_local(everywhere) for rule in filters):
            return _refusals(filters, there.view(by_row), sorted(by_row))
    found: dict[int, NominatedRefusal] = {}
    for row, pods in by_row.items():
        with pods_added(overlay, pods):
            found |= _refusals(filters, there.view([row]), [row])
    return found


@contextmanager
def pods_added(overlay: Overlay, nominated_pods: Iterable[tuple[Pod, NodeName]]) -> Iterator[None]:
    """With these on the overlay."""
    pods = [(pod, node) for pod, node in nominated_pods if not overlay.has_added_pod(pod.uid)]
    for pod, node in pods:
        overlay.add_pod(pod, node)
    try:
        yield
    finally:
        for pod, _ in pods:
            overlay.remove_pod(pod.uid)


def _refusals(filters: list[SpecializedFilter], view: View, rows: list[int]) -> dict[int, NominatedRefusal]:
    """`rows` in the order of the view."""
    refused = [(rule, mask) for rule in filters if (mask := rule.kernel.refused(view)).any()]
    found: dict[int, NominatedRefusal] = {}
    # Of equals, the first in the order of the file decides.
    ranks = [_ranks(rule, view) for rule, _ in refused]
    said = [(rule.kernel.reasons(view), rule.kernel.unresolvable(view)) for rule, _ in refused]
    for place, row in enumerate(rows):
        there = [index for index, (_, mask) in enumerate(refused) if mask[place]]
        if there:
            there.sort(key=lambda index: ranks[index][place])
            reasons, hopeless = said[there[0]]
            groups = tuple(group for group, mask in reasons if np.asarray(mask)[place])
            found[row] = NominatedRefusal(
                groups, tuple(refused[index][0] for index in there), not hopeless[place]
            )
    return found


def _ranks(rule: SpecializedFilter, view: View) -> Array:
    """Inputs of the node decide first, then what is found ahead of all rules, then all others."""
    if isinstance(rule.kernel, NodeInputFilter):
        return np.zeros(view.count, np.int8)
    early = rule.kernel.early_reject(view)
    return np.full(view.count, 2, np.int8) if early is None else np.where(early, 1, 2)

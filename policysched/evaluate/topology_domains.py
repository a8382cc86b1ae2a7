"""One topology domain at a time: for a gang that is to stand together.

Filters and scores are those of the whole cluster, only the choice is made inside. In which domains it is worth trying
is asked first: those with a node that would do for a member, the one that the scores like best first.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from policysched.evaluate.columns.column_kinds import Allocatable, NodeMapEntry, PodCount, Requested
from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.interner import ABSENT
from policysched.evaluate.columns.view import View
from policysched.evaluate.compile.lower import Variant
from policysched.evaluate.evaluation import Evaluation
from policysched.lang.ir.rules import BuiltinFilter


@dataclass(frozen=True, slots=True)
class TopologyDomain:
    """The nodes whose label `key` has the value. None: no node at all."""

    key: str
    value: str | None

    def rows(self, view: View) -> Array:
        """bool[view.count]"""
        if self.value is None:
            return np.zeros(view.count, np.bool_)
        code = view.codes.strings.find(self.value)
        inside: Array = view.column(NodeMapEntry("labels", self.key)) == code
        return inside


def candidate_domains(
    state: Evaluation, view: View, key: str, order: Array, pod_capacity: Array | None, pods_needed: int
) -> tuple[str, ...]:
    """Values of the label, of the nodes that would do. `order` has the rows, best first; `pod_capacity` an upper bound of how many
    members each row takes, None where none is known; domains that cannot take `pods_needed` are left out."""
    codes = view.column(NodeMapEntry("labels", key))
    found: dict[int, int] = {}
    for row in order.tolist():
        code = int(codes[row])
        if code != ABSENT and state.feasible[row]:
            found[code] = found.get(code, 0) + (
                pods_needed if pod_capacity is None else min(pods_needed, int(pod_capacity[row]))
            )
    strings = view.codes.strings.values
    return tuple(strings[code] for code, members in found.items() if members >= pods_needed)


def pod_capacity(requests: Mapping[str, int], variant: Variant, view: View) -> Array | None:
    """How many pods with these requests each node takes at the most, by what `node_resources_fit` asks of cpu, memory and
    the number of pods; None where that filter does not always apply."""
    fits = any(
        isinstance(step.rule, BuiltinFilter)
        and step.rule.builtin == "node_resources_fit"
        and step.rule.when is None
        for step in variant.filters
    )
    if not fits:
        return None
    room: Array = view.column(Allocatable("pods")) - view.column(PodCount())
    for resource in ("cpu", "memory"):
        asked = requests.get(resource, 0)
        if asked > 0:
            free = view.column(Allocatable(resource)) - view.column(Requested(resource))
            room = np.minimum(room, free // asked)
    at_least_none: Array = np.maximum(room, 0)
    return at_least_none

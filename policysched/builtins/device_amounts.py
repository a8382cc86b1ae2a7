"""Extended resources that devices stand for, as amounts: what the rules about resources see of them.

On a node that does not offer the resource itself, its devices of the class that stands for it are what there is, and those that
are taken are what is requested. Only policies that give devices look at it, and only for pods that ask for such a
resource.
"""

from collections.abc import Hashable, Sequence

import numpy as np

from policysched.evaluate.columns.column_kinds import ColumnKind
from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.view import View
from policysched.evaluate.kernel import ClusterContext
from policysched.model.pods import Pod


def device_backed_resources(pod: Pod, around: ClusterContext) -> tuple[str, ...]:
    """The resources for which a class may stand, or come to stand."""
    return tuple(sorted({one.resource for one in pod.extended})) if around.allocates_devices else ()


def capacity_and_requested(
    view: View, allocatable: ColumnKind, requested: ColumnKind, resource: str
) -> tuple[Array, Array]:
    """int64[view.count] twice. `resource` is "" where devices have nothing to do with it."""
    capacity, held = view.column(allocatable), view.column(requested)
    given = view.available_devices.class_of_resource(resource) if resource else None
    if given is None or capacity.all():
        return capacity, held
    capacity, held = np.array(capacity), np.array(held)
    for place in np.flatnonzero(capacity == 0).tolist():
        at = view.node_at(place)
        if at is not None:
            there, taken = view.available_devices.device_counts(given, at[0])
            if there:
                capacity[place], held[place] = there, taken
    return capacity, held


def device_change_stamps(view: View, resources: Sequence[str]) -> Hashable:
    """Equal stamps, equal amounts."""
    if not any(view.available_devices.class_of_resource(one) is not None for one in resources):
        return ()
    return view.available_devices.stamps_of(())

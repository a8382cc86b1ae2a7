"""Extended resources backed by devices, as amounts for the rules about resources.

On a node that does not offer the resource itself, the devices of the mapped DeviceClass are its
capacity and the allocated ones its requests. Read only by policies that allocate devices, for pods
that request such a resource.
"""

from collections.abc import Hashable, Sequence

import numpy as np

from policysched.evaluate.columns.column_kinds import ColumnKind
from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.view import View
from policysched.evaluate.kernel import ClusterContext
from policysched.model.pods import Pod


def device_backed_resources(pod: Pod, cluster_context: ClusterContext) -> tuple[str, ...]:
    """The resources that a DeviceClass may map, now or later."""
    return (
        tuple(sorted({request.resource for request in pod.extended}))
        if cluster_context.allocates_devices
        else ()
    )


def capacity_and_requested(
    view: View, allocatable: ColumnKind, requested: ColumnKind, resource: str
) -> tuple[Array, Array]:
    """Two arrays int64[view.count]. `resource` is "" where devices cannot back it."""
    capacity, requested_amounts = view.column(allocatable), view.column(requested)
    device_class = view.available_devices.class_of_resource(resource) if resource else None
    if device_class is None or capacity.all():
        return capacity, requested_amounts
    capacity, requested_amounts = np.array(capacity), np.array(requested_amounts)
    for index in np.flatnonzero(capacity == 0).tolist():
        located = view.node_at(index)
        if located is not None:
            device_count, allocated_count = view.available_devices.device_counts(device_class, located[0])
            if device_count:
                capacity[index], requested_amounts[index] = device_count, allocated_count
    return capacity, requested_amounts


def device_change_stamps(view: View, resources: Sequence[str]) -> Hashable:
    """Equal stamps mean equal amounts."""
    if not any(view.available_devices.class_of_resource(resource) is not None for resource in resources):
        return ()
    return view.available_devices.stamps_of(())

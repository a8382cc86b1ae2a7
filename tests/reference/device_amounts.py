"""Extended resources that devices provide, as resource rules count them: see
`policysched.builtins.device_amounts`."""

from policysched.model.devices import DeviceClass
from policysched.model.pods import Pod
from tests.reference.builtin_interface import ClusterFacts, NodeInfo


def device_class_for(pod: Pod, node_info: NodeInfo, resource: str, facts: ClusterFacts) -> DeviceClass | None:
    """The class that provides the resource to the pod on the node; None if the node offers it
    itself."""
    is_requested = any(request.resource == resource for request in pod.extended)
    if not facts.allocates_devices or not is_requested or node_info.node.allocatable.get(resource):
        return None
    return facts.devices.class_of_resource(resource)


def capacity_and_requested(
    pod: Pod, node_info: NodeInfo, resource: str, facts: ClusterFacts
) -> tuple[int, int]:
    """The capacity of the resource on the node, and how much of it is requested."""
    device_class = device_class_for(pod, node_info, resource, facts)
    if device_class is not None:
        total, taken = facts.devices.device_counts(device_class, node_info.node)
        if total:
            return total, taken
    return node_info.node.allocatable.get(resource, 0), node_info.usage.requested_capped(resource)

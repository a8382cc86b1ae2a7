"""Extended resources that devices provide, as resource rules count them: see `policysched.builtins.device_amounts`."""

from policysched.model.devices import DeviceClass
from policysched.model.pods import Pod
from tests.reference.builtin_interface import ClusterFacts, NodeInfo


def device_class_for(pod: Pod, node_info: NodeInfo, resource: str, facts: ClusterFacts) -> DeviceClass | None:
    """The class that provides the resource to the pod on the node; None if the node offers it itself."""
    asked = any(one.resource == resource for one in pod.extended)
    if not facts.allocates_devices or not asked or node_info.node.allocatable.get(resource):
        return None
    return facts.devices.class_of_resource(resource)


def capacity_and_requested(
    pod: Pod, node_info: NodeInfo, resource: str, facts: ClusterFacts
) -> tuple[int, int]:
    """The capacity of the resource on the node, and how much of it is requested."""
    given = device_class_for(pod, node_info, resource, facts)
    if given is not None:
        there, taken = facts.devices.device_counts(given, node_info.node)
        if there:
            return there, taken
    return node_info.node.allocatable.get(resource, 0), node_info.usage.requested_capped(resource)

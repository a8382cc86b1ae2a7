"""What the rules about resources see of extended resources that devices stand for: see `policysched.builtins.device_amounts`."""

from policysched.model.devices import DeviceClass
from policysched.model.pods import Pod
from tests.reference.builtin_interface import ClusterFacts, NodeInfo


def device_class_for(pod: Pod, node_info: NodeInfo, resource: str, facts: ClusterFacts) -> DeviceClass | None:
    """The class whose devices the pod would get on the node for the resource; None: the resource is the node's own."""
    asked = any(one.resource == resource for one in pod.extended)
    if not facts.allocates_devices or not asked or node_info.node.allocatable.get(resource):
        return None
    return facts.devices.class_of_resource(resource)


def capacity_and_requested(pod: Pod, node_info: NodeInfo, resource: str, facts: ClusterFacts) -> tuple[int, int]:
    """How much of the resource there is, and how much of it others have."""
    given = device_class_for(pod, node_info, resource, facts)
    if given is not None:
        there, taken = facts.devices.device_counts(given, node_info.node)
        if there:
            return there, taken
    return node_info.node.allocatable.get(resource, 0), node_info.usage.requested_capped(resource)

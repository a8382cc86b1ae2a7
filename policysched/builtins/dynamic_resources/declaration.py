"""Resource claims are allocated devices that the node can use."""

from policysched.builtins.declaration import BuiltinDeclaration, BuiltinParameter
from policysched.model.cluster_events import ClusterEvent

DECLARATION = BuiltinDeclaration(
    name="dynamic_resources",
    plugin="DynamicResources",
    summary=(
        "rejects nodes that cannot use the devices of the pod's resource claims, and on which unallocated claims "
        "cannot be allocated; allocates devices where a DeviceClass maps an extended resource that the node does not "
        "offer; reserves and allocates claims before the pod is bound; prefers nodes on which claims get the earlier of "
        "their alternatives"
    ),
    filters=True,
    scores=True,
    parameters=(),
    pod_reads=("device_claims", "extended"),
    node_reads=("labels", "allocatable", "volumes"),
    filter_requeue_events=frozenset(
        {
            ClusterEvent.NODE_ADD,
            ClusterEvent.NODE_LABEL,
            ClusterEvent.NODE_ALLOCATABLE,
            ClusterEvent.RESOURCE_CLAIM_ADD,
            ClusterEvent.RESOURCE_CLAIM_UPDATE,
            ClusterEvent.DEVICES_FREED,
            ClusterEvent.DEVICE_CLASS_ADD,
            ClusterEvent.DEVICE_CLASS_UPDATE,
            ClusterEvent.RESOURCE_SLICE_ADD,
            ClusterEvent.RESOURCE_SLICE_UPDATE,
            ClusterEvent.UNSCHEDULED_POD_UPDATE,
        }
    ),
    reasons=(
        "cannot allocate all claims",
        "resourceclaim not available on the node",
        "invalid resource pools were encountered",
        "cannot fit resource",
        "cannot schedule extended resource claim",
        "resourceclaim in use",
        'could not find ResourceClaim "{claim}"',
        'resourceclaim "{claim}" is being deleted',
        'pod "{pod}": ResourceClaim not created yet',
        "ResourceClaim {claim} was not created for Pod {pod} (Pod is not owner)",
        "request {request}: device class {class} does not exist",
        "claim {claim}: selector #{number}: CEL runtime error: {message}",
        "class {class}: selector #{number}: CEL runtime error: {message}",
        "claim {claim}, request {request}: asks for all devices, but resource pool {pool} is currently being updated",
        "the device search exceeded its limit of 10000 steps",
    ),
    default_weight=2,
    scaleup=True,
    cost_per_node=8,
    source="kubernetes v1.37.2 pkg/scheduler/framework/plugins/dynamicresources, k8s.io/dynamic-resource-allocation v0.37.2",
    filter_parameters=(
        BuiltinParameter(
            name="extended_resources",
            kind="choice",
            default="yes",
            choices=("yes", "no"),
            doc=(
                "whether devices are allocated for extended resources; `no` for clusters without the feature gate "
                "DRAExtendedResource, and the behaviour of kube-scheduler until 1.35"
            ),
        ),
        BuiltinParameter(
            name="binding_timeout_seconds",
            kind="int",
            default=600,
            low=1,
            high=604_800,
            doc="how long devices with binding conditions may take to be bound before the pod is scheduled again",
        ),
    ),
)

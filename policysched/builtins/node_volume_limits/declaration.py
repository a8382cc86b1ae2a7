"""A node attaches as many volumes of a CSI driver as its CSINode allows."""

from policysched.builtins.declaration import BuiltinDeclaration, BuiltinParameter
from policysched.model.cluster_events import ClusterEvent

DECLARATION = BuiltinDeclaration(
    name="node_volume_limits",
    plugin="NodeVolumeLimits",
    summary=(
        "rejects nodes on which the pod's volumes would exceed the attach limit of a CSI driver, and nodes without a "
        "driver whose CSIDriver has `preventPodSchedulingIfMissing`"
    ),
    filters=True,
    scores=False,
    parameters=(),
    pod_reads=("claims", "mounts"),
    node_reads=("csi", "attachments", "usage", "volumes"),
    filter_requeue_events=frozenset(
        {
            ClusterEvent.NODE_ADD,
            ClusterEvent.CSI_NODE_ADD,
            ClusterEvent.CSI_NODE_UPDATE,
            ClusterEvent.CSI_DRIVER_UPDATE,
            ClusterEvent.ASSIGNED_POD_DELETE,
            ClusterEvent.CLAIM_ADD,
            ClusterEvent.ATTACHMENT_DELETE,
        }
    ),
    reasons=(
        "node(s) exceed max volume count",
        "{driver} CSI driver is not installed on the node",
        'looking up PVC {claim}: persistentvolumeclaim "{claim}" not found',
    ),
    default_weight=None,
    scaleup=True,
    cost_per_node=4,
    filter_parameters=(
        BuiltinParameter(
            name="missing_drivers",
            kind="choice",
            default="reject",
            choices=("reject", "ignore"),
            doc=(
                "whether nodes without a driver are rejected if its CSIDriver has `preventPodSchedulingIfMissing`; "
                "`ignore` is the behaviour of kube-scheduler until 1.36"
            ),
        ),
    ),
    source="kubernetes v1.37.2 pkg/scheduler/framework/plugins/nodevolumelimits/csi.go",
)

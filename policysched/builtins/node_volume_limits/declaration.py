"""A node attaches as many volumes of a CSI driver as its CSINode allows."""

from policysched.builtins.declaration import BuiltinDeclaration
from policysched.model.cluster_events import ClusterEvent

DECLARATION = BuiltinDeclaration(
    name="node_volume_limits",
    plugin="NodeVolumeLimits",
    summary="rejects nodes on which the pod's volumes would exceed the attach limit of a CSI driver",
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
            ClusterEvent.ASSIGNED_POD_DELETE,
            ClusterEvent.CLAIM_ADD,
            ClusterEvent.ATTACHMENT_DELETE,
        }
    ),
    reasons=(
        "node(s) exceed max volume count",
        'looking up PVC {claim}: persistentvolumeclaim "{claim}" not found',
    ),
    default_weight=None,
    scaleup=True,
    cost_per_node=4,
    source="kubernetes v1.36.3 pkg/scheduler/framework/plugins/nodevolumelimits/csi.go",
)

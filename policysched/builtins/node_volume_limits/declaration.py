"""A node takes as many volumes of a CSI driver as its CSINode says."""

from policysched.builtins.declaration import Declaration
from policysched.model.cluster_events import ClusterEvent

DECLARATION = Declaration(
    name="node_volume_limits",
    plugin="NodeVolumeLimits",
    summary="refuses nodes on which the pod's volumes would be more than the CSI driver can attach",
    filters=True,
    scores=False,
    parameters=(),
    pod_reads=("claims", "mounts"),
    node_reads=("csi", "attachments", "usage", "volumes"),
    filter_wakes=frozenset(
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
    cost=4,
    source="kubernetes v1.36.3 pkg/scheduler/framework/plugins/nodevolumelimits/csi.go",
)

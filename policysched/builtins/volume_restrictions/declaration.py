"""Disks that two pods cannot mount at once, and claims for a single pod."""

from policysched.builtins.declaration import BuiltinDeclaration
from policysched.model.cluster_events import ClusterEvent

DECLARATION = BuiltinDeclaration(
    name="volume_restrictions",
    plugin="VolumeRestrictions",
    summary=(
        "rejects nodes where a disk of the pod is mounted in a way that it cannot be shared, and all nodes while another pod "
        "uses a ReadWriteOncePod claim of the pod"
    ),
    filters=True,
    scores=False,
    parameters=(),
    pod_reads=("claims", "disks"),
    node_reads=("usage", "volumes"),
    filter_requeue_events=frozenset(
        {
            ClusterEvent.NODE_ADD,
            ClusterEvent.ASSIGNED_POD_DELETE,
            ClusterEvent.CLAIM_ADD,
        }
    ),
    reasons=(
        "node(s) had no available disk",
        "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod",
        'persistentvolumeclaim "{claim}" not found',
    ),
    default_weight=None,
    scaleup=True,
    cost_per_node=2,
    source="kubernetes v1.37.2 pkg/scheduler/framework/plugins/volumerestrictions",
)

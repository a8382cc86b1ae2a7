"""Claims must be bound to volumes that the node can reach, or such a volume must be available or
provisionable.
"""

from policysched.builtins.declaration import BuiltinDeclaration, BuiltinParameter
from policysched.model.cluster_events import ClusterEvent

DECLARATION = BuiltinDeclaration(
    name="volume_binding",
    plugin="VolumeBinding",
    summary=(
        "rejects nodes on which the volumes of the pod's claims cannot be used, and on which no volume is available or can "
        "be provisioned for claims that wait for the first consumer; binds these before the pod is bound; prefers nodes "
        "where these claims use a small part of the storage"
    ),
    filters=True,
    scores=True,
    parameters=(
        BuiltinParameter(
            name="shape",
            kind="shape",
            default=((0, 10), (100, 0)),
            low=0,
            high=10,
            doc="utilization percent of the storage to score, linear between the points",
        ),
    ),
    pod_reads=("claims",),
    node_reads=("labels", "csi", "volumes"),
    filter_requeue_events=frozenset(
        {
            ClusterEvent.NODE_ADD,
            ClusterEvent.NODE_LABEL,
            ClusterEvent.VOLUME_ADD,
            ClusterEvent.VOLUME_UPDATE,
            ClusterEvent.CLAIM_ADD,
            ClusterEvent.CLAIM_UPDATE,
            ClusterEvent.STORAGE_CLASS_ADD,
            ClusterEvent.STORAGE_CLASS_UPDATE,
            ClusterEvent.CSI_NODE_ADD,
            ClusterEvent.CSI_NODE_UPDATE,
            ClusterEvent.CSI_DRIVER_UPDATE,
            ClusterEvent.STORAGE_CAPACITY_ADD,
            ClusterEvent.STORAGE_CAPACITY_UPDATE,
        }
    ),
    reasons=(
        "node(s) didn't match PersistentVolume's node affinity",
        "node(s) didn't find available persistent volumes to bind",
        "node(s) did not have enough free storage",
        "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)",
        "pod has unbound immediate PersistentVolumeClaims",
        'persistentvolumeclaim "{claim}" not found',
        'persistentvolumeclaim "{claim}" is being deleted',
        'persistentvolumeclaim "{claim}" bound to non-existent persistentvolume "{volume}"',
        'waiting for ephemeral volume controller to create the persistentvolumeclaim "{claim}"',
        "PVC {claim} was not created for pod {pod} (pod is not owner)",
    ),
    default_weight=1,
    scaleup=True,
    cost_per_node=8,
    source="kubernetes v1.37.2 pkg/scheduler/framework/plugins/volumebinding",
    filter_parameters=(
        BuiltinParameter(
            name="bind_timeout_seconds",
            kind="int",
            default=600,
            low=0,
            high=604_800,
            doc="how long the pod's claims may take to be bound before the pod is scheduled again",
        ),
    ),
)

"""A volume with zone or region labels is usable in that zone or region only."""

from policysched.builtins.declaration import BuiltinDeclaration
from policysched.model.cluster_events import ClusterEvent

DECLARATION = BuiltinDeclaration(
    name="volume_zone",
    plugin="VolumeZone",
    summary="rejects nodes of another zone or region than the labels of the pod's volumes name",
    filters=True,
    scores=False,
    parameters=(),
    pod_reads=("claims",),
    node_reads=("labels", "volumes"),
    filter_requeue_events=frozenset(
        {
            ClusterEvent.NODE_ADD,
            ClusterEvent.NODE_LABEL,
            ClusterEvent.VOLUME_ADD,
            ClusterEvent.VOLUME_UPDATE,
            ClusterEvent.CLAIM_ADD,
            ClusterEvent.CLAIM_UPDATE,
            ClusterEvent.STORAGE_CLASS_ADD,
        }
    ),
    reasons=(
        "node(s) had no available volume zone",
        'persistentvolumeclaim "{claim}" not found',
        'persistentvolume "{volume}" not found',
        'storageclass.storage.k8s.io "{class}" not found',
        "PersistentVolumeClaim had no pv name and storageClass name",
        "PersistentVolume had no name",
    ),
    default_weight=None,
    scaleup=True,
    cost_per_node=3,
    source="kubernetes v1.37.2 pkg/scheduler/framework/plugins/volumezone/volume_zone.go",
)

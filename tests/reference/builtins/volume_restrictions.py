"""Filter: no pod on the node mounts a disk of the pod, unless both mount it read-only. GCE disks
are equal by name, AWS disks by ID (never shared), iSCSI disks by IQN, and RBD images by pool and
name if their monitors overlap. A claim with the access mode ReadWriteOncePod is not used by a
placed pod on any node.

A claim that does not exist rejects the pod on all nodes (the claim of an ephemeral volume is left
to volume_binding).
"""

from policysched.cluster.volumes.binder import not_found_message
from policysched.model.pods import Pod
from policysched.model.storage import Disk
from tests.reference.builtin_interface import BuiltinParams, ClusterFacts, FilterReasons, NodeInfo

_DISK_CONFLICT = "node(s) had no available disk"
_IN_USE = "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod"


def prefilter(pod: Pod, facts: ClusterFacts) -> str | None:
    for use in pod.claims:
        if use.owner_pod is None and facts.volumes.claim(use.claim) is None:
            return not_found_message("persistentvolumeclaim", use.claim.name)
    return None


def filter_node(
    pod: Pod, node_info: NodeInfo, params: BuiltinParams, facts: ClusterFacts
) -> FilterReasons | None:
    absent = prefilter(pod, facts)
    if absent is not None:
        return FilterReasons((absent,), resolvable=False)
    held = [disk for placed in node_info.usage.pods.values() for disk in placed.disks]
    if any(disks_conflict(wanted, disk) for wanted in pod.disks for disk in held):
        return FilterReasons((_DISK_CONFLICT,), resolvable=True)
    for use in pod.claims:
        claim = facts.volumes.claim(use.claim) if use.owner_pod is None else None
        if claim is not None and "ReadWriteOncePod" in claim.access_modes and use.claim in facts.used_claims:
            return FilterReasons((_IN_USE,), resolvable=True)
    return None


def disks_conflict(wanted: Disk, held: Disk) -> bool:
    if (wanted.kind, wanted.name) != (held.kind, held.name) or (wanted.read_only and held.read_only):
        return False
    return wanted.kind != "rbd" or bool(wanted.monitors & held.monitors)

"""Filter: the node's CSINode has each driver of the pod's volumes whose CSIDriver has
`preventPodSchedulingIfMissing` (unless `missing_drivers = ignore`); and for each driver of the pod's
volumes with a limit in the CSINode, `attached + new <= limit`.

`attached` are the volumes of the pods on the node, each once, and those of VolumeAttachments to the
node that no pod there uses. `new` are the pod's volumes that no pod there uses. The driver of a
volume is that of its PersistentVolume or, if there is none yet, the provisioner of the claim's
class; volumes of in-tree plugins count for the CSI driver that replaced them. A claim that does not
exist rejects each node.
"""

from collections import Counter

from policysched.cluster.volumes.availability import AvailableVolumes
from policysched.cluster.volumes.binder import not_found_message
from policysched.model.pods import Pod
from policysched.model.storage import CsiVolume
from tests.reference.builtin_interface import BuiltinParams, ClusterFacts, FilterReasons, NodeInfo


def filter_node(
    pod: Pod, node_info: NodeInfo, params: BuiltinParams, facts: ClusterFacts
) -> FilterReasons | None:
    for use in pod.claims:
        if facts.volumes.claim(use.claim) is None:
            absent = not_found_message("persistentvolumeclaim", use.claim.name)
            message = f"looking up PVC {use.claim.namespace}/{use.claim.name}: {absent}"
            return FilterReasons((message,), resolvable=False)
    csi = node_info.node.csi
    if params["missing_drivers"] == "reject":
        for driver in facts.volumes.needed_drivers(pod):
            if csi is None or driver not in csi.drivers:
                return FilterReasons((f"{driver} CSI driver is not installed on the node",), resolvable=True)
    if csi is None:
        return None
    of_pods = {
        mount for placed in node_info.usage.pods.values() for mount in facts.volumes.csi_volumes_of(placed)
    }
    attached = Counter(mount.driver for mount in of_pods | _attachments(node_info, facts.volumes))
    new = Counter(mount.driver for mount in facts.volumes.csi_volumes_of(pod) - of_pods)
    if any(
        driver in csi.limits and attached[driver] + count > csi.limits[driver]
        for driver, count in new.items()
    ):
        return FilterReasons(("node(s) exceed max volume count",), resolvable=True)
    return None


def _attachments(node_info: NodeInfo, volumes: AvailableVolumes) -> set[CsiVolume]:
    """What is attached to the node, or about to be, by the VolumeAttachments."""
    attached = set()
    for attachment in node_info.node.attachments:
        volume = volumes.volume(attachment.volume)
        if volume is not None and volume.is_csi and volume.csi_volume is not None:
            attached.add(CsiVolume(attachment.attacher, volume.csi_volume.handle))
    return attached

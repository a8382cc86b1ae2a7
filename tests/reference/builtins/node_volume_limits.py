"""Filter: for each CSI driver of the pod's volumes that has a limit in the node's CSINode, `attached + new <= limit`.

`attached` are the volumes of the pods on the node, each once, and those of VolumeAttachments to it that no pod there
uses; `new` are the pod's own that no pod there uses. A volume's driver is that of its PersistentVolume, and where it
has none yet, the provisioner of its claim's class; kinds that were in-tree once count for the driver that took them
over. A claim that does not exist refuses each node.
"""

from collections import Counter

from policysched.cluster.volumes.availability import AvailableVolumes
from policysched.cluster.volumes.binder import not_found_message
from policysched.model.pods import Pod
from policysched.model.storage import CsiVolume
from tests.reference.builtin_interface import BuiltinParams, ClusterFacts, FilterReasons, NodeInfo


def refuse(pod: Pod, seen: NodeInfo, params: BuiltinParams, facts: ClusterFacts) -> FilterReasons | None:
    for use in pod.claims:
        if facts.volumes.claim(use.claim) is None:
            absent = not_found_message("persistentvolumeclaim", use.claim.name)
            words = f"looking up PVC {use.claim.namespace}/{use.claim.name}: {absent}"
            return FilterReasons((words,), resolvable=False)
    csi = seen.node.csi
    if csi is None:
        return None
    of_pods = {mount for placed in seen.usage.pods.values() for mount in facts.volumes.csi_volumes_of(placed)}
    attached = Counter(mount.driver for mount in of_pods | _attachments(seen, facts.volumes))
    new = Counter(mount.driver for mount in facts.volumes.csi_volumes_of(pod) - of_pods)
    if any(
        driver in csi.limits and attached[driver] + count > csi.limits[driver]
        for driver, count in new.items()
    ):
        return FilterReasons(("node(s) exceed max volume count",), resolvable=True)
    return None


def _attachments(seen: NodeInfo, stock: AvailableVolumes) -> set[CsiVolume]:
    """What is attached to the node, or about to be, by the VolumeAttachments."""
    found = set()
    for one in seen.node.attachments:
        volume = stock.volume(one.volume)
        if volume is not None and volume.is_csi and volume.csi_volume is not None:
            found.add(CsiVolume(one.attacher, volume.csi_volume.handle))
    return found

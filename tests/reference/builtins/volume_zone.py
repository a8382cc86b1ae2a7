"""Filter, for each bound claim of the pod (without ephemeral volumes): if the volume has one of the
labels `topology.kubernetes.io/zone` and `/region`, or the older
`failure-domain.beta.kubernetes.io/zone` and `/region`, the node's label has one of its values
(separated by `__`). A node without any of the four labels accepts every volume. For an older label
of the volume, the node may have the newer label.

A pod is rejected on all nodes while a claim or its volume does not exist, or the claim is unbound
and its class does not have the mode WaitForFirstConsumer.
"""

from collections.abc import Mapping

from policysched.cluster.volumes.availability import AvailableVolumes
from policysched.cluster.volumes.binder import not_found_message
from policysched.model.pods import Pod
from policysched.model.volume_topology import (
    TOPOLOGY_LABELS,
    VolumeTopology,
    newer_label,
    volume_topologies,
)
from tests.reference.builtin_interface import BuiltinParams, ClusterFacts, FilterReasons, NodeInfo


def prefilter(pod: Pod, facts: ClusterFacts) -> str | None:
    topologies = pod_topologies(pod, facts.volumes)
    return topologies if isinstance(topologies, str) else None


def filter_node(
    pod: Pod, node_info: NodeInfo, params: BuiltinParams, facts: ClusterFacts
) -> FilterReasons | None:
    topologies = pod_topologies(pod, facts.volumes)
    if isinstance(topologies, str):
        return FilterReasons((topologies,), resolvable=False)
    labels = node_info.node.labels
    if all(label not in labels for label in TOPOLOGY_LABELS) or all(
        _is_in(topology, labels) for topology in topologies
    ):
        return None
    return FilterReasons(("node(s) had no available volume zone",), resolvable=False)


def _is_in(topology: VolumeTopology, labels: Mapping[str, str]) -> bool:
    label = topology.label if topology.label in labels else newer_label(topology.label)
    return labels.get(label) in topology.values


def pod_topologies(pod: Pod, volumes: AvailableVolumes) -> list[VolumeTopology] | str:
    """The topology that the labels of the pod's volumes require, or why the pod fits no node."""
    topologies: list[VolumeTopology] = []
    for use in pod.claims:
        if use.owner_pod is not None:
            continue
        claim = volumes.claim(use.claim)
        if claim is None:
            return not_found_message("persistentvolumeclaim", use.claim.name)
        if claim.volume_name:
            volume = volumes.volume(claim.volume_name)
            if volume is None:
                return not_found_message("persistentvolume", claim.volume_name)
            topologies += volume_topologies(volume.labels)
            continue
        if not claim.class_name:
            return "PersistentVolumeClaim had no pv name and storageClass name"
        storage_class = volumes.storage_class(claim.class_name)
        if storage_class is None:
            return not_found_message("storageclass.storage.k8s.io", claim.class_name)
        if not storage_class.waits_for_first_consumer:
            return "PersistentVolume had no name"
    return topologies

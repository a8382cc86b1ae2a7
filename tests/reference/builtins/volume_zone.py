"""Filter: for each bound claim of the pod (without those of ephemeral volumes), and each of the labels
`topology.kubernetes.io/zone` and `/region` and the older `failure-domain.beta.kubernetes.io/zone` and `/region` that
its volume has, the node's label has one of the values (several stand with `__` between them). A node without any of
the four labels takes every volume; for an older label of the volume the node may have the newer one.

A pod is refused before any node is looked at while a claim or its volume does not exist, or the claim is unbound and
its class does not wait for the first consumer.
"""

from collections.abc import Mapping

from policysched.cluster.volumes.availability import Stock
from policysched.cluster.volumes.claims import not_found
from policysched.model.objects import Pod
from policysched.model.zones import TOPOLOGY_LABELS, Topology, newer_label, topologies
from tests.reference.builtin import ClusterFacts, Params, Reasons, Seen


def refuse_pod(pod: Pod, facts: ClusterFacts) -> str | None:
    found = pod_topologies(pod, facts.stock)
    return found if isinstance(found, str) else None


def refuse(pod: Pod, seen: Seen, params: Params, facts: ClusterFacts) -> Reasons | None:
    found = pod_topologies(pod, facts.stock)
    if isinstance(found, str):
        return Reasons((found,), resolvable=False)
    labels = seen.node.labels
    if all(label not in labels for label in TOPOLOGY_LABELS) or all(_is_in(one, labels) for one in found):
        return None
    return Reasons(("node(s) had no available volume zone",), resolvable=False)


def _is_in(one: Topology, labels: Mapping[str, str]) -> bool:
    label = one.label if one.label in labels else newer_label(one.label)
    return labels.get(label) in one.values


def pod_topologies(pod: Pod, stock: Stock) -> list[Topology] | str:
    """What the labels of the pod's volumes ask for, or why there is no sense in looking at any node."""
    found: list[Topology] = []
    for use in pod.claims:
        if use.made_for is not None:
            continue
        claim = stock.claim(use.claim)
        if claim is None:
            return not_found("persistentvolumeclaim", use.claim.name)
        if claim.volume:
            volume = stock.volume(claim.volume)
            if volume is None:
                return not_found("persistentvolume", claim.volume)
            found += topologies(volume.labels)
            continue
        if not claim.class_name:
            return "PersistentVolumeClaim had no pv name and storageClass name"
        storage_class = stock.storage_class(claim.class_name)
        if storage_class is None:
            return not_found("storageclass.storage.k8s.io", claim.class_name)
        if not storage_class.waits:
            return "PersistentVolume had no name"
    return found

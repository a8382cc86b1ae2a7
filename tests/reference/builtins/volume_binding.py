"""Filter, for the claims of the pod's volumes (ephemeral ones included):

- a bound claim's volume exists, and its node affinity matches the node's labels;
- a claim whose class waits for the first consumer has a volume that is meant for it (its claimRef) and that the node
  can reach; or, the smallest requests first, the smallest free volume that is large enough, is Available, and fits in
  class, mode, access modes, attributes class, selector and node affinity, each volume once; or else its class has a
  provisioner, `allowedTopologies` match the node, and, if the driver tracks its capacity, a CSIStorageCapacity of the
  class for the node is large enough. A claim that was sent to a node already (`volume.kubernetes.io/selected-node`)
  fits there alone.

A pod is refused before any node is looked at while a claim does not exist, is being deleted, has lost its volume, was
made for another pod, or is unbound and does not wait for a consumer.

Where it refuses nobody and the pod gets a node, the volumes chosen are promised to it, the volumes' claimRef or the
claims' selected-node is written, and the pod is bound once its claims are (`bind_timeout_seconds`).

As in kube-scheduler's default there is no score: the one by storage capacity stands behind the feature gate
StorageCapacityScoring, which is off.
"""

from policysched.cluster.volumes.binder import choose_volumes, pod_volume_claims
from policysched.cluster.volumes.reservations import VolumeChoice
from policysched.model.pods import Pod
from tests.reference.builtin_interface import BuiltinParams, ClusterFacts, FilterReasons, NodeInfo


def refuse_pod(pod: Pod, facts: ClusterFacts) -> str | None:
    claims = pod_volume_claims(pod, facts.volumes)
    return claims if isinstance(claims, str) else None


def refuse(pod: Pod, seen: NodeInfo, params: BuiltinParams, facts: ClusterFacts) -> FilterReasons | None:
    claims = pod_volume_claims(pod, facts.volumes)
    if isinstance(claims, str):
        return FilterReasons((claims,), resolvable=False)
    found = choose_volumes(claims, seen.node, facts.volumes)
    return None if isinstance(found, VolumeChoice) else FilterReasons(found, resolvable=False)

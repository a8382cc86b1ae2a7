"""Filter, for the claims of the pod's volumes (ephemeral volumes included):

- A bound claim: the volume exists, and its node affinity matches the node's labels.
- An unbound claim whose class has the mode WaitForFirstConsumer, in this order: a volume that is
  reserved for the claim (its claimRef) and reachable from the node; the smallest available volume
  that is large enough and matches class, volume mode, access modes, attributes class, selector and
  node affinity (smallest requests first, each volume once); or provisioning: the class has a
  provisioner, its `allowedTopologies` match the node, and, if the driver tracks capacity, a
  CSIStorageCapacity of the class for the node is large enough. A claim with the annotation
  `volume.kubernetes.io/selected-node` fits on that node only.

A pod is rejected on all nodes while a claim does not exist, is being deleted, has lost its volume,
was created for another pod, or is unbound without WaitForFirstConsumer.

When the pod gets a node, the chosen volumes are reserved. PreBind writes the claimRef of the
volumes or the selected-node of the claims, and waits until the claims are bound
(`bind_timeout_seconds`).

There is no score, as in kube-scheduler's defaults: scoring by storage capacity needs the feature
gate StorageCapacityScoring, which is off.
"""

from policysched.cluster.volumes.binder import choose_volumes, pod_volume_claims
from policysched.cluster.volumes.reservations import VolumeChoice
from policysched.model.pods import Pod
from tests.reference.builtin_interface import BuiltinParams, ClusterFacts, FilterReasons, NodeInfo


def prefilter(pod: Pod, facts: ClusterFacts) -> str | None:
    claims = pod_volume_claims(pod, facts.volumes)
    return claims if isinstance(claims, str) else None


def filter_node(
    pod: Pod, node_info: NodeInfo, params: BuiltinParams, facts: ClusterFacts
) -> FilterReasons | None:
    claims = pod_volume_claims(pod, facts.volumes)
    if isinstance(claims, str):
        return FilterReasons((claims,), resolvable=False)
    choice = choose_volumes(claims, node_info.node, facts.volumes)
    return None if isinstance(choice, VolumeChoice) else FilterReasons(choice, resolvable=False)

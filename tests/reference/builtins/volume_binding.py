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

Score: of the claims that are not bound yet, those that would be bound to existing volumes; if there are
none, those for which the node has a CSIStorageCapacity. For each of their classes the utilization is
what the claims request, as a percentage of the volumes' size or of the capacity, rounded down (100
if it is more), and the score is `shape` there; the mean of the classes, rounded. 0 if there are none.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction

from policysched.cluster.volumes.availability import AvailableVolumes
from policysched.cluster.volumes.binder import choose_volumes, pod_volume_claims
from policysched.cluster.volumes.reservations import VolumeChoice
from policysched.model.identifiers import NodeName
from policysched.model.nodes import Node
from policysched.model.pods import Pod
from policysched.model.storage import PersistentVolumeClaim
from tests.reference.builtin_interface import (
    MAX_SCORE,
    BuiltinParams,
    ClusterFacts,
    FilterReasons,
    NodeInfo,
    NodeScore,
)
from tests.reference.builtins.node_resources_fit import shape_score


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


def score(
    pod: Pod, candidates: Sequence[NodeInfo], params: BuiltinParams, facts: ClusterFacts
) -> Mapping[NodeName, NodeScore] | None:
    if not pod.claims:
        return None
    scores = {}
    for node_info in candidates:
        of_class = _storage_of_class(pod, node_info.node, facts.volumes)
        heights = [shape_score(params["shape"], _utilization(*amounts)) for amounts in of_class.values()]
        mean = Fraction(sum(heights), len(heights)) if heights else Fraction(0)
        rounded = int(mean + Fraction(1, 2))
        scores[node_info.node.name] = NodeScore(rounded, rounded)
    return scores


def _utilization(requested: int, capacity: int) -> int:
    return MAX_SCORE if capacity == 0 or requested > capacity else requested * MAX_SCORE // capacity


def _storage_of_class(pod: Pod, node: Node, volumes: AvailableVolumes) -> Mapping[str, tuple[int, int]]:
    """By class what is requested, and the capacity for it, in bytes."""
    claims = pod_volume_claims(pod, volumes)
    assert not isinstance(claims, str), f"{pod.full_name} is scored, but: {claims}"
    choice = choose_volumes(claims, node, volumes)
    assert isinstance(choice, VolumeChoice), f"{pod.full_name} is scored on {node.name}, but: {choice}"
    totals: dict[str, tuple[int, int]] = {}
    for claim, volume in choice.static_bindings:
        requested, capacity = totals.get(claim.class_name, (0, 0))
        totals[claim.class_name] = (
            requested + (claim.request_bytes or 0),
            capacity + volume.capacity_bytes,
        )
    if totals:
        return totals
    for claim in choice.dynamic_provisions:
        capacity_bytes = _capacity_for(claim, node, volumes)
        if capacity_bytes is not None:
            requested, _ = totals.get(claim.class_name, (0, 0))
            totals[claim.class_name] = requested + (claim.request_bytes or 0), capacity_bytes
    return totals


def _capacity_for(claim: PersistentVolumeClaim, node: Node, volumes: AvailableVolumes) -> int | None:
    """What the CSIStorageCapacity with the largest limit has left; None: not tracked."""
    storage_class = volumes.storage_class(claim.class_name)
    assert storage_class is not None, f"{claim.key} is provisioned without a class"
    if claim.request_bytes is None or not volumes.tracks_capacity(storage_class.provisioner):
        return None
    reachable = [
        (capacity.limit_bytes, capacity.capacity_bytes or 0)
        for capacity in volumes.capacities(claim.class_name)
        if capacity.limit_bytes is not None
        and capacity.topology is not None
        and capacity.topology.selects(node.labels)
    ]
    return max(reachable)[1]

"""What a plain built-in gets and gives: the values between `oracle` and `tests.reference.builtins`."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from policysched.cluster.devices.availability import AvailableDevices
from policysched.cluster.usage import NodeUsage
from policysched.cluster.volumes.availability import AvailableVolumes
from policysched.lang.ir.rules import BuiltinParamValue
from policysched.model.identifiers import NodeName, VolumeClaimKey
from policysched.model.namespaces import Namespace
from policysched.model.nodes import Node
from policysched.model.pods import Pod
from policysched.model.workloads import PodSet

MAX_SCORE = 100


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A node as a built-in sees it."""

    node: Node
    usage: NodeUsage


@dataclass(frozen=True, slots=True)
class NodeScore:
    """`raw` is what was counted, `score` the same on the scale from 0 to 100."""

    raw: int
    score: int


@dataclass(frozen=True, slots=True)
class FilterReasons:
    """Why a built-in refuses a node; `resolvable` False: evicting pods would not help."""

    texts: tuple[str, ...]
    resolvable: bool


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """What is relative to all nodes, candidates or not. `nodes` are all of them with what is placed on them;
    `pods_with_affinity` are the placed pods that have terms about other pods, with their nodes; `pod_sets` all Services and
    controllers. `volumes` are the volumes and claims, `used_claims` those that placed pods use; `devices` the devices and claims
    for them; `allocates_devices`: the policy has a filter that gives pods theirs."""

    node_count: int
    nodes_with_image: Mapping[str, int]
    nodes: Mapping[NodeName, NodeInfo]
    namespaces: Mapping[str, Namespace]
    pods_with_affinity: Sequence[tuple[Pod, Node]]
    volumes: AvailableVolumes
    devices: AvailableDevices
    used_claims: frozenset[VolumeClaimKey]
    pod_sets: Collection[PodSet] = ()
    allocates_devices: bool = False
    now_ns: int = 0


BuiltinParams = Mapping[str, BuiltinParamValue]
FilterFunction = Callable[[Pod, NodeInfo, BuiltinParams, ClusterFacts], FilterReasons | None]
PreFilterFunction = Callable[[Pod, ClusterFacts], str | None]
"""Why the pod is refused whatever the node, or None."""
ScoreFunction = Callable[
    [Pod, Sequence[NodeInfo], BuiltinParams, ClusterFacts], Mapping[NodeName, NodeScore] | None
]

"""The interface between the reference implementation and its built-ins."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from policysched.cluster.devices.availability import AvailableDevices
from policysched.cluster.devices.pod_claims import PodResourceClaims
from policysched.cluster.node_usage import NodeUsage
from policysched.cluster.volumes.availability import AvailableVolumes
from policysched.lang.ir.rules import BuiltinParamValue
from policysched.model.identifiers import NodeName, PodUid, VolumeClaimKey
from policysched.model.namespaces import Namespace
from policysched.model.nodes import Node
from policysched.model.pods import Pod
from policysched.model.workloads import SelectorOwner

MAX_SCORE = 100


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A node and its usage."""

    node: Node
    usage: NodeUsage


@dataclass(frozen=True, slots=True)
class NodeScore:
    """`raw` is the value before normalization, `score` is normalized to 0..100."""

    raw: int
    score: int


@dataclass(frozen=True, slots=True)
class FilterReasons:
    """Why a built-in rejects a node. `resolvable` False: evicting pods cannot help."""

    texts: tuple[str, ...]
    resolvable: bool


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """What built-ins read of the whole cluster, candidates or not.

    `pods_with_affinity`: placed pods with pod affinity terms, and their nodes. `selector_owners`: all
    Services and controllers. `used_claims`: volume claims of placed pods. `allocates_devices`: the
    policy has `filter dynamic_resources`, with `extended_resources`. `device_claims`: of the pods that
    were asked about, the same on all nodes.
    """

    node_count: int
    nodes_with_image: Mapping[str, int]
    nodes: Mapping[NodeName, NodeInfo]
    namespaces: Mapping[str, Namespace]
    pods_with_affinity: Sequence[tuple[Pod, Node]]
    volumes: AvailableVolumes
    devices: AvailableDevices
    used_claims: frozenset[VolumeClaimKey]
    selector_owners: Collection[SelectorOwner] = ()
    allocates_devices: bool = False
    now_ns: int = 0
    device_claims: dict[PodUid, PodResourceClaims | str] = field(default_factory=dict, compare=False)


BuiltinParams = Mapping[str, BuiltinParamValue]
FilterFunction = Callable[[Pod, NodeInfo, BuiltinParams, ClusterFacts], FilterReasons | None]
PreFilterFunction = Callable[[Pod, ClusterFacts], str | None]
"""Why the pod is rejected on all nodes, or None."""
AttemptErrorFunction = Callable[[Pod, NodeInfo, ClusterFacts], str | None]
"""The error on the node that stops the attempt, or None."""
ScoreFunction = Callable[
    [Pod, Sequence[NodeInfo], BuiltinParams, ClusterFacts], Mapping[NodeName, NodeScore] | None
]

"""What a plain built-in gets and gives: the values between `oracle` and `tests.reference.builtins`."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from policysched.cluster.devices.availability import DeviceStock
from policysched.cluster.usage import Usage
from policysched.cluster.volumes.availability import Stock
from policysched.lang.ir.program import ParamValue
from policysched.model.objects import ClaimKey, Namespace, Node, NodeName, Pod, PodSet

MAX_SCORE = 100


@dataclass(frozen=True, slots=True)
class Seen:
    """A node as a built-in sees it."""

    node: Node
    usage: Usage


@dataclass(frozen=True, slots=True)
class NodeScore:
    """`raw` is what was counted, `score` the same on the scale from 0 to 100."""

    raw: int
    score: int


@dataclass(frozen=True, slots=True)
class Reasons:
    """Why a built-in refuses a node; `resolvable` False: evicting pods would not help."""

    texts: tuple[str, ...]
    resolvable: bool


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """What is relative to all nodes, candidates or not. `nodes` are all of them with what is placed on them;
    `with_affinity` are the placed pods that have terms about other pods, with their nodes; `pod_sets` all Services and
    controllers. `stock` are the volumes and claims, `used_claims` those that placed pods use; `devices` the devices and claims
    for them; `gives_devices`: the policy has a filter that gives pods theirs."""

    node_count: int
    nodes_with_image: Mapping[str, int]
    nodes: Mapping[NodeName, Seen]
    namespaces: Mapping[str, Namespace]
    with_affinity: Sequence[tuple[Pod, Node]]
    stock: Stock
    devices: DeviceStock
    used_claims: frozenset[ClaimKey]
    pod_sets: Collection[PodSet] = ()
    gives_devices: bool = False
    now_ns: int = 0


Params = Mapping[str, ParamValue]
Filter = Callable[[Pod, Seen, Params, ClusterFacts], Reasons | None]
Beforehand = Callable[[Pod, ClusterFacts], str | None]
"""Why the pod is refused whatever the node, or None."""
Score = Callable[[Pod, Sequence[Seen], Params, ClusterFacts], Mapping[NodeName, NodeScore] | None]

"""What an expression can look at: the pod, its namespace, a node with what is on it, the clock and the samples."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from policysched.cluster.cache import ClusterCache
from policysched.cluster.samples import Samples
from policysched.cluster.shares import NamespaceShare
from policysched.cluster.usage import NodeUsage
from policysched.lang.ir.expr import Expr
from policysched.lang.ir.program import Program
from policysched.lang.types.records import RecordValue
from policysched.model.identifiers import NodeName, PodUid
from policysched.model.namespaces import Namespace
from policysched.model.nodes import Node
from policysched.model.pods import Pod, QueuedPodInfo
from tests.reference.builtin_interface import ClusterFacts
from tests.reference.values import Value


@dataclass(frozen=True, slots=True)
class CandidateNodes:
    """The nodes that pass the filters. An aggregate is asked again and again where it is in the value of another: `aggregate_cache` keeps what it
    came to, with the node that it is seen from, None where that makes no difference."""

    nodes: "Mapping[NodeName, ExpressionContext]"
    aggregate_cache: dict[tuple[Expr, NodeName | None], Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExpressionContext:
    """`node` and `usage` are None where only the pod is looked at (order, gangs, layers). `other` is the pod being
    counted inside `count(pods where ...)`, `victim` the one that preemption would evict. `element` is that of the list
    which is being looked through. `candidates` are the nodes that pass the filters,
    where a score looks at all of them; `after_placement`: the pod counts as if it were on the node; `aggregate_values` are aggregates that are one number for all nodes meanwhile. `cluster_facts` is what built-ins see of all nodes, beside `node`. `cache`, `now_ns` and `queue_info`
    are None where nothing may read what namespaces hold or which pods there are, the clock or the queue (gangs)."""

    program: Program
    pod: Pod
    namespace: Namespace
    now_ns: int | None
    queue_info: QueuedPodInfo | None
    samples: Samples
    node: Node | None = None
    usage: NodeUsage | None = None
    other: Pod | None = None
    victim: Pod | None = None
    cluster_facts: ClusterFacts | None = None
    element: RecordValue | None = None
    candidates: CandidateNodes | None = None
    after_placement: bool = False
    aggregate_values: Mapping[Expr, Value] = field(default_factory=dict)
    cache: ClusterCache | None = None


def pod_context(
    program: Program,
    pod: Pod,
    namespace: Namespace | None,
    *,
    now_ns: int | None = None,
    facts: QueuedPodInfo | None = None,
    samples: Samples | None = None,
    cache: ClusterCache | None = None,
) -> ExpressionContext:
    """A context without a node. A namespace that has not been seen has no labels;"""
    space = namespace or Namespace(pod.namespace, {}, {})
    return ExpressionContext(program, pod, space, now_ns, facts, samples or {}, cache=cache)


def placed_copy_uid(pod: Pod) -> PodUid:
    """What one more pod such as this one is called where it is thought to be on a node."""
    return PodUid(f"{pod.uid} once more")


def namespace_share(namespace: str, cache: ClusterCache) -> NamespaceShare:
    """What the namespace's placed pods request of what all nodes have, counted anew."""
    placed = [
        pod
        for node in cache.ledger.nodes
        for pod in cache.ledger.usage(node).pods.values()
        if pod.namespace == namespace
    ]

    def part(resource: str) -> float:
        total = sum(node.allocatable.get(resource, 0) for node in cache.nodes.values())
        held = sum(pod.requests.get(resource, 0) for pod in placed)
        return held / total if total else 0.0

    return NamespaceShare(part("cpu"), part("memory"))


def namespace_of(pod: Pod, cache: ClusterCache) -> Namespace | None:
    return cache.namespaces.get(pod.namespace)

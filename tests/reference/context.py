"""The context of an expression: the pod, its namespace, a node and its usage, the clock and the
metric samples."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

from policysched.cluster.cache import ClusterCache
from policysched.cluster.metric_samples import Samples
from policysched.cluster.node_usage import NodeUsage
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
    """The nodes that pass the filters. `aggregate_cache` has the values of aggregates for a node;
    None: for all nodes. `placed_cache` has the contexts of the nodes with the pod placed on them,
    `values_cache` the values of aggregated expressions before and after placement, where they are equal for all nodes."""

    nodes: "Mapping[NodeName, ExpressionContext]"
    aggregate_cache: dict[tuple[Expr, NodeName | None], Value] = field(default_factory=dict)
    placed_cache: "dict[NodeName, ExpressionContext]" = field(default_factory=dict)
    values_cache: "dict[Expr, tuple[NodeValues, NodeValues]]" = field(default_factory=dict)


class ExpressionContext(NamedTuple):
    """What an expression can read. A named tuple, because its `_replace` takes a tenth of the time of
    `dataclasses.replace`, and every evaluation makes thousands of contexts.

    node, usage         None in expressions about the pod only (order, gangs, layers)
    other               the counted pod inside of `count(pods where ...)`
    other_node          the node that it is placed on, where that matters
    victim              the pod that preemption would evict
    element             the current element of a list
    candidates          the nodes that pass the filters, for aggregates in scores
    after_placement     whether the pod counts as placed on the node
    aggregate_values    values of nested aggregates
    cluster_counts      values of `count(pods where ...)` by the identities of expression and pod: equal on all nodes
    cluster_facts       what built-ins read of all nodes
    cache, now_ns, queue_info    None where the checker rejects reading the cluster, the clock or the queue
    """

    program: Program
    pod: Pod
    namespace: Namespace
    now_ns: int | None
    queue_info: QueuedPodInfo | None
    samples: Samples
    cluster_counts: dict[tuple[int, int], Value]
    node: Node | None = None
    usage: NodeUsage | None = None
    other: Pod | None = None
    other_node: Node | None = None
    victim: Pod | None = None
    cluster_facts: ClusterFacts | None = None
    element: RecordValue | None = None
    candidates: CandidateNodes | None = None
    after_placement: bool = False
    aggregate_values: Mapping[Expr, Value] = MappingProxyType({})
    cache: ClusterCache | None = None


NodeValues = dict[NodeName, Value]
ValueFunction = Callable[[Expr, ExpressionContext], Value]
"""`expressions.value`."""


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
    """A context without a node. A namespace that was not observed has no labels."""
    space = namespace or Namespace(pod.namespace, {}, {})
    return ExpressionContext(program, pod, space, now_ns, facts, samples or {}, {}, cache=cache)


def copy_of_usage(usage: NodeUsage) -> NodeUsage:
    """One to which pods can be added."""
    return replace(
        usage,
        requested=dict(usage.requested),
        ports=usage.ports.copy(),
        disks=usage.disks.copy(),
        pods=dict(usage.pods),
    )


def placed_copy_uid(pod: Pod) -> PodUid:
    """The UID of a hypothetical copy of the pod on a node."""
    return PodUid(f"{pod.uid} once more")


def namespace_share(namespace: str, resource: str, cache: ClusterCache) -> float:
    """The share of the namespace, recounted from its placed pods."""
    placed = [
        pod
        for node in cache.ledger.nodes
        for pod in cache.ledger.usage(node).pods.values()
        if pod.namespace == namespace
    ]
    total = sum(node.allocatable.get(resource, 0) for node in cache.nodes.values())
    held = len(placed) if resource == "pods" else sum(pod.requests.get(resource, 0) for pod in placed)
    return held / total if total else 0.0


def namespace_of(pod: Pod, cache: ClusterCache) -> Namespace | None:
    return cache.namespaces.get(pod.namespace)

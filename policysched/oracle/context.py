"""What an expression can look at: the pod, its namespace, a node with what is on it, the clock and the samples."""

from dataclasses import dataclass

from policysched.cluster.cache import Cache
from policysched.cluster.objects import Namespace, Node, Pod, PodFacts, Samples
from policysched.cluster.usage import Usage
from policysched.lang.program import Program
from policysched.oracle.builtin import ClusterFacts


@dataclass(frozen=True, slots=True)
class Context:
    """`node` and `usage` are None where only the pod is looked at (order, gangs, layers). `other` is the pod being
    counted inside `count(pods on node where ...)`, `victim` the one that preemption would evict. `cluster` is what built-ins see of all nodes, beside `node`. `now_ns` and `facts`
    are None where nothing may read the clock or the queue (gangs)."""

    program: Program
    pod: Pod
    namespace: Namespace
    now_ns: int | None
    facts: PodFacts | None
    samples: Samples
    node: Node | None = None
    usage: Usage | None = None
    other: Pod | None = None
    victim: Pod | None = None
    cluster: ClusterFacts | None = None


def pod_context(
    program: Program,
    pod: Pod,
    namespace: Namespace | None,
    *,
    now_ns: int | None = None,
    facts: PodFacts | None = None,
    samples: Samples | None = None,
) -> Context:
    """A context without a node. A namespace that has not been seen has no labels."""
    space = namespace or Namespace(pod.namespace, {}, {})
    return Context(program, pod, space, now_ns, facts, samples or {})


def namespace_of(pod: Pod, cache: Cache) -> Namespace | None:
    return cache.namespaces.get(pod.namespace)

"""What a plain function of the plan may look at (one pod, and at times one node), and what it gives.

A value that is missing is None.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from policysched.cluster.samples import Samples
from policysched.cluster.shares import NamespaceShares, ShareLookup
from policysched.cluster.usage import NodeUsage
from policysched.lang.ir import expr as e
from policysched.lang.ir.declarations import Input, Metric
from policysched.lang.types.records import RecordValue
from policysched.model.namespaces import Namespace
from policysched.model.nodes import Node
from policysched.model.pods import Pod, QueuedPodInfo

PresentValue = bool | int | float | str | tuple[int | float | str, ...] | tuple[RecordValue, ...]
EvalValue = PresentValue | None

_NO_QUEUE_FACTS = QueuedPodInfo(queued_ns=0, attempts=0)
_EMPTY_SHARES = NamespaceShares()


@dataclass(slots=True)
class EvalContext:
    """What a function may look at. Without a node only what depends on the pod can be asked. `other` is the pod that is
    being counted, or the victim that preemption considers, `element` that of the list which is being looked through."""

    pod: Pod
    namespace: Namespace
    queue_facts: QueuedPodInfo = _NO_QUEUE_FACTS
    now_ns: int = 0
    samples: Samples = field(default_factory=dict)
    node: Node | None = None
    usage: NodeUsage | None = None
    other: Pod | None = None
    shares: ShareLookup = _EMPTY_SHARES
    element: RecordValue | None = None
    pod_counter: "PodCounter | None" = None

    def with_node(self, node: Node, usage: NodeUsage) -> "EvalContext":
        return replace(self, node=node, usage=usage)

    def with_other_pod(self, other: Pod) -> "EvalContext":
        return EvalContext(
            self.pod,
            self.namespace,
            self.queue_facts,
            self.now_ns,
            self.samples,
            self.node,
            self.usage,
            other,
            self.shares,
        )


ScalarFunction = Callable[[EvalContext], EvalValue]


class PodCounter(Protocol):
    """The pods of the cluster, as far as they are counted."""

    def count(self, expr: e.CountPodsInCluster, program: "ExprDeclarations", seen: EvalContext) -> int:
        """How many there are for which the condition holds."""
        ...


class ExprDeclarations(Protocol):
    """What names in expressions stand for."""

    @property
    def inputs(self) -> Mapping[str, Input]: ...

    @property
    def metrics(self) -> Mapping[str, Metric]: ...


def expect_number(found: EvalValue) -> int | float:
    assert isinstance(found, int | float), f"{found!r} is not a number"
    return found

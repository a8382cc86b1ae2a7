"""`EvalContext`, the environment of a scalar function: one pod and, in some, one node.

A missing value is None.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from policysched.cluster.metric_samples import Samples
from policysched.cluster.namespace_shares import NamespaceShares, ShareLookup
from policysched.cluster.node_usage import NodeUsage
from policysched.lang.ir import expr as e
from policysched.lang.ir.declarations import Input, Metric
from policysched.lang.ir.expr_analysis import walk
from policysched.lang.types.records import RecordValue
from policysched.model.namespaces import Namespace
from policysched.model.nodes import Node
from policysched.model.pods import Pod, QueuedPodInfo

PresentValue = bool | int | float | str | tuple[int | float | str, ...] | tuple[RecordValue, ...]
EvalValue = PresentValue | None

_NO_QUEUE_FACTS = QueuedPodInfo(queued_ns=0, attempts=0)
EMPTY_SHARES = NamespaceShares()


@dataclass(slots=True)
class EvalContext:
    """The values that a scalar function may read. Without a node, only expressions of the pod can be
    evaluated. `other` is the pod being counted, or the victim that preemption considers; `element`
    the current element of a list."""

    pod: Pod
    namespace: Namespace
    queue_facts: QueuedPodInfo = _NO_QUEUE_FACTS
    now_ns: int = 0
    samples: Samples = field(default_factory=dict)
    node: Node | None = None
    usage: NodeUsage | None = None
    other: Pod | None = None
    shares: ShareLookup = EMPTY_SHARES
    element: RecordValue | None = None
    pod_counter: "PodCounter | None" = None
    quota_share: Callable[[str], float] | None = None  # of the pod's entity, by the name of the quota
    other_node: Node | None = None  # that `other` is placed on

    def with_node(self, node: Node, usage: NodeUsage) -> "EvalContext":
        return replace(self, node=node, usage=usage)

    def with_other_pod(self, other: Pod, node: Node | None = None) -> "EvalContext":
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
            other_node=node,
        )


ScalarFunction = Callable[[EvalContext], EvalValue]


class PodCounter(Protocol):
    """Evaluates totals over the pods of the cluster."""

    def total(self, expr: e.PodTotal, program: "ExprDeclarations", context: EvalContext) -> EvalValue:
        """The total; for one with a topology key that of the domain of the context's node."""
        ...

    def next_change_ns(
        self, expr: e.PodTotal, program: "ExprDeclarations", context: EvalContext
    ) -> int | None:
        """When the total changes next because a pod comes of age; None: never."""
        ...


class ExprDeclarations(Protocol):
    """The declarations that names in expressions refer to."""

    @property
    def inputs(self) -> Mapping[str, Input]: ...

    @property
    def metrics(self) -> Mapping[str, Metric]: ...


@dataclass(frozen=True, slots=True, weakref_slot=True)
class InputDeclarations:
    """Declarations of inputs alone, for expressions of the pod that outlive their program."""

    inputs: Mapping[str, Input]
    metrics: Mapping[str, Metric] = field(default_factory=dict)

    @classmethod
    def of(cls, inputs: Iterable[Input]) -> "InputDeclarations":
        return cls({declaration.name: declaration for declaration in inputs})


def inputs_read(declarations: ExprDeclarations, *exprs: e.Expr) -> tuple[Input, ...]:
    """The inputs that the expressions read, in the order of their first use."""
    parts = (part for expr in exprs for part in walk(expr))
    names = dict.fromkeys(part.name for part in parts if isinstance(part, e.InputRef))
    return tuple(declarations.inputs[name] for name in names)


def expect_number(value: EvalValue) -> int | float:
    assert isinstance(value, int | float), f"{value!r} is not a number"
    return value

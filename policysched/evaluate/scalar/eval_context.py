"""What a plain function of the plan may look at (one pod, and at times one node), and what it gives.

A value that is missing is None.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from policysched.cluster.samples import Samples
from policysched.cluster.shares import ShareOf, Shares
from policysched.cluster.usage import Usage
from policysched.lang.ir import expr as e
from policysched.lang.ir.program import Input, Metric
from policysched.lang.types.records import RecordValue
from policysched.model.objects import Namespace, Node, Pod, PodFacts

Held = bool | int | float | str | tuple[int | float | str, ...] | tuple[RecordValue, ...]
Value = Held | None

_NO_FACTS = PodFacts(queued_ns=0, attempts=0)
_NOBODY_HOLDS = Shares()


@dataclass(slots=True)
class Seen:
    """What a function may look at. Without a node only what depends on the pod can be asked. `other` is the pod that is
    being counted, or the victim that preemption considers, `element` that of the list which is being looked through."""

    pod: Pod
    namespace: Namespace
    facts: PodFacts = _NO_FACTS
    now_ns: int = 0
    samples: Samples = field(default_factory=dict)
    node: Node | None = None
    usage: Usage | None = None
    other: Pod | None = None
    shares: ShareOf = _NOBODY_HOLDS
    element: RecordValue | None = None
    everybody: "Everybody | None" = None

    def on(self, node: Node, usage: Usage) -> "Seen":
        return replace(self, node=node, usage=usage)

    def counting(self, other: Pod) -> "Seen":
        return Seen(
            self.pod,
            self.namespace,
            self.facts,
            self.now_ns,
            self.samples,
            self.node,
            self.usage,
            other,
            self.shares,
        )


Function = Callable[[Seen], Value]


class Everybody(Protocol):
    """The pods of the cluster, as far as they are counted."""

    def count(self, expr: e.CountAnywhere, program: "Declarations", seen: Seen) -> int:
        """How many there are for which the condition holds."""
        ...


class Declarations(Protocol):
    """What names in expressions stand for."""

    @property
    def inputs(self) -> Mapping[str, Input]: ...

    @property
    def metrics(self) -> Mapping[str, Metric]: ...


def number(found: Value) -> int | float:
    assert isinstance(found, int | float), f"{found!r} is not a number"
    return found

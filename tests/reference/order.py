"""A pod's place in the queue of its policy."""

from dataclasses import dataclass
from functools import total_ordering

from policysched.cluster.cache import Cache
from policysched.lang.ir.program import Program
from policysched.model.objects import Namespace, Pod, PodFacts
from tests.reference.context import pod_context
from tests.reference.expressions import value
from tests.reference.values import MISSING, Value


@total_ordering
@dataclass(frozen=True, slots=True, eq=True)
class Place:
    """One key of the order: compares as the policy says, with what is missing behind everything."""

    found: Value
    descending: bool

    def __lt__(self, other: "Place") -> bool:
        if self.found is MISSING or other.found is MISSING:
            return self.found is not MISSING and other.found is MISSING
        if self.descending:
            return other.found < self.found  # type: ignore[operator]
        return self.found < other.found  # type: ignore[operator]


def order_key(
    program: Program,
    pod: Pod,
    namespace: Namespace | None,
    facts: PodFacts,
    now_ns: int,
    cache: Cache | None = None,
) -> tuple[Place | str, ...]:
    """Pods with smaller keys come first; the UID closes the order, so that it is total. Only an order that reads what
    namespaces hold needs the cache."""
    context = pod_context(program, pod, namespace, now_ns=now_ns, facts=facts, cache=cache)
    places = tuple(Place(value(key.value, context), key.descending) for key in program.queue)
    return (*places, pod.uid)

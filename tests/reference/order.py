"""The order of pods in the queue of their policy."""

from dataclasses import dataclass
from functools import total_ordering

from policysched.cluster.cache import ClusterCache
from policysched.lang.ir.expr import Attr, Expr
from policysched.lang.ir.program import Program
from policysched.model.namespaces import Namespace
from policysched.model.pods import Pod, QueuedPodInfo
from tests.reference.context import ExpressionContext, pod_context
from tests.reference.expressions import value
from tests.reference.quota import dominant_share
from tests.reference.values import MISSING, Value


@total_ordering
@dataclass(frozen=True, slots=True, eq=True)
class OrderKeyValue:
    """One key of the order. MISSING sorts last, ascending or descending."""

    value: Value
    descending: bool

    def __lt__(self, other: "OrderKeyValue") -> bool:
        if self.value is MISSING or other.value is MISSING:
            return self.value is not MISSING and other.value is MISSING
        if self.descending:
            return other.value < self.value  # type: ignore[operator]
        return self.value < other.value  # type: ignore[operator]


def order_key(
    program: Program,
    pod: Pod,
    namespace: Namespace | None,
    facts: QueuedPodInfo,
    now_ns: int,
    cache: ClusterCache | None = None,
) -> tuple[OrderKeyValue | str, ...]:
    """Pods with smaller keys come first. The UID makes the order total. Only an order that reads
    namespace shares needs the cache."""
    context = pod_context(program, pod, namespace, now_ns=now_ns, facts=facts, cache=cache)
    places = tuple(OrderKeyValue(_key_value(key.value, context), key.descending) for key in program.queue)
    return (*places, pod.uid)


def _key_value(expr: Expr, context: ExpressionContext) -> Value:
    if isinstance(expr, Attr) and expr.path[0] == "quota_share":  # always a key of its own
        assert context.cache is not None, "the quota shares of no cluster"
        return dominant_share(context.program, str(expr.path[1]), context.pod, context.cache)
    return value(expr, context)

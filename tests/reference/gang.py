"""The gang of a pod and its terms."""

from dataclasses import dataclass

from policysched.lang.ir.expr import Expr
from policysched.lang.ir.program import DisruptionMode, GangMode, OnTimeout, Program
from policysched.model.namespaces import Namespace
from policysched.model.pods import Pod
from tests.reference.context import ExpressionContext, pod_context
from tests.reference.expressions import value
from tests.reference.values import MISSING


@dataclass(frozen=True, slots=True)
class GangTerms:
    """`key` is namespace and group. `maximum` and `timeout_ns`: None for no limit. `topology`: the
    topology key whose value must be equal on the nodes of all members. `disruption`: how its running members are preempted."""

    key: tuple[str, str]
    minimum: int
    maximum: int | None
    timeout_ns: int | None
    on_timeout: OnTimeout
    mode: GangMode
    topology: str | None = None
    disruption: DisruptionMode = DisruptionMode.MINIMUM


def gang_terms(program: Program, pod: Pod, namespace: Namespace | None) -> GangTerms | None:
    """None if the policy has no gangs, or the gang key of the pod is missing."""
    gang = program.gang
    if gang is None:
        return None
    context = pod_context(program, pod, namespace)
    group = value(gang.key, context)
    if group is MISSING:
        return None
    minimum = _whole(gang.minimum, context)
    return GangTerms(
        key=(pod.namespace, str(group)),
        minimum=1 if minimum is None else minimum,
        maximum=_whole(gang.maximum, context),
        timeout_ns=_whole(gang.timeout, context),
        on_timeout=gang.on_timeout,
        mode=gang.mode,
        topology=_label_key(gang.topology, context),
        disruption=_disruption(gang.disruption, context),
    )


def _label_key(expr: Expr | None, context: ExpressionContext) -> str | None:
    key = MISSING if expr is None else value(expr, context)
    return None if key is MISSING or key == "" else str(key)


def _disruption(expr: Expr | None, context: ExpressionContext) -> DisruptionMode:
    """A value that names no mode counts as missing."""
    mode = MISSING if expr is None else value(expr, context)
    return next((known for known in DisruptionMode if known.value == mode), DisruptionMode.MINIMUM)


def _whole(expr: Expr | None, context: ExpressionContext) -> int | None:
    number = MISSING if expr is None else value(expr, context)
    if number is MISSING:
        return None
    assert isinstance(number, int), f"{number!r} is not a whole number"
    return number

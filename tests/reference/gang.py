"""The gang of a pod and its terms."""

from dataclasses import dataclass

from policysched.lang.ir.expr import Attr, Expr
from policysched.lang.ir.expr_analysis import walk
from policysched.lang.ir.program import DisruptionMode, GangMode, GangSpec, OnTimeout, Program, TopologyLevel
from policysched.model.namespaces import Namespace
from policysched.model.pods import Pod
from tests.reference.context import ExpressionContext, pod_context
from tests.reference.expressions import value
from tests.reference.values import MISSING


@dataclass(frozen=True, slots=True)
class GangTerms:
    """`key` is namespace and group. `maximum` and `timeout_ns`: None for no limit. `levels`: the
    node labels whose values agree on the nodes of all members. `disruption`: how its running members are preempted.
    `min_resources`: what those that start together request at least, and `requests` what this one requests of it."""

    key: tuple[str, str]
    minimum: int
    maximum: int | None
    timeout_ns: int | None
    on_timeout: OnTimeout
    mode: GangMode
    levels: tuple[TopologyLevel, ...] = ()
    disruption: DisruptionMode = DisruptionMode.MINIMUM
    min_resources: tuple[tuple[str, int], ...] = ()
    requests: tuple[int, ...] = ()


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
    reads_groups = any(isinstance(part, Attr) and part.path[:1] == ("group",) for part in walk(gang.key))
    resources = tuple(pod.group.min_resources.items()) if pod.group is not None and reads_groups else ()
    return GangTerms(
        key=(pod.namespace, str(group)),
        minimum=1 if minimum is None else minimum,
        maximum=_whole(gang.maximum, context),
        timeout_ns=_whole(gang.timeout, context),
        on_timeout=gang.on_timeout,
        mode=gang.mode,
        levels=_levels(gang, context),
        disruption=_disruption(gang.disruption, context),
        min_resources=resources,
        requests=tuple(1 if name == "pods" else pod.requests.get(name, 0) for name, _ in resources),
    )


def _levels(gang: GangSpec, context: ExpressionContext) -> tuple[TopologyLevel, ...]:
    """The levels of the clause, or the one whose label key the pod has."""
    key = MISSING if gang.topology is None else value(gang.topology, context)
    return gang.levels if key is MISSING or key == "" else (TopologyLevel(str(key), required=True),)


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

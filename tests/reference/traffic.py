"""Traffic between a pod and the placed members of its gang."""

from collections.abc import Iterator

from policysched.cluster.metric_samples import PairSamples
from policysched.lang.ir.arithmetic import exact_total
from policysched.lang.ir.expr import GangTraffic
from policysched.model.pods import Pod
from tests.reference.context import ExpressionContext, ValueFunction, placed_copy_uid
from tests.reference.metrics import has_fresh_poll
from tests.reference.values import MISSING, Value


def traffic_to(expr: GangTraffic, context: ExpressionContext, value: ValueFunction) -> Value:
    """See `lang.ir.expr.GangTraffic`. In the stored unit of the metric."""
    assert expr.gang_key is not None and context.node is not None, f"`{expr.span.text}` needs a node"
    floating = expr.type.is_float64
    if value(expr.gang_key, context) is MISSING:
        return 0.0 if floating else 0
    if not has_fresh_poll(context.program.metrics[expr.name], context):
        return MISSING
    if expr.topology_key is not None and expr.topology_key not in context.node.labels:
        return MISSING
    pairs = context.samples[expr.name].pairs
    assume: Value = MISSING if expr.assume is None else value(expr.assume, context)
    if _pair_endpoint(expr, context, value) not in pairs and assume is MISSING:
        return MISSING
    flows = [_between(expr, context, other, pairs, assume, value) for other in _members(expr, context, value)]
    if MISSING in flows:
        return MISSING
    numbers = [flow for flow in flows if isinstance(flow, int | float)]
    return exact_total(numbers if floating else [int(number) for number in numbers], floating=floating)


def _pair_endpoint(expr: GangTraffic, context: ExpressionContext, value: ValueFunction) -> tuple[str, str]:
    return context.pod.namespace, str(value(expr.pod_key, context))


def _between(
    expr: GangTraffic,
    context: ExpressionContext,
    other: Pod,
    pairs: PairSamples,
    assume: Value,
    value: ValueFunction,
) -> Value:
    own = _pair_endpoint(expr, context, value)
    peer = _pair_endpoint(expr, context._replace(pod=other), value)
    unknown = own not in pairs or peer not in pairs
    if own in pairs and peer in pairs[own]:
        traffic = pairs[own][peer]
        return MISSING if traffic is None else traffic
    return assume if unknown and assume is not MISSING else 0


def _members(expr: GangTraffic, context: ExpressionContext, value: ValueFunction) -> Iterator[Pod]:
    """The other members of the pod's gang that are placed on the node, or in its domain."""
    assert expr.gang_key is not None, f"`{expr.span.text}` of a policy without gangs"
    gang = value(expr.gang_key, context)
    for other in _pods_in_domain(expr, context):
        same_policy = other.scheduler == context.program.name and other.namespace == context.pod.namespace
        itself = other.uid in (context.pod.uid, placed_copy_uid(context.pod))
        if not same_policy or itself or other.terminating:
            continue
        if value(expr.gang_key, context._replace(pod=other)) == gang:
            yield other


def _pods_in_domain(expr: GangTraffic, context: ExpressionContext) -> Iterator[Pod]:
    assert context.node is not None and context.usage is not None, f"`{expr.span.text}` needs a node"
    if expr.topology_key is None:
        yield from context.usage.pods.values()
        return
    assert context.cluster_facts is not None, "a topology domain needs the facts of the cluster"
    for node_info in context.cluster_facts.nodes.values():
        if node_info.node.labels.get(expr.topology_key) == context.node.labels[expr.topology_key]:
            yield from node_info.usage.pods.values()

"""What a metric says of a node now: its sample, as long as it is fresh.

A sample is as old as the older of two things: the moment it was true, and the last poll that answered.
"""

from collections.abc import Iterable

from policysched.cluster.samples import MetricSamples
from policysched.lang.ir.declarations import Metric, is_node_metric
from policysched.lang.ir.expr import Expr, GangTraffic, MetricRef, RecoveryCondition, walk
from policysched.model.nodes import Node
from tests.reference.context import ExpressionContext
from tests.reference.values import MISSING, Value, arithmetic, saturated


def metric_value(metric: Metric, context: ExpressionContext) -> Value:
    """The sample of the context's node, held as the metric's type is (a fraction is cut off), and what is assumed on top
    of it for the pods that came since; or MISSING, whatever is assumed."""
    assert context.node is not None and context.now_ns is not None, "a metric is read of a node, at a time"
    found = context.samples.get(metric.name)
    if found is None or _age_ns(found, context.node, context.now_ns) > metric.stale_after_ns:
        return MISSING
    sample = found.values.get(context.node.name)
    if sample is None:
        return MISSING
    floating = metric.type.is_float64
    held = sample.value if floating else saturated(int(sample.value))
    known = arithmetic("+", held, found.assumed.get(context.node.name, 0), floating=floating)
    if not context.after_placement or metric.assumed_load is None:
        return known
    from tests.reference.assumed_load import assumed_load  # each is made of the other

    assert known is not MISSING, "a sum always has an answer"
    amount = assumed_load(context.program, metric, context.pod, context.namespace)
    return arithmetic("+", known, amount if floating else int(amount), floating=floating)


def is_recovering(watch: RecoveryCondition, context: ExpressionContext) -> Value:
    """Whether the context's node crossed the limit and has not recovered; MISSING without a fresh sample."""
    assert context.node is not None and context.now_ns is not None, "a metric is read of a node, at a time"
    if metric_is_missing(watch.metric, context):
        return MISSING
    until_ns = context.samples[watch.metric].recovering_until_ns.get(watch, {}).get(context.node.name)
    return until_ns is not None and context.now_ns < until_ns


def metric_is_missing(name: str, context: ExpressionContext) -> bool:
    metric = context.program.metrics[name]
    if not is_node_metric(metric):
        return not has_fresh_poll(metric, context)
    return metric_value(metric, context) is MISSING


def has_fresh_poll(metric: Metric, context: ExpressionContext) -> bool:
    """Whether the last poll is fresh: all that a metric between pods can say of a node."""
    assert context.now_ns is not None, "a metric is read at a time"
    found = context.samples.get(metric.name)
    return found is not None and context.now_ns - found.polled_ns <= metric.stale_after_ns


def metrics_read(exprs: Iterable[Expr | None]) -> tuple[str, ...]:
    """The metrics that these expressions read, each once, in the order of the text."""
    names = (
        one.name
        for expr in exprs
        if expr is not None
        for one in walk(expr)
        if isinstance(one, MetricRef | GangTraffic)
    )
    return tuple(dict.fromkeys(names))


def _age_ns(found: MetricSamples, node: Node, now_ns: int) -> int:
    sample = found.values.get(node.name)
    at_ns = found.polled_ns if sample is None else min(found.polled_ns, sample.at_ns)
    return now_ns - at_ns

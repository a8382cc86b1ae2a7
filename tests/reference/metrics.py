"""Metric values of a node, as long as they are fresh.

The age of a sample counts from its timestamp or from the last successful poll, whichever is
earlier.
"""

from collections.abc import Iterable

from policysched.cluster.metric_samples import MetricSamples
from policysched.lang.ir.declarations import Metric, is_node_metric
from policysched.lang.ir.expr import Expr, GangTraffic, MetricRef, RecoveryCondition
from policysched.lang.ir.expr_analysis import walk
from policysched.model.nodes import Node
from tests.reference.context import ExpressionContext
from tests.reference.values import MISSING, Value, arithmetic, saturated


def metric_value(metric: Metric, context: ExpressionContext) -> Value:
    """The sample of the context's node in the stored type (fractions are truncated), plus the load
    that is assumed for pods placed since. MISSING without a fresh sample. A placement of the
    context itself is not included."""
    assert context.node is not None and context.now_ns is not None, "a metric needs a node and a time"
    metric_samples = context.samples.get(metric.name)
    if (
        metric_samples is None
        or _age_ns(metric_samples, context.node, context.now_ns) > metric.stale_after_ns
    ):
        return MISSING
    sample = metric_samples.values.get(context.node.name)
    if sample is None:
        return MISSING
    floating = metric.type.is_float64
    latest = sample.value if floating else saturated(int(sample.value))
    return arithmetic("+", latest, metric_samples.assumed.get(context.node.name, 0), floating=floating)


def is_recovering(condition: RecoveryCondition, context: ExpressionContext) -> Value:
    """Whether the context's node crossed the limit and has not recovered. MISSING without a fresh
    sample."""
    assert context.node is not None and context.now_ns is not None, "a metric needs a node and a time"
    if metric_is_missing(condition.metric, context):
        return MISSING
    until_ns = context.samples[condition.metric].recovering_until_ns.get(condition, {}).get(context.node.name)
    return until_ns is not None and context.now_ns < until_ns


def metric_is_missing(name: str, context: ExpressionContext) -> bool:
    metric = context.program.metrics[name]
    if not is_node_metric(metric):
        return not has_fresh_poll(metric, context)
    return metric_value(metric, context) is MISSING


def has_fresh_poll(metric: Metric, context: ExpressionContext) -> bool:
    """Whether the last poll is fresh. This is all that a pair metric can tell about a node."""
    assert context.now_ns is not None, "a metric needs a time"
    metric_samples = context.samples.get(metric.name)
    return metric_samples is not None and context.now_ns - metric_samples.polled_ns <= metric.stale_after_ns


def metrics_read(exprs: Iterable[Expr | None]) -> tuple[str, ...]:
    """The metrics that the expressions read, each once, in source order."""
    names = (
        node_expr.name
        for expr in exprs
        if expr is not None
        for node_expr in walk(expr)
        if isinstance(node_expr, MetricRef | GangTraffic)
    )
    return tuple(dict.fromkeys(names))


def _age_ns(metric_samples: MetricSamples, node: Node, now_ns: int) -> int:
    sample = metric_samples.values.get(node.name)
    at_ns = metric_samples.polled_ns if sample is None else min(metric_samples.polled_ns, sample.at_ns)
    return now_ns - at_ns

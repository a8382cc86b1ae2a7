"""What a metric assumes of a pod until a sample has it, and what the samples of a cluster come to with a pod on a node."""

from collections.abc import Mapping
from dataclasses import replace

from policysched.cluster.samples import MetricSamples, Samples
from policysched.lang.ir.declarations import Metric, is_node_metric
from policysched.lang.ir.program import Program
from policysched.model.identifiers import NodeName
from policysched.model.namespaces import Namespace
from policysched.model.pods import Pod
from tests.reference.context import pod_context
from tests.reference.expressions import value
from tests.reference.values import MISSING, Number, arithmetic


def assumed_load(program: Program, metric: Metric, pod: Pod, namespace: Namespace | None) -> Number:
    """In the held unit of the metric; 0 where it assumes nothing, or has no answer for this pod."""
    if metric.assumed_load is None:
        return 0
    found = value(metric.assumed_load, pod_context(program, pod, namespace))
    if found is MISSING:
        return 0
    assert isinstance(found, int | float), f"{metric.name} assumes {found!r} of {pod.full_name}"
    return found


def samples_after_placement(
    program: Program, samples: Samples, pod: Pod, node: NodeName, namespace: Namespace | None
) -> Samples:
    """The samples as they count for the next pod, once this one is on the node."""
    found: dict[str, MetricSamples] = dict(samples)
    for name, metric in program.metrics.items():
        if name in found and metric.assumed_load is not None and is_node_metric(metric):
            before: Mapping[NodeName, Number] = found[name].assumed
            amount = assumed_load(program, metric, pod, namespace)
            total = arithmetic("+", before.get(node, 0), amount, floating=metric.type.is_float64)
            assert total is not MISSING, "a sum always has an answer"
            found[name] = replace(found[name], assumed={**before, node: total})
    return found

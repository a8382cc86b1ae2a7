"""The samples of a cluster after a pod is placed: the assumed load of the pod is added to its node."""

from collections.abc import Mapping
from dataclasses import replace

from policysched.cluster.metric_samples import MetricSamples, Samples
from policysched.lang.ir.declarations import is_node_metric
from policysched.lang.ir.program import Program
from policysched.model.identifiers import NodeName
from policysched.model.namespaces import Namespace
from policysched.model.pods import Pod
from tests.reference.expressions import assumed_load
from tests.reference.values import MISSING, Number, arithmetic


def samples_after_placement(
    program: Program, samples: Samples, pod: Pod, node: NodeName, namespace: Namespace | None
) -> Samples:
    """The samples for the next pod, with this pod on the node."""
    after: dict[str, MetricSamples] = dict(samples)
    for name, metric in program.metrics.items():
        if name in after and metric.assumed_load is not None and is_node_metric(metric):
            before: Mapping[NodeName, Number] = after[name].assumed
            amount = assumed_load(program, metric, pod, namespace)
            total = arithmetic("+", before.get(node, 0), amount, floating=metric.type.is_float64)
            assert total is not MISSING, "a sum is never missing"
            after[name] = replace(after[name], assumed={**before, node: total})
    return after

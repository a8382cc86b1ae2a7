"""The example of CONTRIBUTING: nodes whose kubelet is not ready take no pods."""

from policysched.builtins.declaration import BuiltinDeclaration
from policysched.model.cluster_events import ClusterEvent

DECLARATION = BuiltinDeclaration(
    name="node_ready",
    plugin="CheckNodeCondition",
    summary="rejects nodes whose condition Ready is not `True`",
    filters=True,
    scores=False,
    parameters=(),
    pod_reads=(),
    node_reads=("ready",),
    filter_requeue_events=frozenset({ClusterEvent.NODE_ADD, ClusterEvent.NODE_CONDITION}),
    reasons=("node(s) were not ready",),
    default_weight=None,
    scaleup=True,
    cost_per_node=1,
    source="kubernetes v1.17.0 pkg/scheduler/algorithm/predicates/predicates.go",
)

"""Cordoned nodes take only pods that tolerate it."""

from policysched.builtins.declaration import BuiltinDeclaration
from policysched.model.cluster_events import ClusterEvent

DECLARATION = BuiltinDeclaration(
    name="node_unschedulable",
    plugin="NodeUnschedulable",
    summary="rejects cordoned nodes, unless the pod tolerates `node.kubernetes.io/unschedulable:NoSchedule`",
    filters=True,
    scores=False,
    parameters=(),
    pod_reads=("tolerations",),
    node_reads=("unschedulable",),
    filter_requeue_events=frozenset(
        {ClusterEvent.NODE_ADD, ClusterEvent.NODE_TAINT, ClusterEvent.UNSCHEDULED_POD_UPDATE}
    ),
    reasons=("node(s) were unschedulable",),
    default_weight=None,
    scaleup=True,
    cost_per_node=1,
    source="kubernetes v1.37.2 pkg/scheduler/framework/plugins/nodeunschedulable/node_unschedulable.go",
)

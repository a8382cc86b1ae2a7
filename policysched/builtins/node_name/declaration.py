"""A pod that names its node goes to that node.

A pod with `spec.nodeName` is already bound and never queued, so this filter accepts every node. It
is declared so that `include kube_default` lists the same plugins as kube-scheduler.
"""

from policysched.builtins.declaration import BuiltinDeclaration
from policysched.model.cluster_events import ClusterEvent

DECLARATION = BuiltinDeclaration(
    name="node_name",
    plugin="NodeName",
    summary="accepts only the node that `spec.nodeName` names (such a pod is bound already and never waits)",
    filters=True,
    scores=False,
    parameters=(),
    pod_reads=(),
    node_reads=(),
    filter_requeue_events=frozenset({ClusterEvent.NODE_ADD}),
    reasons=("node(s) didn't match the requested node name",),
    default_weight=None,
    scaleup=False,
    cost_per_node=1,
    source="kubernetes v1.37.2 pkg/scheduler/framework/plugins/nodename/node_name.go",
)

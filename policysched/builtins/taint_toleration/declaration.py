"""Taints keep off pods that do not tolerate them; nodes with PreferNoSchedule taints come last."""

from policysched.builtins.declaration import BuiltinDeclaration
from policysched.model.cluster_events import ClusterEvent

DECLARATION = BuiltinDeclaration(
    name="taint_toleration",
    plugin="TaintToleration",
    summary=(
        "rejects nodes with a NoSchedule or NoExecute taint that the pod does not tolerate; "
        "prefers nodes with fewer such PreferNoSchedule taints"
    ),
    filters=True,
    scores=True,
    parameters=(),
    pod_reads=("tolerations",),
    node_reads=("taints",),
    filter_requeue_events=frozenset(
        {ClusterEvent.NODE_ADD, ClusterEvent.NODE_TAINT, ClusterEvent.UNSCHEDULED_POD_UPDATE}
    ),
    reasons=("node(s) had untolerated taint(s)",),
    default_weight=3,
    scaleup=True,
    cost_per_node=2,
    source="kubernetes v1.37.2 pkg/scheduler/framework/plugins/tainttoleration/taint_toleration.go",
)

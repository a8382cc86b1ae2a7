"""A pod's nodeSelector and node affinity: the required terms filter, the preferred ones score."""

from policysched.builtins.declaration import BuiltinDeclaration
from policysched.model.cluster_events import ClusterEvent

DECLARATION = BuiltinDeclaration(
    name="node_affinity",
    plugin="NodeAffinity",
    summary=(
        "rejects nodes that nodeSelector or the required node affinity terms do not match; "
        "prefers nodes by the weights of the preferred terms that match"
    ),
    filters=True,
    scores=True,
    parameters=(),
    pod_reads=("node_selector", "affinity"),
    node_reads=("labels", "name"),
    filter_requeue_events=frozenset(
        {ClusterEvent.NODE_ADD, ClusterEvent.NODE_LABEL, ClusterEvent.UNSCHEDULED_POD_UPDATE}
    ),
    reasons=(
        "node(s) didn't match Pod's node affinity/selector",
        "node(s) didn't satisfy plugin(s) [NodeAffinity]",  # where the pod names nodes, and not this one
    ),
    default_weight=2,
    scaleup=True,
    cost_per_node=3,
    source="kubernetes v1.37.2 pkg/scheduler/framework/plugins/nodeaffinity/node_affinity.go",
)

"""The node's kubelet must declare the features that the pod requires."""

from policysched.builtins.declaration import BuiltinDeclaration
from policysched.model.cluster_events import ClusterEvent

DECLARATION = BuiltinDeclaration(
    name="node_declared_features",
    plugin="NodeDeclaredFeatures",
    summary="rejects nodes whose kubelet does not declare a feature that the pod requires",
    filters=True,
    scores=False,
    parameters=(),
    pod_reads=("required_features",),
    node_reads=("declared_features",),
    filter_requeue_events=frozenset(
        {ClusterEvent.NODE_ADD, ClusterEvent.NODE_FEATURE, ClusterEvent.UNSCHEDULED_POD_UPDATE}
    ),
    reasons=("node(s) didn't match Pod's required features",),
    default_weight=None,
    scaleup=True,
    cost_per_node=1,
    source="kubernetes v1.37.2 pkg/scheduler/framework/plugins/nodedeclaredfeatures/nodedeclaredfeatures.go and "
    "k8s.io/component-helpers v0.37.2 nodedeclaredfeatures",
)

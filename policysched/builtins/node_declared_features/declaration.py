"""Some pods need what not every kubelet can do; kubelets declare what they can."""

from policysched.builtins.declaration import Declaration
from policysched.model.cluster_events import ClusterEvent

DECLARATION = Declaration(
    name="node_declared_features",
    plugin="NodeDeclaredFeatures",
    summary="refuses nodes whose kubelet does not declare a feature that the pod needs",
    filters=True,
    scores=False,
    parameters=(),
    pod_reads=("required_features",),
    node_reads=("declared_features",),
    filter_wakes=frozenset(
        {ClusterEvent.NODE_ADD, ClusterEvent.NODE_FEATURE, ClusterEvent.UNSCHEDULED_POD_UPDATE}
    ),
    reasons=("node(s) didn't match Pod's required features",),
    default_weight=None,
    scaleup=True,
    cost=1,
    source="kubernetes v1.36.3 pkg/scheduler/framework/plugins/nodedeclaredfeatures/nodedeclaredfeatures.go and "
    "k8s.io/component-helpers v0.36.3 nodedeclaredfeatures",
)

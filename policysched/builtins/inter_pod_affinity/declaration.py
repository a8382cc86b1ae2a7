"""Inter-pod affinity and anti-affinity, of the pod and of the pods already placed."""

from policysched.builtins.declaration import BuiltinDeclaration, BuiltinParameter
from policysched.model.cluster_events import ClusterEvent

DECLARATION = BuiltinDeclaration(
    name="inter_pod_affinity",
    plugin="InterPodAffinity",
    summary=(
        "rejects nodes where required affinity or anti-affinity of the pod, or required anti-affinity of a placed pod, "
        "does not hold; prefers nodes by the weights of the preferred terms of the pod and of placed pods"
    ),
    filters=True,
    scores=True,
    parameters=(
        BuiltinParameter(
            name="hard_pod_affinity_weight",
            kind="int",
            default=1,
            low=0,
            high=100,
            doc="the weight of a placed pod's required affinity for this pod",
        ),
        BuiltinParameter(
            name="ignore_preferred_terms_of_existing_pods",
            kind="choice",
            default="no",
            choices=("no", "yes"),
            doc="with `yes` a pod without preferred terms is not scored by those of placed pods",
        ),
    ),
    pod_reads=("namespace", "pod_affinity", "selected_labels"),
    node_reads=("labels", "cluster"),
    filter_requeue_events=frozenset(
        {
            ClusterEvent.NODE_ADD,
            ClusterEvent.NODE_DELETE,
            ClusterEvent.NODE_LABEL,
            ClusterEvent.ASSIGNED_POD_ADD,
            ClusterEvent.ASSIGNED_POD_UPDATE,
            ClusterEvent.ASSIGNED_POD_DELETE,
            ClusterEvent.UNSCHEDULED_POD_UPDATE,
            ClusterEvent.NAMESPACE,
        }
    ),
    reasons=(
        "node(s) didn't match pod affinity rules",
        "node(s) didn't match pod anti-affinity rules",
        "node(s) didn't satisfy existing pods anti-affinity rules",
    ),
    default_weight=2,
    scaleup=True,
    cost_per_node=20,
    source="kubernetes v1.37.2 pkg/scheduler/framework/plugins/interpodaffinity",
)

"""A pod's topologySpreadConstraints: the DoNotSchedule ones filter, the ScheduleAnyway ones score."""

from policysched.builtins.declaration import BuiltinDeclaration, BuiltinParameter
from policysched.model.cluster_events import ClusterEvent

DECLARATION = BuiltinDeclaration(
    name="pod_topology_spread",
    plugin="PodTopologySpread",
    summary="rejects nodes in domains that already have too many matching pods; prefers domains with fewer",
    filters=True,
    scores=True,
    parameters=(
        BuiltinParameter(
            name="default_constraints",
            kind="constraints",
            default="system",
            choices=("system", "none"),
            low=1,
            high=2**31 - 1,
            doc="the constraints (ScheduleAnyway) of a pod that has none and is selected by a Service or controller: topology "
            "keys with their maxSkew; `system` is kube-scheduler's default, hostname 3 and zone 5",
        ),
    ),
    filter_parameters=(
        BuiltinParameter(
            name="default_constraints",
            kind="constraints",
            default="none",
            choices=("none",),
            low=1,
            high=2**31 - 1,
            doc="the same with DoNotSchedule",
            requeue_events=frozenset({ClusterEvent.SELECTOR_OWNER_UPDATE}),
        ),
    ),
    pod_reads=("namespace", "spread", "node_selector", "affinity", "tolerations", "siblings"),
    node_reads=("labels", "taints", "cluster"),
    filter_requeue_events=frozenset(
        {
            ClusterEvent.NODE_ADD,
            ClusterEvent.NODE_DELETE,
            ClusterEvent.NODE_LABEL,
            ClusterEvent.NODE_TAINT,
            ClusterEvent.ASSIGNED_POD_ADD,
            ClusterEvent.ASSIGNED_POD_UPDATE,
            ClusterEvent.ASSIGNED_POD_DELETE,
            ClusterEvent.UNSCHEDULED_POD_UPDATE,
        }
    ),
    reasons=(
        "node(s) didn't match pod topology spread constraints",
        "node(s) didn't match pod topology spread constraints (missing required label)",
    ),
    default_weight=2,
    scaleup=True,
    cost_per_node=20,
    source="kubernetes v1.37.2 pkg/scheduler/framework/plugins/podtopologyspread",
)

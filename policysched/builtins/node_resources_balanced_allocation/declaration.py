"""Prefers nodes whose resource usage the pod makes more balanced."""

from policysched.builtins.declaration import BuiltinDeclaration, BuiltinParameter

DECLARATION = BuiltinDeclaration(
    name="node_resources_balanced_allocation",
    plugin="NodeResourcesBalancedAllocation",
    summary="prefers nodes whose resource usage the pod makes more balanced",
    filters=False,
    scores=True,
    parameters=(
        BuiltinParameter(
            name="resources",
            kind="weights",
            default=(("cpu", 1), ("memory", 1)),
            low=1,
            high=1,
            doc="the resources to compare; kube-scheduler accepts no weight but 1",
        ),
        BuiltinParameter(
            name="formula",
            kind="choice",
            default="change",
            choices=("change", "balance"),
            doc="`balance` scores the balance including the pod, not its change; the behaviour of kube-scheduler until 1.35",
        ),
    ),
    pod_reads=("requests", "scoring_requests", "extended"),
    node_reads=("allocatable", "usage"),
    filter_requeue_events=frozenset(),
    reasons=(),
    default_weight=1,
    scaleup=True,
    cost_per_node=8,
    source="kubernetes v1.37.2 pkg/scheduler/framework/plugins/noderesources/balanced_allocation.go",
)

"""Prefers nodes on which the pod makes the resources more evenly used."""

from policysched.builtins.declaration import BuiltinDeclaration, BuiltinParameter

DECLARATION = BuiltinDeclaration(
    name="node_resources_balanced_allocation",
    plugin="NodeResourcesBalancedAllocation",
    summary="prefers nodes whose resources the pod would leave more evenly used",
    filters=False,
    scores=True,
    parameters=(
        BuiltinParameter(
            name="resources",
            kind="weights",
            default=(("cpu", 1), ("memory", 1)),
            low=1,
            high=1,
            doc="the resources that are compared; kube-scheduler takes no other weight than 1",
        ),
        BuiltinParameter(
            name="formula",
            kind="choice",
            default="change",
            choices=("change", "balance"),
            doc="`balance` scores the balance with the pod alone, as kube-scheduler did until 1.35",
        ),
    ),
    pod_reads=("requests", "scoring_requests", "extended"),
    node_reads=("allocatable", "usage"),
    filter_requeue_events=frozenset(),
    reasons=(),
    default_weight=1,
    scaleup=True,
    cost_per_node=8,
    source="kubernetes v1.36.2 pkg/scheduler/framework/plugins/noderesources/balanced_allocation.go",
)

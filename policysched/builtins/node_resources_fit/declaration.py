"""Requests must fit into the node's free resources; the score packs or spreads by utilization."""

from policysched.builtins.declaration import BuiltinDeclaration, BuiltinParameter
from policysched.model.cluster_events import ClusterEvent

DECLARATION = BuiltinDeclaration(
    name="node_resources_fit",
    plugin="NodeResourcesFit",
    summary="rejects nodes without enough free resources for the pod's requests, or without a free pod slot; scores by utilization including the pod",
    filters=True,
    scores=True,
    parameters=(
        BuiltinParameter(
            name="strategy",
            kind="choice",
            default="least_allocated",
            choices=("least_allocated", "most_allocated", "requested_to_capacity_ratio"),
            doc="spread, pack, or score by `shape`",
        ),
        BuiltinParameter(
            name="resources",
            kind="weights",
            default=(("cpu", 1), ("memory", 1)),
            low=1,
            high=100,
            doc="the resources to score and their weights",
        ),
        BuiltinParameter(
            name="shape",
            kind="shape",
            default=((0, 0), (100, 10)),
            low=0,
            high=10,
            doc="for requested_to_capacity_ratio: utilization percent to score, linear between the points",
        ),
    ),
    filter_parameters=(
        BuiltinParameter(
            name="ignored_resources",
            kind="names",
            default=frozenset(),
            doc="extended resources that are not checked, for example because an extender manages them",
        ),
        BuiltinParameter(
            name="ignored_resource_groups",
            kind="names",
            default=frozenset(),
            doc='the same for all extended resources of these groups (the name up to the slash): `["example.com"]`',
        ),
    ),
    pod_reads=("requests", "scoring_requests", "extended"),
    node_reads=("allocatable", "usage"),
    filter_requeue_events=frozenset(
        {
            ClusterEvent.NODE_ADD,
            ClusterEvent.NODE_ALLOCATABLE,
            ClusterEvent.ASSIGNED_POD_DELETE,
            ClusterEvent.ASSIGNED_POD_UPDATE,
            ClusterEvent.UNSCHEDULED_POD_UPDATE,
            ClusterEvent.DEVICE_CLASS_ADD,
            ClusterEvent.DEVICE_CLASS_UPDATE,
        }
    ),
    reasons=("Insufficient {resource}", "Too many pods"),
    default_weight=1,
    scaleup=True,
    cost_per_node=6,
    source="kubernetes v1.37.2 pkg/scheduler/framework/plugins/noderesources/fit.go",
)

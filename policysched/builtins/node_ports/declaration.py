"""Host ports are unique on a node."""

from policysched.builtins.declaration import BuiltinDeclaration
from policysched.model.cluster_events import ClusterEvent

DECLARATION = BuiltinDeclaration(
    name="node_ports",
    plugin="NodePorts",
    summary="rejects nodes on which a host port of the pod is in use",
    filters=True,
    scores=False,
    parameters=(),
    pod_reads=("host_ports",),
    node_reads=("usage",),
    filter_requeue_events=frozenset({ClusterEvent.NODE_ADD, ClusterEvent.ASSIGNED_POD_DELETE}),
    reasons=("node(s) didn't have free ports for the requested pod ports",),
    default_weight=None,
    scaleup=True,
    cost_per_node=2,
    source="kubernetes v1.37.2 pkg/scheduler/framework/plugins/nodeports/node_ports.go",
)

"""Filter: a node with `spec.unschedulable` accepts only pods that tolerate the taint
`node.kubernetes.io/unschedulable:NoSchedule`."""

from policysched.model.nodes import Taint
from policysched.model.pods import Pod
from tests.reference.builtin_interface import BuiltinParams, ClusterFacts, FilterReasons, NodeInfo
from tests.reference.builtins.taint_toleration import tolerates

UNSCHEDULABLE = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")


def filter_node(
    pod: Pod, node_info: NodeInfo, params: BuiltinParams, facts: ClusterFacts
) -> FilterReasons | None:
    if not node_info.node.unschedulable or any(
        tolerates(toleration, UNSCHEDULABLE) for toleration in pod.tolerations
    ):
        return None
    return FilterReasons(("node(s) were unschedulable",), resolvable=False)

"""Filter: only a node whose condition Ready is `True` accepts pods."""

from policysched.model.pods import Pod
from tests.reference.builtin_interface import BuiltinParams, ClusterFacts, FilterReasons, NodeInfo


def filter_node(
    pod: Pod, node_info: NodeInfo, params: BuiltinParams, facts: ClusterFacts
) -> FilterReasons | None:
    return None if node_info.node.ready else FilterReasons(("node(s) were not ready",), resolvable=False)

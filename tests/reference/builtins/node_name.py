"""Filter: a pod whose `spec.nodeName` is set fits on that node only. Such a pod is placed already
and not scheduled, so this filter never rejects a node. It exists for completeness of
kube-scheduler's filters."""

from policysched.model.pods import Pod
from tests.reference.builtin_interface import BuiltinParams, ClusterFacts, FilterReasons, NodeInfo


def filter_node(
    pod: Pod, node_info: NodeInfo, params: BuiltinParams, facts: ClusterFacts
) -> FilterReasons | None:
    return None

"""A pod whose `spec.nodeName` is set goes to that node and no other. A pod with a node is placed and not decided any
more, so among the pods that are decided nobody is refused; the rule stands here so that the list of kube-scheduler's
filters is whole."""

from policysched.model.pods import Pod
from tests.reference.builtin_interface import BuiltinParams, ClusterFacts, FilterReasons, NodeInfo


def refuse(pod: Pod, seen: NodeInfo, params: BuiltinParams, facts: ClusterFacts) -> FilterReasons | None:
    return None

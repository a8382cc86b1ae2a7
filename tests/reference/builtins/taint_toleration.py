"""Filter: the pod tolerates every NoSchedule and NoExecute taint of the node.

Score: the count of the node's PreferNoSchedule taints that no toleration of the pod for that effect
(or for any effect) tolerates; `100 - floor(100 * count / max(count))` over the candidates, or 100
for all if no candidate has such a taint.
"""

from collections.abc import Mapping, Sequence

from policysched.model.identifiers import NodeName
from policysched.model.nodes import Node, Taint
from policysched.model.pods import Pod, Toleration
from tests.reference.builtin_interface import (
    MAX_SCORE,
    BuiltinParams,
    ClusterFacts,
    FilterReasons,
    NodeInfo,
    NodeScore,
)


def filter_node(
    pod: Pod, node_info: NodeInfo, params: BuiltinParams, facts: ClusterFacts
) -> FilterReasons | None:
    if all_tolerated(pod, node_info.node):
        return None
    return FilterReasons(("node(s) had untolerated taint(s)",), resolvable=False)


def score(
    pod: Pod, candidates: Sequence[NodeInfo], params: BuiltinParams, facts: ClusterFacts
) -> Mapping[NodeName, NodeScore] | None:
    counts = {node_info.node.name: _untolerated_count(pod, node_info) for node_info in candidates}
    most = max(counts.values())
    return {
        name: NodeScore(count, MAX_SCORE - (MAX_SCORE * count // most if most else 0))
        for name, count in counts.items()
    }


def all_tolerated(pod: Pod, node: Node) -> bool:
    """Of the taints that keep pods out."""
    return all(
        taint.effect == "PreferNoSchedule"
        or any(tolerates(toleration, taint) for toleration in pod.tolerations)
        for taint in node.taints
    )


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """An empty effect or key matches any. Source: `Toleration.ToleratesTaint` in
    k8s.io/api/core/v1."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    match toleration.operator:
        case "" | "Equal":
            return toleration.value == taint.value
        case "Exists":
            return True
        case _:
            return False


def _untolerated_count(pod: Pod, node_info: NodeInfo) -> int:
    preferences = [taint for taint in node_info.node.taints if taint.effect == "PreferNoSchedule"]
    relevant = [toleration for toleration in pod.tolerations if toleration.effect in ("", "PreferNoSchedule")]
    return sum(not any(tolerates(toleration, taint) for toleration in relevant) for taint in preferences)

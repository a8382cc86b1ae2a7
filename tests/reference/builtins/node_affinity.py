"""Filter: the node has all labels of `spec.nodeSelector` and matches one of the required terms of
`spec.affinity.nodeAffinity`. If every required term names nodes by `metadata.name`, other nodes are
rejected first.

Score: the sum of the weights of the preferred terms that match, as `floor(100 * sum / max(sum))`
over the candidates, or 0 for all if none matches. A pod without preferred terms is not scored.
"""

from collections.abc import Mapping, Sequence

from policysched.model.identifiers import NodeName
from policysched.model.nodes import Node
from policysched.model.pods import Pod
from policysched.model.selectors import NodeSelectorTerm, requirement_holds
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
    named = named_nodes(pod)
    if named and node_info.node.name not in named:
        return FilterReasons(("node(s) didn't satisfy plugin(s) [NodeAffinity]",), resolvable=False)
    if required_matches(pod, node_info.node):
        return None
    return FilterReasons(("node(s) didn't match Pod's node affinity/selector",), resolvable=False)


def score(
    pod: Pod, candidates: Sequence[NodeInfo], params: BuiltinParams, facts: ClusterFacts
) -> Mapping[NodeName, NodeScore] | None:
    preferred = pod.affinity.preferred if pod.affinity else ()
    if not preferred:
        return None
    sums = {
        node_info.node.name: sum(term.weight for term in preferred if term_matches(term.term, node_info.node))
        for node_info in candidates
    }
    most = max(sums.values())
    return {
        name: NodeScore(weight, MAX_SCORE * weight // most if most else weight)
        for name, weight in sums.items()
    }


def required_matches(pod: Pod, node: Node) -> bool:
    """nodeSelector, and one of the required terms where there are any."""
    if any(node.labels.get(key) != value for key, value in pod.node_selector.items()):
        return False
    required = pod.affinity.required if pod.affinity else None
    return required is None or any(term_matches(term, node) for term in required)


def named_nodes(pod: Pod) -> frozenset[str]:
    """The nodes that the required terms name, if every term names some; else (also where the names
    of each term contradict each other) nothing."""
    required = pod.affinity.required if pod.affinity else None
    names: set[str] = set()
    for term in required or ():
        lists = [
            set(requirement.values)
            for requirement in term.fields
            if requirement.key == "metadata.name" and requirement.operator == "In"
        ]
        if not lists:
            return frozenset()
        names |= set.intersection(*lists)
    return frozenset(names)


def term_matches(term: NodeSelectorTerm, node: Node) -> bool:
    """All expressions and all fields; a term with neither matches nothing."""
    if not term.expressions and not term.fields:
        return False
    labels = all(requirement_holds(requirement, node.labels) for requirement in term.expressions)
    fields = all(requirement_holds(requirement, {"metadata.name": node.name}) for requirement in term.fields)
    return labels and fields

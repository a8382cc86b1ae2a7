"""A term selects placed pods by their labels, in the namespaces that it lists or that its
namespaceSelector matches (in the pod's own namespace if it has neither). A node's domain under a
term is the set of nodes with the same value of the topologyKey. Terms of placed pods are evaluated
the same way for the pod to schedule.

Filter, in this order:

- Required affinity: the node has every topologyKey, and its domain of each contains a placed pod
  that all required terms select. If no domain contains such a pod, a pod that its own terms select
  is allowed.
- Required anti-affinity: the node's domain of each term contains no placed pod that the term
  selects.
- Required anti-affinity of placed pods: no such term selects the pod in a domain that contains the
  node.

Score: over all placed pods and the domains of each term, the sum of the weights of preferred terms
that select them (minus those of preferred anti-affinity terms), of such terms of placed pods that
select the pod, and `hard_pod_affinity_weight` for each required affinity term of placed pods that
selects the pod; `floor(100 * (sum - min) / (max - min))` over the candidates in float64, or 0 for
all if the sums are equal. A pod without a matching term is not scored.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from policysched.model.affinity import PodAffinity, PodAffinityTerm, PodSelector
from policysched.model.identifiers import NodeName
from policysched.model.namespaces import Namespace
from policysched.model.nodes import Node
from policysched.model.pods import Pod
from tests.reference.builtin_interface import (
    MAX_SCORE,
    BuiltinParams,
    ClusterFacts,
    FilterReasons,
    NodeInfo,
    NodeScore,
)

_NO_TERMS = PodAffinity((), (), (), selects_itself=True)
Domain = tuple[str, str]
"""A topology key and its value."""


def filter_node(
    pod: Pod, node_info: NodeInfo, params: BuiltinParams, facts: ClusterFacts
) -> FilterReasons | None:
    own, node = pod.pod_affinity or _NO_TERMS, node_info.node
    if not _affinity_holds(own, pod, node, facts):
        return FilterReasons(("node(s) didn't match pod affinity rules",), resolvable=False)
    if any(_placed_in_domain((term,), node, facts) for term in own.required_anti):
        return FilterReasons(("node(s) didn't match pod anti-affinity rules",), resolvable=True)
    for holder, home in facts.pods_with_affinity:
        for term in _affinity_of(holder).required_anti:
            if selects(term.pods, pod, facts) and _same_domain(term, home, node):
                return FilterReasons(
                    ("node(s) didn't satisfy existing pods anti-affinity rules",), resolvable=True
                )
    return None


def _affinity_holds(own: PodAffinity, pod: Pod, node: Node, facts: ClusterFacts) -> bool:
    terms = own.required
    if any(term.topology_key not in node.labels for term in terms):
        return False
    if all(_placed_in_domain(terms, node, facts, within=term) for term in terms):
        return True
    no_pod_selected = not any(
        term.topology_key in home.labels for term in terms for _, home in _selected_by_all(terms, facts)
    )
    return no_pod_selected and own.selects_itself and all(in_scope(term.pods, pod, facts) for term in terms)


def _placed_in_domain(
    terms: Sequence[PodAffinityTerm], node: Node, facts: ClusterFacts, within: PodAffinityTerm | None = None
) -> bool:
    """Whether a placed pod that all the terms select is in the node's domain of `within` (of the
    first of them)."""
    where = within or terms[0]
    return any(_same_domain(where, home, node) for _, home in _selected_by_all(terms, facts))


def _selected_by_all(terms: Sequence[PodAffinityTerm], facts: ClusterFacts) -> Iterable[tuple[Pod, Node]]:
    for node_info in facts.nodes.values():
        for placed in node_info.usage.pods.values():
            if all(selects(term.pods, placed, facts) for term in terms):
                yield placed, node_info.node


def _same_domain(term: PodAffinityTerm, left: Node, right: Node) -> bool:
    value = left.labels.get(term.topology_key)
    return value is not None and value == right.labels.get(term.topology_key)


def _affinity_of(pod: Pod) -> PodAffinity:
    return pod.pod_affinity or _NO_TERMS


def selects(selector: PodSelector, pod: Pod, facts: ClusterFacts) -> bool:
    labels = selector.label_selector
    return labels is not None and in_scope(selector, pod, facts) and labels.selects(pod.labels)


def in_scope(selector: PodSelector, pod: Pod, facts: ClusterFacts) -> bool:
    """Whether the selector covers the namespace of the pod. One that was not observed matches no
    selector with requirements."""
    if pod.namespace in selector.namespaces:
        return True
    elsewhere = selector.namespace_selector
    if elsewhere is None or not elsewhere.requirements:
        return elsewhere is not None
    space: Namespace | None = facts.namespaces.get(pod.namespace)
    return space is not None and elsewhere.selects(space.labels)


def score(
    pod: Pod, candidates: Sequence[NodeInfo], params: BuiltinParams, facts: ClusterFacts
) -> Mapping[NodeName, NodeScore] | None:
    hard_weight = params["hard_pod_affinity_weight"]
    assert isinstance(hard_weight, int), f"a weight of {hard_weight!r}"
    if params["ignore_preferred_terms_of_existing_pods"] == "yes" and not _affinity_of(pod).preferred:
        return None
    weights = _weights(pod, hard_weight, facts)
    if not weights:
        return None
    sums = {
        node_info.node.name: sum(weights[domain] for domain in node_info.node.labels.items())
        for node_info in candidates
    }
    least, most = min(sums.values()), max(sums.values())
    return {
        name: NodeScore(total, int(MAX_SCORE * ((total - least) / (most - least))) if most > least else 0)
        for name, total in sums.items()
    }


def _weights(pod: Pod, hard_weight: int, facts: ClusterFacts) -> Counter[Domain]:
    """What each domain adds; one that terms are about is there even where their weights cancel each
    other."""
    weights: Counter[Domain] = Counter()

    def add(term: PodAffinityTerm, home: Node, weight: int) -> None:
        value = home.labels.get(term.topology_key)
        if value is not None:
            weights[term.topology_key, value] += weight

    own = _affinity_of(pod).preferred
    for node_info in facts.nodes.values():
        for placed in node_info.usage.pods.values() if own else ():
            for weighted in own:
                if selects(weighted.term.pods, placed, facts):
                    add(weighted.term, node_info.node, weighted.weight)
    for holder, home in facts.pods_with_affinity:
        for term in _affinity_of(holder).required if hard_weight else ():
            if selects(term.pods, pod, facts):
                add(term, home, hard_weight)
        for weighted in _affinity_of(holder).preferred:
            if selects(weighted.term.pods, pod, facts):
                add(weighted.term, home, weighted.weight)
    return weights

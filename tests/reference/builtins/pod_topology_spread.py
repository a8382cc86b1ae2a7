"""A constraint counts the pods that its labelSelector (with the labels of matchLabelKeys) selects
in the pod's namespace, without terminating pods, by domain. A domain is the set of nodes with the
same value of the topologyKey. Nodes without all of the topologyKeys do not count, nor do nodes that
the pod's nodeSelector and node affinity (nodeAffinityPolicy Honor) or its tolerations
(nodeTaintsPolicy Honor) exclude. A selector without requirements counts nothing.

A pod without constraints gets those of `default_constraints`: in the filter as DoNotSchedule, in
the score as ScheduleAnyway. Their selector requires the labels that the pod's matching Services
select, and what the selector of its controller requires (an existing ReplicationController,
ReplicaSet or StatefulSet). Without any of these the pod has no constraints. `system` stands for
kube-scheduler's defaults, hostname with maxSkew 3 and zone with maxSkew 5. With `system`, a node
that lacks one of the labels still counts and is scored by the other constraint.

Filter, for each DoNotSchedule constraint: the node has the topologyKey, and `count in its domain +
1 if the constraint selects the pod itself - least count in any domain <= maxSkew`. The least count
is 0 if there are fewer domains than minDomains.

Score, for the ScheduleAnyway constraints: over the candidates that have all topologyKeys (others
get 0), the sum of `count in its domain * ln(domains of the candidates + 2) + maxSkew - 1` in
float64, rounded half up; `floor(100 * (max + min - sum) / max)`, or 100 for all if the maximum is
0. For `kubernetes.io/hostname`, each candidate is a domain and counts its own pods, whatever the
policies are. With `system` all candidates are scored; nodes without a label form one more domain of
it, and its constraint adds nothing to them. A pod without such a constraint is not scored.
"""

import math
from collections.abc import Mapping, Sequence

from policysched.model.affinity import TopologySpreadConstraint
from policysched.model.identifiers import NodeName
from policysched.model.nodes import Node
from policysched.model.pods import Pod
from policysched.model.selectors import LabelSelector, SelectorRequirement
from tests.reference.builtin_interface import (
    MAX_SCORE,
    BuiltinParams,
    ClusterFacts,
    FilterReasons,
    NodeInfo,
    NodeScore,
)
from tests.reference.builtins.node_affinity import required_matches
from tests.reference.builtins.taint_toleration import all_tolerated

_HOSTNAME = "kubernetes.io/hostname"
_SYSTEM = ((_HOSTNAME, 3), ("topology.kubernetes.io/zone", 5))
_CONTROLLERS = (
    ("v1", "ReplicationController"),
    ("apps/v1", "ReplicaSet"),
    ("apps/v1", "StatefulSet"),
)


def filter_node(
    pod: Pod, node_info: NodeInfo, params: BuiltinParams, facts: ClusterFacts
) -> FilterReasons | None:
    hard = constraints(pod, params, facts, hard=True)
    for constraint in hard:
        value = node_info.node.labels.get(constraint.topology_key)
        if value is None:
            message = "node(s) didn't match pod topology spread constraints (missing required label)"
            return FilterReasons((message,), resolvable=False)
        counts = counts_by_domain(constraint, hard, pod, facts)
        least = min(counts.values(), default=None)
        if len(counts) < constraint.min_domains:
            least = 0
        if (
            least is not None
            and counts.get(value, 0) + constraint.selects_itself - least > constraint.max_skew
        ):
            return FilterReasons(("node(s) didn't match pod topology spread constraints",), resolvable=True)
    return None


def constraints(
    pod: Pod, params: BuiltinParams, facts: ClusterFacts, *, hard: bool
) -> list[TopologySpreadConstraint]:
    """The pod's own of this kind or, where it has none of either kind, the default ones."""
    if pod.spread:
        return [constraint for constraint in pod.spread if constraint.hard is hard]
    given = params["default_constraints"]
    skews = {"none": (), "system": _SYSTEM}[given] if isinstance(given, str) else given
    assert isinstance(skews, tuple), f"constraints {given!r}"
    selector = default_selector(pod, facts)
    if not selector.requirements:
        return []
    itself = selector.selects(pod.labels)
    return [
        TopologySpreadConstraint(
            str(key),
            int(skew),
            min_domains=1,
            hard=hard,
            label_selector=selector,
            honors_affinity=True,
            honors_taints=False,
            selects_itself=itself,
        )
        for key, skew in skews
    ]


def default_selector(pod: Pod, facts: ClusterFacts) -> LabelSelector:
    """The default selector of the pod, without requirements if no Service or controller selects it."""
    selector_owners = [
        selector_owner
        for selector_owner in facts.selector_owners
        if selector_owner.namespace == pod.namespace and selector_owner.selector is not None
    ]
    labels: dict[str, str] = {}
    requirements: list[SelectorRequirement] = []
    for selector_owner in selector_owners:
        if (
            selector_owner.kind == "Service"
            and selector_owner.selector is not None
            and selector_owner.selector.selects(pod.labels)
        ):
            labels |= {each.key: each.values[0] for each in selector_owner.selector.requirements}
    for selector_owner in selector_owners if (pod.owner_api, pod.owner_kind) in _CONTROLLERS else ():
        if (selector_owner.kind, selector_owner.name) == (
            pod.owner_kind,
            pod.owner_name,
        ) and selector_owner.selector is not None:
            if selector_owner.kind == "ReplicationController":
                labels |= {each.key: each.values[0] for each in selector_owner.selector.requirements}
            else:
                requirements += selector_owner.selector.requirements
    by_labels = [SelectorRequirement(key, "In", (value,)) for key, value in sorted(labels.items())]
    return LabelSelector((*by_labels, *requirements))


def counts_by_domain(
    constraint: TopologySpreadConstraint,
    together: Sequence[TopologySpreadConstraint],
    pod: Pod,
    facts: ClusterFacts,
) -> dict[str, int]:
    """How many pods the constraint counts in each domain, of the nodes that all of the constraints
    have domains for."""
    counts: dict[str, int] = {}
    for node_info in facts.nodes.values():
        if has_all_keys(node_info.node, together) and is_counted(constraint, pod, node_info.node):
            value = node_info.node.labels.get(constraint.topology_key, "")
            counts[value] = counts.get(value, 0) + count_on(constraint, pod, node_info)
    return counts


def has_all_keys(node: Node, constraints: Sequence[TopologySpreadConstraint]) -> bool:
    return all(constraint.topology_key in node.labels for constraint in constraints)


def is_counted(constraint: TopologySpreadConstraint, pod: Pod, node: Node) -> bool:
    if constraint.honors_affinity and not required_matches(pod, node):
        return False
    return not constraint.honors_taints or all_tolerated(pod, node)


def count_on(constraint: TopologySpreadConstraint, pod: Pod, node_info: NodeInfo) -> int:
    if constraint.label_selector is None or not constraint.label_selector.requirements:
        return 0
    return sum(
        placed.namespace == pod.namespace
        and not placed.terminating
        and constraint.label_selector.selects(placed.labels)
        for placed in node_info.usage.pods.values()
    )


def score(
    pod: Pod, candidates: Sequence[NodeInfo], params: BuiltinParams, facts: ClusterFacts
) -> Mapping[NodeName, NodeScore] | None:
    soft = constraints(pod, params, facts, hard=False)
    if not soft:
        return None
    # kube-scheduler's own defaults want hostnames spread even where nodes have no zone.
    needed = [] if not pod.spread and params["default_constraints"] == "system" else soft
    scored = [node_info for node_info in candidates if has_all_keys(node_info.node, needed)]
    sums = dict.fromkeys((node_info.node.name for node_info in scored), 0.0)
    for constraint in soft:
        own_domains = constraint.topology_key == _HOSTNAME
        domains = {node_info.node.labels.get(constraint.topology_key, "") for node_info in scored}
        weight = math.log((len(scored) if own_domains else len(domains)) + 2)
        counts = counts_by_domain(constraint, needed, pod, facts)
        for node_info in scored:
            value = node_info.node.labels.get(constraint.topology_key)
            if value is not None:
                count = count_on(constraint, pod, node_info) if own_domains else counts.get(value, 0)
                sums[node_info.node.name] += count * weight + (constraint.max_skew - 1)
    rounded = {name: _rounded(total) for name, total in sums.items()}
    least, most = min(rounded.values(), default=0), max(rounded.values(), default=0)
    marks = {node_info.node.name: NodeScore(0, 0) for node_info in candidates}
    for name, total in rounded.items():
        marks[name] = NodeScore(total, MAX_SCORE * (most + least - total) // most if most else MAX_SCORE)
    return marks


def _rounded(number: float) -> int:
    """As Go's `math.Round`, for what is not negative: half up."""
    whole = math.floor(number)
    return whole + (number - whole >= 0.5)

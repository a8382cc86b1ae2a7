"""A constraint counts the pods of the pod's namespace that its labelSelector (with what matchLabelKeys adds) selects,
without those that are being deleted, in domains: nodes with the same value of its topologyKey. Nodes without all of
the topologyKeys are not counted, nor are those that the pod's nodeSelector and node affinity (nodeAffinityPolicy
Honor) or its tolerations (nodeTaintsPolicy Honor) rule out. A selector without requirements counts nothing.

Filter, each DoNotSchedule constraint: the node has the topologyKey, and `count in its domain + 1 if the constraint
selects the pod itself - least count in any domain <= maxSkew`. The least count is 0 where there are fewer domains than
minDomains.

Score, the ScheduleAnyway constraints: over the candidates that have all topologyKeys (the others get 0), the sum of
`count in its domain * ln(domains of the candidates + 2) + maxSkew - 1` in float64, rounded half up;
`floor(100 * (max + min - sum) / max)`, 100 for all where the maximum is 0. For `kubernetes.io/hostname` the count is
that of the node alone, whatever the policies say, and each candidate is a domain. A pod without such a constraint is
not scored; the constraints that kube-scheduler assumes for pods of a Service or a controller are not covered.
"""

import math
from collections.abc import Mapping, Sequence

from policysched.cluster.objects import Node, NodeName, Pod, SpreadConstraint
from policysched.oracle.builtin import MAX_SCORE, ClusterFacts, NodeScore, Params, Reasons, Seen
from policysched.oracle.builtins.node_affinity import required_matches
from policysched.oracle.builtins.taint_toleration import all_tolerated

_HOSTNAME = "kubernetes.io/hostname"


def refuse(pod: Pod, seen: Seen, params: Params, facts: ClusterFacts) -> Reasons | None:
    hard = [one for one in pod.spread if one.hard]
    for one in hard:
        value = seen.node.labels.get(one.topology_key)
        if value is None:
            words = "node(s) didn't match pod topology spread constraints (missing required label)"
            return Reasons((words,), resolvable=False)
        counts = counts_by_domain(one, hard, pod, facts)
        least = min(counts.values(), default=None)
        if len(counts) < one.min_domains:
            least = 0
        if least is not None and counts.get(value, 0) + one.selects_itself - least > one.max_skew:
            return Reasons(("node(s) didn't match pod topology spread constraints",), resolvable=True)
    return None


def counts_by_domain(
    one: SpreadConstraint, together: Sequence[SpreadConstraint], pod: Pod, facts: ClusterFacts
) -> dict[str, int]:
    """How many pods the constraint counts in each domain, of the nodes that all of the constraints have domains for."""
    counts: dict[str, int] = {}
    for seen in facts.nodes.values():
        if has_all_keys(seen.node, together) and is_counted(one, pod, seen.node):
            value = seen.node.labels[one.topology_key]
            counts[value] = counts.get(value, 0) + count_on(one, pod, seen)
    return counts


def has_all_keys(node: Node, constraints: Sequence[SpreadConstraint]) -> bool:
    return all(one.topology_key in node.labels for one in constraints)


def is_counted(one: SpreadConstraint, pod: Pod, node: Node) -> bool:
    if one.honors_affinity and not required_matches(pod, node):
        return False
    return not one.honors_taints or all_tolerated(pod, node)


def count_on(one: SpreadConstraint, pod: Pod, seen: Seen) -> int:
    if one.labels is None or not one.labels.requirements:
        return 0
    return sum(
        placed.namespace == pod.namespace and not placed.terminating and one.labels.selects(placed.labels)
        for placed in seen.usage.pods.values()
    )


def score(
    pod: Pod, candidates: Sequence[Seen], params: Params, facts: ClusterFacts
) -> Mapping[NodeName, NodeScore] | None:
    soft = [one for one in pod.spread if not one.hard]
    if not soft:
        return None
    scored = [seen for seen in candidates if has_all_keys(seen.node, soft)]
    sums = dict.fromkeys((seen.node.name for seen in scored), 0.0)
    for one in soft:
        own_domains = one.topology_key == _HOSTNAME
        domains = len(scored) if own_domains else len({seen.node.labels[one.topology_key] for seen in scored})
        counts = counts_by_domain(one, soft, pod, facts)
        for seen in scored:
            in_domain = counts.get(seen.node.labels[one.topology_key], 0)
            count = count_on(one, pod, seen) if own_domains else in_domain
            sums[seen.node.name] += count * math.log(domains + 2) + (one.max_skew - 1)
    rounded = {name: _rounded(total) for name, total in sums.items()}
    least, most = min(rounded.values(), default=0), max(rounded.values(), default=0)
    found = {seen.node.name: NodeScore(0, 0) for seen in candidates}
    for name, total in rounded.items():
        found[name] = NodeScore(total, MAX_SCORE * (most + least - total) // most if most else MAX_SCORE)
    return found


def _rounded(number: float) -> int:
    """As Go's `math.Round`, for what is not negative: half up."""
    whole = math.floor(number)
    return whole + (number - whole >= 0.5)

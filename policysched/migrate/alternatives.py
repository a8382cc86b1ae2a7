"""What this language has for the work of a plugin or an extender that is not kube-scheduler's own.

A hint for the reader who has to write that part anew: known ones by their name, others by the extension points at
which they stand.
"""

from collections.abc import Iterable, Mapping

_KNOWN_ALTERNATIVES: Mapping[str, str] = {
    "riya": "`queue by` on an input of the label groupPriority and `pod.qos`, and `gang by` on podGroup and "
    "minAvailable; policies/gang-batch.policy does this",
    "NetworkTraffic": "a `metric` with a rate of node_network_receive_bytes_total and `score ... lower` on it; "
    "policies/network-aware.policy does this",
    "yoda": "its custom resource Scv cannot be read; what it says of the cards of a node must come as a `metric` or as "
    "labels and annotations of nodes; `queue by` on an input of the label scv/priority does its order",
    "Coscheduling": "`gang by` on an input of the pod group's label; policies/gang-batch.policy does this",
    "TargetLoadPacking": "a `metric` of the nodes' cpu use and `score ... higher` on it",
    "LoadVariationRiskBalancing": "`metric`s of mean and deviation and a `score` on an expression of both",
    "NodeResourcesAllocatable": "`score ... lower node.allocatable.memory normalize minmax`, or `higher`",
    "safe-overload": "inputs of the nodes' annotations mean-free-cpu, std-free-cpu and their like, and rules on "
    "them; the Beta distribution has no function here, mean plus deviations over capacity comes near it",
    "safe-balance": "inputs of the nodes' annotations mean-free-cpu and std-free-cpu, and a `score` on an expression of "
    "both",
    "congestion": "an input of the nodes' annotation congestion-factor and `score ... lower` on it",
    "pigeon-holing": "it judges all nodes together after placing the pod, which a score on one node cannot; "
    "node_resources_fit with `strategy = most_allocated` packs, `least_allocated` spreads",
    "rl-priority": "its rewards live in a store of its own; what it learnt must come as a `metric`",
    "foo": "nothing: it accepts every node and scores all alike",
}

_POINT_ALTERNATIVES: Mapping[str, str] = {
    "queueSort": "`queue by`",
    "preEnqueue": "scheduling gates of the pods",
    "preFilter": "`gang by`, or a `filter` with `when`",
    "filter": "`filter NAME require ...`",
    "postFilter": "`preemption { victims = ... }`",
    "preScore": "a `score`, which has no step before it",
    "score": "`score NAME weight N ...`, on a `metric` where it reads measurements",
    "permit": "`gang by`",
}


def plugin_alternative(name: str, points: Iterable[str]) -> str:
    """What would take its place."""
    if name in _KNOWN_ALTERNATIVES:
        return f"instead: {_KNOWN_ALTERNATIVES[name]}"
    found = list(
        dict.fromkeys(_POINT_ALTERNATIVES[point] for point in points if point in _POINT_ALTERNATIVES)
    )
    return f"instead: {', '.join(found)}" if found else "a policy has nothing for what it does there"


def extender_alternative(verbs: Iterable[str]) -> str:
    """What a policy has for the work of a known one, by what its verbs are called; empty where it is not known."""
    known = [_KNOWN_ALTERNATIVES.get(called.rstrip("/").rpartition("/")[2]) for called in verbs]
    return "; ".join(dict.fromkeys(one for one in known if one))

"""Suggests policy features that replace a third-party plugin or extender.

Known plugins have a hint of their own; others get a hint for the extension points that they use.
"""

from collections.abc import Iterable, Mapping

_KNOWN_ALTERNATIVES: Mapping[str, str] = {
    "riya": "`queue by` on an input of the label groupPriority and `pod.qos`, and `gang by` on podGroup and "
    "minAvailable; policies/gang-batch.policy does this",
    "NetworkTraffic": "a `metric` with a rate of node_network_receive_bytes_total and `score ... lower` on it; "
    "policies/network-aware.policy does this",
    "yoda": "its custom resource Scv cannot be read; provide the data about GPU cards as a `metric` or as labels and "
    "annotations of nodes; `queue by` on an input of the label scv/priority gives the same order",
    "Coscheduling": "`gang by` on an input of the pod group's label; policies/gang-batch.policy does this",
    "TargetLoadPacking": "a `metric` of the nodes' cpu use and `score ... higher` on it",
    "LoadVariationRiskBalancing": "`metric`s of mean and deviation and a `score` on an expression of both",
    "NodeResourcesAllocatable": "`score ... lower node.allocatable.memory normalize minmax`, or `higher`",
    "safe-overload": "inputs of the nodes' annotations such as mean-free-cpu and std-free-cpu, and rules on them; "
    "there is no function for the Beta distribution, mean plus deviations over capacity approximates it",
    "safe-balance": "inputs of the nodes' annotations mean-free-cpu and std-free-cpu, and a `score` on an expression of "
    "both",
    "congestion": "an input of the nodes' annotation congestion-factor and `score ... lower` on it",
    "pigeon-holing": "it scores all nodes together after placing the pod, which a score of one node cannot do; "
    "node_resources_fit with `strategy = most_allocated` packs, `least_allocated` spreads",
    "rl-priority": "it keeps its rewards in its own store; provide them as a `metric`",
    "foo": "nothing is needed: it accepts every node and gives all the same score",
}

_POINT_ALTERNATIVES: Mapping[str, str] = {
    "queueSort": "`queue by`",
    "preEnqueue": "scheduling gates of the pods",
    "preFilter": "`gang by`, or a `filter` with `when`",
    "filter": "`filter NAME require ...`",
    "postFilter": "`preemption { victims = ... }`",
    "preScore": "a `score`",
    "score": "`score NAME weight N ...`, on a `metric` where it reads measurements",
    "permit": "`gang by`",
}


def plugin_alternative(name: str, points: Iterable[str]) -> str:
    """The hint for a plugin that is enabled at these extension points."""
    if name in _KNOWN_ALTERNATIVES:
        return f"instead: {_KNOWN_ALTERNATIVES[name]}"
    alternatives = list(
        dict.fromkeys(_POINT_ALTERNATIVES[point] for point in points if point in _POINT_ALTERNATIVES)
    )
    return f"instead: {', '.join(alternatives)}" if alternatives else "a policy has no equivalent"


def extender_alternative(verbs: Iterable[str]) -> str:
    """The hint for a known extender, found by the names of its verbs; empty if it is unknown."""
    known = [_KNOWN_ALTERNATIVES.get(verb.rstrip("/").rpartition("/")[2]) for verb in verbs]
    return "; ".join(dict.fromkeys(alternative for alternative in known if alternative))

"""Suggests policy features that replace a third-party plugin or extender.

Known plugins have a hint of their own; others get a hint for the extension points that they use.
"""

from collections.abc import Iterable, Mapping

_KNOWN_ALTERNATIVES: Mapping[str, str] = {
    "riya": "`queue by` on labels and `pod.qos`, and a filter on the size of the group; policies/riya.policy does what it "
    "does, policies/gang-batch.policy starts groups whole (docs/seeds/riya.md)",
    "NetworkTraffic": "a `metric` with a rate of node_network_receive_bytes_total and `score ... lower` on it; "
    "policies/network-traffic.policy does what it does (docs/seeds/network-traffic.md)",
    "yoda": "policies/yoda-scv.policy does what it does with its custom resource Scv (docs/seeds/yoda.md)",
    "Coscheduling": "`include pod_groups` reads its PodGroups; policies/pod-groups.policy does this",
    "TargetLoadPacking": "a `metric` of the nodes' cpu use and `score ... higher` on it",
    "LoadVariationRiskBalancing": "`metric`s of mean and deviation and a `score` on an expression of both",
    "NodeResourcesAllocatable": "`score ... lower node.allocatable.memory normalize minmax`, or `higher`",
    "safe-overload": "policies/safe.policy does what it does, from the same annotations (docs/seeds/safe.md)",
    "safe-balance": "policies/safe.policy does what it does, from the same annotations (docs/seeds/safe.md)",
    "congestion": "policies/congestion.policy does what it does, from the same annotation (docs/seeds/congestion.md)",
    "pigeon-holing": "policies/pigeon.policy does what it does (docs/seeds/pigeon.md)",
    "rl-priority": "policies/kube-rl.policy does what it does, and keeps the rewards (docs/seeds/kube-rl.md)",
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
    alternatives = [_KNOWN_ALTERNATIVES.get(verb.rstrip("/").rpartition("/")[2]) for verb in verbs]
    return "; ".join(dict.fromkeys(alternative for alternative in alternatives if alternative))

"""kube-scheduler's plugins as a table: which extension points each takes part in, and its default weight.

Whether policysched covers a plugin does not stand here: `coverage` asks the built-ins. Sources: v1.36.2
`pkg/scheduler/apis/config/v1/default_plugins.go` and `framework/plugins/`, v1.21 `apis/config/v1beta1`, v1.18
`framework/plugins/legacy_registry.go`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from policysched.builtins.registry import BUILTINS
from policysched.builtins.uncovered import UNCOVERED

POINTS = (
    "preEnqueue",
    "queueSort",
    "preFilter",
    "filter",
    "postFilter",
    "preScore",
    "score",
    "reserve",
    "permit",
    "preBind",
    "bind",
    "postBind",
    "placementGenerate",
    "placementScore",
)


@dataclass(frozen=True, slots=True)
class Plugin:
    """`weight` None: no score by default."""

    points: tuple[str, ...]
    weight: int | None = None


DEFAULT: Mapping[str, Plugin] = {
    "SchedulingGates": Plugin(("preEnqueue",)),
    "PrioritySort": Plugin(("queueSort",)),
    "NodeUnschedulable": Plugin(("filter",)),
    "NodeName": Plugin(("filter",)),
    "TaintToleration": Plugin(("filter", "preScore", "score"), 3),
    "NodeAffinity": Plugin(("preFilter", "filter", "preScore", "score"), 2),
    "NodePorts": Plugin(("preFilter", "filter")),
    "NodeResourcesFit": Plugin(("preFilter", "filter", "preScore", "score"), 1),
    "VolumeRestrictions": Plugin(("preFilter", "filter")),
    "NodeVolumeLimits": Plugin(("preFilter", "filter")),
    "VolumeBinding": Plugin(("preFilter", "filter", "reserve", "preBind")),
    "VolumeZone": Plugin(("preFilter", "filter")),
    "PodTopologySpread": Plugin(("preFilter", "filter", "preScore", "score"), 2),
    "InterPodAffinity": Plugin(("preFilter", "filter", "preScore", "score"), 2),
    "DynamicResources": Plugin(
        ("preEnqueue", "preFilter", "filter", "postFilter", "score", "reserve", "preBind"), 2
    ),
    "DefaultPreemption": Plugin(("preEnqueue", "postFilter")),
    "NodeResourcesBalancedAllocation": Plugin(("preScore", "score"), 1),
    "ImageLocality": Plugin(("score",), 1),
    "DefaultBinder": Plugin(("bind",)),
    "NodeDeclaredFeatures": Plugin(("preFilter", "filter")),
}
"""The plugins of the default profile, in its order."""

OTHERS: Mapping[str, Plugin] = {
    "GangScheduling": Plugin(("preEnqueue", "permit")),
    "TopologyPlacementGenerator": Plugin(("placementGenerate",)),
    "PodGroupPodsCount": Plugin(("placementScore",)),
    "NodeResourcesLeastAllocated": Plugin(("score",), 1),
    "NodeResourcesMostAllocated": Plugin(("score",), 1),
    "RequestedToCapacityRatio": Plugin(("score",), 1),
    "NodePreferAvoidPods": Plugin(("score",), 10000),
    "SelectorSpread": Plugin(("preScore", "score"), 1),
    "DefaultPodTopologySpread": Plugin(("preScore", "score"), 1),
    "NodeLabel": Plugin(("filter", "score")),
    "ServiceAffinity": Plugin(("preFilter", "filter", "score")),
    "NodeResourceLimits": Plugin(("preScore", "score")),
    "EBSLimits": Plugin(("filter",)),
    "GCEPDLimits": Plugin(("filter",)),
    "AzureDiskLimits": Plugin(("filter",)),
    "CinderLimits": Plugin(("filter",)),
}
"""What kube-scheduler has, or had, beside them."""

KNOWN: Mapping[str, Plugin] = {**DEFAULT, **OTHERS}

VOLUME_LIMITS = frozenset({"EBSLimits", "GCEPDLimits", "AzureDiskLimits", "CinderLimits"})
"""Since CSI migration NodeVolumeLimits counts what they counted; `v1` refuses their names."""

STRATEGIES: Mapping[str, str] = {
    "NodeResourcesLeastAllocated": "least_allocated",
    "NodeResourcesMostAllocated": "most_allocated",
    "RequestedToCapacityRatio": "requested_to_capacity_ratio",
}
"""Scores of their own until v1beta1, strategies of NodeResourcesFit since."""

GONE: Mapping[str, str] = {
    "NodePreferAvoidPods": "kube-scheduler has no such plugin any more; taint the nodes (`PreferNoSchedule`) instead of "
    "the annotation scheduler.alpha.kubernetes.io/preferAvoidPods",
    "SelectorSpread": "PodTopologySpread's default constraints took its place in kube-scheduler 1.19",
    "DefaultPodTopologySpread": "PodTopologySpread's default constraints took its place in kube-scheduler 1.19",
    "NodeLabel": "kube-scheduler has no such plugin any more; write it as a rule: "
    '`filter pool require has node.labels["pool"]`, `score pool weight 1 prefer has node.labels["pool"]`',
    "ServiceAffinity": "kube-scheduler has no such plugin any more; pods say it by podAffinity on a topology key",
    "NodeResourceLimits": "kube-scheduler has no such plugin any more; write a score on `pod.limits`",
}

ALWAYS = frozenset({"SchedulingGates", "PrioritySort", "DefaultBinder"})
"""No rules, but ways of the scheduler itself."""

BUILTIN_OF: Mapping[str, str] = {declaration.plugin: name for name, declaration in BUILTINS.items()}
"""kube-scheduler's name -> ours."""


@dataclass(frozen=True, slots=True)
class Version:
    """What a version of the configuration takes for granted."""

    name: str
    multi_point: bool  # the defaults are at multiPoint, as against point by point
    weights: Mapping[str, int]  # where they differ from today's
    extra_scores: tuple[str, ...] = ()
    fit_scores: bool = True
    strict: bool = True  # a field that is not known is an error, and not passed over
    fields: Mapping[str, str] = field(
        default_factory=dict
    )  # point -> what its field is called; "": it has none


_OLD_WEIGHTS = {"TaintToleration": 1, "NodeAffinity": 1, "InterPodAffinity": 1}
_V1BETA1 = ("NodeResourcesLeastAllocated", "NodePreferAvoidPods")
_V1ALPHA = (*_V1BETA1, "DefaultPodTopologySpread")
_ALPHA_FIELDS = {"preScore": "postFilter", "postFilter": ""}
"""Before 1.19 postFilter was what preScore is now, and preemption was no plugin."""

GROUP = "kubescheduler.config.k8s.io"
VERSIONS: Mapping[str, Version] = {
    f"{GROUP}/{one.name}": one
    for one in (
        Version("v1", True, {}),
        Version("v1beta3", True, {}),
        Version("v1beta2", False, _OLD_WEIGHTS),
        Version("v1beta1", False, _OLD_WEIGHTS, _V1BETA1, fit_scores=False),
        Version("v1alpha2", False, _OLD_WEIGHTS, _V1ALPHA, False, False, _ALPHA_FIELDS),
        Version("v1alpha1", False, _OLD_WEIGHTS, _V1ALPHA, False, False, _ALPHA_FIELDS),
    )
}
OLD_POLICY = VERSIONS[f"{GROUP}/v1alpha1"]
"""The defaults of a scheduler that reads the old Policy."""

SINCE_V1BETA2 = frozenset({"DynamicResources", "SchedulingGates", "NodeDeclaredFeatures"})
"""Default today, and not yet where the defaults stand point by point."""


def default_points(version: Version) -> dict[str, list[tuple[str, int]]]:
    """For a version without multiPoint: what is on at each point by default, with the weight (0: none is said)."""
    points: dict[str, list[tuple[str, int]]] = {point: [] for point in POINTS}
    for name, plugin in DEFAULT.items():
        if name in SINCE_V1BETA2:
            continue
        for point in plugin.points:
            if name == "NodeResourcesFit" and point in ("preScore", "score") and not version.fit_scores:
                continue
            points[point].append((name, version.weights.get(name, plugin.weight or 0)))
    points["score"] += [(name, KNOWN[name].weight or 0) for name in version.extra_scores]
    return points


def lacks(plugin: str) -> list[str]:
    """Why this version does not do all of what the plugin does; empty where it does."""
    said = [
        f"not covered by this version: {one.uses}: {one.happens}" for one in UNCOVERED if one.plugin == plugin
    ]
    if said or plugin in BUILTIN_OF or plugin in ALWAYS or plugin == "DefaultPreemption":
        return said
    return ["not covered by this version"]

"""The table of kube-scheduler's plugins: extension points and default weights.

Whether policysched supports a plugin is decided by the built-in rules. Sources: v1.37.2
`pkg/scheduler/apis/config/v1/default_plugins.go` and `framework/plugins/`, v1.21 `apis/config/v1beta1`, v1.18
`framework/plugins/legacy_registry.go`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from policysched.builtins.registry import BUILTINS
from policysched.builtins.unsupported import UNSUPPORTED_FEATURES

EXTENSION_POINTS = (
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
class KubePlugin:
    """`weight` None: it does not score by default."""

    points: tuple[str, ...]
    weight: int | None = None


DEFAULT_PLUGINS: Mapping[str, KubePlugin] = {
    "SchedulingGates": KubePlugin(("preEnqueue",)),
    "PrioritySort": KubePlugin(("queueSort",)),
    "NodeName": KubePlugin(("preFilter", "filter")),
    "NodeUnschedulable": KubePlugin(("preFilter", "filter")),
    "TaintToleration": KubePlugin(("preFilter", "filter", "preScore", "score"), 3),
    "NodeAffinity": KubePlugin(("preFilter", "filter", "preScore", "score"), 2),
    "NodePorts": KubePlugin(("preFilter", "filter")),
    "NodeResourcesFit": KubePlugin(("preFilter", "filter", "preScore", "score"), 1),
    "VolumeRestrictions": KubePlugin(("preFilter", "filter")),
    "NodeVolumeLimits": KubePlugin(("preFilter", "filter")),
    "VolumeBinding": KubePlugin(("preFilter", "filter", "preScore", "score", "reserve", "preBind"), 1),
    "VolumeZone": KubePlugin(("preFilter", "filter")),
    "PodTopologySpread": KubePlugin(("preFilter", "filter", "preScore", "score"), 2),
    "InterPodAffinity": KubePlugin(("preFilter", "filter", "preScore", "score"), 2),
    "DynamicResources": KubePlugin(
        ("preEnqueue", "preFilter", "filter", "postFilter", "score", "reserve", "preBind"), 2
    ),
    "DefaultPreemption": KubePlugin(("preEnqueue", "postFilter")),
    "NodeResourcesBalancedAllocation": KubePlugin(("preScore", "score"), 1),
    "ImageLocality": KubePlugin(("score",), 1),
    "DefaultBinder": KubePlugin(("bind",)),
    "NodeDeclaredFeatures": KubePlugin(("preFilter", "filter")),
}
"""The plugins of the default profile, in its order."""

NON_DEFAULT_PLUGINS: Mapping[str, KubePlugin] = {
    "GangScheduling": KubePlugin(("preEnqueue", "permit")),
    "TopologyPlacementGenerator": KubePlugin(("placementGenerate",)),
    "PodGroupPodsCount": KubePlugin(("placementScore",)),
    "NodeResourcesLeastAllocated": KubePlugin(("score",), 1),
    "NodeResourcesMostAllocated": KubePlugin(("score",), 1),
    "RequestedToCapacityRatio": KubePlugin(("score",), 1),
    "NodePreferAvoidPods": KubePlugin(("score",), 10000),
    "SelectorSpread": KubePlugin(("preScore", "score"), 1),
    "DefaultPodTopologySpread": KubePlugin(("preScore", "score"), 1),
    "NodeLabel": KubePlugin(("filter", "score")),
    "ServiceAffinity": KubePlugin(("preFilter", "filter", "score")),
    "NodeResourceLimits": KubePlugin(("preScore", "score")),
    "EBSLimits": KubePlugin(("filter",)),
    "GCEPDLimits": KubePlugin(("filter",)),
    "AzureDiskLimits": KubePlugin(("filter",)),
    "CinderLimits": KubePlugin(("filter",)),
}
"""Other plugins that kube-scheduler has or had."""

KNOWN_PLUGINS: Mapping[str, KubePlugin] = {**DEFAULT_PLUGINS, **NON_DEFAULT_PLUGINS}

VOLUME_LIMITS_PLUGINS = frozenset({"EBSLimits", "GCEPDLimits", "AzureDiskLimits", "CinderLimits"})
"""Since CSI migration, NodeVolumeLimits counts these volumes. API version `v1` rejects the names."""

STRATEGY_PLUGINS: Mapping[str, str] = {
    "NodeResourcesLeastAllocated": "least_allocated",
    "NodeResourcesMostAllocated": "most_allocated",
    "RequestedToCapacityRatio": "requested_to_capacity_ratio",
}
"""Separate scores until v1beta1, strategies of NodeResourcesFit since."""

REMOVED_PLUGINS: Mapping[str, str] = {
    "NodePreferAvoidPods": "kube-scheduler removed the plugin; taint the nodes (`PreferNoSchedule`) instead of using "
    "the annotation scheduler.alpha.kubernetes.io/preferAvoidPods",
    "SelectorSpread": "replaced by PodTopologySpread's default constraints in kube-scheduler 1.19",
    "DefaultPodTopologySpread": "replaced by PodTopologySpread's default constraints in kube-scheduler 1.19",
    "NodeLabel": "kube-scheduler removed the plugin; write a rule: "
    '`filter pool require has node.labels["pool"]`, `score pool weight 1 prefer has node.labels["pool"]`',
    "ServiceAffinity": "kube-scheduler removed the plugin; use podAffinity with a topology key in the pods",
    "NodeResourceLimits": "kube-scheduler removed the plugin; write a score on `pod.limits`",
}

ALWAYS_ON_PLUGINS = frozenset({"SchedulingGates", "PrioritySort", "DefaultBinder"})
"""Plugins that policysched always applies; they are not rules."""

BUILTIN_BY_PLUGIN: Mapping[str, str] = {declaration.plugin: name for name, declaration in BUILTINS.items()}
"""kube-scheduler's plugin name -> name of the built-in rule."""


@dataclass(frozen=True, slots=True)
class ConfigVersion:
    """The defaults and rules of an API version of the configuration."""

    name: str
    multi_point: bool  # the defaults are at multiPoint, not at each point
    weights: Mapping[str, int]  # default weights that differ from the current ones
    extra_scores: tuple[str, ...] = ()
    fit_scores: bool = True
    rejects_unknown_fields: bool = True  # otherwise unknown fields are ignored
    fields: Mapping[str, str] = field(default_factory=dict)  # point -> name of its field; "": no field


_LEGACY_WEIGHTS = {"TaintToleration": 1, "NodeAffinity": 1, "InterPodAffinity": 1}
_V1BETA1 = ("NodeResourcesLeastAllocated", "NodePreferAvoidPods")
_V1ALPHA = (*_V1BETA1, "DefaultPodTopologySpread")
_ALPHA_FIELDS = {"preScore": "postFilter", "postFilter": ""}
"""Before 1.19 the field of preScore was postFilter, and preemption was not a plugin."""

API_GROUP = "kubescheduler.config.k8s.io"
VERSIONS: Mapping[str, ConfigVersion] = {
    f"{API_GROUP}/{version.name}": version
    for version in (
        ConfigVersion("v1", True, {}),
        ConfigVersion("v1beta3", True, {}),
        ConfigVersion("v1beta2", False, _LEGACY_WEIGHTS),
        ConfigVersion("v1beta1", False, _LEGACY_WEIGHTS, _V1BETA1, fit_scores=False),
        ConfigVersion("v1alpha2", False, _LEGACY_WEIGHTS, _V1ALPHA, False, False, _ALPHA_FIELDS),
        ConfigVersion("v1alpha1", False, _LEGACY_WEIGHTS, _V1ALPHA, False, False, _ALPHA_FIELDS),
    )
}
LEGACY_POLICY_VERSION = VERSIONS[f"{API_GROUP}/v1alpha1"]
"""The defaults that a legacy Policy is merged with."""

SINCE_V1BETA2 = frozenset({"DynamicResources", "SchedulingGates", "NodeDeclaredFeatures"})
"""Plugins that are not default in versions without multiPoint."""


def default_points(version: ConfigVersion) -> dict[str, list[tuple[str, int]]]:
    """The default plugins of each point with their weight (0: none), for a version without multiPoint."""
    points: dict[str, list[tuple[str, int]]] = {point: [] for point in EXTENSION_POINTS}
    for name, plugin in DEFAULT_PLUGINS.items():
        if name in SINCE_V1BETA2:
            continue
        for point in plugin.points:
            if name == "NodeResourcesFit" and point in ("preScore", "score") and not version.fit_scores:
                continue
            points[point].append((name, version.weights.get(name, plugin.weight or 0)))
    points["score"] += [(name, KNOWN_PLUGINS[name].weight or 0) for name in version.extra_scores]
    return points


def is_supported(plugin: str) -> bool:
    """Whether a rule or the scheduler itself does what the plugin does, but for its `limitations`."""
    return plugin in BUILTIN_BY_PLUGIN or plugin in ALWAYS_ON_PLUGINS or plugin == "DefaultPreemption"


def limitations(plugin: str) -> list[str]:
    """The features of the plugin that this version lacks."""
    return [
        f"not supported by this version: {feature.usage}: {feature.effect}"
        for feature in UNSUPPORTED_FEATURES
        if feature.plugin == plugin
    ]

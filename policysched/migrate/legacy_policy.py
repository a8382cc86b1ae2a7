"""The legacy Policy of kube-scheduler (until 1.22): predicates, priorities and extenders by name.

Each name maps to plugins, as in kube-scheduler (v1.18
`pkg/scheduler/framework/plugins/legacy_registry.go`). Predicates run in a fixed order, independent of
their order in the file.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from policysched.lang.format.expression_text import string_text
from policysched.migrate.draft import PolicyDraft
from policysched.migrate.located_document import Path
from policysched.migrate.plugin_merge import ALL_PLUGINS, EnabledPlugin, ExtensionPoints
from policysched.migrate.plugins import EXTENSION_POINTS, KNOWN_PLUGINS, LEGACY_POLICY_VERSION, default_points
from policysched.migrate.profile import PluginArguments, ProfileImporter
from policysched.migrate.report import ImportReport

_PREDICATES: Mapping[str, tuple[str, ...]] = {
    "CheckNodeUnschedulable": ("NodeUnschedulable",),
    "GeneralPredicates": ("NodeResourcesFit", "NodeName", "NodePorts", "NodeAffinity"),
    "HostName": ("NodeName",),
    "PodFitsHostPorts": ("NodePorts",),
    "PodFitsPorts": ("NodePorts",),
    "MatchNodeSelector": ("NodeAffinity",),
    "PodFitsResources": ("NodeResourcesFit",),
    "NoDiskConflict": ("VolumeRestrictions",),
    "PodToleratesNodeTaints": ("TaintToleration",),
    "MaxEBSVolumeCount": ("NodeVolumeLimits",),
    "MaxGCEPDVolumeCount": ("NodeVolumeLimits",),
    "MaxCSIVolumeCountPred": ("NodeVolumeLimits",),
    "MaxAzureDiskVolumeCount": ("NodeVolumeLimits",),
    "MaxCinderVolumeCount": ("NodeVolumeLimits",),
    "CheckVolumeBinding": ("VolumeBinding",),
    "NoVolumeZoneConflict": ("VolumeZone",),
    "EvenPodsSpread": ("PodTopologySpread",),
    "MatchInterPodAffinity": ("InterPodAffinity",),
}
"""Predicate -> plugins, in the order in which predicates run."""

_REPLACED_BY_TAINTS = frozenset(
    {
        "CheckNodeCondition",
        "CheckNodeMemoryPressure",
        "CheckNodeDiskPressure",
        "CheckNodePIDPressure",
        "PodToleratesNodeNoExecuteTaints",
    }
)
"""Node conditions became taints in 1.12."""

_MANDATORY = ("CheckNodeUnschedulable", "PodToleratesNodeTaints")

_PRIORITIES: Mapping[str, str] = {
    "LeastRequestedPriority": "NodeResourcesLeastAllocated",
    "MostRequestedPriority": "NodeResourcesMostAllocated",
    "RequestedToCapacityRatioPriority": "RequestedToCapacityRatio",
    "BalancedResourceAllocation": "NodeResourcesBalancedAllocation",
    "SelectorSpreadPriority": "SelectorSpread",
    "ServiceSpreadingPriority": "SelectorSpread",
    "InterPodAffinityPriority": "InterPodAffinity",
    "NodeAffinityPriority": "NodeAffinity",
    "TaintTolerationPriority": "TaintToleration",
    "ImageLocalityPriority": "ImageLocality",
    "NodePreferAvoidPodsPriority": "NodePreferAvoidPods",
    "EvenPodsSpreadPriority": "PodTopologySpread",
    "ResourceLimitsPriority": "NodeResourceLimits",
}

_LABELS_REASON = "node(s) didn't have the requested labels"
"""kube-scheduler's reason when CheckNodeLabelPresence rejects a node."""


@dataclass(slots=True)
class LegacyPolicyImporter:
    """Collects plugins, their arguments and custom rules from one Policy."""

    report: ImportReport
    policy: Mapping[str, Any]
    ignored_resources: Sequence[str] = ()
    filters: list[EnabledPlugin] = field(default_factory=list)
    scores: list[EnabledPlugin] = field(default_factory=list)
    config: dict[str, PluginArguments] = field(default_factory=dict)
    custom_filters: list[str] = field(default_factory=list)
    custom_scores: list[str] = field(default_factory=list)

    def draft(self, name: str, origin: str) -> PolicyDraft:
        usual = default_points(LEGACY_POLICY_VERSION)
        if (predicates := self.policy.get("predicates")) is None:
            self.filters = [EnabledPlugin(name, 0, None) for name, _ in usual["filter"]]
        else:
            self._predicates(predicates)
        if (priorities := self.policy.get("priorities")) is None:
            self.scores = [EnabledPlugin(name, weight, None) for name, weight in usual["score"]]
        else:
            self._priorities(priorities)
        self._other_fields()
        points = self._points(usual, listed=predicates is not None)
        profile = ProfileImporter(self.report, (), (), points, self.config, self.ignored_resources)
        draft = profile.draft(name, origin)
        draft.custom_filters += self.custom_filters
        draft.custom_scores += self.custom_scores
        return draft

    def _points(self, usual: Mapping[str, list[tuple[str, int]]], *, listed: bool) -> ExtensionPoints:
        at = {
            point: tuple(EnabledPlugin(name, weight, None) for name, weight in usual[point])
            for point in EXTENSION_POINTS
        }
        at["filter"], at["score"] = tuple(self.filters), tuple(self.scores)
        for before, point in (("preFilter", "filter"), ("preScore", "score")):
            at[before] = tuple(
                plugin
                for plugin in at[point]
                if plugin.name in KNOWN_PLUGINS and before in KNOWN_PLUGINS[plugin.name].points
            )
        at["preEnqueue"] = ()
        on = {plugin.name for plugin in (*self.filters, *self.scores)}
        for point in ("reserve", "preBind"):
            at[point] = tuple(plugin for plugin in at[point] if plugin.name in on)
        weights = {plugin.name: plugin.weight or 1 for plugin in self.scores}
        disabled: dict[str, dict[str, Path]] = {"filter": {ALL_PLUGINS: ("predicates",)}} if listed else {}
        defaults = {point: frozenset(name for name, _ in usual[point]) for point in EXTENSION_POINTS}
        return ExtensionPoints(at, weights, disabled, {"multiPoint": frozenset(), **defaults})

    # ── predicates and priorities ──────────────────────────────────────────────────────────────────────────────────

    def _predicates(self, predicates: list[Mapping[str, Any]]) -> None:
        wanted: dict[str, Path] = {}
        for index, predicate in enumerate(predicates):
            name, path = predicate["name"], ("predicates", index)
            if predicate.get("argument"):
                self._custom_predicate(path, name, predicate["argument"])
            elif name in _REPLACED_BY_TAINTS:
                self.report.add_note(
                    path, f"predicate {name}", "taint_toleration covers it: the condition is a taint"
                )
            elif name in _PREDICATES:
                wanted.setdefault(name, path)
            else:
                self.report.add_not_imported(
                    path, f"predicate {name}", "kube-scheduler has no such predicate"
                )
        for name in _PREDICATES:
            if name in wanted or name in _MANDATORY:
                on = {filter_plugin.name for filter_plugin in self.filters}
                self.filters += [
                    EnabledPlugin(plugin, 0, wanted.get(name))
                    for plugin in _PREDICATES[name]
                    if plugin not in on
                ]

    def _custom_predicate(self, path: Path, name: str, argument: Mapping[str, Any]) -> None:
        presence = argument.get("labelsPresence")
        labels = presence.get("labels") if presence else None
        if not presence or not labels:
            self.report.add_not_imported(
                path,
                f"predicate {name} ({', '.join(argument)})",
                "use podAffinity with a topology key in the pods",
            )
            return
        word = "has" if presence.get("presence") else "not has"
        condition = " and ".join(f"{word} node.labels[{string_text(label)}]" for label in labels)
        rule = f"labels_{len(self.custom_filters) + 1}"
        self.custom_filters.append(f'filter {rule} require {condition} says "{_LABELS_REASON}"')

    def _priorities(self, priorities: list[Mapping[str, Any]]) -> None:
        for index, priority in enumerate(priorities):
            name, path, weight = priority["name"], ("priorities", index), priority.get("weight") or 1
            argument = priority.get("argument") or {}
            if "labelPreference" in argument:
                self._add_label_preference(argument["labelPreference"], weight)
            elif "serviceAntiAffinity" in argument:
                self.report.add_not_imported(
                    path,
                    f"priority {name} (serviceAntiAffinity)",
                    "use topologySpreadConstraints in the pods",
                )
            elif "requestedToCapacityRatioArguments" in argument:
                where = (*path, "argument", "requestedToCapacityRatioArguments")
                self.config["RequestedToCapacityRatio"] = PluginArguments(
                    where, argument["requestedToCapacityRatioArguments"]
                )
                self._add_score("RequestedToCapacityRatio", weight, path)
            elif name == "EqualPriority":
                self.report.add_note(path, "priority EqualPriority", "it adds the same to every node")
            elif name in _PRIORITIES:
                self._add_score(_PRIORITIES[name], weight, path)
            else:
                self.report.add_not_imported(path, f"priority {name}", "kube-scheduler has no such priority")

    def _add_score(self, plugin: str, weight: int, path: Path) -> None:
        if any(score.name == plugin for score in self.scores):
            raise self.report.document.unusable_file(
                path, f"another priority already maps to plugin {plugin}"
            )
        self.scores.append(EnabledPlugin(plugin, weight, path))

    def _add_label_preference(self, preference: Mapping[str, Any], weight: int) -> None:
        word = "has" if preference.get("presence") else "not has"
        self.custom_scores.append(
            f"score label_{len(self.custom_scores) + 1} weight {weight} prefer {word} node.labels[{string_text(preference['label'])}]"
        )

    def _other_fields(self) -> None:
        if "hardPodAffinitySymmetricWeight" in self.policy:
            weight = {"hardPodAffinityWeight": self.policy["hardPodAffinitySymmetricWeight"]}
            self.config["InterPodAffinity"] = PluginArguments(("hardPodAffinitySymmetricWeight",), weight)
        if "alwaysCheckAllPredicates" in self.policy:
            self.report.add_note(
                ("alwaysCheckAllPredicates",),
                "alwaysCheckAllPredicates",
                "`policysched explain` shows every filter that rejects a node",
            )

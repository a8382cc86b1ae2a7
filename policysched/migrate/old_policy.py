"""The old Policy of kube-scheduler (until 1.22): predicates, priorities and extenders by name.

Each name stands for plugins; kube-scheduler itself carried out a Policy so (v1.18
`pkg/scheduler/framework/plugins/legacy_registry.go`). Predicates run in an order of their own, whatever the file's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from policysched.lang.format.expression_text import string_text
from policysched.migrate.draft import Draft
from policysched.migrate.merging import EVERY, Enabled, Points
from policysched.migrate.plugins import KNOWN, OLD_POLICY, POINTS, default_points
from policysched.migrate.profile import Arguments, Profile
from policysched.migrate.reading import Path
from policysched.migrate.report import Report

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
"""In the order in which they run."""

_BY_TAINTS = frozenset(
    {
        "CheckNodeCondition",
        "CheckNodeMemoryPressure",
        "CheckNodeDiskPressure",
        "CheckNodePIDPressure",
        "PodToleratesNodeNoExecuteTaints",
    }
)
"""Conditions of nodes are taints since 1.12."""

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
"""kube-scheduler's words where CheckNodeLabelPresence refuses."""


@dataclass(slots=True)
class OldPolicy:
    """Collects plugins, their arguments and rules of their own from one Policy."""

    report: Report
    given: Mapping[str, Any]
    ignored_resources: Sequence[str] = ()
    filters: list[Enabled] = field(default_factory=list)
    scores: list[Enabled] = field(default_factory=list)
    config: dict[str, Arguments] = field(default_factory=dict)
    own_filters: list[str] = field(default_factory=list)
    own_scores: list[str] = field(default_factory=list)

    def draft(self, name: str, origin: str) -> Draft:
        usual = default_points(OLD_POLICY)
        if (predicates := self.given.get("predicates")) is None:
            self.filters = [Enabled(name, 0, None) for name, _ in usual["filter"]]
        else:
            self._predicates(predicates)
        if (priorities := self.given.get("priorities")) is None:
            self.scores = [Enabled(name, weight, None) for name, weight in usual["score"]]
        else:
            self._priorities(priorities)
        self._other_fields()
        points = self._points(usual, listed=predicates is not None)
        profile = Profile(self.report, (), (), points, self.config, self.ignored_resources)
        draft = profile.draft(name, origin)
        draft.own_filters += self.own_filters
        draft.own_scores += self.own_scores
        return draft

    def _points(self, usual: Mapping[str, list[tuple[str, int]]], *, listed: bool) -> Points:
        at = {point: tuple(Enabled(name, weight, None) for name, weight in usual[point]) for point in POINTS}
        at["filter"], at["score"] = tuple(self.filters), tuple(self.scores)
        for before, point in (("preFilter", "filter"), ("preScore", "score")):
            at[before] = tuple(
                one for one in at[point] if one.name in KNOWN and before in KNOWN[one.name].points
            )
        at["preEnqueue"] = ()
        on = {one.name for one in (*self.filters, *self.scores)}
        for point in ("reserve", "preBind"):
            at[point] = tuple(one for one in at[point] if one.name in on)
        weights = {one.name: one.weight or 1 for one in self.scores}
        disabled: dict[str, dict[str, Path]] = {"filter": {EVERY: ("predicates",)}} if listed else {}
        defaults = {point: frozenset(name for name, _ in usual[point]) for point in POINTS}
        return Points(at, weights, disabled, {"multiPoint": frozenset(), **defaults})

    # ── predicates and priorities ──────────────────────────────────────────────────────────────────────────────────

    def _predicates(self, predicates: list[Mapping[str, Any]]) -> None:
        wanted: dict[str, Path] = {}
        for index, one in enumerate(predicates):
            name, path = one["name"], ("predicates", index)
            if one.get("argument"):
                self._predicate_of_its_own(path, name, one["argument"])
            elif name in _BY_TAINTS:
                self.report.note(
                    path, f"predicate {name}", "taint_toleration does it: the condition is a taint"
                )
            elif name in _PREDICATES:
                wanted.setdefault(name, path)
            else:
                self.report.lose(path, f"predicate {name}", "kube-scheduler has no such predicate")
        for name in _PREDICATES:
            if name in wanted or name in _MANDATORY:
                on = {one.name for one in self.filters}
                self.filters += [
                    Enabled(plugin, 0, wanted.get(name)) for plugin in _PREDICATES[name] if plugin not in on
                ]

    def _predicate_of_its_own(self, path: Path, name: str, argument: Mapping[str, Any]) -> None:
        presence = argument.get("labelsPresence")
        labels = presence.get("labels") if presence else None
        if not presence or not labels:
            self.report.lose(
                path,
                f"predicate {name} ({', '.join(argument)})",
                "pods say it by podAffinity on a topology key now",
            )
            return
        word = "has" if presence.get("presence") else "not has"
        condition = " and ".join(f"{word} node.labels[{string_text(label)}]" for label in labels)
        rule = f"labels_{len(self.own_filters) + 1}"
        self.own_filters.append(f'filter {rule} require {condition} else "{_LABELS_REASON}"')

    def _priorities(self, priorities: list[Mapping[str, Any]]) -> None:
        for index, one in enumerate(priorities):
            name, path, weight = one["name"], ("priorities", index), one.get("weight") or 1
            argument = one.get("argument") or {}
            if "labelPreference" in argument:
                self._label_preference(argument["labelPreference"], weight)
            elif "serviceAntiAffinity" in argument:
                self.report.lose(
                    path,
                    f"priority {name} (serviceAntiAffinity)",
                    "pods say it by topologySpreadConstraints now",
                )
            elif "requestedToCapacityRatioArguments" in argument:
                where = (*path, "argument", "requestedToCapacityRatioArguments")
                self.config["RequestedToCapacityRatio"] = Arguments(
                    where, argument["requestedToCapacityRatioArguments"]
                )
                self._score("RequestedToCapacityRatio", weight, path)
            elif name == "EqualPriority":
                self.report.note(path, "priority EqualPriority", "it adds the same to every node")
            elif name in _PRIORITIES:
                self._score(_PRIORITIES[name], weight, path)
            else:
                self.report.lose(path, f"priority {name}", "kube-scheduler has no such priority")

    def _score(self, plugin: str, weight: int, path: Path) -> None:
        if any(one.name == plugin for one in self.scores):
            raise self.report.document.fault(path, f"a second priority that is {plugin}")
        self.scores.append(Enabled(plugin, weight, path))

    def _label_preference(self, preference: Mapping[str, Any], weight: int) -> None:
        word = "has" if preference.get("presence") else "not has"
        self.own_scores.append(
            f"score label_{len(self.own_scores) + 1} weight {weight} prefer {word} node.labels[{string_text(preference['label'])}]"
        )

    def _other_fields(self) -> None:
        if "hardPodAffinitySymmetricWeight" in self.given:
            weight = {"hardPodAffinityWeight": self.given["hardPodAffinitySymmetricWeight"]}
            self.config["InterPodAffinity"] = Arguments(("hardPodAffinitySymmetricWeight",), weight)
        if "alwaysCheckAllPredicates" in self.given:
            self.report.note(
                ("alwaysCheckAllPredicates",),
                "alwaysCheckAllPredicates",
                "`policysched explain` shows every filter that refuses a node",
            )

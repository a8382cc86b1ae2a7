"""One profile: what its plugins and their arguments come to as a policy.

Everything that is on becomes a rule, a way of the scheduler itself, or a line of the report.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from policysched.builtins.unsupported import UNSUPPORTED_FEATURES
from policysched.migrate import alternatives
from policysched.migrate.affinity import FALSE_EXPRESSION, NodeSelectorTranslator
from policysched.migrate.arguments import ParamValues, filter_parameters, parameters_text, score_parameters
from policysched.migrate.draft import WEIGHT_MAX, DraftScore, PolicyDraft
from policysched.migrate.located_document import Path
from policysched.migrate.plugin_merge import ALL_PLUGINS, EnabledPlugin, ExtensionPoints
from policysched.migrate.plugins import (
    BUILTIN_BY_PLUGIN,
    DEFAULT_PLUGINS,
    EXTENSION_POINTS,
    KNOWN_PLUGINS,
    REMOVED_PLUGINS,
    STRATEGY_PLUGINS,
    VOLUME_LIMITS_PLUGINS,
    limitations,
)
from policysched.migrate.report import ImportReport

ENFORCED_AFFINITY_REASON = "node(s) didn't match scheduler-enforced node affinity"
"""kube-scheduler's words where `addedAffinity` refuses a node."""


@dataclass(frozen=True, slots=True)
class PluginArguments:
    """What pluginConfig holds for a plugin, and where."""

    path: Path
    args: Mapping[str, Any]


@dataclass(slots=True)
class ProfileImporter:
    """A profile with its plugins merged, on the way to a draft. `path` is where it stands; `shared_path` is for what
    is so of every profile. `ignored_resources` are left to extenders, as kube-scheduler's own NodeResourcesFit leaves them."""

    report: ImportReport
    path: Path
    shared_path: Path
    points: ExtensionPoints
    config: Mapping[str, PluginArguments]
    ignored_resources: Sequence[str] = ()
    params: dict[str, ParamValues] = field(default_factory=dict)
    filter_params: dict[str, str] = field(default_factory=dict)

    def draft(self, name: str, origin: str) -> PolicyDraft:
        self._read_arguments()
        draft = PolicyDraft(
            name=name,
            origin=origin,
            filters=self._filters(),
            filter_params=self.filter_params,
            scores=self._scores(),
            preemption="any" if self.points.is_enabled("postFilter", "DefaultPreemption") else "never",
            lists_plugins=any(
                ALL_PLUGINS in self.points.disabled.get(point, {}) for point in ("multiPoint", "filter")
            ),
        )
        self._add_affinity(draft)
        self._report_queue_and_bind()
        self._report_unknown_plugins()
        self._report_partly_disabled()
        self._report_disabled()
        draft.not_covered = [
            f"{one.what}: {one.why}" for one in self.report.not_imported if one.profile == self.report.profile
        ]
        self._report_not_covered()
        return draft

    # ── rules ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _read_arguments(self) -> None:
        for plugin, given in self.config.items():
            if plugin not in KNOWN_PLUGINS:
                continue  # said with the plugin
            if not self.points.points_of(plugin):
                self.report.add_note(given.path, f"arguments of {plugin}", "the plugin is off")
                continue
            self.params[plugin] = score_parameters(self.report, given.path, plugin, given.args)
            if plugin in BUILTIN_BY_PLUGIN:
                builtin = BUILTIN_BY_PLUGIN[plugin]
                found = filter_parameters(plugin, given.args)
                self.filter_params[builtin] = parameters_text(builtin, found, of_filter=True)
        if self.ignored_resources:
            self._ignore_extender_resources()

    def _ignore_extender_resources(self) -> None:
        plugin, builtin = "NodeResourcesFit", "node_resources_fit"
        given = self.config.get(plugin)
        args: Mapping[str, Any] = {} if given is None else given.args
        names = [*(args.get("ignoredResources") or ()), *self.ignored_resources]
        found = filter_parameters(plugin, {**args, "ignoredResources": names})
        self.filter_params[builtin] = parameters_text(builtin, found, of_filter=True)

    def _filters(self) -> list[str]:
        names = [
            BUILTIN_BY_PLUGIN[plugin]
            for one in self.points.enabled["filter"]
            if (plugin := "NodeVolumeLimits" if one.name in VOLUME_LIMITS_PLUGINS else one.name)
            in BUILTIN_BY_PLUGIN
        ]
        return list(dict.fromkeys(names))

    def _scores(self) -> list[DraftScore]:
        found: dict[str, DraftScore] = {}
        for one in self.points.enabled["score"]:
            plugin = "NodeResourcesFit" if one.name in STRATEGY_PLUGINS else one.name
            builtin = BUILTIN_BY_PLUGIN.get(plugin)
            if builtin is None:
                continue
            path = self.path if one.path is None else one.path
            if builtin in found:
                self.report.add_not_imported(
                    path,
                    f"score {one.name}",
                    f"a policy scores by `{builtin}` once, and it is another's already",
                )
                continue
            params = self.params.get(one.name, {})
            if one.name in STRATEGY_PLUGINS:
                if one.name == "RequestedToCapacityRatio" and "shape" not in params:
                    raise self.report.document.unusable_file(
                        path, "RequestedToCapacityRatio needs a shape in its arguments"
                    )
                params = {"strategy": STRATEGY_PLUGINS[one.name], **params}
            weight = self.points.weights[one.name]
            if weight > WEIGHT_MAX:
                self.report.add_not_imported(
                    path,
                    f"weight {weight} of {one.name}",
                    f"a weight is at most {WEIGHT_MAX}, which it is now",
                )
                weight = WEIGHT_MAX
            found[builtin] = DraftScore(builtin, weight, parameters_text(builtin, params))
        return list(found.values())

    def _add_affinity(self, draft: PolicyDraft) -> None:
        given = self.config.get("NodeAffinity")
        affinity = given.args.get("addedAffinity") if given is not None else None
        if given is None or not affinity:
            return
        path, selectors = (*given.path, "addedAffinity"), NodeSelectorTranslator(self.report)
        required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
        if required is not None and self.points.is_enabled("filter", "NodeAffinity"):
            self._required(
                draft, selectors, (*path, "requiredDuringSchedulingIgnoredDuringExecution"), required
            )
        preferred = affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or []
        if self.points.is_enabled("score", "NodeAffinity"):
            self._preferred(
                draft, selectors, (*path, "preferredDuringSchedulingIgnoredDuringExecution"), preferred
            )
        draft.inputs += selectors.input_statements()

    def _required(
        self, draft: PolicyDraft, selectors: NodeSelectorTranslator, path: Path, selector: Mapping[str, Any]
    ) -> None:
        condition = selectors.required_condition(path, selector)
        if condition is None:
            return
        if condition == FALSE_EXPRESSION:
            draft.custom_filters.append(
                "# policysched: ignore[PS302] the configuration has no term that a node can match"
            )
        draft.custom_filters.append(
            f'filter added_affinity require {condition} else "{ENFORCED_AFFINITY_REASON}"'
        )

    def _preferred(
        self,
        draft: PolicyDraft,
        selectors: NodeSelectorTranslator,
        path: Path,
        terms: list[Mapping[str, Any]],
    ) -> None:
        held = [
            ((*path, index, "preference"), one["preference"])
            for index, one in enumerate(terms)
            if one.get("weight")
            and (one["preference"].get("matchExpressions") or one["preference"].get("matchFields"))
        ]
        what = "preferred terms of addedAffinity"
        if len(held) > 1:
            self.report.add_not_imported(
                path,
                what,
                "their weights are normalized together, over the candidates; write a `score` for each of them",
            )
        elif held and (condition := selectors.term_condition(*held[0])) is not None:
            draft.custom_scores.append(
                f"score added_affinity weight {self.points.weights['NodeAffinity']} prefer {condition}"
            )
            self.report.add_not_imported(
                path,
                what,
                "the score `added_affinity` is the same for pods without preferred terms of their own; for others "
                "kube-scheduler would normalize both together",
            )

    # ── what is said ───────────────────────────────────────────────────────────────────────────────────────────────

    def _report_queue_and_bind(self) -> None:
        fault = self.report.document.unusable_file
        explicit = [
            one
            for one in self.points.enabled["queueSort"]
            if one.name in KNOWN_PLUGINS or _is_named_at(one.path, "queueSort")
        ]
        if len(explicit) != 1 and not any(
            one.name not in KNOWN_PLUGINS for one in self.points.enabled["queueSort"]
        ):
            raise fault(
                (*self.path, "plugins"), f"{len(explicit)} plugins at queueSort, and kube-scheduler needs one"
            )
        if len(explicit) > 1:
            raise fault((*self.path, "plugins"), "two plugins at queueSort, and kube-scheduler takes one")
        if not self.points.enabled["bind"]:
            raise fault((*self.path, "plugins"), "no plugin at bind, and kube-scheduler needs one")
        if (
            not self.points.is_enabled("preEnqueue", "SchedulingGates")
            and "SchedulingGates" in self._disabled_plugins()
        ):
            self.report.add_not_imported(
                self._disabled_plugins()["SchedulingGates"],
                "SchedulingGates is disabled",
                "a pod with scheduling gates always waits for them",
            )

    def _report_unknown_plugins(self) -> None:
        """Plugins that are not kube-scheduler's own, and those that it has no more."""
        for name, one in self._all_enabled().items():
            path = self.path if one.path is None else one.path
            if name in REMOVED_PLUGINS:
                self.report.add_not_imported(path, f"plugin {name}", REMOVED_PLUGINS[name])
            elif name not in KNOWN_PLUGINS:
                stands = [point for point, at in self.points.points_of(name) if _is_named_at(at.path, point)]
                where = ", ".join(stands) if stands else "multiPoint"
                weight = f", weight {self.points.weights[name]}" if "score" in stands else ""
                self.report.add_not_imported(
                    path,
                    f"plugin {name} ({where}{weight})",
                    f"it is not kube-scheduler's own; {alternatives.plugin_alternative(name, stands)}",
                )
        for name, given in self.config.items():
            if name not in KNOWN_PLUGINS:
                what = f"arguments of {name} ({', '.join(given.args)})"
                if not self.points.points_of(name):
                    self.report.add_note(given.path, what, "no plugin of that name is on")
                elif given.args:
                    self.report.add_not_imported(given.path, what, "they are for that plugin alone")

    def _all_enabled(self) -> dict[str, EnabledPlugin]:
        """Every plugin that is on, where it is said first: at the earliest point."""
        found: dict[str, EnabledPlugin] = {}
        for point in EXTENSION_POINTS:
            for one in self.points.enabled[point]:
                found.setdefault(one.name, one)
        return found

    def _report_partly_disabled(self) -> None:
        """A rule is one piece, where kube-scheduler can switch off the steps of a plugin."""
        for one in self.points.enabled["filter"]:
            for point in KNOWN_PLUGINS[one.name].points if one.name in BUILTIN_BY_PLUGIN else ():
                if point in ("preFilter", "reserve", "preBind") and not self.points.is_enabled(
                    point, one.name
                ):
                    self.report.add_not_imported(
                        self._disabled_path(point, one.name),
                        f"{one.name} is off at {point}",
                        "it filters all the same, and as a whole",
                    )
        for one in self.points.enabled["score"]:
            if (
                one.name in BUILTIN_BY_PLUGIN
                and "preScore" in KNOWN_PLUGINS[one.name].points
                and not self.points.is_enabled("preScore", one.name)
            ):
                self.report.add_not_imported(
                    self._disabled_path("preScore", one.name),
                    f"{one.name} is off at preScore",
                    "it scores all the same, and as a whole",
                )

    def _disabled_path(self, point: str, plugin: str) -> Path:
        off = self.points.disabled.get(point, {})
        return off.get(plugin) or off.get(ALL_PLUGINS) or self.path

    def _disabled_plugins(self) -> dict[str, Path]:
        """Everything that is disabled somewhere: by its name, or with all others."""
        found: dict[str, Path] = {}
        usual = self.points.defaults
        for point, off in self.points.disabled.items():
            for name, path in off.items():
                of_point = [
                    one
                    for one in usual["multiPoint"]
                    if point == "multiPoint" or point in DEFAULT_PLUGINS[one].points
                ]
                for one in (*of_point, *sorted(usual[point])) if name == ALL_PLUGINS else (name,):
                    found.setdefault(one, path)
        return found

    def _report_disabled(self) -> None:
        for name, path in self._disabled_plugins().items():
            if name not in KNOWN_PLUGINS and not self.points.points_of(name):
                self.report.add_note(path, f"disabling {name}", "kube-scheduler has no such plugin")
            elif not self.points.points_of(name) and (waits := _disabled_gate_note(name)):
                self.report.add_not_imported(
                    path, f"{name} is disabled", f"a pod with {waits} stays pending all the same"
                )

    def _report_not_covered(self) -> None:
        """What this version leaves out of kube-scheduler's own plugins. It is so of every profile that has them."""
        profile, self.report.profile = self.report.profile, None
        for name, one in self._all_enabled().items():
            plugin = "NodeVolumeLimits" if name in VOLUME_LIMITS_PLUGINS else name
            if plugin not in KNOWN_PLUGINS or plugin in REMOVED_PLUGINS or plugin in STRATEGY_PLUGINS:
                continue
            for why in limitations(plugin):
                self.report.add_not_imported(
                    self.shared_path if one.path is None else one.path, f"plugin {plugin}", why
                )
        self.report.profile = profile


def _is_named_at(path: Path | None, point: str) -> bool:
    """Whether the configuration names the plugin at that very point."""
    return path is not None and point in path


def _disabled_gate_note(plugin: str) -> str:
    """What of a pod makes it wait in this version, whatever its policy says of the plugin."""
    if plugin == "DynamicResources":
        return "resource claims"  # nobody else would give them devices
    return next(
        (
            one.usage
            for one in UNSUPPORTED_FEATURES
            if one.plugin == plugin and one.effect == "the pod stays pending"
        ),
        "",
    )

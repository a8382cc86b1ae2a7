"""Translates one profile, its plugins and their arguments, to a policy.

Every enabled plugin becomes a rule, is part of the scheduler itself, or is reported.
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
    is_supported,
    limitations,
)
from policysched.migrate.report import ImportReport

ENFORCED_AFFINITY_REASON = "node(s) didn't match scheduler-enforced node affinity"
"""kube-scheduler's reason when `addedAffinity` rejects a node."""


@dataclass(frozen=True, slots=True)
class PluginArguments:
    """The arguments of a plugin in pluginConfig, and their path."""

    path: Path
    args: Mapping[str, Any]


@dataclass(slots=True)
class ProfileImporter:
    """Makes a draft of a profile with merged plugins.

    `path` leads to the profile; `shared_path` is for reports that hold for every profile.
    `ignored_resources` are handled by extenders; NodeResourcesFit ignores them, as in kube-scheduler.
    """

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
            f"{item.subject}: {item.reason}"
            for item in self.report.not_imported
            if item.profile == self.report.profile
        ]
        self._report_not_covered()
        return draft

    # ── rules ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _read_arguments(self) -> None:
        for plugin, plugin_args in self.config.items():
            if plugin not in KNOWN_PLUGINS:
                continue  # reported with the plugin
            if not self.points.points_of(plugin):
                self.report.add_note(plugin_args.path, f"arguments of {plugin}", "the plugin is disabled")
                continue
            self.params[plugin] = score_parameters(self.report, plugin_args.path, plugin, plugin_args.args)
            if plugin in BUILTIN_BY_PLUGIN:
                builtin = BUILTIN_BY_PLUGIN[plugin]
                values = filter_parameters(plugin, plugin_args.args)
                self.filter_params[builtin] = parameters_text(builtin, values, of_filter=True)
        if self.ignored_resources:
            self._ignore_extender_resources()

    def _ignore_extender_resources(self) -> None:
        plugin, builtin = "NodeResourcesFit", "node_resources_fit"
        plugin_args = self.config.get(plugin)
        args: Mapping[str, Any] = {} if plugin_args is None else plugin_args.args
        names = [*(args.get("ignoredResources") or ()), *self.ignored_resources]
        values = filter_parameters(plugin, {**args, "ignoredResources": names})
        self.filter_params[builtin] = parameters_text(builtin, values, of_filter=True)

    def _filters(self) -> list[str]:
        names = [
            BUILTIN_BY_PLUGIN[plugin]
            for enabled in self.points.enabled["filter"]
            if (plugin := "NodeVolumeLimits" if enabled.name in VOLUME_LIMITS_PLUGINS else enabled.name)
            in BUILTIN_BY_PLUGIN
        ]
        return list(dict.fromkeys(names))

    def _scores(self) -> list[DraftScore]:
        scores: dict[str, DraftScore] = {}
        for enabled in self.points.enabled["score"]:
            plugin = "NodeResourcesFit" if enabled.name in STRATEGY_PLUGINS else enabled.name
            builtin = BUILTIN_BY_PLUGIN.get(plugin)
            if builtin is None:
                continue
            path = self.path if enabled.path is None else enabled.path
            if builtin in scores:
                self.report.add_not_imported(
                    path,
                    f"score {enabled.name}",
                    f"a policy has one score `{builtin}`, and another plugin already uses it",
                )
                continue
            params = self.params.get(enabled.name, {})
            if enabled.name in STRATEGY_PLUGINS:
                if enabled.name == "RequestedToCapacityRatio" and "shape" not in params:
                    raise self.report.document.unusable_file(
                        path, "RequestedToCapacityRatio needs a shape in its arguments"
                    )
                params = {"strategy": STRATEGY_PLUGINS[enabled.name], **params}
            weight = self.points.weights[enabled.name]
            if weight > WEIGHT_MAX:
                self.report.add_not_imported(
                    path,
                    f"weight {weight} of {enabled.name}",
                    f"the limit of a weight is {WEIGHT_MAX}, which is used instead",
                )
                weight = WEIGHT_MAX
            scores[builtin] = DraftScore(builtin, weight, parameters_text(builtin, params))
        return list(scores.values())

    def _add_affinity(self, draft: PolicyDraft) -> None:
        plugin_args = self.config.get("NodeAffinity")
        affinity = plugin_args.args.get("addedAffinity") if plugin_args is not None else None
        if plugin_args is None or not affinity:
            return
        path, selectors = (*plugin_args.path, "addedAffinity"), NodeSelectorTranslator(self.report)
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
                "# policysched: ignore[PS302] no node can match the terms of the configuration"
            )
        draft.custom_filters.append(
            f'filter added_affinity require {condition} says "{ENFORCED_AFFINITY_REASON}"'
        )

    def _preferred(
        self,
        draft: PolicyDraft,
        selectors: NodeSelectorTranslator,
        path: Path,
        terms: list[Mapping[str, Any]],
    ) -> None:
        preferences = [
            ((*path, index, "preference"), term["preference"])
            for index, term in enumerate(terms)
            if term.get("weight")
            and (term["preference"].get("matchExpressions") or term["preference"].get("matchFields"))
        ]
        subject = "preferred terms of addedAffinity"
        if len(preferences) > 1:
            self.report.add_not_imported(
                path,
                subject,
                "kube-scheduler normalizes the sum of their weights; write a `score` for each term",
            )
        elif preferences and (condition := selectors.term_condition(*preferences[0])) is not None:
            draft.custom_scores.append(
                f"score added_affinity weight {self.points.weights['NodeAffinity']} prefer {condition}"
            )
            self.report.add_not_imported(
                path,
                subject,
                "the score `added_affinity` is equal only for pods without preferred terms; for other pods "
                "kube-scheduler normalizes both together",
            )

    # ── report ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _report_queue_and_bind(self) -> None:
        unusable_file = self.report.document.unusable_file
        explicit = [
            plugin
            for plugin in self.points.enabled["queueSort"]
            if plugin.name in KNOWN_PLUGINS or _is_named_at(plugin.path, "queueSort")
        ]
        if len(explicit) != 1 and not any(
            plugin.name not in KNOWN_PLUGINS for plugin in self.points.enabled["queueSort"]
        ):
            raise unusable_file(
                (*self.path, "plugins"),
                f"{len(explicit)} plugins at queueSort; kube-scheduler needs exactly one",
            )
        if len(explicit) > 1:
            raise unusable_file(
                (*self.path, "plugins"), "two plugins at queueSort; kube-scheduler needs exactly one"
            )
        if not self.points.enabled["bind"]:
            raise unusable_file((*self.path, "plugins"), "no plugin at bind; kube-scheduler needs one")
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
        """Report third-party plugins and plugins that kube-scheduler removed."""
        for name, plugin in self._all_enabled().items():
            path = self.path if plugin.path is None else plugin.path
            if (
                name in REMOVED_PLUGINS and plugin.path is None
            ):  # a default of that release, which the file does not set
                self.report.add_note(path, f"plugin {name}", REMOVED_PLUGINS[name])
            elif name in REMOVED_PLUGINS:
                self.report.add_not_imported(path, f"plugin {name}", REMOVED_PLUGINS[name])
            elif name not in KNOWN_PLUGINS:
                points = [point for point, at in self.points.points_of(name) if _is_named_at(at.path, point)]
                where = ", ".join(points) if points else "multiPoint"
                weight = f", weight {self.points.weights[name]}" if "score" in points else ""
                self.report.add_not_imported(
                    path,
                    f"plugin {name} ({where}{weight})",
                    f"it is a third-party plugin; {alternatives.plugin_alternative(name, points)}",
                )
        for name, plugin_args in self.config.items():
            if name not in KNOWN_PLUGINS:
                subject = f"arguments of {name} ({', '.join(plugin_args.args)})"
                if not self.points.points_of(name):
                    self.report.add_note(plugin_args.path, subject, "the plugin is not enabled")
                elif plugin_args.args:
                    self.report.add_not_imported(plugin_args.path, subject, "the plugin is not imported")

    def _all_enabled(self) -> dict[str, EnabledPlugin]:
        """Every enabled plugin, as enabled at its earliest point."""
        plugins: dict[str, EnabledPlugin] = {}
        for point in EXTENSION_POINTS:
            for plugin in self.points.enabled[point]:
                plugins.setdefault(plugin.name, plugin)
        return plugins

    def _report_partly_disabled(self) -> None:
        """Report plugins whose steps are partly disabled: a rule cannot be split into steps."""
        for plugin in self.points.enabled["filter"]:
            for point in KNOWN_PLUGINS[plugin.name].points if plugin.name in BUILTIN_BY_PLUGIN else ():
                if point in ("preFilter", "reserve", "preBind") and not self.points.is_enabled(
                    point, plugin.name
                ):
                    self.report.add_not_imported(
                        self._disabled_path(point, plugin.name),
                        f"{plugin.name} is disabled at {point}",
                        "the imported filter still includes this step",
                    )
        for plugin in self.points.enabled["score"]:
            if (
                plugin.name in BUILTIN_BY_PLUGIN
                and "preScore" in KNOWN_PLUGINS[plugin.name].points
                and not self.points.is_enabled("preScore", plugin.name)
            ):
                self.report.add_not_imported(
                    self._disabled_path("preScore", plugin.name),
                    f"{plugin.name} is disabled at preScore",
                    "the imported score still includes this step",
                )

    def _disabled_path(self, point: str, plugin: str) -> Path:
        off = self.points.disabled.get(point, {})
        return off.get(plugin) or off.get(ALL_PLUGINS) or self.path

    def _disabled_plugins(self) -> dict[str, Path]:
        """Every plugin that is disabled at some point, by name or by `*`."""
        paths: dict[str, Path] = {}
        usual = self.points.defaults
        for point, off in self.points.disabled.items():
            for name, path in off.items():
                of_point = [
                    plugin
                    for plugin in usual["multiPoint"]
                    if point == "multiPoint" or point in DEFAULT_PLUGINS[plugin].points
                ]
                for plugin in (*of_point, *sorted(usual[point])) if name == ALL_PLUGINS else (name,):
                    paths.setdefault(plugin, path)
        return paths

    def _report_disabled(self) -> None:
        for name, path in self._disabled_plugins().items():
            if name not in KNOWN_PLUGINS and not self.points.points_of(name):
                self.report.add_note(path, f"disabling {name}", "kube-scheduler has no such plugin")
            elif not self.points.points_of(name) and (waits := _disabled_gate_note(name)):
                self.report.add_not_imported(
                    path, f"{name} is disabled", f"a pod with {waits} still stays pending"
                )

    def _report_not_covered(self) -> None:
        """Report plugins without a rule, and in one note for all the features of pods that the others lack."""
        profile, self.report.profile = self.report.profile, None
        lacking: dict[str, int] = {}
        for name, enabled in self._all_enabled().items():
            plugin = "NodeVolumeLimits" if name in VOLUME_LIMITS_PLUGINS else name
            if plugin not in KNOWN_PLUGINS or plugin in REMOVED_PLUGINS or plugin in STRATEGY_PLUGINS:
                continue
            if is_supported(plugin):
                lacking[plugin] = len(limitations(plugin))
                continue
            path = self.shared_path if enabled.path is None else enabled.path
            for reason in limitations(plugin) or ["not supported by this version"]:
                self.report.add_not_imported(path, f"plugin {plugin}", reason)
        if sum(lacking.values()):
            plugins = ", ".join(plugin for plugin, features in lacking.items() if features)
            self.report.add_note(
                self.shared_path,
                f"{sum(lacking.values())} features of pods ({plugins})",
                "not supported by this version: a pod that uses one waits, with a message; `policysched show --all` and "
                "docs/running.md list them",
            )
        self.report.profile = profile


def _is_named_at(path: Path | None, point: str) -> bool:
    """Whether the configuration names the plugin at this point."""
    return path is not None and point in path


def _disabled_gate_note(plugin: str) -> str:
    """The use that keeps a pod pending even if the plugin is disabled; empty if there is none."""
    if plugin == "DynamicResources":
        return "resource claims"  # only the scheduler allocates their devices
    return next(
        (
            feature.usage
            for feature in UNSUPPORTED_FEATURES
            if feature.plugin == plugin and feature.effect == "the pod stays pending"
        ),
        "",
    )

"""One profile: what its plugins and their arguments come to as a policy.

Everything that is on becomes a rule, a way of the scheduler itself, or a line of the report.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from policysched.builtins.uncovered import UNCOVERED
from policysched.migrate import needs
from policysched.migrate.affinity import NEVER, Selectors
from policysched.migrate.arguments import Params, filter_parameters, parameters, parameters_text
from policysched.migrate.draft import WEIGHT_MAX, BuiltinScore, Draft
from policysched.migrate.merging import EVERY, Enabled, Points
from policysched.migrate.plugins import (
    BUILTIN_OF,
    DEFAULT,
    GONE,
    KNOWN,
    POINTS,
    STRATEGIES,
    VOLUME_LIMITS,
    lacks,
)
from policysched.migrate.reading import Path
from policysched.migrate.report import Report

ENFORCED = "node(s) didn't match scheduler-enforced node affinity"
"""kube-scheduler's words where `addedAffinity` refuses a node."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """What pluginConfig holds for a plugin, and where."""

    path: Path
    args: Mapping[str, Any]


@dataclass(slots=True)
class Profile:
    """A profile with its plugins merged, on the way to a draft. `path` is where it stands; `shared_path` is for what
    is so of every profile. `ignored_resources` are left to extenders, as kube-scheduler's own NodeResourcesFit leaves them."""

    report: Report
    path: Path
    shared_path: Path
    points: Points
    config: Mapping[str, Arguments]
    ignored_resources: Sequence[str] = ()
    params: dict[str, Params] = field(default_factory=dict)
    filter_params: dict[str, str] = field(default_factory=dict)

    def draft(self, name: str, origin: str) -> Draft:
        self._arguments()
        draft = Draft(
            name=name,
            origin=origin,
            filters=self._filters(),
            filter_params=self.filter_params,
            scores=self._scores(),
            preemption="any" if self.points.has("postFilter", "DefaultPreemption") else "never",
            by_name=any(EVERY in self.points.disabled.get(point, {}) for point in ("multiPoint", "filter")),
        )
        self._added_affinity(draft)
        self._queue_and_bind()
        self._from_elsewhere()
        self._in_pieces()
        self._switched_off()
        draft.missing = [
            f"{one.what}: {one.why}" for one in self.report.not_imported if one.profile == self.report.profile
        ]
        self._not_covered()
        return draft

    # ── rules ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _arguments(self) -> None:
        for plugin, given in self.config.items():
            if plugin not in KNOWN:
                continue  # said with the plugin
            if not self.points.everywhere(plugin):
                self.report.note(given.path, f"arguments of {plugin}", "the plugin is off")
                continue
            self.params[plugin] = parameters(self.report, given.path, plugin, given.args)
            if plugin in BUILTIN_OF:
                builtin = BUILTIN_OF[plugin]
                found = filter_parameters(plugin, given.args)
                self.filter_params[builtin] = parameters_text(builtin, found, of_filter=True)
        if self.ignored_resources:
            self._left_to_extenders()

    def _left_to_extenders(self) -> None:
        plugin, builtin = "NodeResourcesFit", "node_resources_fit"
        given = self.config.get(plugin)
        args: Mapping[str, Any] = {} if given is None else given.args
        names = [*(args.get("ignoredResources") or ()), *self.ignored_resources]
        found = filter_parameters(plugin, {**args, "ignoredResources": names})
        self.filter_params[builtin] = parameters_text(builtin, found, of_filter=True)

    def _filters(self) -> list[str]:
        names = [
            BUILTIN_OF[plugin]
            for one in self.points.at["filter"]
            if (plugin := "NodeVolumeLimits" if one.name in VOLUME_LIMITS else one.name) in BUILTIN_OF
        ]
        return list(dict.fromkeys(names))

    def _scores(self) -> list[BuiltinScore]:
        found: dict[str, BuiltinScore] = {}
        for one in self.points.at["score"]:
            plugin = "NodeResourcesFit" if one.name in STRATEGIES else one.name
            builtin = BUILTIN_OF.get(plugin)
            if builtin is None:
                continue
            path = self.path if one.path is None else one.path
            if builtin in found:
                self.report.lose(
                    path,
                    f"score {one.name}",
                    f"a policy scores by `{builtin}` once, and it is another's already",
                )
                continue
            params = self.params.get(one.name, {})
            if one.name in STRATEGIES:
                if one.name == "RequestedToCapacityRatio" and "shape" not in params:
                    raise self.report.document.fault(
                        path, "RequestedToCapacityRatio needs a shape in its arguments"
                    )
                params = {"strategy": STRATEGIES[one.name], **params}
            weight = self.points.weights[one.name]
            if weight > WEIGHT_MAX:
                self.report.lose(
                    path,
                    f"weight {weight} of {one.name}",
                    f"a weight is at most {WEIGHT_MAX}, which it is now",
                )
                weight = WEIGHT_MAX
            found[builtin] = BuiltinScore(builtin, weight, parameters_text(builtin, params))
        return list(found.values())

    def _added_affinity(self, draft: Draft) -> None:
        given = self.config.get("NodeAffinity")
        affinity = given.args.get("addedAffinity") if given is not None else None
        if given is None or not affinity:
            return
        path, selectors = (*given.path, "addedAffinity"), Selectors(self.report)
        required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
        if required is not None and self.points.has("filter", "NodeAffinity"):
            self._required(
                draft, selectors, (*path, "requiredDuringSchedulingIgnoredDuringExecution"), required
            )
        preferred = affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or []
        if self.points.has("score", "NodeAffinity"):
            self._preferred(
                draft, selectors, (*path, "preferredDuringSchedulingIgnoredDuringExecution"), preferred
            )
        draft.inputs += selectors.statements()

    def _required(self, draft: Draft, selectors: Selectors, path: Path, selector: Mapping[str, Any]) -> None:
        condition = selectors.required(path, selector)
        if condition is None:
            return
        if condition == NEVER:
            draft.own_filters.append(
                "# policysched: ignore[PS302] the configuration has no term that a node can match"
            )
        draft.own_filters.append(f'filter added_affinity require {condition} else "{ENFORCED}"')

    def _preferred(
        self, draft: Draft, selectors: Selectors, path: Path, terms: list[Mapping[str, Any]]
    ) -> None:
        held = [
            ((*path, index, "preference"), one["preference"])
            for index, one in enumerate(terms)
            if one.get("weight")
            and (one["preference"].get("matchExpressions") or one["preference"].get("matchFields"))
        ]
        what = "preferred terms of addedAffinity"
        if len(held) > 1:
            self.report.lose(
                path,
                what,
                "their weights are normalized together, over the candidates; write a `score` for each of them",
            )
        elif held and (condition := selectors.term(*held[0])) is not None:
            draft.own_scores.append(
                f"score added_affinity weight {self.points.weights['NodeAffinity']} prefer {condition}"
            )
            self.report.lose(
                path,
                what,
                "the score `added_affinity` is the same for pods without preferred terms of their own; for others "
                "kube-scheduler would normalize both together",
            )

    # ── what is said ───────────────────────────────────────────────────────────────────────────────────────────────

    def _queue_and_bind(self) -> None:
        fault = self.report.document.fault
        explicit = [
            one
            for one in self.points.at["queueSort"]
            if one.name in KNOWN or _stands_at(one.path, "queueSort")
        ]
        if len(explicit) != 1 and not any(one.name not in KNOWN for one in self.points.at["queueSort"]):
            raise fault(
                (*self.path, "plugins"), f"{len(explicit)} plugins at queueSort, and kube-scheduler needs one"
            )
        if len(explicit) > 1:
            raise fault((*self.path, "plugins"), "two plugins at queueSort, and kube-scheduler takes one")
        if not self.points.at["bind"]:
            raise fault((*self.path, "plugins"), "no plugin at bind, and kube-scheduler needs one")
        if not self.points.has("preEnqueue", "SchedulingGates") and "SchedulingGates" in self._named_off():
            self.report.lose(
                self._named_off()["SchedulingGates"],
                "SchedulingGates is disabled",
                "a pod with scheduling gates always waits for them",
            )

    def _from_elsewhere(self) -> None:
        """Plugins that are not kube-scheduler's own, and those that it has no more."""
        for name, one in self._all().items():
            path = self.path if one.path is None else one.path
            if name in GONE:
                self.report.lose(path, f"plugin {name}", GONE[name])
            elif name not in KNOWN:
                stands = [point for point, at in self.points.everywhere(name) if _stands_at(at.path, point)]
                where = ", ".join(stands) if stands else "multiPoint"
                weight = f", weight {self.points.weights[name]}" if "score" in stands else ""
                self.report.lose(
                    path,
                    f"plugin {name} ({where}{weight})",
                    f"it is not kube-scheduler's own; {needs.of_plugin(name, stands)}",
                )
        for name, given in self.config.items():
            if name not in KNOWN:
                what = f"arguments of {name} ({', '.join(given.args)})"
                if not self.points.everywhere(name):
                    self.report.note(given.path, what, "no plugin of that name is on")
                elif given.args:
                    self.report.lose(given.path, what, "they are for that plugin alone")

    def _all(self) -> dict[str, Enabled]:
        """Every plugin that is on, where it is said first: at the earliest point."""
        found: dict[str, Enabled] = {}
        for point in POINTS:
            for one in self.points.at[point]:
                found.setdefault(one.name, one)
        return found

    def _in_pieces(self) -> None:
        """A rule is one piece, where kube-scheduler can switch off the steps of a plugin."""
        for one in self.points.at["filter"]:
            for point in KNOWN[one.name].points if one.name in BUILTIN_OF else ():
                if point in ("preFilter", "reserve", "preBind") and not self.points.has(point, one.name):
                    self.report.lose(
                        self._off_at(point, one.name),
                        f"{one.name} is off at {point}",
                        "it filters all the same, and as a whole",
                    )
        for one in self.points.at["score"]:
            if (
                one.name in BUILTIN_OF
                and "preScore" in KNOWN[one.name].points
                and not self.points.has("preScore", one.name)
            ):
                self.report.lose(
                    self._off_at("preScore", one.name),
                    f"{one.name} is off at preScore",
                    "it scores all the same, and as a whole",
                )

    def _off_at(self, point: str, plugin: str) -> Path:
        off = self.points.disabled.get(point, {})
        return off.get(plugin) or off.get(EVERY) or self.path

    def _named_off(self) -> dict[str, Path]:
        """Everything that is disabled somewhere: by its name, or with all others."""
        found: dict[str, Path] = {}
        usual = self.points.defaults
        for point, off in self.points.disabled.items():
            for name, path in off.items():
                of_point = [
                    one
                    for one in usual["multiPoint"]
                    if point == "multiPoint" or point in DEFAULT[one].points
                ]
                for one in (*of_point, *sorted(usual[point])) if name == EVERY else (name,):
                    found.setdefault(one, path)
        return found

    def _switched_off(self) -> None:
        for name, path in self._named_off().items():
            if name not in KNOWN and not self.points.everywhere(name):
                self.report.note(path, f"disabling {name}", "kube-scheduler has no such plugin")
            elif not self.points.everywhere(name) and (waits := _waits_all_the_same(name)):
                self.report.lose(
                    path, f"{name} is disabled", f"a pod with {waits} stays pending all the same"
                )

    def _not_covered(self) -> None:
        """What this version leaves out of kube-scheduler's own plugins. It is so of every profile that has them."""
        profile, self.report.profile = self.report.profile, None
        for name, one in self._all().items():
            plugin = "NodeVolumeLimits" if name in VOLUME_LIMITS else name
            if plugin not in KNOWN or plugin in GONE or plugin in STRATEGIES:
                continue
            for why in lacks(plugin):
                self.report.lose(self.shared_path if one.path is None else one.path, f"plugin {plugin}", why)
        self.report.profile = profile


def _stands_at(path: Path | None, point: str) -> bool:
    """Whether the configuration names the plugin at that very point."""
    return path is not None and point in path


def _waits_all_the_same(plugin: str) -> str:
    """What of a pod makes it wait in this version, whatever its policy says of the plugin."""
    if plugin == "DynamicResources":
        return "resource claims"  # nobody else would give them devices
    return next(
        (one.uses for one in UNCOVERED if one.plugin == plugin and one.happens == "the pod stays pending"), ""
    )

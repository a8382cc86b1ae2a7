"""What `pluginConfig` says to kube-scheduler's plugins, as parameters of ours.

A parameter is written where the built-in has it and the value is not its default; what no parameter expresses is
reported. One function a plugin, found by its name.
"""

from collections.abc import Callable, Iterable, Mapping
from math import ceil
from typing import Any

from policysched.builtins.declaration import BuiltinParameter
from policysched.builtins.registry import BUILTINS
from policysched.lang.format.expression_text import string_text
from policysched.lang.ir.rules import BuiltinParamValue
from policysched.migrate.located_document import Path
from policysched.migrate.plugins import BUILTIN_BY_PLUGIN, STRATEGY_PLUGINS
from policysched.migrate.process_settings import go_duration_s, parse_duration_s
from policysched.migrate.report import ImportReport

JsonObject = Mapping[str, Any]
ParamValues = dict[str, BuiltinParamValue]

_TYPES = {
    "LeastAllocated": "least_allocated",
    "MostAllocated": "most_allocated",
    "RequestedToCapacityRatio": "requested_to_capacity_ratio",
}


_BIND_TIMEOUT_MAX_S = next(
    one.high for one in BUILTINS["volume_binding"].filter_parameters if one.name == "bind_timeout_seconds"
)
_DO_NOT_SCHEDULE, _SCHEDULE_ANYWAY = "DoNotSchedule", "ScheduleAnyway"
_CONSTRAINT_DEFAULTS = {"minDomains": 1, "nodeAffinityPolicy": "Honor", "nodeTaintsPolicy": "Ignore"}


def score_parameters(report: ImportReport, path: Path, plugin: str, args: JsonObject) -> ParamValues:
    """The parameters of the score that the plugin is. `path` leads to its `args`."""
    read = _READERS.get(plugin)
    return read(report, path, args) if read is not None else {}


def parameters_text(builtin: str, params: ParamValues, *, of_filter: bool = False) -> str:
    """`{ strategy = most_allocated }`, only what is not the default; empty where all is."""
    declaration = BUILTINS[builtin]
    listed = declaration.filter_parameters if of_filter else declaration.parameters
    known = {one.name: one for one in listed}
    assert params.keys() <= known.keys(), f"{builtin} has no {params.keys() - known.keys()}"
    said = [
        f"{name} = {_text(known[name], value)}"
        for name, value in params.items()
        if value != known[name].default
    ]
    return f"{{ {', '.join(said)} }}" if said else ""


def _text(parameter: BuiltinParameter, value: BuiltinParamValue) -> str:
    if isinstance(value, frozenset):
        return f"[{', '.join(string_text(name) for name in sorted(value))}]"
    if isinstance(value, tuple):
        return "{" + ", ".join(f"{string_text(str(name))} = {number}" for name, number in value) + "}"
    assert parameter.kind in ("choice", "int", "constraints"), parameter
    return str(value)


def _has(plugin: str, parameter: str) -> bool:
    builtin = BUILTIN_BY_PLUGIN.get(plugin)
    return builtin is not None and any(one.name == parameter for one in BUILTINS[builtin].parameters)


# ── one plugin each ────────────────────────────────────────────────────────────────────────────────────────────────


def _fit(report: ImportReport, path: Path, args: JsonObject) -> ParamValues:
    strategy = args.get("scoringStrategy")
    if strategy is None:
        return {}
    at = (*path, "scoringStrategy")
    kind = strategy.get("type")
    if kind is None:
        raise report.document.unusable_file(at, "a scoringStrategy needs a `type`")
    ratio = strategy.get("requestedToCapacityRatio")
    params: ParamValues = {"strategy": _TYPES[kind]}
    params["resources"] = _resources(report, (*at, "resources"), strategy.get("resources"))
    if kind == "RequestedToCapacityRatio":
        if not ratio or not ratio.get("shape"):
            raise report.document.unusable_file(
                at, "type RequestedToCapacityRatio needs a `requestedToCapacityRatio` with a `shape`"
            )
        params["shape"] = _utilization_shape(
            report, (*at, "requestedToCapacityRatio", "shape"), ratio["shape"]
        )
    elif ratio is not None:
        raise report.document.unusable_file(
            (*at, "requestedToCapacityRatio"), "is only for type RequestedToCapacityRatio"
        )
    return params


def _legacy_strategy_plugin(report: ImportReport, path: Path, args: JsonObject) -> ParamValues:
    """The arguments of a plugin that is a strategy of NodeResourcesFit now, which the caller adds."""
    params: ParamValues = {"resources": _resources(report, (*path, "resources"), args.get("resources"))}
    if args.get("shape"):
        params["shape"] = _utilization_shape(report, (*path, "shape"), args["shape"])
    return params


def _balanced(report: ImportReport, path: Path, args: JsonObject) -> ParamValues:
    at = (*path, "resources")
    resources = _resources(report, at, args.get("resources"))
    for index, (_, weight) in enumerate(resources):
        if weight != 1:
            raise report.document.unusable_file(
                (*at, index, "weight"), f"{weight} is not 1, the only weight it takes"
            )
    return {"resources": resources}


def _inter_pod(report: ImportReport, path: Path, args: JsonObject) -> ParamValues:
    params: ParamValues = {}
    weight = args.get("hardPodAffinityWeight")
    if weight is not None:
        if _has("InterPodAffinity", "hard_pod_affinity_weight"):
            params["hard_pod_affinity_weight"] = weight
        elif weight != 1:
            report.add_not_imported(
                (*path, "hardPodAffinityWeight"), f"hardPodAffinityWeight {weight}", "no built-in has it yet"
            )
    if args.get("ignorePreferredTermsOfExistingPods"):
        params["ignore_preferred_terms_of_existing_pods"] = "yes"
    return params


def _spread(report: ImportReport, path: Path, args: JsonObject) -> ParamValues:
    constraints, kind = args.get("defaultConstraints") or (), args.get("defaultingType", "System")
    if kind == "System" and constraints:
        raise report.document.unusable_file((*path, "defaultConstraints"), "needs `defaultingType: List`")
    for index, one in enumerate(constraints):
        at = (*path, "defaultConstraints", index)
        kinds = [(each["topologyKey"], each["whenUnsatisfiable"]) for each in constraints[: index + 1]]
        if kinds[-1] in kinds[:-1]:
            raise report.document.unusable_file(at, f"a second {kinds[-1][1]} on {kinds[-1][0]}")
        for field, usual in _CONSTRAINT_DEFAULTS.items():
            if one.get(field) not in (None, usual):
                what = f"{field} {one[field]} of the default constraint on {one['topologyKey']}"
                report.add_not_imported((*at, field), what, f"in a policy it is {usual}")
    return {"default_constraints": _max_skews(constraints, _SCHEDULE_ANYWAY)} if kind == "List" else {}


def filter_parameters(plugin: str, args: JsonObject) -> ParamValues:
    """Of the plugin's filter, after `score_parameters` has looked at all of it."""
    match plugin:
        case "NodeResourcesFit":
            return {
                ours: frozenset(str(one) for one in args.get(theirs) or ())
                for theirs, ours in (
                    ("ignoredResources", "ignored_resources"),
                    ("ignoredResourceGroups", "ignored_resource_groups"),
                )
            }
        case "PodTopologySpread":
            return {"default_constraints": _max_skews(args.get("defaultConstraints") or (), _DO_NOT_SCHEDULE)}
        case "VolumeBinding" if 0 <= _bind_timeout_s(args) <= _BIND_TIMEOUT_MAX_S:
            return {"bind_timeout_seconds": _bind_timeout_s(args)}
        case "DynamicResources" if "bindingTimeout" in args:
            return {"binding_timeout_seconds": ceil(go_duration_s(args["bindingTimeout"]))}
        case _:
            return {}


def _max_skews(constraints: Iterable[JsonObject], kind: str) -> BuiltinParamValue:
    found = [(one["topologyKey"], one["maxSkew"]) for one in constraints if one["whenUnsatisfiable"] == kind]
    return tuple(found) or "none"


def _preemption(report: ImportReport, path: Path, args: JsonObject) -> ParamValues:
    for field, usual in (("minCandidateNodesPercentage", 10), ("minCandidateNodesAbsolute", 100)):
        if args.get(field, usual) != usual:
            report.add_not_imported(
                (*path, field),
                f"{field} {args[field]}",
                "how many nodes preemption tries is not a policy's to say",
            )
    return {}


def _volumes(report: ImportReport, path: Path, args: JsonObject) -> ParamValues:
    if _bind_timeout_s(args) < 0:
        raise report.document.unusable_file((*path, "bindTimeoutSeconds"), "is not to be negative")
    if _bind_timeout_s(args) > _BIND_TIMEOUT_MAX_S:
        report.add_not_imported(
            (*path, "bindTimeoutSeconds"),
            f"bindTimeoutSeconds {args['bindTimeoutSeconds']}",
            f"claims are waited for {_BIND_TIMEOUT_MAX_S} s at the most",
        )
    if args.get("shape"):
        report.add_not_imported(
            (*path, "shape"), "a shape for storage capacity", "free storage is not scored"
        )
    return {}


def _bind_timeout_s(args: JsonObject) -> int:
    return int(args.get("bindTimeoutSeconds", 600))


def _devices(report: ImportReport, path: Path, args: JsonObject) -> ParamValues:
    if "filterTimeout" in args:
        why = "a search for devices is bounded by how many it looks at, not by time"
        report.add_not_imported((*path, "filterTimeout"), f"filterTimeout {args['filterTimeout']}", why)
    if "bindingTimeout" in args:
        parse_duration_s(report, (*path, "bindingTimeout"), args["bindingTimeout"])
    return {}


_READERS: Mapping[str, Callable[[ImportReport, Path, JsonObject], ParamValues]] = {
    "NodeResourcesFit": _fit,
    **dict.fromkeys(STRATEGY_PLUGINS, _legacy_strategy_plugin),
    "NodeResourcesBalancedAllocation": _balanced,
    "InterPodAffinity": _inter_pod,
    "PodTopologySpread": _spread,
    "DefaultPreemption": _preemption,
    "VolumeBinding": _volumes,
    "DynamicResources": _devices,
}


# ── their parts ────────────────────────────────────────────────────────────────────────────────────────────────────


def _resources(
    report: ImportReport, path: Path, given: list[JsonObject] | None
) -> tuple[tuple[str, int], ...]:
    """Weights by resource; none, or 0, counts as 1. Without any: cpu and memory."""
    if not given:
        return (("cpu", 1), ("memory", 1))
    found: dict[str, int] = {}
    for index, one in enumerate(given):
        if one["name"] in found:
            raise report.document.unusable_file((*path, index), f"`{one['name']}` is given twice")
        found[one["name"]] = one.get("weight") or 1
    return tuple(found.items())


def _utilization_shape(
    report: ImportReport, path: Path, given: list[JsonObject]
) -> tuple[tuple[int, int], ...]:
    points = tuple((one.get("utilization", 0), one.get("score", 0)) for one in given)
    for index in range(1, len(points)):
        if points[index - 1][0] >= points[index][0]:
            raise report.document.unusable_file((*path, index), "utilization must grow from point to point")
    return points

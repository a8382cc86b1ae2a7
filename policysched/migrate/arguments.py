"""Translates the arguments in `pluginConfig` to parameters of built-in rules.

A parameter is written if the built-in rule has it and the value is not its default; other arguments
are reported. There is one function per plugin.
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
    parameter.high
    for parameter in BUILTINS["volume_binding"].filter_parameters
    if parameter.name == "bind_timeout_seconds"
)
_FILTER_TIMEOUT_DEFAULT_S = 10
"""Source: `DynamicResourcesFilterTimeoutDefault` in k8s.io/kube-scheduler/config/v1."""
_DO_NOT_SCHEDULE, _SCHEDULE_ANYWAY = "DoNotSchedule", "ScheduleAnyway"
_CONSTRAINT_DEFAULTS = {"minDomains": 1, "nodeAffinityPolicy": "Honor", "nodeTaintsPolicy": "Ignore"}


def score_parameters(report: ImportReport, path: Path, plugin: str, args: JsonObject) -> ParamValues:
    """The parameters of the plugin's score. `path` leads to its `args`."""
    read = _READERS.get(plugin)
    return read(report, path, args) if read is not None else {}


def parameters_text(builtin: str, params: ParamValues, *, of_filter: bool = False) -> str:
    """Parameters in braces, `{ strategy = most_allocated }`, without defaults; empty if all are defaults."""
    declaration = BUILTINS[builtin]
    listed = declaration.filter_parameters if of_filter else declaration.parameters
    parameters = {parameter.name: parameter for parameter in listed}
    assert params.keys() <= parameters.keys(), f"{builtin} has no {params.keys() - parameters.keys()}"
    texts = [
        f"{name} = {_text(parameters[name], value)}"
        for name, value in params.items()
        if value != parameters[name].default
    ]
    return f"{{ {', '.join(texts)} }}" if texts else ""


def _text(parameter: BuiltinParameter, value: BuiltinParamValue) -> str:
    if isinstance(value, frozenset):
        return f"[{', '.join(string_text(name) for name in sorted(value))}]"
    if isinstance(value, tuple):
        return "{" + ", ".join(f"{string_text(str(name))} = {number}" for name, number in value) + "}"
    assert parameter.kind in ("choice", "int", "constraints"), parameter
    return str(value)


def _has(plugin: str, parameter: str) -> bool:
    builtin = BUILTIN_BY_PLUGIN.get(plugin)
    return builtin is not None and any(
        declared.name == parameter for declared in BUILTINS[builtin].parameters
    )


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
    """The arguments of a former plugin that is now a strategy of NodeResourcesFit.

    The caller adds the strategy.
    """
    params: ParamValues = {"resources": _resources(report, (*path, "resources"), args.get("resources"))}
    if args.get("shape"):
        params["shape"] = _utilization_shape(report, (*path, "shape"), args["shape"])
    return params


def _balanced(report: ImportReport, path: Path, args: JsonObject) -> ParamValues:
    at = (*path, "resources")
    resources = _resources(report, at, args.get("resources"))
    for index, (_, weight) in enumerate(resources):
        if weight != 1:
            raise report.document.unusable_file((*at, index, "weight"), f"the weight must be 1, not {weight}")
    return {"resources": resources}


def _inter_pod(report: ImportReport, path: Path, args: JsonObject) -> ParamValues:
    params: ParamValues = {}
    weight = args.get("hardPodAffinityWeight")
    if weight is not None:
        if _has("InterPodAffinity", "hard_pod_affinity_weight"):
            params["hard_pod_affinity_weight"] = weight
        elif weight != 1:
            report.add_not_imported(
                (*path, "hardPodAffinityWeight"),
                f"hardPodAffinityWeight {weight}",
                "no built-in rule supports it",
            )
    if args.get("ignorePreferredTermsOfExistingPods"):
        params["ignore_preferred_terms_of_existing_pods"] = "yes"
    return params


def _spread(report: ImportReport, path: Path, args: JsonObject) -> ParamValues:
    constraints, kind = args.get("defaultConstraints") or (), args.get("defaultingType", "System")
    if kind == "System" and constraints:
        raise report.document.unusable_file((*path, "defaultConstraints"), "needs `defaultingType: List`")
    for index, constraint in enumerate(constraints):
        at = (*path, "defaultConstraints", index)
        kinds = [(each["topologyKey"], each["whenUnsatisfiable"]) for each in constraints[: index + 1]]
        if kinds[-1] in kinds[:-1]:
            raise report.document.unusable_file(at, f"a second constraint {kinds[-1][1]} on {kinds[-1][0]}")
        for field, usual in _CONSTRAINT_DEFAULTS.items():
            if constraint.get(field) not in (None, usual):
                subject = (
                    f"{field} {constraint[field]} of the default constraint on {constraint['topologyKey']}"
                )
                report.add_not_imported((*at, field), subject, f"a policy always uses {usual}")
    return {"default_constraints": _max_skews(constraints, _SCHEDULE_ANYWAY)} if kind == "List" else {}


def filter_parameters(plugin: str, args: JsonObject) -> ParamValues:
    """The parameters of the plugin's filter. `score_parameters` has validated the arguments."""
    match plugin:
        case "NodeResourcesFit":
            return {
                parameter: frozenset(str(name) for name in args.get(field) or ())
                for field, parameter in (
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
    max_skews = [
        (constraint["topologyKey"], constraint["maxSkew"])
        for constraint in constraints
        if constraint["whenUnsatisfiable"] == kind
    ]
    return tuple(max_skews) or "none"


def _preemption(report: ImportReport, path: Path, args: JsonObject) -> ParamValues:
    for field, usual in (("minCandidateNodesPercentage", 10), ("minCandidateNodesAbsolute", 100)):
        if args.get(field, usual) != usual:
            report.add_not_imported(
                (*path, field),
                f"{field} {args[field]}",
                "a policy cannot limit the number of candidate nodes of preemption",
            )
    return {}


def _volumes(report: ImportReport, path: Path, args: JsonObject) -> ParamValues:
    if _bind_timeout_s(args) < 0:
        raise report.document.unusable_file((*path, "bindTimeoutSeconds"), "must not be negative")
    if _bind_timeout_s(args) > _BIND_TIMEOUT_MAX_S:
        report.add_not_imported(
            (*path, "bindTimeoutSeconds"),
            f"bindTimeoutSeconds {args['bindTimeoutSeconds']}",
            f"the limit is {_BIND_TIMEOUT_MAX_S} s",
        )
    if args.get("shape"):
        report.add_not_imported(
            (*path, "shape"), "a shape for storage capacity", "free storage is not scored"
        )
    return {}


def _bind_timeout_s(args: JsonObject) -> int:
    return int(args.get("bindTimeoutSeconds", 600))


def _devices(report: ImportReport, path: Path, args: JsonObject) -> ParamValues:
    if "filterTimeout" in args and go_duration_s(str(args["filterTimeout"])) != _FILTER_TIMEOUT_DEFAULT_S:
        reason = "the search for devices is limited by the number of devices, not by time"
        report.add_not_imported((*path, "filterTimeout"), f"filterTimeout {args['filterTimeout']}", reason)
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


# ── parts of arguments ─────────────────────────────────────────────────────────────────────────────────────────────


def _resources(
    report: ImportReport, path: Path, resources: list[JsonObject] | None
) -> tuple[tuple[str, int], ...]:
    """Weights by resource. A missing weight, or 0, means 1. The default resources are cpu and memory."""
    if not resources:
        return (("cpu", 1), ("memory", 1))
    weights: dict[str, int] = {}
    for index, resource in enumerate(resources):
        if resource["name"] in weights:
            raise report.document.unusable_file((*path, index), f"`{resource['name']}` is given twice")
        weights[resource["name"]] = resource.get("weight") or 1
    return tuple(weights.items())


def _utilization_shape(
    report: ImportReport, path: Path, shape: list[JsonObject]
) -> tuple[tuple[int, int], ...]:
    points = tuple((point.get("utilization", 0), point.get("score", 0)) for point in shape)
    for index in range(1, len(points)):
        if points[index - 1][0] >= points[index][0]:
            raise report.document.unusable_file(
                (*path, index), "utilization must increase from point to point"
            )
    return points

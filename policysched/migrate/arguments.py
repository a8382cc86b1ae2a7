"""What `pluginConfig` says to kube-scheduler's plugins, as parameters of ours.

A parameter is written where the built-in has it and the value is not its default; what no parameter expresses is
reported. One function a plugin, found by its name.
"""

from collections.abc import Callable, Iterable, Mapping
from math import ceil
from typing import Any

from policysched.builtins.declaration import Parameter
from policysched.builtins.registry import BUILTINS
from policysched.lang.format.expression_text import string_text
from policysched.lang.ir.program import ParamValue
from policysched.migrate.plugins import BUILTIN_OF, STRATEGIES
from policysched.migrate.process_settings import go_seconds, seconds_of
from policysched.migrate.reading import Path
from policysched.migrate.report import Report

Given = Mapping[str, Any]
Params = dict[str, ParamValue]

_TYPES = {
    "LeastAllocated": "least_allocated",
    "MostAllocated": "most_allocated",
    "RequestedToCapacityRatio": "requested_to_capacity_ratio",
}


_BIND_TIMEOUT_MOST_S = next(
    one.high for one in BUILTINS["volume_binding"].filter_parameters if one.name == "bind_timeout_seconds"
)
_HARD, _SOFT = "DoNotSchedule", "ScheduleAnyway"
_USUAL_IN_CONSTRAINTS = {"minDomains": 1, "nodeAffinityPolicy": "Honor", "nodeTaintsPolicy": "Ignore"}


def parameters(report: Report, path: Path, plugin: str, args: Given) -> Params:
    """The parameters of the score that the plugin is. `path` leads to its `args`."""
    read = _READERS.get(plugin)
    return read(report, path, args) if read is not None else {}


def parameters_text(builtin: str, params: Params, *, of_filter: bool = False) -> str:
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


def _text(parameter: Parameter, value: ParamValue) -> str:
    if isinstance(value, frozenset):
        return f"[{', '.join(string_text(name) for name in sorted(value))}]"
    if isinstance(value, tuple):
        return "{" + ", ".join(f"{string_text(str(name))} = {number}" for name, number in value) + "}"
    assert parameter.kind in ("choice", "int", "constraints"), parameter
    return str(value)


def _has(plugin: str, parameter: str) -> bool:
    builtin = BUILTIN_OF.get(plugin)
    return builtin is not None and any(one.name == parameter for one in BUILTINS[builtin].parameters)


# ── one plugin each ────────────────────────────────────────────────────────────────────────────────────────────────


def _fit(report: Report, path: Path, args: Given) -> Params:
    strategy = args.get("scoringStrategy")
    if strategy is None:
        return {}
    at = (*path, "scoringStrategy")
    kind = strategy.get("type")
    if kind is None:
        raise report.document.fault(at, "a scoringStrategy needs a `type`")
    ratio = strategy.get("requestedToCapacityRatio")
    params: Params = {"strategy": _TYPES[kind]}
    params["resources"] = _resources(report, (*at, "resources"), strategy.get("resources"))
    if kind == "RequestedToCapacityRatio":
        if not ratio or not ratio.get("shape"):
            raise report.document.fault(
                at, "type RequestedToCapacityRatio needs a `requestedToCapacityRatio` with a `shape`"
            )
        params["shape"] = _shape(report, (*at, "requestedToCapacityRatio", "shape"), ratio["shape"])
    elif ratio is not None:
        raise report.document.fault(
            (*at, "requestedToCapacityRatio"), "is only for type RequestedToCapacityRatio"
        )
    return params


def _old_strategy(report: Report, path: Path, args: Given) -> Params:
    """The arguments of a plugin that is a strategy of NodeResourcesFit now, which the caller adds."""
    params: Params = {"resources": _resources(report, (*path, "resources"), args.get("resources"))}
    if args.get("shape"):
        params["shape"] = _shape(report, (*path, "shape"), args["shape"])
    return params


def _balanced(report: Report, path: Path, args: Given) -> Params:
    at = (*path, "resources")
    resources = _resources(report, at, args.get("resources"))
    for index, (_, weight) in enumerate(resources):
        if weight != 1:
            raise report.document.fault(
                (*at, index, "weight"), f"{weight} is not 1, the only weight it takes"
            )
    return {"resources": resources}


def _inter_pod(report: Report, path: Path, args: Given) -> Params:
    params: Params = {}
    weight = args.get("hardPodAffinityWeight")
    if weight is not None:
        if _has("InterPodAffinity", "hard_pod_affinity_weight"):
            params["hard_pod_affinity_weight"] = weight
        elif weight != 1:
            report.lose(
                (*path, "hardPodAffinityWeight"), f"hardPodAffinityWeight {weight}", "no built-in has it yet"
            )
    if args.get("ignorePreferredTermsOfExistingPods"):
        params["ignore_preferred_terms_of_existing_pods"] = "yes"
    return params


def _spread(report: Report, path: Path, args: Given) -> Params:
    constraints, kind = args.get("defaultConstraints") or (), args.get("defaultingType", "System")
    if kind == "System" and constraints:
        raise report.document.fault((*path, "defaultConstraints"), "needs `defaultingType: List`")
    for index, one in enumerate(constraints):
        at = (*path, "defaultConstraints", index)
        kinds = [(each["topologyKey"], each["whenUnsatisfiable"]) for each in constraints[: index + 1]]
        if kinds[-1] in kinds[:-1]:
            raise report.document.fault(at, f"a second {kinds[-1][1]} on {kinds[-1][0]}")
        for field, usual in _USUAL_IN_CONSTRAINTS.items():
            if one.get(field) not in (None, usual):
                what = f"{field} {one[field]} of the default constraint on {one['topologyKey']}"
                report.lose((*at, field), what, f"in a policy it is {usual}")
    return {"default_constraints": _skews(constraints, _SOFT)} if kind == "List" else {}


def filter_parameters(plugin: str, args: Given) -> Params:
    """Of the plugin's filter, after `parameters` has looked at all of it."""
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
            return {"default_constraints": _skews(args.get("defaultConstraints") or (), _HARD)}
        case "VolumeBinding" if 0 <= _bind_timeout_s(args) <= _BIND_TIMEOUT_MOST_S:
            return {"bind_timeout_seconds": _bind_timeout_s(args)}
        case "DynamicResources" if "bindingTimeout" in args:
            return {"binding_timeout_seconds": ceil(go_seconds(args["bindingTimeout"]))}
        case _:
            return {}


def _skews(constraints: Iterable[Given], kind: str) -> ParamValue:
    found = [(one["topologyKey"], one["maxSkew"]) for one in constraints if one["whenUnsatisfiable"] == kind]
    return tuple(found) or "none"


def _preemption(report: Report, path: Path, args: Given) -> Params:
    for field, usual in (("minCandidateNodesPercentage", 10), ("minCandidateNodesAbsolute", 100)):
        if args.get(field, usual) != usual:
            report.lose(
                (*path, field),
                f"{field} {args[field]}",
                "how many nodes preemption tries is not a policy's to say",
            )
    return {}


def _volumes(report: Report, path: Path, args: Given) -> Params:
    if _bind_timeout_s(args) < 0:
        raise report.document.fault((*path, "bindTimeoutSeconds"), "is not to be negative")
    if _bind_timeout_s(args) > _BIND_TIMEOUT_MOST_S:
        report.lose(
            (*path, "bindTimeoutSeconds"),
            f"bindTimeoutSeconds {args['bindTimeoutSeconds']}",
            f"claims are waited for {_BIND_TIMEOUT_MOST_S} s at the most",
        )
    if args.get("shape"):
        report.lose((*path, "shape"), "a shape for storage capacity", "free storage is not scored")
    return {}


def _bind_timeout_s(args: Given) -> int:
    return int(args.get("bindTimeoutSeconds", 600))


def _devices(report: Report, path: Path, args: Given) -> Params:
    if "filterTimeout" in args:
        why = "a search for devices is bounded by how many it looks at, not by time"
        report.lose((*path, "filterTimeout"), f"filterTimeout {args['filterTimeout']}", why)
    if "bindingTimeout" in args:
        seconds_of(report, (*path, "bindingTimeout"), args["bindingTimeout"])
    return {}


_READERS: Mapping[str, Callable[[Report, Path, Given], Params]] = {
    "NodeResourcesFit": _fit,
    **dict.fromkeys(STRATEGIES, _old_strategy),
    "NodeResourcesBalancedAllocation": _balanced,
    "InterPodAffinity": _inter_pod,
    "PodTopologySpread": _spread,
    "DefaultPreemption": _preemption,
    "VolumeBinding": _volumes,
    "DynamicResources": _devices,
}


# ── their parts ────────────────────────────────────────────────────────────────────────────────────────────────────


def _resources(report: Report, path: Path, given: list[Given] | None) -> tuple[tuple[str, int], ...]:
    """Weights by resource; none, or 0, counts as 1. Without any: cpu and memory."""
    if not given:
        return (("cpu", 1), ("memory", 1))
    found: dict[str, int] = {}
    for index, one in enumerate(given):
        if one["name"] in found:
            raise report.document.fault((*path, index), f"`{one['name']}` is given twice")
        found[one["name"]] = one.get("weight") or 1
    return tuple(found.items())


def _shape(report: Report, path: Path, given: list[Given]) -> tuple[tuple[int, int], ...]:
    points = tuple((one.get("utilization", 0), one.get("score", 0)) for one in given)
    for index in range(1, len(points)):
        if points[index - 1][0] >= points[index][0]:
            raise report.document.fault((*path, index), "utilization must grow from point to point")
    return points

"""The agent pigeon of kube-safe-scheduler, by `policies/pigeon.policy`.

Requests on the nodes at first are pods of other schedulers. What a step adds to the step before it
is that step's pod, placed by this policy.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from policysched.lang.ir.program import Program
from tests.conformance.seed_systems.worlds import (
    POLICIES,
    Policy,
    node_with,
    play,
    pod_with,
    policy_of_text,
    raw,
    roomy_node,
    value_of,
    without_filters,
    world,
)

Json = dict[str, Any]

_RULE = "pigeon_holing"
_PARAMS = {"objective": "objective", "policyResourceIndex": "prime_resource", "numResources": "num_resources"}
_MILLION = 1_000_000
_SHOW_VALUE = "score shown_value weight 1 when fits higher value normalize minmax"
"""A second score in addition to the policy's own, so that both are evaluated at once."""


def answer(case: Json) -> Json:
    given = case["input"]
    if "steps" in given:
        params = {_PARAMS[key]: value for key, value in given.items() if key in _PARAMS}
        program = Policy("pigeon").with_more(_SHOW_VALUE).accepting(params).program()
        return {"steps": _steps(without_filters(program), given["steps"])}
    if "objective_inputs" in given:
        return {
            "objective": [_taken("objective", word) for word in given["objective_inputs"]],
            "num_resources": [_taken("num_resources", word) for word in given["num_resources_inputs"]],
        }
    if "rows" in given:
        return {"gamma": {row["name"]: _varies(row["mu"], row["sigma"]) for row in given["rows"]}}
    if "values" in given:
        return {"scores": [_ranked(row) for row in given["values"]]}
    if "pods" in given:
        return {"demand[cpu_m,mem_MiB]": _demands(given["pods"])}
    return {}


# ── steps ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _steps(program: Program, steps: Sequence[Json]) -> list[Json]:
    judged, own = [], list[Json]()
    before: Json | None = None
    for step in steps:
        if before is not None:
            own += _placed_between(before, step, number=len(own))
        judged.append(_judged(program, step, _others(steps[0], step, own), own))
        before = step
    return judged


def _placed_between(before: Json, step: Json, *, number: int) -> list[Json]:
    """The previous step's pod, on the node whose requests have grown by exactly its demand."""
    demand = before["demand"]
    return [
        _pod(f"own-{number}", demand, node=node, scheduler="pigeon")
        for node, now in step["nodes"].items()
        if node in before["nodes"] and _less(now["requested"], before["nodes"][node]["requested"]) == demand
    ]


def _others(first: Json, step: Json, own: Sequence[Json]) -> list[Json]:
    """Pods of other schedulers that request the remaining amounts on each node."""
    placed = []
    for node, now in step["nodes"].items():
        rest = now["requested"]
        for pod in own:
            if pod["spec"]["nodeName"] == node:
                rest = _less(rest, pod["demand"])
        if any(rest):
            placed.append(_pod(f"other-{node}", rest, node=node, scheduler="other"))
        pods = rest[2] if len(rest) > 2 else 0
        placed += [
            pod_with(f"other-{node}-{index}", node=node, scheduler="other") for index in range(1, pods)
        ]
    return placed


def _less(more: Sequence[int], fewer: Sequence[int]) -> list[int]:
    return [minuend - other for minuend, other in zip(more, fewer, strict=True)]


def _pod(name: str, demand: Sequence[int], **more: Any) -> Json:
    return {**pod_with(name, requests=_amounts(demand), **more), "demand": list(demand)}


def _amounts(numbers: Sequence[int]) -> dict[str, str]:
    """Quantities of cpu (millicores), memory (MiB), pods, gpus and storage (GiB), as far as there
    are numbers, without pods.
    """
    units = {"cpu": "m", "memory": "Mi", "pods": "", "nvidia.com/gpu": "", "ephemeral-storage": "Gi"}
    amounts = {name: f"{number}{units[name]}" for name, number in zip(units, numbers, strict=False)}
    return {name: amount for name, amount in amounts.items() if name != "pods"}


def _judged(program: Program, step: Json, others: Sequence[Json], own: Sequence[Json]) -> Json:
    nodes = [
        node_with(
            name,
            cpu="0",
            memory="0",
            resources=_amounts(node["capacity"]),
            **({"pods": node["capacity"][2]} if len(node["capacity"]) > 2 else {}),
        )
        for name, node in step["nodes"].items()
    ]
    pods = [*others, *own, _pod("asked", step["demand"])]
    explained = play(program, world(program, nodes=nodes, pods=pods)).explanations["asked"]
    shown = raw(explained, "shown_value")
    values = {name: shown.get(name) for name in step["nodes"]}
    scores = raw(explained, _RULE)
    return {
        "values": {node: None if value is None else value / _MILLION for node, value in values.items()},
        "scores": scores,
        "best": [node for node, score in scores.items() if score == max(scores.values(), key=float)],
    }


# ── parts ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _taken(param: str, word: Any) -> Any:
    policy = Policy("pigeon") if word is None else Policy("pigeon").accepting({param: word})
    return policy.program().parameters[param].value.value


def _demands(pods: Sequence[Json]) -> dict[str, list[Any]]:
    nodes = [roomy_node()]
    parts = [value_of(Policy("pigeon"), name, nodes=nodes, pods=pods) for name in ("pod_cpu", "pod_memory")]
    names = [pod["metadata"]["name"] for pod in pods]
    return {name: [next(iter(part[name].values())) for part in parts] for name in names}


def _varies(mean: Sequence[float], covariance: Sequence[Sequence[float]]) -> float | int | None:
    """The coefficient as the policy writes it, for this number of resources, evaluated by the
    policy language.
    """
    places = range(len(mean))
    product = " + ".join(f"{mean[i]} * {mean[j]} * {covariance[i][j]}" for i in places for j in places)
    square = " + ".join(f"{mean_value} * {mean_value}" for mean_value in mean)
    expression = f"(sqrt(max({product}, 0)) else 0) / ({square}) else 0"
    values = value_of(Policy("kube-default"), expression, nodes=[roomy_node()], pods=[pod_with("asked")])
    (value,) = values["asked"].values()
    return value


_VALUE = re.compile(r"^let value: int =.*?(?=^let fits)", re.MULTILINE | re.DOTALL)
_FITS = re.compile(r"^let fits: bool =.*?(?=^let best)", re.MULTILINE | re.DOTALL)


def _ranked(row: Mapping[str, float | None]) -> Json:
    """The policy's ranking of values in node annotations. Nodes without a value are not feasible."""
    text = (POLICIES / "pigeon.policy").read_text(encoding="utf-8")
    text = _VALUE.sub(
        'input given: int = node.annotations["value"] optional invalid default\nlet value: int = given else 0\n',
        text,
    )
    program = without_filters(policy_of_text(_FITS.sub("let fits: bool = has given\n", text)))
    nodes = [
        node_with(name, annotations={} if value is None else {"value": str(round(value * _MILLION))})
        for name, value in row.items()
    ]
    return raw(play(program, world(program, nodes=nodes, pods=[pod_with("p")])).explanations["p"], _RULE)

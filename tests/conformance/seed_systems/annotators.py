"""The producers of node annotations. What they count is what the scheduler knows about its nodes."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.conformance.seed_systems.worlds import Policy, node_with, pod_with, value_of

Json = dict[str, Any]

_UNITS = {"cpu_m": "cpu"}
"""The name of a resource in the cases, and in Kubernetes. cpu is in millicores in both."""


def answer(case: Json) -> Json:
    given, expected = case["input"], case["expected"]
    if "sum_of_requests" in given:
        return {"annotations": _annotations(given)}
    if "pods" in given:
        # Pods without a node belong to another scheduler.
        pods = [{**pod, "spec": {"schedulerName": "other", **pod["spec"]}} for pod in given["pods"]]
        return {
            key: {name: _known(key, name, [given["node"]], pods) for name in expected[key]}
            for key in ("requested", "free")
        }
    return {}


def _annotations(given: Json) -> dict[str, str]:
    """One pod that requests the whole sum, and as many further pods as are counted."""
    sums: Mapping[str, int] = given["sum_of_requests"]
    node, name = given["node"], "holder"
    rest = {key: value for key, value in sums.items() if key not in ("cpu_m", "pods")}
    holder = pod_with(name, node=node, requests={"cpu": f"{sums.get('cpu_m', 0)}m", **rest})
    others = [pod_with(f"{name}-{index}", node=node) for index in range(1, sums.get("pods", 0))]
    allocatable = given["allocatable"]
    resources = {key: value for key, value in allocatable.items() if key not in ("cpu_m", "pods")}
    cpu, pods = f"{allocatable.get('cpu_m', 0)}m", allocatable.get("pods", 0)
    nodes = [node_with(node, cpu=cpu, pods=pods, resources=resources)]
    annotations: dict[str, str] = {}
    for key in allocatable:
        for word in ("requested", "free"):
            annotations[f"{word}-{_UNITS.get(key, key)}"] = str(_known(word, key, nodes, [holder, *others]))
    return annotations


def _known(word: str, key: str, nodes: Sequence[Json], pods: Sequence[Json]) -> int | float | None:
    """`node.requested` or `node.free` of the only node, as a policy reads it: free amounts are
    never negative.
    """
    resource = _UNITS.get(key, key)
    amount = f'node.{word}["{resource}"]'
    amount = f"max({amount}, 0)" if word == "free" else amount
    asked = pod_with("asked")
    ((_, values),) = [
        row
        for row in value_of(Policy("kube-default"), amount, nodes=nodes, pods=[*pods, asked]).items()
        if row[0] == "asked"
    ]
    (value,) = values.values()
    return value

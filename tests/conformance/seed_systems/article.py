"""The article on four ways to extend the scheduler, and the rules of kube-scheduler 1.17 that it
quotes.

Answered by the built-ins, and by `policies/kube-1-17.policy` where kube-scheduler's arithmetic has
changed since.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from policysched.lang.ir.extender_results import ExtenderResult, add_extender_scores
from policysched.lang.ir.verdict import NodeSubsetVerdict
from tests.conformance.seed_systems import plugin_sets, protocol
from tests.conformance.seed_systems.worlds import (
    Policy,
    node_with,
    play,
    pod_with,
    policy_of_text,
    raw,
    scores,
    value_of,
    without_filters,
    world,
)

Json = dict[str, Any]


def answer(case: Json) -> Json:
    given = case["input"]
    if "pod_request" in given:
        return _fits(given)
    if "preferred" in given:
        return _affinity(given)
    if "totals" in given:
        return _chosen(given["totals"], case["expected"])
    if "nominated" in given:
        return {"fits": _with_nominated(given)}
    if "priorities" in given and "extenders" in given:
        return {"total_1.17": _with_extenders(given)}
    if "rules" in given:
        return {"results": [plugin_sets.outcome(rule) for rule in given["rules"]]}
    if "cases" in given:
        return {"results": [protocol.became(case) for case in given["cases"]]}
    if "rows" in given and "empty_request_defaults" in given:
        return _resource_scores(given["rows"])
    return {}


# ── filters ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _fits(given: Json) -> Json:
    """One pod holds what is requested on the node; cpu is in millicores."""
    node = node_with("n", cpu=0, memory=0, pods=0, resources=_amounts(given["allocatable"]))
    held = [_amounts(given["node_requested"]), *({} for _ in range(1, given["node_pods"]))]
    if not given["node_pods"] and not given["node_requested"]:
        held = []
    holders = [pod_with(f"holder-{index}", node="n", requests=amounts) for index, amounts in enumerate(held)]
    asked = pod_with("asked", requests=_amounts(given["pod_request"]))
    ignored = ", ".join(f'"{name}"' for name in given.get("ignored_extended", ()))
    params = f" {{ ignored_resources = [{ignored}] }}" if ignored else ""
    policy = Policy("kube-1-17")
    program = (policy.with_more(f"replace filter node_resources_fit{params}") if params else policy).program()
    explained = play(program, world(program, nodes=[node], pods=[*holders, asked])).explanations["asked"]
    reasons = [reason for refusal in explained.rejections.get("n", ()) for reason in refusal.reasons]
    refused = list(dict.fromkeys(_resource_of(reason) for reason in reasons))
    return {
        "fits": explained.feasible == ("n",),
        "insufficient": [_numbers(resource, node, [*holders, asked]) for resource in refused],
    }


def _amounts(numbers: Mapping[str, int]) -> dict[str, str]:
    return {name: f"{number}m" if name == "cpu" else str(number) for name, number in numbers.items()}


def _resource_of(reason: str) -> str:
    return "pods" if reason == "Too many pods" else reason.removeprefix("Insufficient ")


def _numbers(resource: str, node: Json, pods: Sequence[Json]) -> list[Any]:
    """Requested, used and allocatable amounts, as a policy without filters reads them."""
    policy = Policy("stupid")
    return [
        resource,
        *(
            _of_asked(value_of(policy, f'{owner}["{resource}"]', nodes=[node], pods=pods))
            for owner in ("pod.requests", "node.requested", "node.allocatable")
        ),
    ]


def _of_asked(values: Mapping[str, Mapping[str, int | float | None]]) -> int | float | None:
    (value,) = values["asked"].values()
    return value


def _with_nominated(given: Json) -> dict[str, bool]:
    """Each pod on its own, with the pods that are nominated to the node."""
    program = Policy("kube-default").program()
    state = given["node"]
    # Room for one more pod than in the case, because a pod of this test holds the requested
    # amounts.
    room = {**state["allocatable"], "pods": state["allocatable"].get("pods", 0) + 1}
    node = node_with("n", cpu=0, memory=0, pods=0, resources=_amounts(room))
    # It has the highest priority, so that it is not evicted.
    holder = pod_with(
        "holder", node="n", priority=2_000_000_000, requests=_amounts(state.get("requested", {}))
    )
    promised = [
        pod_with(
            f"nominated-{index}", priority=nominated["priority"], requests=_amounts(nominated["request"])
        )
        | {"status": {"phase": "Pending", "nominatedNodeName": "n"}}
        for index, nominated in enumerate(given["nominated"])
    ]
    fits = {}
    for candidate in given["pods"]:
        asked = pod_with("asked", priority=candidate["priority"], requests=_amounts(candidate["request"]))
        pods = [holder, *promised, asked]
        # Pods of another scheduler: their room is reserved, and they are not placed in this run.
        others = [{**pod, "spec": {**pod["spec"], "schedulerName": "other"}} for pod in promised]
        pods = [holder, *others, asked]
        played = play(program, world(program, nodes=[node], pods=pods))
        fits[candidate["name"]] = "asked" in played.node
    return fits


# ── scores ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _affinity(given: Json) -> Json:
    preferred = given["preferred"] or []
    affinity = {
        "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred} if preferred else {}
    }
    program = policy_of_text("policy case version 1\nscore node_affinity weight 1\n")
    asked = pod_with("asked", spec={"affinity": affinity})
    explained = play(program, world(program, nodes=given["nodes"], pods=[asked])).explanations["asked"]
    nothing = {node["metadata"]["name"]: 0 for node in given["nodes"]}
    reduced = {**nothing, **scores(explained, "node_affinity")}
    return {
        "map": {**nothing, **raw(explained, "node_affinity")},
        "reduce_max100": reduced,
        # Until 1.16 scores had ten steps: ten points of ours are one, rounded down.
        "reduce_max10 (k8s<=1.16)": {node: score // 10 for node, score in reduced.items()},
    }


def _resource_scores(rows: Sequence[Json]) -> Json:
    """The requested amounts are already on the node; the pod to place requests zero explicitly."""
    program = Policy("kube-1-17").program()
    by_plugin: dict[str, list[int]] = {"LeastRequested": [], "BalancedResourceAllocation": []}
    for row in rows:
        cpu, memory = row["allocatable"]
        node = node_with("n", cpu=f"{cpu}m", memory=memory)
        used_cpu, used_memory = row["requested_after"]
        holder = pod_with("holder", node="n", cpu=f"{used_cpu}m", memory=used_memory)
        asked = pod_with("asked", cpu=0, memory=0)
        # Nodes over their capacity are not candidates, but the formulas are evaluated for them.
        plain = without_filters(program)
        explained = play(plain, world(plain, nodes=[node], pods=[holder, asked])).explanations["asked"]
        halves = ("node_resources_fit", "least_requested_partial")  # one of them does not apply to the node
        by_plugin["LeastRequested"].append(sum(scores(explained, name).get("n", 0) for name in halves))
        by_plugin["BalancedResourceAllocation"].append(scores(explained, "balanced_resource_allocation")["n"])
    return by_plugin


def _with_extenders(given: Json) -> dict[str, int]:
    """Scores that nodes have in annotations, with their weights, plus the answers of the extenders."""
    given_scores = [priority["scores"] for priority in given["priorities"].values()]
    names = sorted({node for score in given_scores for node in score})
    lines = ["policy case version 1"]
    for index, priority in enumerate(given["priorities"].values()):
        lines.append(f'input v{index}: int = node.annotations["v{index}"] default 0 invalid default')
        lines.append(f"score s{index} weight {priority['weight']} higher v{index} normalize range(0, 100)")
    lines += [
        f"extender e{index} weight {extender['weight']} missing worst"
        for index, extender in enumerate(given["extenders"])
    ]
    program = policy_of_text("\n".join(lines) + "\n")
    nodes = [
        node_with(
            name,
            annotations={f"v{index}": str(score.get(name, 0)) for index, score in enumerate(given_scores)},
        )
        for name in names
    ]
    alone = replace(program, extenders=())
    explained = play(alone, world(alone, nodes=nodes, pods=[pod_with("asked")])).explanations["asked"]
    answers = {
        f"e{index}": ExtenderResult(rejections={}, scores=extender["scores"])
        for index, extender in enumerate(given["extenders"])
    }
    judged = NodeSubsetVerdict(None, explained.totals, {}, 0)
    return dict(add_extender_scores(judged, program.extenders, answers))


_DIGITS = {f"d{place}": 100**place for place in range(4)}


def _chosen(totals: Mapping[str, int], expected: Json) -> Json:
    """Nodes whose scores differ as these totals do: one score for every two digits, from an
    annotation.
    """
    least = min(0, *totals.values())
    nodes = [
        node_with(
            name,
            annotations={key: str((total - least) // weight % 100) for key, weight in _DIGITS.items()},
        )
        for name, total in totals.items()
    ]
    lines = ["policy case version 1"]
    for key, weight in _DIGITS.items():
        lines.append(f'input {key}: int = node.annotations["{key}"] default 0 invalid default')
        lines.append(f"score s{key} weight {weight} higher {key} normalize range(0, 100)")
    program = policy_of_text("\n".join(lines) + "\n")
    pods = [pod_with(f"p{index}") for index in range(40)]
    played = play(program, world(program, nodes=nodes, pods=pods))
    chosen = sorted(set(played.node.values()))
    counts = Counter(played.node.values())
    even = min(counts.values()) > len(pods) // (3 * len(counts))
    again = play(program, world(program, nodes=nodes, pods=pods)).node == played.node
    return {
        "one_of": expected["one_of"] if chosen == sorted(expected["one_of"]) else chosen,
        "distribution": f"{'even' if even else dict(counts)}, {'the same' if again else 'another'} in a replay",
    }

"""kubeRL, by `policies/kube-rl.policy`: what was learned stands in annotations. Nothing here learns."""

import json
from collections.abc import Sequence
from typing import Any

from tests.conformance.seed_systems.worlds import Policy, node_with, play, raw, value_of, world

Json = dict[str, Any]

_SCHEDULER = "rl-scheduler"


def answer(case: Json) -> Json:
    given = case["input"]
    if isinstance(given.get("rewards"), dict):
        return {"scores": _scores(given)}
    if "pods" in given:
        return {"podtype": _types(given["pods"])}
    return {}


def _scores(given: Json) -> Json:
    program = Policy("kube-rl").program()
    nodes = [_with_rewards(node, given["rewards"]) for node in given["nodes"]]
    found = play(program, world(program, nodes=nodes, pods=[given["pod"]], scheduler=_SCHEDULER))
    return raw(found.explained[given["pod"]["metadata"]["name"]], "rl_priority")


def _with_rewards(node: Json, rewards: Json) -> Json:
    name = node["metadata"]["name"]
    known = [{"type": type_, "reward": of[name]} for type_, of in rewards.items() if name in of]
    meta = {**node["metadata"], "annotations": {"rewards": json.dumps(known)}}
    return {**node, "metadata": meta}


def _types(pods: Sequence[Json]) -> dict[str, str]:
    """A node for each word that could be a type: the one that the policy's `pod_type` is shows."""
    words = sorted(
        {pod["metadata"]["name"] for pod in pods}
        | {word for pod in pods for word in pod["metadata"].get("labels", {}).values()}
    )
    nodes = [node_with(f"n{index}", labels={"word": word}) for index, word in enumerate(words)]
    found = value_of(
        Policy("kube-rl"),
        'if pod_type == (node.labels["word"] else "") then 1 else 0',
        nodes=nodes,
        pods=pods,
        scheduler=_SCHEDULER,
    )
    return {
        pod: words[[bool(values[f"n{index}"]) for index in range(len(words))].index(True)]
        for pod, values in found.items()
    }

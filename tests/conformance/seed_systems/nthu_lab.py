"""The NTHU lab's plugin, by `policies/nthu-lab.policy`."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.conformance.seed_systems.gates import verdicts
from tests.conformance.seed_systems.worlds import (
    Policy,
    Refused,
    node_with,
    play,
    pod_with,
    raw,
    scores,
    world,
)

Json = dict[str, Any]

_OF_A_GROUP = {"podGroup": "g", "minAvailable": "1"}
"""Only pods that name the lab's scheduler are placed."""


def answer(case: Json) -> Json:
    given = case["input"]
    if "attempt" in given:
        attempt = given["attempt"]
        name = attempt["metadata"]["name"]
        others = given.get("pods", ())
        if not any(pod["metadata"]["name"] == name for pod in others):
            attempt = _beside_itself(attempt)
        pods = [*others, attempt]
        outcome, _ = verdicts(Policy("nthu-lab"), pods, scheduler=None, attempt=name)
        return {"verdict": outcome[name]}
    if "modes" in given:
        return {"results": [_mode(word) for word in given["modes"]]}
    if "scores" in given:
        return _normalized(given["scores"])
    outcome = _asked(given.get("mode"), given["nodes"])
    return {"best": outcome["best"], "raw": outcome["raw"]}


def _beside_itself(attempt: Json) -> Json:
    """The best node. A pod that is tried counts itself here but not in the lab's test, so it
    requests one more.
    """
    labels = attempt["metadata"].get("labels", {})
    minimum = labels.get("minAvailable", "")
    if not minimum.isdecimal():
        return attempt
    more = {**labels, "minAvailable": str(int(minimum) + 1)}
    return {**attempt, "metadata": {**attempt["metadata"], "labels": more}}


def _policy(mode: str | None) -> Policy:
    return Policy("nthu-lab", {} if mode is None else {"mode": mode})


def _asked(mode: str | None, nodes: Sequence[Json]) -> Json:
    program = _policy(mode).program()
    result = play(program, world(program, nodes=nodes, pods=[pod_with("asked", labels=_OF_A_GROUP)]))
    explained = result.explanations["asked"]
    judged = scores(explained, "memory")
    return {
        # By this score alone: the policy has kube-scheduler's default scores as well.
        "best": max(judged, key=lambda node: judged[node]) if judged else result.node.get("asked"),
        "raw": raw(explained, "memory"),
        "scores": judged,
    }


def _mode(word: str | None) -> str:
    """The resulting mode of the policy, or why it is rejected."""
    try:
        program = _policy(word).program()
    except Refused as error:
        return f"error: {error}"
    return str(program.parameters["mode"].value.value)


def _normalized(numbers: Sequence[int]) -> Json:
    """Nodes with these amounts of memory, which are the raw scores. Memory is not negative, so
    negative numbers are shifted.
    """
    names = [f"n{index}" for index in range(len(numbers))]
    least = min(0, *numbers) if numbers else 0
    nodes = [node_with(name, memory=number - least) for name, number in zip(names, numbers, strict=True)]
    normalized: Mapping[str, int] = _asked("Most", nodes)["scores"]
    listed = [normalized[name] for name in names]
    return {"normalized": listed, "recommended": listed}

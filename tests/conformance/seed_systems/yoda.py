"""Yoda, by `policies/yoda.policy`. A node's Scv object is stored in an annotation."""

import json
from collections.abc import Mapping
from typing import Any

from tests.conformance.seed_systems.gates import in_tiers, order
from tests.conformance.seed_systems.worlds import (
    Policy,
    node_with,
    play,
    pod_with,
    policy_of_text,
    raw,
    scores,
    without_filters,
    world,
)

Json = dict[str, Any]

_SCHEDULER = "yoda-scheduler"


def answer(case: Json) -> Json:
    given, expected = case["input"], case["expected"]
    if "scv" in given:
        return _judged(given, expected)
    if "rows" in given:
        return {"rows": [_normalized(row) for row in given["rows"]]}
    node = _node("n", {"cardList": [], "cardNumber": 1})
    tried = order(Policy("yoda"), given["pods"], scheduler=_SCHEDULER, node=node)
    return {"order": tried, "order_tiers": in_tiers(tried, expected.get("order_tiers", ()))}


def _judged(given: Json, expected: Json) -> Json:
    program = Policy("yoda").program()
    nodes = [_node(name, scv) for name, scv in given["scv"].items()]
    claims: Mapping[str, int] = given.get("claimed_memory_by_pods_on_node", {})
    holders = [
        pod_with(f"holder-{node}", node=node, labels={"scv/memory": str(claim)})
        for node, claim in claims.items()
    ]
    pods = [*holders, given["pod"]]
    result = play(program, world(program, nodes=nodes, pods=pods, scheduler=_SCHEDULER))
    name = given["pod"]["metadata"]["name"]
    explained = scored = result.explanations[name]
    if set(expected.get("raw", ())) - set(explained.feasible):  # scores of nodes that are not candidates
        program = without_filters(program)
        scored = play(program, world(program, nodes=nodes, pods=pods, scheduler=_SCHEDULER)).explanations[
            name
        ]
    return {
        "feasible": [name for name in given["scv"] if name in explained.feasible],
        "raw": raw(scored, "cards"),
        "normalized": scores(scored, "cards"),
    }


def _node(name: str, scv: Json | None) -> Json:
    return node_with(name, annotations={} if scv is None else {"scv": json.dumps(scv)})


def _normalized(row: Mapping[str, int]) -> dict[str, int]:
    """Raw scores in node annotations, normalized by the policy's normalizer."""
    program = policy_of_text(
        "policy case version 1\n"
        'input raw: int = node.annotations["raw"] default 0 invalid default\n'
        "score given weight 1 higher raw normalize minmax\n"
    )
    nodes = [node_with(name, annotations={"raw": str(value)}) for name, value in row.items()]
    return scores(play(program, world(program, nodes=nodes, pods=[pod_with("p")])).explanations["p"], "given")

"""The NetworkTraffic plugin, by `policies/network-traffic.policy`."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from policysched.builtins.registry import BUILTINS
from policysched.lang.types.units import parse_value
from tests.conformance.seed_systems.worlds import (
    Policy,
    play,
    pod_with,
    policy_of_text,
    raw,
    roomy_node,
    scores,
    world,
)

Json = dict[str, Any]

_RULE = "network_traffic"
_METRIC = "received"
_SCHEDULER = "custom-scheduler"


def answer(case: Json) -> Json:
    given, expected = case["input"], case["expected"]
    if "profile" in given:
        return _profile(given["profile"])
    if "nodes_feasible" in given:
        return _without_asking(given["nodes_feasible"], given)
    values = given["metrics"]["bandwidth"]
    if "options_needed" in expected:
        return {"options_needed": _options(values, expected["options_needed"])}
    outcome = _asked(Policy("network-traffic"), values, given)
    numbers = {"raw": outcome["raw"], "normalized": outcome["normalized"]}
    answered = numbers | {"binding": outcome["binding"]}
    answered |= {f"raw_{node}": value for node, value in outcome["raw"].items()}
    wanted = expected.get("recommended")
    if isinstance(wanted, str):
        # NaN means that the node has no sample.
        without = _asked(Policy("network-traffic"), _without_nan(values), given)
        return {"recommended": wanted if _same(without, outcome) else numbers}
    if isinstance(wanted, dict):
        return {"recommended": numbers if wanted.keys() & numbers.keys() else outcome["normalized"]}
    return answered


def _asked(policy: Policy, values: Mapping[str, float | str | None], given: Json) -> Json:
    program = policy.program()
    pods = given.get("pods") or [pod_with("asked")]
    scenario = world(
        program,
        nodes=[roomy_node(name) for name in values],
        pods=pods,
        metrics={_METRIC: _numbers(values)},
        scheduler=_SCHEDULER,
    )
    result = play(program, scenario)
    first = pods[0]["metadata"]["name"]
    explained = result.explanations[first]
    return {
        "raw": raw(explained, _RULE),
        "normalized": scores(explained, _RULE),
        "rejected": sorted(explained.rejections),
        "binding": result.node,
        "node": result.node.get(first),
    }


def _without_asking(nodes: Sequence[str], given: Json) -> Json:
    """The pod is placed without a metrics query, because no source is configured."""
    program = Policy("network-traffic").program()
    pod = (given.get("pods") or [pod_with("asked")])[0]
    nodes_there = [roomy_node(name) for name in nodes]
    scenario = world(program, nodes=nodes_there, pods=[pod], scheduler=_SCHEDULER)
    node = play(program, scenario).node.get(pod["metadata"]["name"])
    return {"binding_node": node} | ({} if node is None else {"queries": len(scenario.polls)})


def _numbers(values: Mapping[str, float | str | None]) -> dict[str, float | str | None]:
    """The cases write NaN as a string, because JSON has no NaN."""
    return {
        node: math.nan if isinstance(value, str) and value.lower() == "nan" else value
        for node, value in values.items()
    }


def _without_nan(values: Mapping[str, float | str | None]) -> dict[str, float | str | None]:
    numbers = _numbers(values)
    return {
        node: None if isinstance(value, float) and math.isnan(value) else value
        for node, value in numbers.items()
    }


def _same(outcome: Json, other: Json) -> bool:
    return {**outcome, "raw": sorted(outcome["raw"])} == {**other, "raw": sorted(other["raw"])}


def _options(values: Mapping[str, float | None], options: list[str]) -> list[str]:
    """The listed behaviours that the policy shows on a node without a sample."""
    lacking = sorted(node for node, value in values.items() if value is None)
    assumed = "100Bps"
    outcomes = {
        option: _asked(
            Policy("network-traffic").accepting({"without_sample": option, "assumed": assumed}), values, {}
        )
        for option in options
    }
    as_if = _asked(
        Policy("network-traffic"), {**values, **dict.fromkeys(lacking, _bytes_per_second(assumed))}, {}
    )
    shows = {
        "error": lambda outcome: outcome["node"] is None and not outcome["rejected"],
        "skip-node": lambda outcome: (
            outcome["rejected"] == lacking and (outcome["node"] is not None or len(lacking) == len(values))
        ),
        "default-value": lambda outcome: outcome["normalized"] == as_if["normalized"],
        "worst-score": lambda outcome: (
            all(outcome["normalized"].get(node) == 0 for node in lacking) and not outcome["rejected"]
        ),
    }
    return [option for option in options if option in shows and shows[option](outcomes[option])]


def _bytes_per_second(text: str) -> float:
    program = Policy("network-traffic").program()
    bits = parse_value(text, program.metrics[_METRIC].type, None)
    assert isinstance(bits, float), text
    return bits / 8


def _profile(profile: Json) -> Json:
    """The rules of the policy in addition to kube-scheduler's default profile."""
    program = Policy("network-traffic").program()
    default = policy_of_text("policy default version 1\ninclude kube_default\n")
    named = {_snake(name): name for name in profile["score"]["enabled"]}
    filters = [rule.name for rule in program.rules.filters if rule.name in BUILTINS and rule.when is None]
    same = filters == [rule.name for rule in default.rules.filters]
    return {
        "scorers": [named.get(rule.name, rule.name) for rule in program.rules.scores],
        "weight": sum(rule.weight for rule in program.rules.scores),
        "filters": "defaults" if same else filters,
    }


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")

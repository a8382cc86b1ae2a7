"""The agent safe of kube-safe-scheduler, by `policies/safe.policy`, and together with congestion by
both policies.
"""

from collections.abc import Mapping
from typing import Any

from tests.conformance.seed_systems import protocol
from tests.conformance.seed_systems.worlds import (
    POLICIES,
    Policy,
    Probe,
    node_with,
    play,
    pod_with,
    policy_of_text,
    raw,
    roomy_node,
    value_of,
    values_of,
    without_filters,
    world,
)

Json = dict[str, Any]

ENVIRONMENT = {
    "SAFEUTILIZATION": "utilization",
    "SAFEPERCENTILE": "percentile",
    "SAFEFORECASTWEIGHT": "forecast_weight",
}
RULES = {"safe-overload": "safe_overload", "safe-balance": "safe_balance", "congestion": "congestion"}
_SCHEDULER = "my-scheduler"
_DETAILS = {
    "mu": "{0}_mean",
    "sigma": "{0}_deviation",
    "risk": "{0}_risk",
    "overload": "{0}_safety",
    "balance": "{0}_balance",
    "alpha": "{0}_alpha",
    "beta": "{0}_beta",
}
_OF_A_DISTRIBUTION = ("alpha", "beta")


def answer(case: Json) -> Json:
    given, expected = case["input"], case["expected"]
    if "weights" in given:
        return _weighted(given)
    if "rows" in given:
        return {"rows": [_probability(*row) for row in given["rows"]]}
    if "requests" in given:
        return protocol.asked(expected)
    if "nodes" in given:
        return _judged(given, expected)
    return {}


def policy_for(environment: Mapping[str, Any]) -> Policy:
    taken = {ENVIRONMENT[name]: value for name, value in environment.items() if name in ENVIRONMENT}
    return Policy("safe").accepting(taken)


def _judged(given: Json, expected: Json) -> Json:
    policy, nodes, pod = policy_for(given.get("env", {})), given["nodes"], given["pod"]
    name = pod["metadata"]["name"]
    program = policy.program()
    explained = play(program, world(program, nodes=nodes, pods=[pod], scheduler=_SCHEDULER)).explanations[
        name
    ]
    # The agent has scores for rejected nodes as well.
    open_to_all = without_filters(program)
    scored = play(
        open_to_all, world(open_to_all, nodes=nodes, pods=[pod], scheduler=_SCHEDULER)
    ).explanations[name]
    asked = {
        (resource, key): Probe(form.format(resource), _when(resource, key))
        for resource in ("cpu", "memory")
        for key, form in _DETAILS.items()
    }
    values_by_probe = values_of(policy, tuple(asked.values()), nodes=nodes, pods=[pod], scheduler=_SCHEDULER)
    details = {detail: values_by_probe[probe][name] for detail, probe in asked.items()}

    def of_resource(resource: str, node: str) -> Json | None:
        values = {key: details[resource, key].get(node) for key in _DETAILS}
        if values["mu"] is None:
            return None
        refused = {refusal.rule for refusal in explained.rejections.get(node, ())}
        return values | {"accepted": f"{resource}_overload" not in refused}

    rejected_by_us = {
        node
        for node, refusals in explained.rejections.items()
        if any(refusal.rule.endswith("_overload") for refusal in refusals)
    }
    per_node = {
        node["metadata"]["name"]: {
            "feasible": node["metadata"]["name"] not in rejected_by_us,
            "detail": {key: of_resource(key, node["metadata"]["name"]) for key in ("cpu", "memory")},
            **{
                key: raw(scored, RULES[key]).get(node["metadata"]["name"])
                for key in ("safe-overload", "safe-balance")
            },
        }
        for node in nodes
    }
    return {
        "per_node": per_node,
        "feasible": [node for node in per_node if per_node[node]["feasible"]],
    }


def _when(resource: str, key: str) -> str:
    """Nodes that have values for the resource, and a valid distribution if `when` is about the
    distribution.
    """
    fits = f" and {resource}_tightness > 0" if key in _OF_A_DISTRIBUTION else ""
    return f"has mean_{resource}{fits}"


def _probability(mean: float, deviation: float, limit: float) -> float | int | None:
    values = value_of(
        Policy("kube-default"),
        f"beta_cdf({limit}, {mean}, {deviation})",
        nodes=[roomy_node()],
        pods=[pod_with("asked")],
    )
    (value,) = values["asked"].values()
    return value


def _weighted(given: Json) -> Json:
    """Scores from 0 to 10 in node annotations, with the weights of the case. The scores here are up
    to 100, as those of extenders since 1.17; earlier releases counted a tenth of it.
    """
    names = list(given["weights"])
    nodes = [
        node_with(node, annotations={name: str(score) for name, score in zip(names, scores, strict=True)})
        for node, scores in given["scores"].items()
    ]
    lines = ["policy case version 1"]
    for index, (name, weight) in enumerate(given["weights"].items()):
        lines.append(f'input v{index}: int = node.annotations["{name}"] default 0 invalid default')
        lines.append(f"score s{index} weight {weight} higher v{index} normalize range(0, 10)")
    program = policy_of_text("\n".join(lines) + "\n")
    explained = play(program, world(program, nodes=nodes, pods=[pod_with("asked")])).explanations["asked"]
    tenths = {node: total / 10 for node, total in explained.totals.items()}
    return {"extender_sum_k8s_1.13": tenths, "extender_sum_k8s_1.17_plus": dict(explained.totals)}


def beside_congestion(given: Json) -> Json:
    """The scores of both policies in one policy, each with weight 1, without other scores."""
    text = (POLICIES / "congestion.policy").read_text(encoding="utf-8")
    body = text.partition("policy congestion version 1")[2].replace("include kube_default", "")
    taken = {
        **ENVIRONMENT,
        "CONGESTION_FACTOR_MAX": "factor_max",
    }
    policy = (
        Policy("safe")
        .with_more(f"{body}\nreweight congestion 1\ndrop score safe_balance")
        .accepting({taken[name]: value for name, value in given["env"].items() if name in taken})
    )
    program = policy.program()
    expected_rules = {rule.name for rule in program.rules.scores} & set(RULES.values())
    only = policy.with_more(
        "\n".join(
            f"drop score {rule.name}" for rule in program.rules.scores if rule.name not in expected_rules
        )
    )
    program = only.program()
    pod = given["pod"]
    result = play(program, world(program, nodes=given["nodes"], pods=[pod], scheduler=_SCHEDULER))
    explained = result.explanations[pod["metadata"]["name"]]
    best = result.node.get(pod["metadata"]["name"])
    return {
        **{key: raw(explained, rule) for key, rule in RULES.items() if rule in expected_rules},
        # A score here has 100 steps, the extender's has 10.
        "extender_sum": {node: total / 10 for node, total in explained.totals.items()},
        "best": f"{best} (default priorities equal)",
    }

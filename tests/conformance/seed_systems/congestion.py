"""The agents congestion and foo of kube-safe-scheduler, by `policies/congestion.policy`, and
together with safe by both policies.
"""

from typing import Any

from tests.conformance.seed_systems import safe
from tests.conformance.seed_systems.worlds import Policy, play, policy_of_text, raw, world

Json = dict[str, Any]

ENVIRONMENT = {"CONGESTION_FACTOR_MAX": "factor_max"}
"""The agent's variables, and the parameters of the policy that correspond."""


def answer(case: Json) -> Json:
    given = case["input"]
    environment = given.get("env", {})
    if "foo" in case["id"]:
        return _foo(given)
    if set(environment) & set(safe.ENVIRONMENT):
        return safe.beside_congestion(given)
    policy = policy_for("congestion", environment, ENVIRONMENT)
    congestion_scores = raw_scores(policy, given, "congestion")
    program = policy.program()
    return {
        "scores": congestion_scores,
        "congestion": congestion_scores,
        "max": program.parameters["factor_max"].value.value,
    }


def _foo(given: Json) -> Json:
    """The template accepts every node and gives each the same score."""
    program = policy_of_text("policy foo version 1\nscore foo weight 10 higher 1 normalize range(0, 10)\n")
    result = play(
        program, world(program, nodes=given["nodes"], pods=[given["pod"]], scheduler="my-scheduler")
    )
    explained = result.explanations[given["pod"]["metadata"]["name"]]
    names = [node["metadata"]["name"] for node in given["nodes"]]
    return {
        "feasible": [name for name in names if name in explained.feasible],
        "filter": {name: name in explained.feasible for name in names},
        "scores": raw(explained, "foo"),
    }


def policy_for(name: str, environment: Json, names: dict[str, str]) -> Policy:
    return Policy(name).accepting(
        {names[variable]: value for variable, value in environment.items() if variable in names}
    )


def raw_scores(policy: Policy, given: Json, rule: str) -> dict[str, int | float | None]:
    """The score before normalizing, on the scale of the seed system."""
    program = policy.program()
    scenario = world(program, nodes=given["nodes"], pods=[given["pod"]], scheduler="my-scheduler")
    return raw(play(program, scenario).explanations[given["pod"]["metadata"]["name"]], rule)

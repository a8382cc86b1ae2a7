"""riya-scheduler, by `policies/riya.policy`; real gang scheduling for comparison, by
`policies/gang-batch.policy`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from tests.conformance.seed_systems.gates import in_tiers, order, verdicts
from tests.conformance.seed_systems.worlds import (
    Policy,
    play,
    pod_with,
    roomy_node,
    value_of,
    world,
)

Json = dict[str, Any]

_PARAMS = {"groupLabel": "group_label", "minLabel": "minimum_label", "priorityLabel": "priority_label"}
_AMOUNTS: Mapping[str, Json] = {
    "Guaranteed": {"cpu": "100m", "memory": "64Mi", "limits": {"cpu": "100m", "memory": "64Mi"}},
    "Burstable": {"cpu": "100m"},
    "BestEffort": {},
}
_QOS = ("BestEffort", "Burstable", "Guaranteed")


def answer(case: Json) -> Json:
    given, expected = case["input"], case["expected"]
    if "pairs" in given:
        return {"less_strict_recommended": _less(given["pairs"])}
    if "config_a" in given:
        return {
            key: verdicts(_policy(given[key]), given["pods"], scheduler=_scheduler(given))[0]
            for key in expected
        }
    if given.get("nodes"):
        return _placed(given)
    return (
        _of_the_gate(given, expected) | _of_the_queue(given, expected) | _as_the_seed_counts(given, expected)
    )


def _as_the_seed_counts(given: Json, expected: Json) -> Json:
    """Verdicts with finished pods counted, as the original does (parameter `count_finished`), if
    the case has verdicts for each pod.
    """
    seed = expected.get("seed")
    if not isinstance(seed, dict) or not isinstance(seed.get("verdicts"), dict):
        return {}
    policy = _policy(given.get("config", {}))
    policy = replace(policy, params={**policy.params, "count_finished": "true"})
    pods = _pods(given)
    verdict_of, _ = verdicts(policy, pods, scheduler=_scheduler(given), attempt=given.get("attempt"))
    counts = {"counts": _counts(policy, pods, given, seed["counts"])} if "counts" in seed else {}
    return {"seed": {"verdicts": verdict_of, **counts}}


def _policy(config: Mapping[str, str]) -> Policy:
    return Policy("riya", {_PARAMS[key]: value for key, value in config.items() if key in _PARAMS})


def _scheduler(given: Json) -> str:
    return str(given.get("config", {}).get("schedulerName", "riya-scheduler"))


def _pods(given: Json) -> list[Json]:
    """Pods without a scheduler name are the seed system's own."""
    return [
        {**pod, "spec": {"schedulerName": _scheduler(given), **pod.get("spec", {})}}
        for pod in given.get("pods", ())
    ]


def _of_the_gate(given: Json, expected: Json) -> Json:
    policy, pods = _policy(given.get("config", {})), _pods(given)
    verdict_of, words_of = verdicts(
        policy, pods, scheduler=_scheduler(given), attempt=given.get("attempt"), nodes=given.get("nodes")
    )
    words = set(words_of.values())
    answer: Json = {
        **{pod: verdict for pod, verdict in verdict_of.items() if pod in expected},
        **({"verdict": verdict_of[given["attempt"]]} if given.get("attempt") in verdict_of else {}),
        "verdicts": verdict_of,
        "condition_message": next(iter(words)) if len(words) == 1 else sorted(words),
        "phase": "Pending" if words_of and set(verdict_of.values()) == {"Unschedulable"} else "Running",
    }
    if all(str(expected.get("reason")) in word for word in words):
        answer["reason"] = expected.get("reason")
    if "counts" in expected:
        answer["counts"] = _counts(policy, pods, given, expected["counts"])
    return answer


def _counts(policy: Policy, pods: Sequence[Json], given: Json, listed: Mapping[str, int]) -> Json:
    """For each group, or namespace and group, as the case names it: the largest minimum with which
    the group passes the gate.
    """
    counts: Json = {}
    for minimum in range(2, len(pods) + 2):
        label = _label(given, "minLabel", "minAvailable")
        asking = [_asking_for(pod, label, minimum) for pod in pods]
        passed, _ = verdicts(policy, asking, scheduler=_scheduler(given))
        for pod in pods:
            meta = pod["metadata"]
            group = meta.get("labels", {}).get(_label(given, "groupLabel", "podGroup"), "")
            key = group if group in listed else f"{meta.get('namespace', 'default')}/{group}"
            if passed.get(meta["name"]) == "Success":
                counts[key] = minimum
            else:
                counts.setdefault(key, 1)
    return counts


def _label(given: Json, key: str, usual: str) -> str:
    return str(given.get("config", {}).get(key, usual))


def _asking_for(pod: Json, label: str, minimum: int) -> Json:
    labels = {**pod["metadata"].get("labels", {}), label: str(minimum)}
    return {**pod, "metadata": {**pod["metadata"], "labels": labels}}


def _of_the_queue(given: Json, expected: Json) -> Json:
    policy, pods, scheduler = _policy(given.get("config", {})), _pods(given), _scheduler(given)
    answer: Json = {}
    if "order" in expected or "order_tiers" in expected:
        tried = order(policy, pods, scheduler=scheduler)
        answer |= {"order": tried, "order_tiers": in_tiers(tried, expected.get("order_tiers", ()))}
    if "priority" in expected:
        worth = value_of(policy, "priority", nodes=[roomy_node()], pods=pods, scheduler=scheduler)
        answer["priority"] = {pod: str(_only(values)) for pod, values in worth.items()}
    if "qos" in expected:
        worth = value_of(policy, _QOS_NUMBER, nodes=[roomy_node()], pods=pods, scheduler=scheduler)
        words = {pod: _QOS[round(float(_only(values) or 0))] for pod, values in worth.items()}
        answer["qos"] = {pattern: _shared(pattern, words) for pattern in expected["qos"]}
    return answer


_QOS_NUMBER = "if pod.qos == Guaranteed then 2 else (if pod.qos == Burstable then 1 else 0)"


def _only(values: Mapping[str, int | float | None]) -> int | float | None:
    (value,) = values.values()
    return value


def _shared(pattern: str, words: Mapping[str, str]) -> str:
    """The value that all pods matching a pattern such as `hi-*` share."""
    shared = {word for pod, word in words.items() if fnmatchcase(pod, pattern)}
    return shared.pop() if len(shared) == 1 else "/".join(sorted(shared))


def _less(pairs: Sequence[Sequence[str]]) -> dict[str, bool]:
    """Whether the first pod is tried before the second, in whichever order they arrive."""
    policy = Policy("riya")
    less = {}
    for left, right in pairs:
        first, second = pod_with("one", **_AMOUNTS[left]), pod_with("other", **_AMOUNTS[right])
        orders = [order(policy, pods, scheduler="") for pods in ([first, second], [second, first])]
        less[f"{left}<{right}"] = all(names[0] == "one" for names in orders)
    return less


def _placed(given: Json) -> Json:
    def bound(policy: Policy) -> Json:
        program = policy.program()
        result = play(
            program, world(program, nodes=given["nodes"], pods=_pods(given), scheduler=_scheduler(given))
        )
        return {"bound_count": len(result.node), "pending_count": len(result.pending)}

    return {"seed": bound(Policy("riya")), "true_gang": bound(Policy("gang-batch"))}

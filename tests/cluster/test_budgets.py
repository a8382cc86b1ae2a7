"""Which evictions violate a disruption budget."""

import pytest

from policysched.cluster.budgets import split_by_budget
from policysched.kube.decode import core_objects as wire
from policysched.kube.decode.errors import MalformedObject
from policysched.model.pods import Pod
from policysched.model.workloads import DisruptionBudget
from tests.builders import pod


def budget(
    allowed: int = 0, *, labels: dict[str, str] | None = None, disrupted: tuple[str, ...] = (), **spec: object
) -> DisruptionBudget:
    chosen = {"app": "db"} if labels is None else labels
    return wire.decode_disruption_budget(
        {
            "metadata": {"name": "db", "namespace": "default"},
            "spec": {"selector": {"matchLabels": chosen}, **spec},
            "status": {
                "disruptionsAllowed": allowed,
                "disruptedPods": dict.fromkeys(disrupted, "2026-01-01T00:00:00Z"),
            },
        }
    )


def db(name: str, **more: object) -> Pod:
    return pod(name, **{"labels": {"app": "db"}, **more})


def violating(pods: list[Pod], *budgets: DisruptionBudget) -> list[str]:
    first, others = split_by_budget(pods, budgets)
    assert {pod.uid for pod in first} | {pod.uid for pod in others} == {pod.uid for pod in pods}
    return [pod.name for pod in first]


def test_each_evicted_pod_uses_one_disruption() -> None:
    assert violating([db("a"), db("b"), db("c")], budget(allowed=2)) == ["c"]


def test_a_budget_selects_only_labelled_pods_of_its_namespace() -> None:
    pods = [db("a", namespace="other"), db("b", labels={"app": "web"}), db("c", labels={})]

    assert violating(pods, budget()) == []


def test_a_disrupted_pod_does_not_count_again() -> None:
    assert violating([db("a"), db("b")], budget(allowed=1, disrupted=("a",))) == []


def test_an_empty_or_missing_selector_selects_no_pod() -> None:
    assert violating([db("a")], budget(labels={}), budget(selector=None)) == []


def test_a_pod_of_two_budgets_violates_if_either_is_exceeded() -> None:
    assert violating([db("a")], budget(allowed=1), budget(allowed=0)) == ["a"]


def test_an_invalid_budget_is_malformed() -> None:
    with pytest.raises(MalformedObject):
        wire.decode_disruption_budget(
            {"metadata": {"name": "x"}, "spec": {"selector": {"matchLabels": "app"}}}
        )

"""Pods with thousands of items: those that no cluster decides about are kept without them, and counted whole once they have a node."""

import copy
from collections.abc import Callable
from dataclasses import fields, replace
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

from policysched.evaluate.decision_cost import DECISION_BUDGET_DEFAULT, DecisionCost
from policysched.kube.decode import large_pods
from policysched.kube.decode.pods import decode_pod
from policysched.kube.watch.resources import pods_within
from policysched.model.pod_status import ObservedPod
from policysched.model.pods import Pod
from policysched.scheduler.events import PodUpdated
from tests.builders import node, pod_manifest
from tests.hostile import HOSTILE_SPECS
from tests.kube.test_pod_updates import SPECS, edit, large, line
from tests.scheduler.rig import FIT, Rig

Json = dict[str, Any]
BUDGET = 3_500  # four items exceed it
METADATA_MAX = GATES_MAX = 2
ALWAYS_KEPT = ("uid", "name", "scheduler", "priority", "group_references")


def decode(obj: Json, before: object, budget: int = BUDGET) -> tuple[ObservedPod, object]:
    decode_line = pods_within(budget).decode_line
    assert decode_line is not None
    event, decoded = decode_line(line(obj), before)
    assert isinstance(event, PodUpdated)
    return event.pod, decoded


def differing(pod: Pod, other: Pod) -> set[str]:
    return {field.name for field in fields(pod) if getattr(pod, field.name) != getattr(other, field.name)}


def is_wrong(observed: ObservedPod, fresh: ObservedPod) -> bool:
    changed = differing(observed.pod, fresh.pod)
    if replace(observed, pod=fresh.pod) != fresh:
        return True
    if not fresh.finished and (fresh.node is not None or fresh.nominated_node is not None):
        return bool(changed)
    kept, pod = observed.pod, fresh.pod
    is_over = DecisionCost(pod).operations(0, BUDGET) > BUDGET or len(pod.gates) > GATES_MAX
    has_much = len(pod.labels) + len(pod.annotations) > METADATA_MAX
    metadata = (kept.labels, kept.annotations)
    if metadata != (({}, {}) if has_much else (pod.labels, pod.annotations)):
        return True
    if bool(kept.too_large) != (is_over or has_much) or changed & set(ALWAYS_KEPT):
        return True
    if is_over:
        return bool(kept.gates if len(pod.gates) > GATES_MAX else kept.gates != pod.gates)
    return not changed <= ({"labels", "annotations", "too_large"} if has_much else set())


@patch.object(large_pods, "_METADATA_MAX", METADATA_MAX)
@patch.object(large_pods, "_GATES_MAX", GATES_MAX)
def wrong_versions(seeds: range) -> list[int]:
    wrong = []
    for seed in seeds:
        rng, decoded = Random(seed), None
        obj = large(rng.choice(sorted(SPECS)))
        obj["status"] = {}
        for _ in range(12):
            obj = copy.deepcopy(obj)
            if rng.random() < 0.2:
                obj["spec"]["schedulingGates"] = [{"name": f"g{i}"} for i in range(rng.randrange(4))]
            if rng.random() < 0.2:
                obj["status"]["nominatedNodeName"] = rng.choice(("", "a"))
            observed, decoded = decode(obj, decoded)
            if is_wrong(observed, decode_pod(obj)):
                wrong.append(seed)
            edit(obj, rng)
    return wrong


def test_in_every_history_a_pod_with_a_node_counts_whole() -> None:
    assert wrong_versions(range(60)) == []


def without_second_decoding(decode: Callable[..., Any], before: Any, budget: int) -> Any:
    return _real(lambda given: decode(before if given is None else given), before, budget)


_real = large_pods.decode_without_unread_items


def test_a_pod_that_is_kept_whole_is_found() -> None:
    with patch.object(DecisionCost, "over_budget_message", lambda *_: None):
        assert wrong_versions(range(200))


def test_a_pod_that_gets_a_node_without_the_items_of_its_earlier_version_is_found() -> None:
    with patch("policysched.kube.watch.resources.decode_without_unread_items", without_second_decoding):
        assert wrong_versions(range(200))


@pytest.mark.parametrize("field", ["labels", "annotations", "gates"])
def test_thousands_of_labels_annotations_and_gates_are_not_kept_either(field: str) -> None:
    texts = {f"k{i}": "" for i in range(5_000)}
    obj = pod_manifest("big", **{field: texts}) | {"status": {}}

    observed, decoded = decode(obj, None, DECISION_BUDGET_DEFAULT)

    assert observed.pod.too_large.startswith("the pod has more than 4096 ")
    assert not getattr(observed.pod, field)
    assert decoded.pod is observed.pod, "the reflector keeps no other"  # type: ignore[attr-defined]
    small, _ = decode(pod_manifest("big") | {"status": {}}, decoded, DECISION_BUDGET_DEFAULT)
    assert small == decode_pod(pod_manifest("big"))


@pytest.mark.parametrize("kind", sorted(HOSTILE_SPECS))
def test_a_pod_that_no_cluster_decides_about_is_kept_without_its_items(kind: str) -> None:
    obj = pod_manifest("big", namespace="tenant", labels={"app": "a"}) | {"status": {}}
    obj["spec"] |= HOSTILE_SPECS[kind](2_500)
    small = decode_pod(pod_manifest("big", namespace="tenant", labels={"app": "a"})).pod

    observed, decoded = decode(obj, None, DECISION_BUDGET_DEFAULT)

    assert differing(observed.pod, small) <= {
        "too_large",
        "images",
        "scoring_requests",
        "scoring_requests_placed",
    }
    assert decoded.pod is observed.pod, "the reflector keeps no other"  # type: ignore[attr-defined]
    obj["spec"]["nodeName"] = "a"
    placed, placed_decoded = decode(obj, decoded, DECISION_BUDGET_DEFAULT)
    assert placed == decode_pod(obj)
    obj["status"]["phase"] = "Failed"
    ended, _ = decode(obj, placed_decoded, DECISION_BUDGET_DEFAULT)
    assert ended.pod == observed.pod


def test_a_pod_that_no_cluster_decides_about_stays_pending_and_says_why() -> None:
    obj = pod_manifest("big", namespace="tenant")
    obj["spec"] |= HOSTILE_SPECS["tolerations"](2_500)
    observed, _ = decode(obj, None, DECISION_BUDGET_DEFAULT)
    rig = Rig(FIT, node("a"))

    rig.handle(PodUpdated(observed))
    rig.settle()

    assert rig.scheduler.core.pods[observed.pod.uid].pending_message == (
        "evaluating this pod exceeds the budget of 2000000 operations for a decision, mostly by its 25000 tolerations "
        "(settings: scheduling.decision_budget)"
    )

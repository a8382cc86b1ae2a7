"""Pods with thousands of items: those that no cluster decides about are kept without them, and counted whole once they have a node."""

import copy
from collections.abc import Callable
from dataclasses import fields, replace
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

from policysched.evaluate.decision_cost import DECISION_BUDGET_DEFAULT, DecisionCost
from policysched.kube.decode import first_items, large_pods, pod_updates
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
METADATA_MAX, GATES_MAX = 1, 2
NO_ITEMS = {"dropped", "too_large", "host_port_numbers"}
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
    kept, pod = observed.pod, fresh.pod
    changed = differing(kept, pod)
    if replace(observed, pod=pod) != fresh or changed & set(ALWAYS_KEPT):
        return True
    if kept.dropped != changed - NO_ITEMS:
        return True
    is_over = DecisionCost(pod).operations(0, BUDGET) > BUDGET
    has_gates, has_much = len(pod.gates) > GATES_MAX, has_much_metadata(pod)
    if not fresh.finished and (fresh.node or fresh.nominated_node):
        if not fresh.node and not (is_over or has_gates or has_much):
            return bool(changed)
        return counts_wrongly(kept, pod, is_over)
    metadata = (kept.labels, kept.annotations)
    if metadata != (({}, {}) if has_much else (pod.labels, pod.annotations)):
        return True
    if bool(kept.too_large) != (is_over or has_gates or has_much):
        return True
    if is_over or has_gates:
        return bool(kept.gates if has_gates else kept.gates != pod.gates)
    return not changed <= ({"labels", "annotations"} | NO_ITEMS if has_much else set())


def has_much_metadata(pod: Pod) -> bool:
    return max(len(pod.labels), len(pod.annotations)) > METADATA_MAX


def counted_items(pod: Pod) -> int:
    ports = () if pod.host_port_numbers else pod.host_ports
    return sum(map(len, (pod.requests, ports, pod.claims, pod.disks, pod.mounts)))


def has_all_ports(kept: Pod, pod: Pod) -> bool:
    if kept.host_ports:
        return kept.host_ports == pod.host_ports
    numbers = {each.protocol: each for each in kept.host_port_numbers}
    return all(port.protocol in numbers and port.port in numbers[port.protocol] for port in pod.host_ports)


def counts_wrongly(kept: Pod, pod: Pod, is_over: bool) -> bool:
    """Whether others would see anything else than the pod, or its first items as far as the budget allows."""
    changed, has_much = differing(kept, pod), has_much_metadata(pod)
    if bool(kept.too_large) != (is_over or has_much) or DecisionCost(kept).operations(0, BUDGET) > BUDGET:
        return True
    for name in ("labels", "annotations"):
        if getattr(kept, name) != dict([*getattr(pod, name).items()][:METADATA_MAX]):
            return True
    for name in ("claims", "disks", "mounts"):
        items = getattr(kept, name)
        if items != getattr(pod, name)[: len(items)]:
            return True
    if not has_all_ports(kept, pod):
        return True
    counted = counted_items(pod) - (len(pod.host_ports) if kept.host_port_numbers else 0)
    if counted_items(kept) < min(counted, BUDGET // 1_000):
        return True
    if not kept.requests.items() <= pod.requests.items() or ("cpu" in pod.requests) != (
        "cpu" in kept.requests
    ):
        return True
    return not is_over and not changed <= {"labels", "annotations"} | NO_ITEMS


@patch.object(large_pods, "_METADATA_MAX", METADATA_MAX)
@patch.object(large_pods, "_GATES_MAX", GATES_MAX)
@patch.object(large_pods, "_COUNTED_PART", 1)
@patch.object(pod_updates, "LONG_SPEC_BYTES", 0)
def wrong_versions(seeds: range) -> list[int]:
    wrong = []
    for seed in seeds:
        rng, decoded = Random(seed), None
        obj = large(rng.choice(sorted(SPECS)), rng.choice((4, 9)))
        obj["status"] = {}
        for _ in range(12):
            obj = copy.deepcopy(obj)
            if rng.random() < 0.2:
                obj["spec"]["schedulingGates"] = [{"name": f"g{i}"} for i in range(rng.randrange(4))]
            if rng.random() < 0.2:
                obj["status"]["nominatedNodeName"] = rng.choice(("", "a"))
            observed, decoded = decode(obj, decoded)
            anew, _ = decode(obj, None)
            if observed != anew or is_wrong(observed, decode_pod(obj)):
                wrong.append(seed)
            edit(obj, rng)
    return wrong


def test_in_every_history_a_pod_is_kept_as_if_it_were_new_and_counts_within_the_budget() -> None:
    assert wrong_versions(range(60)) == []


def without_second_decoding(decode: Callable[..., Any], before: Any, budget: int, resources: Any) -> Any:
    return _real(lambda given: decode(before if given is None else given), before, budget, resources)


_real = large_pods.decode_without_unread_items


def test_a_pod_that_is_kept_whole_is_found() -> None:
    with patch.object(DecisionCost, "over_budget_message", lambda *_: None):
        assert wrong_versions(range(200))


def test_a_pod_on_a_node_that_is_kept_whole_is_found() -> None:
    with patch.object(large_pods, "_without_uncounted_items", lambda *_: {}):
        assert wrong_versions(range(200))


@pytest.mark.parametrize("part", ["_items", "_volumes", "_terms", "_node_terms"])
def test_an_item_too_few_that_is_decoded_is_found(part: str) -> None:
    """A pod just over the limit would count as if it were within it."""
    leave = getattr(first_items._FirstItems, part)
    with patch.object(first_items._FirstItems, part, lambda self, items: leave(self, items)[:3]):
        assert wrong_versions(range(300))


def test_a_pod_that_gets_a_node_without_the_items_of_its_earlier_version_is_found() -> None:
    with patch.object(large_pods, "decode_without_unread_items", without_second_decoding):
        assert wrong_versions(range(200))


@pytest.mark.parametrize("field", ["labels", "annotations", "gates"])
def test_hundreds_of_labels_and_annotations_and_thousands_of_gates_are_not_kept_either(field: str) -> None:
    limit = 4096 if field == "gates" else 256
    texts = {f"k{i}": "" for i in range(limit + 1)}
    obj = pod_manifest("big", **{field: texts}) | {"status": {}}

    observed, decoded = decode(obj, None, DECISION_BUDGET_DEFAULT)

    assert observed.pod.too_large.startswith(f"the pod has more than {limit} ")
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
        *NO_ITEMS,
        "images",
        "scoring_requests",
        "scoring_requests_placed",
    }
    assert decoded.pod is observed.pod, "the reflector keeps no other"  # type: ignore[attr-defined]
    obj["spec"]["nodeName"] = "a"
    placed, placed_decoded = decode(obj, decoded, DECISION_BUDGET_DEFAULT)
    assert placed == decode(obj, None, DECISION_BUDGET_DEFAULT)[0]
    obj["status"]["phase"] = "Failed"
    ended, _ = decode(obj, placed_decoded, DECISION_BUDGET_DEFAULT)
    assert differing(ended.pod, observed.pod) <= {"too_large"}


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

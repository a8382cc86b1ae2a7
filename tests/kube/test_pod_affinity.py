"""Affinity between pods and spreading, from JSON."""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch
from weakref import ref

import pytest

from policysched.evaluate.columns.placed_pods import PlacedPods
from policysched.kube.decode.errors import MalformedObject
from policysched.kube.decode.pods import decode_pod
from policysched.model.affinity import PodAffinity, PodAffinityTerm
from policysched.model.pods import Pod
from policysched.model.selectors import LabelSelector, SelectorRequirement
from tests.builders import pod_manifest

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
WEB = {"matchLabels": {"app": "web"}}


def read(labels: dict[str, str] | None = None, **spec: Any) -> Pod:
    return decode_pod(pod_manifest("p", namespace="ns", labels=labels or {}, spec=spec)).pod


def with_term(**term: Any) -> dict[str, Any]:
    return {"affinity": {"podAffinity": {REQUIRED: [{"topologyKey": "zone", **term}]}}}


def test_a_term_without_namespaces_means_the_pods_namespace() -> None:
    def scope(**term: Any) -> tuple[tuple[str, ...], LabelSelector | None]:
        affinity = read(**with_term(labelSelector=WEB, **term)).pod_affinity
        assert affinity is not None
        (required,) = affinity.required
        return required.pods.namespaces, required.pods.namespace_selector

    assert scope() == (("ns",), None)
    assert scope(namespaces=["a", "b"]) == (("a", "b"), None)
    assert scope(namespaceSelector={}) == ((), LabelSelector(()))
    assert scope(namespaces=["a"], namespaceSelector={}) == (("a",), LabelSelector(()))


def test_label_keys_become_requirements_once() -> None:
    labels = {"app": "web", "rev": "7"}
    stored = {"matchExpressions": [{"key": "rev", "operator": "In", "values": ["6"]}]}

    def requirements(**term: Any) -> tuple[SelectorRequirement, ...]:
        affinity = read(labels, **with_term(**term)).pod_affinity
        assert affinity is not None and affinity.required[0].pods.label_selector is not None
        return affinity.required[0].pods.label_selector.requirements

    rev_7, not_7 = SelectorRequirement("rev", "In", ("7",)), SelectorRequirement("rev", "NotIn", ("7",))
    assert requirements(labelSelector={}, matchLabelKeys=["rev", "absent"]) == (rev_7,)
    assert requirements(labelSelector={}, mismatchLabelKeys=["rev"]) == (not_7,)
    # What the API server wrote into the selector when the pod was created stays what it was.
    assert requirements(labelSelector=stored, matchLabelKeys=["rev"]) == (
        SelectorRequirement("rev", "In", ("6",)),
    )


def test_preferred_anti_affinity_has_negative_weights() -> None:
    preferred = [{"weight": 30, "podAffinityTerm": {"topologyKey": "zone", "labelSelector": WEB}}]

    pod = read(affinity={"podAffinity": {PREFERRED: preferred}, "podAntiAffinity": {PREFERRED: preferred}})

    assert pod.pod_affinity is not None
    assert [term.weight for term in pod.pod_affinity.preferred] == [30, -30]


def test_a_constraint_has_the_apis_defaults() -> None:
    least = {"topologyKey": "zone", "maxSkew": 2, "whenUnsatisfiable": "ScheduleAnyway"}

    (constraint,) = read(topologySpreadConstraints=[least]).spread

    assert (constraint.max_skew, constraint.min_domains, constraint.hard, constraint.label_selector) == (
        2,
        1,
        False,
        None,
    )
    assert (constraint.honors_affinity, constraint.honors_taints, constraint.selects_itself) == (
        True,
        False,
        False,
    )


def test_a_constraint_that_selects_its_own_pod_is_marked() -> None:
    constraint = {"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
    by_label = {**constraint, "labelSelector": WEB}
    by_key = {**constraint, "labelSelector": {}, "matchLabelKeys": ["app"]}

    assert [
        constraint.selects_itself
        for constraint in read({"app": "web"}, topologySpreadConstraints=[by_label]).spread
    ] == [True]
    assert [
        constraint.selects_itself
        for constraint in read({"app": "db"}, topologySpreadConstraints=[by_label]).spread
    ] == [False]
    assert [
        constraint.selects_itself
        for constraint in read({"app": "db"}, topologySpreadConstraints=[by_key]).spread
    ] == [True]


def test_an_affinity_without_terms_is_none() -> None:
    assert read(affinity={"podAffinity": {}, "podAntiAffinity": {REQUIRED: []}}).pod_affinity is None


@pytest.mark.parametrize(
    "spec",
    [
        with_term(labelSelector={"matchExpressions": [{"key": "app", "operator": "Gt", "values": ["1"]}]}),
        {"topologySpreadConstraints": [{"topologyKey": "z", "maxSkew": 1, "whenUnsatisfiable": "Perhaps"}]},
        {"topologySpreadConstraints": [{"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}]},
    ],
)
def test_values_that_the_api_server_rejects_are_malformed(spec: dict[str, Any]) -> None:
    with pytest.raises(MalformedObject):
        read(**spec)


TERMS = 1_000


def with_many_terms(namespace: str = "ns") -> Pod:
    term = {"topologyKey": "zone", "labelSelector": WEB}
    spec = {
        "affinity": {"podAntiAffinity": {REQUIRED: [{**term, "topologyKey": f"k{i}"} for i in range(TERMS)]}}
    }
    return decode_pod(pod_manifest("p", namespace=namespace, spec=spec)).pod


def terms_compared(act: Callable[[], object]) -> int:
    compared = 0
    equal = PodAffinityTerm.__eq__

    def counting(self: PodAffinityTerm, other: object) -> bool:
        nonlocal compared
        compared += 1
        return equal(self, other)

    with patch.object(PodAffinityTerm, "__eq__", counting):
        act()
    return compared


def compared_when_equal_pods_are_counted() -> int:
    placed_pods = PlacedPods({}, 1, ())
    pods = [with_many_terms(), with_many_terms()]
    return terms_compared(lambda: [placed_pods.adjust(0, pod, 1) for pod in pods])


def test_counting_equal_pods_compares_none_of_their_terms() -> None:
    assert compared_when_equal_pods_are_counted() == 0


def test_planted_bug_each_pod_has_an_affinity_of_its_own_is_caught() -> None:
    with patch.object(PodAffinity, "shared", lambda self: self):
        assert compared_when_equal_pods_are_counted() == TERMS


def test_an_affinity_is_released_with_the_last_pod_that_has_it() -> None:
    pod = with_many_terms(namespace="released")
    affinity = pod.pod_affinity
    assert affinity is not None and with_many_terms(namespace="released").pod_affinity is affinity
    assert with_many_terms(namespace="other").pod_affinity is not affinity
    reference = ref(affinity)
    del pod, affinity
    assert reference() is None

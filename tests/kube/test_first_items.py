"""Of the lists of a pod that is not kept whole, few items are decoded, however many there are."""

from typing import Any
from unittest.mock import patch

import pytest

from policysched.evaluate.decision_cost import DECISION_BUDGET_DEFAULT
from policysched.kube.decode import pod_affinity
from policysched.kube.decode.first_items import with_first_items
from policysched.kube.decode.pods import decode_pod
from tests.builders import pod_manifest
from tests.hostile import HOST, HOSTILE_SPECS, anti_affinity
from tests.kube.test_large_pods_on_nodes import kept_pod, on_a_node

Json = dict[str, Any]
OPERATIONS_MAX = DECISION_BUDGET_DEFAULT // 4


def _values(count: int) -> Json:
    requirement = {"key": "app", "operator": "In", "values": [f"v{number}" for number in range(count)]}
    return anti_affinity([{"topologyKey": HOST, "labelSelector": {"matchExpressions": [requirement]}}])


def _monitors(count: int) -> Json:
    monitors = [f"m{number}" for number in range(count)]
    return {"volumes": [{"name": "v", "rbd": {"image": "i", "monitors": monitors}}]}


SPECS = {
    **{kind: spec for kind, spec in HOSTILE_SPECS.items() if kind != "host ports"},  # all of which count
    "values of a term": _values,
    "monitors of a disk": _monitors,
}


@pytest.mark.parametrize("kind", sorted(SPECS))
def test_as_many_items_are_left_whatever_their_number(kind: str) -> None:
    few, many = (
        with_first_items(on_a_node(SPECS[kind](count)), OPERATIONS_MAX, ()) for count in (6_000, 9_000)
    )

    assert few == many


def test_few_terms_of_a_pod_on_a_node_are_decoded() -> None:
    with patch.object(pod_affinity, "_term", wraps=pod_affinity._term) as decode_term:
        kept_pod(on_a_node(HOSTILE_SPECS["anti-affinity by host that selects nothing"](5_000)))

    assert decode_term.call_count <= 501


@pytest.mark.parametrize("kind", sorted(SPECS))
def test_a_pod_within_the_limit_is_left_whole(kind: str) -> None:
    obj = on_a_node(SPECS[kind](16 if kind == "tolerations" else 160))

    assert with_first_items(obj, OPERATIONS_MAX, ()) == obj


def test_resources_that_nodes_have_are_left() -> None:
    spec = HOSTILE_SPECS["resources"](5_000)
    spec["containers"][0]["resources"]["requests"] |= {"memory": "3", "gpu": "7"}

    short = with_first_items(on_a_node(spec), OPERATIONS_MAX, ("gpu",))

    requests = decode_pod(short).pod.requests
    assert (len(requests), requests["gpu"], requests["memory"]) == (503, 7, 3)


def test_a_pod_that_waits_for_a_node_says_how_many_items_it_has() -> None:
    pod = kept_pod({**pod_manifest("big", spec=HOSTILE_SPECS["volume claims"](5_000)), "status": {}})

    assert "5000 volumes" in pod.too_large

"""Features that pods require, and nodes that declare them."""

from typing import Any

import pytest

from policysched.model.cluster_events import ClusterEvent
from policysched.model.pods import QueuedPodInfo
from tests.builders import node, pod, world
from tests.reference import evaluate
from tests.reference.checked import program

RESTARTS, USERS = "RestartAllContainersOnContainerExits", "UserNamespacesHostNetworkSupport"
RULE = {
    "restartPolicyRules": [
        {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}
    ]
}
KIND = {"name": "c", "image": "app:1"}


@pytest.mark.parametrize(
    ("spec", "needs"),
    [
        ({"containers": [{**KIND, **RULE}]}, {RESTARTS}),
        ({"initContainers": [{**KIND, **RULE}]}, {RESTARTS}),
        ({"containers": [{**KIND, "restartPolicyRules": [{"action": "Restart"}]}]}, set()),
        ({"hostNetwork": True, "hostUsers": False}, {USERS}),
        ({"hostNetwork": True, "hostUsers": True}, set()),
        ({"hostNetwork": True}, set()),
        ({"hostUsers": False}, set()),
        ({"hostNetwork": True, "hostUsers": False, "containers": [{**KIND, **RULE}]}, {RESTARTS, USERS}),
    ],
)
def test_required_features_are_derived_from_the_spec(spec: dict[str, Any], needs: set[str]) -> None:
    assert pod(spec=spec).required_features == needs


def test_a_pod_fits_only_nodes_that_declare_all_required_features() -> None:
    cache = world([node("all", features=[RESTARTS, USERS]), node("some", features=[USERS]), node("none")])
    spec = {"hostNetwork": True, "hostUsers": False, "containers": [{**KIND, **RULE}]}

    policy = program("filter node_declared_features")

    explanation = evaluate(policy, pod(spec=spec), cache, now_ns=0, facts=QueuedPodInfo(0, 0))

    assert explanation.feasible == ("all",)
    words = ("node(s) didn't match Pod's required features",)
    assert {name: rejections[0].reasons for name, rejections in explanation.rejections.items()} == {
        "some": words,
        "none": words,
    }
    assert not any(rejections[0].resolvable for rejections in explanation.rejections.values())


def test_a_newly_declared_feature_causes_an_event() -> None:
    cache = world([node("a")])

    assert cache.put_node(node("a", features=[USERS])) == {ClusterEvent.NODE_FEATURE}

"""Which pods need something of the kubelet, and which nodes have it."""

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
def test_what_a_pod_needs_is_read_from_its_spec(spec: dict[str, Any], needs: set[str]) -> None:
    assert pod(spec=spec).required_features == needs


def test_a_pod_goes_only_where_the_kubelet_declares_all_that_it_needs() -> None:
    cache = world([node("all", features=[RESTARTS, USERS]), node("some", features=[USERS]), node("none")])
    both = {"hostNetwork": True, "hostUsers": False, "containers": [{**KIND, **RULE}]}

    policy = program("filter node_declared_features")

    found = evaluate(policy, pod(spec=both), cache, now_ns=0, facts=QueuedPodInfo(0, 0))

    assert found.feasible == ("all",)
    words = ("node(s) didn't match Pod's required features",)
    assert {name: one[0].reasons for name, one in found.refusals.items()} == {"some": words, "none": words}
    assert not any(one[0].resolvable for one in found.refusals.values())


def test_a_kubelet_that_declares_more_is_an_event() -> None:
    cache = world([node("a")])

    assert cache.put_node(node("a", features=[USERS])) == {ClusterEvent.NODE_FEATURE}

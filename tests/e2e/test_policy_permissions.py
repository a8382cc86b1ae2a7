"""What the operator's settings allow policies to do, on a real control plane."""

from pathlib import Path

from tests.controlplane.cluster import ControlPlane
from tests.controlplane.objects import pod, ready_node
from tests.controlplane.waiting import wait_for
from tests.e2e.deployed import PLAIN, PODS, Deployed

SERVES_ML = {
    "policy_permissions": {"policies_allowed": [{"name": "test", "namespace_labels": {"team": "ml"}}]}
}


def test_a_policy_places_pods_only_in_the_namespaces_that_it_serves(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    deployed = Deployed(control_plane, tmp_path)
    deployed.control_plane.add_node(ready_node("a"))
    deployed.put_policies(main=PLAIN, taken=PLAIN.replace("policy test", "policy default-scheduler"))
    deployed.kubectl("create", "namespace", "ml")
    deployed.kubectl("label", "namespace", "ml", "team=ml")
    deployed.kubectl("create", "serviceaccount", "default", "--namespace", "ml")
    ml_pods = PODS.replace("/default/", "/ml/")

    with deployed.running(settings=SERVES_ML) as running:
        deployed.create("refused")
        deployed.create("plain", scheduler="default-scheduler")
        deployed.api.post(ml_pods, pod("served", schedulerName="test"))
        wait_for(
            lambda: deployed.api.get(f"{ml_pods}/served")["spec"].get("nodeName"), "pod served to be bound"
        )
        event = deployed.event("refused", "FailedScheduling")
        condition = deployed.condition("refused")
        rejected = deployed.event("policies", "PolicyRejected")
        states = (running.state_of("test"), running.state_of("default-scheduler"))
        before = (deployed.node_of("refused"), deployed.node_of("plain"))

        deployed.kubectl("label", "namespace", "default", "team=ml")

        deployed.bound("refused")

    reason = (
        "policy test does not serve namespace default: the settings (policy_permissions.policies_allowed) let it "
        "serve all namespaces with the label team=ml"
    )
    assert (event["note"], condition["message"], condition["reason"]) == (reason, reason, "PolicyPending")
    assert rejected["note"].startswith("taken.policy:1:8 PS908 ")
    assert states == ("active", "rejected")
    assert before == ("", "")

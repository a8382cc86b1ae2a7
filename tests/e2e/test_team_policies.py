"""Policies that teams own, on a real control plane: a team with rights on one ConfigMap of its namespace."""

import json
from pathlib import Path

import yaml

from tests.controlplane.cluster import ControlPlane
from tests.controlplane.objects import pod, ready_node
from tests.controlplane.waiting import wait_for
from tests.e2e.deployed import DEPLOY, NAMESPACE, PODS, Deployed
from tests.e2e.permissions import Permission, allowed, granted, wait_until_allowed
from tests.e2e.program import kubectl

BASE = """library base version 1
include kube_default
replace locked filter node_resources_fit
locked param most: int = 100 range 1..110
locked filter crowded require node.pods < most
"""
OPERATOR = 'policy main version 1\ninclude "base.policy"\n'
TEAM = 'policy ml-batch version 1\ninclude "base.policy"\nfilter pool require node.name == "{node}"\n'
SETTINGS = {
    "policy_permissions": {
        "policies_allowed": [
            {"name": "*"},
            {"name": "ml-*", "owner": "ml"},
            {"name": "web-*", "owner": "web"},
        ]
    },
    "team_policies": {"required_base": "base.policy"},
}


class Team:
    """The ServiceAccount `author` of a namespace: it may edit the ConfigMap of its policies, and nothing else."""

    def __init__(self, deployed: Deployed, namespace: str) -> None:
        self._namespace = namespace
        admin = deployed.kubectl
        admin("create", "namespace", namespace)
        for account in ("default", "author"):
            admin("create", "serviceaccount", account, "-n", namespace)
        admin("create", "configmap", "policysched-policies", "-n", namespace)
        subject = f"--serviceaccount={namespace}:author"
        role = "--clusterrole=policysched-policy-author"
        admin("create", "rolebinding", "authors", role, subject, "-n", namespace)
        self._kubeconfig = deployed.control_plane.service_account_kubeconfig(namespace, "author")
        edit = Permission("", "configmaps", "patch", namespace, "policysched-policies")
        wait_until_allowed(deployed.api, f"{namespace}:author", [edit])

    def put(self, **texts: str) -> None:
        """As the author, replaces the keys `NAME.policy`."""
        patch = json.dumps({"data": {f"{name}.policy": text for name, text in texts.items()}})
        command = ("patch", "configmap", "policysched-policies", "--type=merge", "-p", patch)
        kubectl(self._kubeconfig, *command, "-n", self._namespace)


def test_a_team_edits_its_own_policy_and_no_other(control_plane: ControlPlane, tmp_path: Path) -> None:
    deployed = Deployed(control_plane, tmp_path)
    for name in ("a", "b"):
        control_plane.add_node(ready_node(name))
    component = (DEPLOY / "team-policies" / "rbac.yaml").read_text()
    deployed.kubectl("apply", "-f", "-", stdin=component)
    scheduler = next(
        rule
        for rule in yaml.safe_load_all(component)
        if rule["metadata"]["name"] == "policysched-team-policies"
    )
    account = f"{NAMESPACE}:policysched"
    wait_until_allowed(deployed.api, account, granted([scheduler]))
    other_config_map = Permission("", "configmaps", "list", "", "secrets-of-others")
    assert not allowed(deployed.api, account, other_config_map)
    deployed.put_policies(base=BASE, main=OPERATOR)
    ml, web = Team(deployed, "ml"), Team(deployed, "web")
    ml_pods = PODS.replace("/default/", "/ml/")

    def node_of(name: str) -> str:
        node: str = deployed.api.get(f"{ml_pods}/{name}")["spec"].get("nodeName", "")
        return node

    with deployed.running(settings=SETTINGS) as running:
        web.put(theirs=TEAM.format(node="a"), broken="policy web-a version 1\n")
        ml.put(batch=TEAM.format(node="a"))
        wait_for(lambda: running.state_of("ml-batch") == "active", "the team's policy to be active")
        deployed.api.post(ml_pods, pod("first", schedulerName="ml-batch"))
        wait_for(lambda: node_of("first") == "a", "the pod to be where the team's policy says")
        deployed.create("foreign", scheduler="ml-batch")
        refusal = deployed.condition("foreign")["message"]

        ml.put(batch=TEAM.format(node="b"))
        wait_for(lambda: 'node.name == "b"' in deployed.last_good().get("ml-batch.policy", ""), "the edit")
        deployed.api.post(ml_pods, pod("second", schedulerName="ml-batch"))
        wait_for(lambda: node_of("second") == "b", "the pod to be where the edited policy says")

        ml.put(batch=TEAM.format(node="a") + "drop crowded\n")
        locked = deployed.events("policysched-policies", "PolicyRejected")
        wait_for(
            lambda: [
                event
                for event in deployed.events("policysched-policies", "PolicyRejected")
                if event["regarding"]["namespace"] == "ml"
            ],
            "the event to the team",
        )
        locked = deployed.events("policysched-policies", "PolicyRejected")
        deployed.api.post(ml_pods, pod("third", schedulerName="ml-batch"))
        wait_for(lambda: node_of("third") == "b", "the last known good text to place the pod")
        deployed.create("operators", scheduler="main")
        deployed.bound("operators")
        states = [running.state_of(name) for name in ("main", "ml-batch")]

    notes = {(event["regarding"]["namespace"], event["note"].split()[1]) for event in locked}
    assert notes == {("ml", "PS230"), ("web", "PS910"), ("web", "PS912")}
    assert "namespace ml owns it" in refusal
    assert states == ["active", "last_known_good"]
    assert not deployed.events("policies", "PolicyRejected"), (
        "nobody's error reaches the operator's ConfigMap"
    )

"""What the policy ranks first is bound first on a real control plane, also while everything backs off."""

from pathlib import Path

import pytest

from tests.controlplane.cluster import ControlPlane
from tests.controlplane.objects import ready_node
from tests.e2e.deployed import DEPLOY, Deployed

BY_RANK = """\
policy test version 1
input rank: int = pod.labels["rank"] default 0 invalid default
queue by rank
include kube_default
"""
SLOW = {"scheduling": {"backoff_initial_s": 8}}


@pytest.fixture
def cordoned(control_plane: ControlPlane, tmp_path: Path) -> Deployed:
    """One node with 4 cpu, cordoned."""
    deployed = Deployed(control_plane, tmp_path)
    control_plane.add_node(ready_node("a", cpu="4"))
    deployed.kubectl("cordon", "a")
    return deployed


@pytest.mark.parametrize("first", ["behind", "ahead"])
def test_of_two_pods_that_back_off_the_one_with_the_lower_rank_gets_the_node(
    cordoned: Deployed, first: str
) -> None:
    """They request different amounts, so they do not share one attempt."""
    cordoned.put_policies(main=BY_RANK)
    pods = {"ahead": ("100", "2900m"), "behind": ("500", "3")}

    with cordoned.running(settings=SLOW):
        for name in sorted(pods, key=lambda name: name != first):
            rank, cpu = pods[name]
            cordoned.create(name, cpu=cpu, labels={"rank": rank})
            cordoned.event(name, "FailedScheduling")
        cordoned.kubectl("uncordon", "a")
        cordoned.bound("ahead")
        reason = cordoned.condition("behind")["message"]

    assert cordoned.node_of("behind") == ""
    assert reason.startswith("0/1 nodes are available: 1 ")


def test_of_two_riya_groups_that_back_off_the_one_of_higher_priority_gets_the_node(
    cordoned: Deployed,
) -> None:
    riya = (DEPLOY.parent / "policies" / "riya.policy").read_text()
    cordoned.put_policies(riya=riya)
    groups = {"low": ("1", "1500m"), "high": ("9", "1600m")}

    with cordoned.running():
        for group, (priority, cpu) in groups.items():
            labels = {"podGroup": group, "minAvailable": "2", "groupPriority": priority}
            for number in range(2):
                cordoned.create(f"{group}-{number}", scheduler="riya", cpu=cpu, labels=labels)
            cordoned.event(f"{group}-0", "FailedScheduling")
        cordoned.event("high-1", "FailedScheduling")
        cordoned.kubectl("uncordon", "a")
        for number in range(2):
            cordoned.bound(f"high-{number}")

    assert [cordoned.node_of(f"low-{number}") for number in range(2)] == ["", ""]

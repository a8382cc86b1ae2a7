"""Gangs in topology levels, gangs as victims, refused binds of members, and quotas that lend, on a real control plane."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from tests.controlplane.api import Json
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.objects import ready_node
from tests.controlplane.waiting import wait_for
from tests.e2e.deployed import PODS, Deployed, refused

ADMISSION = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
RANK = "batch.kubernetes.io/job-completion-index"
LEVELS = """\
policy test version 1
include kube_default
gang by pod.labels["gang"] {
  min = 8
  timeout = 10m
  topology = ["example.com/zone" required, "example.com/rack" preferred]
}
"""
VICTIMS = """\
policy test version 1
include kube_default
gang by pod.labels["gang"] { min = 4  timeout = 10m }
"""
WHOLE = """\
policy test version 1
include kube_default
gang by pod.labels["gang"] {{ min = 3  timeout = 10m  on_bind_failure = {on_bind_failure} }}
"""
TEAMS = """\
policy test version 1
include kube_default
input team: string = pod.labels["team"] default "none"
quota team by team {
  "red" { cpu = 2 borrow 2 }
  "blue" { cpu = 2 borrow 2 }
  others { cpu = 0 }
}
queue by pod.quota_share.team, pod.priority desc, pod.queued
"""


@pytest.fixture
def deployed(control_plane: ControlPlane, tmp_path: Path) -> Deployed:
    return Deployed(control_plane, tmp_path)


# ── topology ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_neighbours_in_rank_are_neighbours_in_topology(deployed: Deployed) -> None:
    """Zone z1 has more room in single nodes and not enough of it; in z2 two racks take four members each."""
    for index, name in enumerate(("a1", "a2")):
        rack = {"example.com/zone": "z1", "example.com/rack": f"z1-r{index}"}
        deployed.control_plane.add_node(ready_node(name, cpu="3", labels=rack))
    for index, name in enumerate(("b1", "b2", "b3", "b4")):
        rack = {"example.com/zone": "z2", "example.com/rack": f"z2-r{index % 2}"}
        deployed.control_plane.add_node(ready_node(name, cpu="2", labels=rack))
    deployed.put_policies(main=LEVELS)

    with deployed.running() as program:
        program.wait_for_state("test", "active")
        for rank in (5, 2, 7, 0, 3, 6, 1, 4):  # created in no order of ranks
            deployed.create(f"w{rank}", cpu="1", labels={"gang": "train", RANK: str(rank)})
        deployed.all_bound(8)

    racks = {"b1": 0, "b3": 0, "b2": 1, "b4": 1}
    of_ranks = [racks[deployed.node_of(f"w{rank}")] for rank in range(8)]
    assert sum(first != second for first, second in pairwise(of_ranks)) == 1, of_ranks


# ── gangs as victims ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("members", "evicted_count"), [(4, 4), (5, 1)])
def test_a_gang_as_victim_is_evicted_whole_or_keeps_its_minimum(
    deployed: Deployed, members: int, evicted_count: int
) -> None:
    """The node is full of the gang, and a pod of higher priority needs the room of one member."""
    deployed.control_plane.add_node(ready_node("a", cpu=str(members)))
    deployed.put_policies(main=VICTIMS)

    with deployed.running() as program:
        program.wait_for_state("test", "active")
        for number in range(members):
            deployed.create(f"w{number}", cpu="1", labels={"gang": "train"})
        deployed.all_bound(members)
        deployed.create("urgent", cpu="1", priorityClassName="system-node-critical")
        deployed.bound("urgent")

    remaining = {item["metadata"]["name"] for item in deployed.pods()} - {"urgent"}
    evicted = {
        event["regarding"]["name"]
        for event in deployed.api.items("/apis/events.k8s.io/v1/events")
        if event["reason"] == "Preempted"
    }
    assert len(remaining) == members - evicted_count
    assert evicted == {f"w{number}" for number in range(members)} - remaining


# ── refused binds ────────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def binds_refused(deployed: Deployed, name: str) -> Iterator[None]:
    """The API server refuses each bind of the pod. In force when the block begins, and lifted at its end."""
    policy = {
        "metadata": {"name": "no-bind"},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "resourceRules": [
                    {
                        "apiGroups": [""],
                        "apiVersions": ["v1"],
                        "operations": ["CREATE"],
                        "resources": ["pods/binding"],
                    }
                ]
            },
            "validations": [{"expression": f"request.name != '{name}'", "message": "not this one"}],
        },
    }
    binding = {
        "metadata": {"name": "no-bind"},
        "spec": {"policyName": "no-bind", "validationActions": ["Deny"]},
    }
    deployed.api.post(ADMISSION, policy)
    deployed.api.post(f"{ADMISSION.removesuffix('ies')}ybindings", binding)

    def try_bind() -> str:
        """A bind in a dry run, of a pod that exists."""
        target = {"kind": "Node", "name": "a", "apiVersion": "v1"}
        body: Json = {"metadata": {"name": name}, "target": target}
        error = refused(lambda: deployed.api.post(f"{PODS}/{name}/binding", body, dryRun="All"))
        return "" if error is None else str(error)

    wait_for(lambda: "not this one" in try_bind(), "binds to be refused")
    try:
        yield
    finally:
        deployed.api.delete(f"{ADMISSION.removesuffix('ies')}ybindings/no-bind")
        deployed.api.delete(f"{ADMISSION}/no-bind")


@pytest.mark.parametrize("on_bind_failure", ["keep", "evict"])
def test_the_policy_says_what_happens_to_bound_members_when_a_bind_is_refused(
    deployed: Deployed, on_bind_failure: str
) -> None:
    deployed.control_plane.add_node(ready_node("a", cpu="4"))
    deployed.put_policies(main=WHOLE.format(on_bind_failure=on_bind_failure))
    deployed.create("w1", cpu="1", labels={"gang": "train"})

    with binds_refused(deployed, "w1"), deployed.running() as program:
        program.wait_for_state("test", "active")
        deployed.create("single", cpu="100m")
        deployed.bound(
            "single"
        )  # only now do binds of the namespace go out together, so that none waits and is withdrawn
        for name in ("w0", "w2"):
            deployed.create(name, cpu="1", labels={"gang": "train"})
        message = deployed.event("w1", "GangBindFailed")["note"]
        assert "not this one" in message
        if on_bind_failure == "keep":
            assert message.endswith("they keep their nodes")
            for name in ("w0", "w2"):
                deployed.bound(name)
        else:
            assert message.endswith("they are evicted")
            wait_for(lambda: len(deployed.pods()) == 2, "the evictions")
            assert [item["metadata"]["name"] for item in deployed.pods()] == ["single", "w1"]
    assert deployed.node_of("w1") == ""


def test_a_gang_that_kept_its_nodes_is_completed_once_the_bind_is_allowed(deployed: Deployed) -> None:
    deployed.control_plane.add_node(ready_node("a", cpu="4"))
    deployed.put_policies(main=WHOLE.format(on_bind_failure="keep"))
    deployed.create("w1", cpu="1", labels={"gang": "train"})

    with deployed.running() as program:
        program.wait_for_state("test", "active")
        with binds_refused(deployed, "w1"):
            for name in ("w0", "w2"):
                deployed.create(name, cpu="1", labels={"gang": "train"})
            deployed.event("w1", "GangBindFailed")
        deployed.all_bound(3)


# ── quotas ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def running(deployed: Deployed) -> dict[str, int]:
    """How many pods of each team are on a node and stay there."""
    counted = {"red": 0, "blue": 0}
    for item in deployed.pods():
        if item["spec"].get("nodeName") and "deletionTimestamp" not in item["metadata"]:
            counted[item["metadata"]["labels"]["team"]] += 1
    return counted


def waiting(deployed: Deployed, team: str) -> str:
    """The name of the only pod of the team that waits."""
    (name,) = [
        item["metadata"]["name"]
        for item in deployed.pods(labelSelector=f"team={team}")
        if not item["spec"].get("nodeName")
    ]
    return str(name)


def create_team(deployed: Deployed, team: str, count: int) -> None:
    for number in range(count):
        deployed.create(f"{team}-{number}", cpu="1", labels={"team": team})


def test_a_team_borrows_what_the_other_leaves_idle_and_gives_it_back(deployed: Deployed) -> None:
    """The node has room for all: only the quotas limit the teams."""
    deployed.control_plane.add_node(ready_node("a", cpu="16"))
    deployed.put_policies(main=TEAMS)

    with deployed.running() as program:
        program.wait_for_state("test", "active")
        create_team(deployed, "red", 5)
        wait_for(lambda: running(deployed) == {"red": 4, "blue": 0}, "red to run on what blue leaves idle")
        why_red = deployed.condition(waiting(deployed, "red"))
        create_team(deployed, "blue", 3)
        wait_for(lambda: running(deployed) == {"red": 2, "blue": 2}, "red to give back what it borrowed")
        why_blue = deployed.condition(waiting(deployed, "blue"))
        evicted = {
            event["regarding"]["name"]
            for event in deployed.api.items("/apis/events.k8s.io/v1/events")
            if event["reason"] == "Preempted"
        }
        quotas = program.json("/quotas")

    assert why_red["reason"] == "PolicyPending"
    assert why_red["message"].startswith(
        'waits for quota team "red": 4 of 4 cpu used (2 of its own, at most 2 borrowed), 1 cpu requested'
    )
    assert why_blue["reason"] == "PolicyPending"
    assert len(evicted) == 2 and all(name.startswith("red-") for name in evicted)
    used = {row["entity"][0]: row["resources"]["cpu"] for row in quotas["quotas"]}
    assert {team: (cpu["used"], cpu["borrowed"]) for team, cpu in used.items()} == {
        "red": ("2", "0"),
        "blue": ("2", "0"),
    }

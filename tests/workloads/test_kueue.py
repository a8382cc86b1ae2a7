"""What Kueue admits starts whole, and where its topology-aware scheduling says."""

from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.api import Json
from tests.controlplane.objects import pod
from tests.controlplane.programs import Programs
from tests.e2e.deployed import PODS
from tests.workloads.cluster import cluster
from tests.workloads.controllers import running_controllers
from tests.workloads.objects import (
    HOST,
    JOBS,
    QUEUE,
    RACK,
    REQUIRED_TOPOLOGY,
    job_spec,
    nodes_in_racks,
    queue_of_racks,
    template,
)

pytestmark = pytest.mark.control_plane

ADMISSION = "kueue.x-k8s.io/admission"
OF_KUEUE = """\
input group: string = pod.labels["kueue.x-k8s.io/pod-group-name"] optional
input size: int = pod.annotations["kueue.x-k8s.io/pod-group-total-count"] default 1 invalid default

gang by group { min = size, timeout = 10m }
"""
OF_JOBS = """\
input size: int = pod.labels["example.com/gang-size"] default 1 invalid default

filter open require (node.labels["example.com/open"] else "no") == "yes"
gang by pod.owner.name { min = size, timeout = 10m }
"""


def queued_job(name: str, pods: int) -> Json:
    labels = {"example.com/gang-size": str(pods), "example.com/job": name}
    members = template("jobs", labels=labels, annotations={REQUIRED_TOPOLOGY: RACK})
    metadata = {"name": name, "labels": {QUEUE: "batch"}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": job_spec(pods, members),
    }


def queued_pod(name: str, *, of: int) -> Json:
    member = pod(name, cpu="1", schedulerName="groups")
    member["metadata"] |= {
        "labels": {QUEUE: "batch", "kueue.x-k8s.io/pod-group-name": "group"},
        "annotations": {
            "kueue.x-k8s.io/pod-group-total-count": str(of),
            REQUIRED_TOPOLOGY: RACK,
        },
    }
    return member


def nodes_of(pods: list[Json]) -> set[str]:
    return {pod["spec"].get("nodeName", "") for pod in pods}


def chosen_by_kueue(pod: Json) -> list[str]:
    """The hosts that its node selector allows."""
    selector = pod["spec"].get("nodeSelector", {})
    return [selector[HOST]] if HOST in selector else []


def test_what_kueue_admits_starts_whole_where_its_topology_says(
    control_plane_programs: Programs, kueue: Path, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {
        "integrations": {"frameworks": ["batch/job", "pod"]},
        "featureGates": {"VisibilityOnDemand": False},  # an API server of its own
    }
    first, second = ({"labelSelector": f"example.com/job={name}"} for name in ("first", "second"))
    with (
        cluster(control_plane_programs, tmp_path, jobs=OF_JOBS, groups=OF_KUEUE) as deployed,
        running_controllers(deployed.control_plane, kueue, settings),
    ):
        for node in nodes_in_racks():
            deployed.control_plane.add_node(node)
        for path, manifest in queue_of_racks():
            deployed.submit(path, manifest)
        deployed.submit(JOBS, queued_job("first", 3))
        deployed.wait_for_message("of 3 members fit now", **first)
        assert deployed.placed(**first) == 0

        deployed.submit(JOBS, queued_job("second", 2))
        deployed.api.patch("/api/v1/nodes/b", {"metadata": {"labels": {"example.com/open": "yes"}}})
        deployed.wait_for_placed(3, **first)
        members = deployed.pods(**first)
        assert nodes_of(members) == {"a", "b"}
        assert [chosen_by_kueue(member) for member in members] == [
            [member["spec"]["nodeName"]] for member in members
        ]
        assert deployed.pods(**second) == [], "there is no quota for it"

        deployed.end_pods(**first)
        deployed.wait_for_placed(2, **second)

        # plain pods, with a gate
        group = {"labelSelector": "kueue.x-k8s.io/pod-group-name=group"}
        for name in ("p0", "p1"):
            deployed.submit(PODS, queued_pod(name, of=3))
        gated = deployed.pods(**group)
        deployed.submit(PODS, queued_pod("p2", of=3))
        deployed.end_pods(**second)
        deployed.wait_for_placed(3, **group)

    gates = [{gate["name"] for gate in member["spec"]["schedulingGates"]} for member in gated]
    assert [ADMISSION in names for names in gates] == [True, True]

"""A JobSet starts whole beside its own controller; what Kueue admits starts whole, where its topology-aware scheduling says."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.api import Json
from tests.controlplane.objects import pod
from tests.controlplane.programs import Programs
from tests.controlplane.waiting import wait_for
from tests.e2e.deployed import PODS
from tests.workloads.cluster import Workloads, cluster
from tests.workloads.controllers import running_controllers
from tests.workloads.objects import (
    HOST,
    JOBS,
    JOBSETS,
    QUEUE,
    RACK,
    REQUIRED_TOPOLOGY,
    WORKLOADS,
    job_spec,
    jobset,
    nodes_in_racks,
    queue_of_racks,
    template,
)

pytestmark = pytest.mark.control_plane

LANGUAGE = Path(__file__).parents[2] / "docs" / "language.md"
ADMISSION = "kueue.x-k8s.io/admission"
OPENED = """\
filter open require (node.labels["example.com/open"] else "no") == "yes"
"""
OF_KUEUE = """\
input group: string = pod.labels["kueue.x-k8s.io/pod-group-name"] optional
input size: int = pod.annotations["kueue.x-k8s.io/pod-group-total-count"] default 1 invalid default

gang by group { min = size, timeout = 10m }
"""
OF_JOBS = """\
input size: int = pod.labels["example.com/gang-size"] default 1 invalid default

gang by pod.owner.name { min = size, timeout = 10m }
"""
OF_JOBSETS = """\
input jobset: string = pod.labels["jobset.sigs.k8s.io/jobset-name"] optional
input jobs: int = pod.labels["jobset.sigs.k8s.io/global-replicas"] default 1 invalid default
input pods_of_a_job: int = pod.labels["example.com/pods-of-a-job"] default 1
  invalid reject "example.com/pods-of-a-job must be a whole number"

gang by jobset { min = jobs * pods_of_a_job, timeout = 10m }
"""
SETTINGS: dict[str, Any] = {
    "integrations": {"frameworks": ["batch/job", "jobset.x-k8s.io/jobset", "pod"]},
    "featureGates": {"VisibilityOnDemand": False},  # an API server of its own
}


@pytest.fixture(scope="module")
def all_running(
    control_plane_programs: Programs,
    jobset_controllers: Path,
    kueue: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Workloads]:
    """Started once: the control plane and these controllers take more CPU than the tests."""
    policies = {"jobs": OF_JOBS + OPENED, "groups": OF_KUEUE, "whole": OF_JOBSETS + OPENED, "plain": ""}
    with (
        cluster(control_plane_programs, tmp_path_factory.mktemp("workloads"), **policies) as deployed,
        running_controllers(deployed.control_plane, jobset_controllers),
        running_controllers(deployed.control_plane, kueue, SETTINGS),
    ):
        for node in nodes_in_racks():
            deployed.control_plane.add_node(node)
        for path, manifest in queue_of_racks():
            deployed.submit(path, manifest)
        yield deployed


@pytest.fixture
def deployed(all_running: Workloads) -> Iterator[Workloads]:
    """With an empty queue, without pods and with node b closed."""
    set_open(all_running, "no")
    yield all_running
    all_running.end_pods()  # Kueue keeps what it admitted until it has ended
    for path in (JOBSETS, JOBS):
        all_running.api.delete(path, propagationPolicy="Background")

    def empty() -> bool:
        all_running.api.delete(PODS, gracePeriodSeconds="0")
        return not any(all_running.api.items(path) for path in (JOBSETS, JOBS, WORKLOADS, PODS))

    wait_for(empty, "everything of the test to be gone")


def set_open(deployed: Workloads, opened: str) -> None:
    """Whether the policies with `OPENED` place pods on node b."""
    deployed.api.patch("/api/v1/nodes/b", {"metadata": {"labels": {"example.com/open": opened}}})


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


def test_a_jobset_starts_whole(deployed: Workloads) -> None:
    assert OF_JOBSETS in LANGUAGE.read_text()
    deployed.submit(JOBSETS, jobset("train", "whole", jobs=3, pods=2))
    deployed.wait_for_message("4 of 6 members fit now")
    assert deployed.placed() == 0

    set_open(deployed, "yes")
    deployed.all_bound(6)
    deployed.end_pods()
    deployed.wait_for_condition(f"{JOBSETS}/train", "Completed")

    # what happens without the gang
    part = {"labelSelector": "jobset.sigs.k8s.io/jobset-name=part"}
    deployed.submit(JOBSETS, jobset("part", "plain", jobs=4, pods=2))
    deployed.wait_for_message("Insufficient cpu", **part)
    deployed.wait_for_placed(6, **part)


def test_a_jobset_that_kueue_admits_starts_whole(deployed: Workloads) -> None:
    first, second = (
        {"labelSelector": f"jobset.sigs.k8s.io/jobset-name={name}"} for name in ("first", "second")
    )
    deployed.submit(JOBSETS, jobset("first", "whole", jobs=2, pods=2, queue="batch"))
    deployed.wait_for_message("of 4 members fit now", **first)
    assert deployed.placed(**first) == 0

    deployed.submit(JOBSETS, jobset("second", "whole", jobs=1, pods=2, queue="batch"))
    set_open(deployed, "yes")
    deployed.wait_for_placed(4, **first)
    assert {member["spec"]["nodeName"] for member in deployed.pods(**first)} == {"a", "b"}
    assert deployed.pods(**second) == [], "there is no quota for it"

    deployed.end_pods(**first)
    deployed.wait_for_condition(f"{JOBSETS}/first", "Completed")
    deployed.wait_for_placed(2, **second)


def test_what_kueue_admits_starts_whole_where_its_topology_says(deployed: Workloads) -> None:
    first, second = ({"labelSelector": f"example.com/job={name}"} for name in ("first", "second"))
    deployed.submit(JOBS, queued_job("first", 3))
    deployed.wait_for_message("of 3 members fit now", **first)
    assert deployed.placed(**first) == 0

    deployed.submit(JOBS, queued_job("second", 2))
    set_open(deployed, "yes")
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

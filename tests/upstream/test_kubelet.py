"""What a kubelet itself says about the pods that policysched binds: phases, rejections, resizes and ends. The kubelet is that
of a hollow node, its own code above a runtime that pretends to run containers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.controlplane.api import Json
from tests.controlplane.certificates import openssl_missing
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.programs import PROGRAM_NAMES, Programs
from tests.controlplane.waiting import wait_for
from tests.e2e.deployed import PLAIN, PODS, Deployed
from tests.missing_programs import leave_out
from tests.upstream.cluster import hollow_cluster

pytestmark = pytest.mark.control_plane
NODE = "/api/v1/nodes/hollow-0"


@pytest.fixture(scope="module")
def hollow(control_plane_programs: Programs, upstream_tests: Path) -> Iterator[ControlPlane]:
    missing = openssl_missing() or control_plane_programs.missing(*PROGRAM_NAMES)
    if missing:
        leave_out("control-plane", missing)
    with hollow_cluster(control_plane_programs, upstream_tests, nodes=1) as control_plane:
        yield control_plane


@pytest.fixture
def deployed(hollow: ControlPlane, tmp_path: Path) -> Iterator[Deployed]:
    deployed = Deployed(hollow, tmp_path)
    deployed.put_policies(main=PLAIN)
    with deployed.running():
        yield deployed
    for item in deployed.pods():
        deployed.api.delete(f"{PODS}/{item['metadata']['name']}", {"gracePeriodSeconds": 0})
    wait_for(lambda: not deployed.pods(), "the pods to be gone")


def milli_cpu(deployed: Deployed) -> int:
    """What the kubelet says that its node has."""
    cpu: str = deployed.api.get(NODE)["status"]["allocatable"]["cpu"]
    return int(cpu.removesuffix("m")) if cpu.endswith("m") else int(cpu) * 1000


def status_of(deployed: Deployed, name: str) -> Json:
    status: Json = deployed.api.get(f"{PODS}/{name}")["status"]
    return status


def wait_until_running(deployed: Deployed, name: str) -> None:
    wait_for(lambda: status_of(deployed, name)["phase"] == "Running", f"{name} to run")


def resize(deployed: Deployed, name: str, milli: int) -> None:
    container = {"name": "main", "resources": {"requests": {"cpu": f"{milli}m"}}}
    body = {"spec": {"containers": [container]}}
    strategic = "application/strategic-merge-patch+json"
    deployed.api.patch(f"{PODS}/{name}/resize", body, content_type=strategic)


def allocated_cpu(deployed: Deployed, name: str) -> str:
    """What the kubelet has allocated to the container. Here it does not get further: its runtime has no cgroups, so
    PodResizeInProgress stays with an error (`getPodCgroupMemoryConfig` in pkg/kubelet/kuberuntime)."""
    (container,) = status_of(deployed, name)["containerStatuses"]
    cpu: str = container.get("allocatedResources", {}).get("cpu", "")
    return cpu


def refused_resize(deployed: Deployed, name: str) -> str:
    """Why the kubelet has not done the resize of the pod; empty if there is none."""
    conditions = status_of(deployed, name).get("conditions", ())
    reasons = [entry["reason"] for entry in conditions if entry["type"] == "PodResizePending"]
    return reasons[0] if reasons else ""


def test_a_pod_that_the_kubelet_has_no_room_for_holds_nothing(deployed: Deployed) -> None:
    """A pod of another scheduler, bound where there is no room for it."""
    milli = milli_cpu(deployed)
    deployed.create("ours", cpu=f"{milli * 3 // 4}m")
    wait_until_running(deployed, "ours")

    deployed.create("theirs", scheduler="other", cpu=f"{milli // 2}m", nodeName="hollow-0")
    rejected = wait_for(
        lambda: status if (status := status_of(deployed, "theirs")).get("reason") else None, "a rejection"
    )
    deployed.create("small", cpu=f"{milli // 8}m")

    wait_until_running(deployed, "small")
    assert (rejected["phase"], rejected["reason"]) == ("Failed", "OutOfcpu")


def test_a_pod_of_another_operating_system_is_rejected_by_the_kubelet(deployed: Deployed) -> None:
    deployed.create("windows", os={"name": "windows"})

    rejected = wait_for(
        lambda: status if (status := status_of(deployed, "windows")).get("reason") else None, "a rejection"
    )

    assert (rejected["phase"], rejected["reason"]) == ("Failed", "PodOSNotSupported")


def test_room_is_free_once_the_kubelet_has_ended_a_pod(deployed: Deployed) -> None:
    milli = milli_cpu(deployed)
    deployed.create("first", cpu=f"{milli * 3 // 4}m")
    wait_until_running(deployed, "first")
    deployed.create("second", cpu=f"{milli // 2}m")
    waits = deployed.event("second", "FailedScheduling")["note"]

    deployed.api.delete(f"{PODS}/first", {"gracePeriodSeconds": 1})

    wait_until_running(deployed, "second")
    assert waits.startswith("0/1 nodes are available: 1 Insufficient cpu.")


def test_a_resize_that_the_kubelet_defers_counts_until_it_is_taken_back(deployed: Deployed) -> None:
    """One that is larger than the node is refused by the API server since 1.37."""
    milli = milli_cpu(deployed)
    quarter = milli // 4
    for name in ("web", "other"):
        deployed.create(name, cpu=f"{quarter}m")
        wait_until_running(deployed, name)

    resize(deployed, "web", quarter * 4 - 100)
    refused = wait_for(lambda: refused_resize(deployed, "web"), "the kubelet to refuse the resize")
    deployed.create("waiting", cpu=f"{quarter}m")
    waits = deployed.event("waiting", "FailedScheduling")["note"]
    resize(deployed, "web", quarter)

    wait_until_running(deployed, "waiting")
    assert refused == "Deferred"
    assert waits.startswith("0/1 nodes are available: 1 Insufficient cpu.")


def test_a_resize_counts_once_the_kubelet_has_allocated_it(deployed: Deployed) -> None:
    milli = milli_cpu(deployed)
    deployed.create("web", cpu=f"{milli // 4}m")
    wait_until_running(deployed, "web")

    resize(deployed, "web", milli // 2)
    wait_for(lambda: allocated_cpu(deployed, "web") == f"{milli // 2}m", "the kubelet to allocate it")
    deployed.create("waiting", cpu=f"{milli * 5 // 8}m")

    waits = deployed.event("waiting", "FailedScheduling")["note"]
    assert waits.startswith("0/1 nodes are available: 1 Insufficient cpu.")


def test_a_resize_of_the_pods_own_resources_counts(deployed: Deployed) -> None:
    milli = milli_cpu(deployed)
    deployed.create("web", cpu=f"{milli // 8}m", resources={"requests": {"cpu": f"{milli // 8}m"}})
    wait_until_running(deployed, "web")

    body = {"spec": {"resources": {"requests": {"cpu": f"{milli // 2}m"}}}}
    strategic = "application/strategic-merge-patch+json"
    deployed.api.patch(f"{PODS}/web/resize", body, content_type=strategic)
    wait_for(
        lambda: status_of(deployed, "web").get("allocatedResources", {}).get("cpu") == f"{milli // 2}m",
        "the kubelet to allocate it",
    )
    deployed.create("waiting", cpu=f"{milli * 5 // 8}m")

    waits = deployed.event("waiting", "FailedScheduling")["note"]
    assert waits.startswith("0/1 nodes are available: 1 Insufficient cpu.")

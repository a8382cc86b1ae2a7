"""What Kueue admits starts whole, and where its topology-aware scheduling says."""

from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.api import Json
from tests.controlplane.objects import pod, ready_node
from tests.controlplane.programs import Programs
from tests.e2e.deployed import PODS
from tests.workloads.cluster import (
    cluster,
    end_pods,
    job_spec,
    one_waits_with,
    placed,
    template,
    wait_for_placed,
)
from tests.workloads.controllers import create, running_controllers

pytestmark = pytest.mark.control_plane

JOBS = "/apis/batch/v1/namespaces/default/jobs"
KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
ADMISSION = "kueue.x-k8s.io/admission"
RACK, HOST = "example.com/rack", "kubernetes.io/hostname"
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


def queue_objects() -> list[tuple[str, Json]]:
    """4 CPUs on the nodes with the label `example.com/pool=batch`, in racks."""

    def manifest(kind: str, name: str, spec: Json) -> Json:
        return {
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": kind,
            "metadata": {"name": name},
            "spec": spec,
        }

    flavor = {"nodeLabels": {"example.com/pool": "batch"}, "topologyName": "racks"}
    quotas = [
        {"name": name, "nominalQuota": quantity} for name, quantity in (("cpu", "4"), ("memory", "8Gi"))
    ]
    queue = {
        "namespaceSelector": {},
        "resourceGroups": [
            {"coveredResources": ["cpu", "memory"], "flavors": [{"name": "batch", "resources": quotas}]}
        ],
    }
    levels = {"levels": [{"nodeLabel": RACK}, {"nodeLabel": HOST}]}
    return [
        (f"{KUEUE}/topologies", manifest("Topology", "racks", levels)),
        (f"{KUEUE}/resourceflavors", manifest("ResourceFlavor", "batch", flavor)),
        (f"{KUEUE}/clusterqueues", manifest("ClusterQueue", "batch", queue)),
        (
            f"{KUEUE}/namespaces/default/localqueues",
            manifest("LocalQueue", "batch", {"clusterQueue": "batch"}),
        ),
    ]


def queued_job(name: str, pods: int) -> Json:
    labels = {"example.com/gang-size": str(pods), "example.com/job": name}
    members = template("jobs", labels=labels, annotations={"kueue.x-k8s.io/podset-required-topology": RACK})
    metadata = {"name": name, "labels": {"kueue.x-k8s.io/queue-name": "batch"}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": job_spec(pods, members),
    }


def queued_pod(name: str, *, of: int) -> Json:
    member = pod(name, cpu="1", schedulerName="groups")
    member["metadata"] |= {
        "labels": {"kueue.x-k8s.io/queue-name": "batch", "kueue.x-k8s.io/pod-group-name": "group"},
        "annotations": {
            "kueue.x-k8s.io/pod-group-total-count": str(of),
            "kueue.x-k8s.io/podset-required-topology": RACK,
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
        # of rack 1 one node is closed by the policy, which Kueue does not know
        for name, rack, cpu, opened in (
            ("a", "1", "2", "yes"),
            ("b", "1", "2", "no"),
            ("c", "2", "2", "yes"),
        ):
            labels = {RACK: rack, "example.com/pool": "batch", "example.com/open": opened}
            deployed.control_plane.add_node(ready_node(name, cpu=cpu, labels=labels))
        for path, manifest in queue_objects():
            create(deployed.control_plane, path, manifest)
        create(deployed.control_plane, JOBS, queued_job("first", 3))
        one_waits_with(deployed, "of 3 members fit now", **first)
        assert placed(deployed.pods(**first)) == 0

        create(deployed.control_plane, JOBS, queued_job("second", 2))
        deployed.api.patch("/api/v1/nodes/b", {"metadata": {"labels": {"example.com/open": "yes"}}})
        wait_for_placed(deployed, 3, **first)
        members = deployed.pods(**first)
        assert nodes_of(members) == {"a", "b"}
        assert [chosen_by_kueue(member) for member in members] == [
            [member["spec"]["nodeName"]] for member in members
        ]
        assert deployed.pods(**second) == [], "there is no quota for it"

        end_pods(deployed, **first)
        wait_for_placed(deployed, 2, **second)

        # plain pods, with a gate
        group = {"labelSelector": "kueue.x-k8s.io/pod-group-name=group"}
        for name in ("p0", "p1"):
            create(deployed.control_plane, PODS, queued_pod(name, of=3))
        gated = deployed.pods(**group)
        create(deployed.control_plane, PODS, queued_pod("p2", of=3))
        end_pods(deployed, **second)
        wait_for_placed(deployed, 3, **group)

    gates = [{gate["name"] for gate in member["spec"]["schedulingGates"]} for member in gated]
    assert [ADMISSION in names for names in gates] == [True, True]

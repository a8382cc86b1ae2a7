"""Each group of a LeaderWorkerSet starts whole beside its own controller."""

from pathlib import Path

import pytest

from tests.controlplane.api import Json
from tests.controlplane.objects import ready_node
from tests.controlplane.programs import Programs
from tests.e2e.pod_group_crds import CONDITION, crd
from tests.workloads.cluster import cluster
from tests.workloads.controllers import running_controllers
from tests.workloads.objects import template

pytestmark = pytest.mark.control_plane

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
SETS = "/apis/leaderworkerset.x-k8s.io/v1/namespaces/default/leaderworkersets"
POD_GROUPS = "/apis/scheduling.volcano.sh/v1beta1/namespaces/default/podgroups"
OF_LEADERS = """\
input group: string = pod.labels["leaderworkerset.sigs.k8s.io/group-key"] optional
input size: int = pod.annotations["leaderworkerset.sigs.k8s.io/size"] default 1 invalid default

gang by group { min = size, timeout = 10m }
"""


def leaders_manifest(name: str, scheduler: str, *, groups: int, size: int) -> Json:
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": name},
        "spec": {
            "replicas": groups,
            "leaderWorkerTemplate": {"size": size, "workerTemplate": template(scheduler)},
        },
    }


def test_each_group_of_a_leader_worker_set_starts_whole(
    control_plane_programs: Programs, lws: Path, tmp_path: Path
) -> None:
    """By its labels, and by the PodGroups that its controller makes for Volcano."""
    volcano = {"gangSchedulingManagement": {"schedulerProvider": "volcano"}}
    with cluster(
        control_plane_programs, tmp_path, labels=OF_LEADERS, groups="include pod_groups\n"
    ) as deployed:
        conditions = {"conditions": {"type": "array", "items": CONDITION}}
        deployed.api.post(CRDS, crd("scheduling.volcano.sh", "v1beta1", conditions))
        with running_controllers(deployed.control_plane, lws, volcano, ["volcano"]):
            for scheduler in ("labels", "groups"):
                selected = {"labelSelector": f"leaderworkerset.sigs.k8s.io/name={scheduler}"}
                deployed.control_plane.add_node(ready_node(f"{scheduler}-a", cpu="5"))
                deployed.submit(SETS, leaders_manifest(scheduler, scheduler, groups=2, size=3))
                deployed.wait_for_message("2 of 3 members fit now", **selected)
                deployed.wait_for_placed(3, **selected)
                groups = {
                    member["metadata"]["labels"]["leaderworkerset.sigs.k8s.io/group-index"]
                    for member in deployed.pods(**selected)
                    if "nodeName" in member["spec"]
                }
                assert len(groups) == 1

                deployed.control_plane.add_node(ready_node(f"{scheduler}-b", cpu="1"))
                deployed.wait_for_placed(6, **selected)
            assert len(deployed.api.items(POD_GROUPS)) == 4

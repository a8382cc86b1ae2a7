"""A JobSet starts whole beside its own controller, and where Kueue admits it."""

from pathlib import Path

import pytest

from tests.controlplane.objects import ready_node
from tests.controlplane.programs import Programs
from tests.workloads.cluster import cluster
from tests.workloads.controllers import running_controllers
from tests.workloads.objects import JOBSETS, jobset, nodes_in_racks, queue_of_racks

pytestmark = pytest.mark.control_plane

LANGUAGE = Path(__file__).parents[2] / "docs" / "language.md"
OF_JOBSETS = """\
input jobset: string = pod.labels["jobset.sigs.k8s.io/jobset-name"] optional
input jobs: int = pod.labels["jobset.sigs.k8s.io/global-replicas"] default 1 invalid default
input pods_of_a_job: int = pod.labels["example.com/pods-of-a-job"] default 1
  invalid reject "example.com/pods-of-a-job must be a whole number"

gang by jobset { min = jobs * pods_of_a_job, timeout = 10m }
"""


def test_a_jobset_starts_whole(
    control_plane_programs: Programs, jobset_controllers: Path, tmp_path: Path
) -> None:
    assert OF_JOBSETS in LANGUAGE.read_text()
    with (
        cluster(control_plane_programs, tmp_path, whole=OF_JOBSETS, plain="") as deployed,
        running_controllers(deployed.control_plane, jobset_controllers),
    ):
        deployed.control_plane.add_node(ready_node("a", cpu="4"))
        deployed.submit(JOBSETS, jobset("train", "whole", jobs=3, pods=2))
        deployed.wait_for_message("4 of 6 members fit now")
        assert deployed.placed() == 0

        deployed.control_plane.add_node(ready_node("b", cpu="2"))
        deployed.all_bound(6)
        deployed.end_pods()
        deployed.wait_for_condition(f"{JOBSETS}/train", "Completed")

        # what happens without the gang
        part = {"labelSelector": "jobset.sigs.k8s.io/jobset-name=part"}
        deployed.submit(JOBSETS, jobset("part", "plain", jobs=4, pods=2))
        deployed.wait_for_message("Insufficient cpu", **part)
        deployed.wait_for_placed(6, **part)


def test_a_jobset_that_kueue_admits_starts_whole(
    control_plane_programs: Programs, jobset_controllers: Path, kueue: Path, tmp_path: Path
) -> None:
    settings = {
        "integrations": {"frameworks": ["batch/job", "jobset.x-k8s.io/jobset"]},
        "featureGates": {"VisibilityOnDemand": False},  # an API server of its own
    }
    opened = 'filter open require (node.labels["example.com/open"] else "no") == "yes"\n'
    first, second = (
        {"labelSelector": f"jobset.sigs.k8s.io/jobset-name={name}"} for name in ("first", "second")
    )
    with (
        cluster(control_plane_programs, tmp_path, whole=OF_JOBSETS + opened) as deployed,
        running_controllers(deployed.control_plane, jobset_controllers),
        running_controllers(deployed.control_plane, kueue, settings),
    ):
        for node in nodes_in_racks():
            deployed.control_plane.add_node(node)
        for path, manifest in queue_of_racks():
            deployed.submit(path, manifest)
        deployed.submit(JOBSETS, jobset("first", "whole", jobs=2, pods=2, queue="batch"))
        deployed.wait_for_message("of 4 members fit now", **first)
        assert deployed.placed(**first) == 0

        deployed.submit(JOBSETS, jobset("second", "whole", jobs=1, pods=2, queue="batch"))
        deployed.api.patch("/api/v1/nodes/b", {"metadata": {"labels": {"example.com/open": "yes"}}})
        deployed.wait_for_placed(4, **first)
        assert {member["spec"]["nodeName"] for member in deployed.pods(**first)} == {"a", "b"}
        assert deployed.pods(**second) == [], "there is no quota for it"

        deployed.end_pods(**first)
        deployed.wait_for_condition(f"{JOBSETS}/first", "Completed")
        deployed.wait_for_placed(2, **second)

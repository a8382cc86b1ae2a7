"""A JobSet starts whole beside its own controller."""

from pathlib import Path

import pytest

from tests.controlplane.api import Json
from tests.controlplane.objects import ready_node
from tests.controlplane.programs import Programs
from tests.controlplane.waiting import wait_for
from tests.workloads.cluster import (
    cluster,
    condition_of,
    end_pods,
    job_spec,
    one_waits_with,
    placed,
    template,
    wait_for_placed,
)
from tests.workloads.controllers import create, running_controllers

pytestmark = pytest.mark.control_plane

LANGUAGE = Path(__file__).parents[2] / "docs" / "language.md"
JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets"
OF_JOBSETS = """\
input jobset: string = pod.labels["jobset.sigs.k8s.io/jobset-name"] optional
input jobs: int = pod.labels["jobset.sigs.k8s.io/global-replicas"] default 1 invalid default
input pods_of_a_job: int = pod.labels["example.com/pods-of-a-job"] default 1
  invalid reject "example.com/pods-of-a-job must be a whole number"

gang by jobset { min = jobs * pods_of_a_job, timeout = 10m }
"""


def jobset_manifest(name: str, scheduler: str, *, jobs: int, pods: int) -> Json:
    members = template(scheduler, labels={"example.com/pods-of-a-job": str(pods)})
    workers = {"name": "workers", "replicas": jobs, "template": {"spec": job_spec(pods, members)}}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {"replicatedJobs": [workers]},
    }


def test_a_jobset_starts_whole(control_plane_programs: Programs, jobset: Path, tmp_path: Path) -> None:
    assert OF_JOBSETS in LANGUAGE.read_text()
    with (
        cluster(control_plane_programs, tmp_path, whole=OF_JOBSETS, plain="") as deployed,
        running_controllers(deployed.control_plane, jobset),
    ):
        deployed.control_plane.add_node(ready_node("a", cpu="4"))
        create(deployed.control_plane, JOBSETS, jobset_manifest("train", "whole", jobs=3, pods=2))
        one_waits_with(deployed, "4 of 6 members fit now")
        assert placed(deployed.pods()) == 0

        deployed.control_plane.add_node(ready_node("b", cpu="2"))
        deployed.all_bound(6)
        end_pods(deployed)
        wait_for(
            lambda: condition_of(deployed, f"{JOBSETS}/train", "Completed") == "True", "the JobSet to end"
        )

        # what happens without the gang
        part = {"labelSelector": "jobset.sigs.k8s.io/jobset-name=part"}
        create(deployed.control_plane, JOBSETS, jobset_manifest("part", "plain", jobs=4, pods=2))
        one_waits_with(deployed, "Insufficient cpu", **part)
        wait_for_placed(deployed, 6, **part)

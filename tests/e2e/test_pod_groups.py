"""PodGroups on a real control plane: Kubernetes' own in the version of the release, and custom resources of others."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from policysched.kube.client.api import ApiStatusError
from policysched.kube.watch.reflector import Reflector
from tests.controlplane.api import ApiError, Json
from tests.controlplane.cluster import ControlPlane, Features
from tests.controlplane.objects import pod, ready_node
from tests.controlplane.waiting import wait_for
from tests.e2e.deployed import Deployed
from tests.e2e.pod_group_crds import CONDITION, crd

POLICY = "policy test version 1\ninclude kube_default\ninclude pod_groups\n"
GATES = {"GenericWorkload": True, "WorkloadWithJob": True}
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@pytest.fixture
def deployed(whole_control_plane: ControlPlane, tmp_path: Path) -> Deployed:
    return Deployed(whole_control_plane, tmp_path)


def search_often() -> None:
    """A kind that the server does not serve is requested each second, and not each 30 s, as in `tests/runtime/test_pod_groups.py`."""

    async def wait(self: Reflector[Any], event: Any, error: ApiStatusError) -> None:
        self._settings = replace(self._settings, unserved_retry_s=1.0)
        await wait_until_served(self, event, error)

    wait_until_served = Reflector._wait_until_served
    Reflector._wait_until_served = wait  # type: ignore[method-assign]


def version_of(deployed: Deployed) -> str:
    """The version in which this release of Kubernetes has PodGroups."""
    return "v1beta1" if deployed.kubernetes_minor() >= 37 else "v1alpha2"


def serve_pod_groups(deployed: Deployed) -> str:
    """Turn on the feature gates and the API, unless the test before did. Returns its version."""
    version = version_of(deployed)
    features = Features(GATES, (f"scheduling.k8s.io/{version}",))
    deployed.control_plane.have_features(features)
    return version


def groups_path(version: str, api: str = "scheduling.k8s.io") -> str:
    return f"/apis/{api}/{version}/namespaces/default/podgroups"


def create_group(deployed: Deployed, version: str, name: str, least: int, **more: Any) -> None:
    spec = {"schedulingPolicy": {"gang": {"minCount": least}}, **more}
    manifest = {
        "apiVersion": f"scheduling.k8s.io/{version}",
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": spec,
    }
    deployed.api.post(groups_path(version), manifest)


def scheduled(deployed: Deployed, version: str, name: str) -> Json | None:
    """The condition that says whether the group is scheduled; None while there is none."""
    kind = "PodGroupScheduled" if version == "v1alpha2" else "PodGroupInitiallyScheduled"
    status = deployed.api.get(f"{groups_path(version)}/{name}").get("status") or {}
    conditions = status.get("conditions") or []
    return next((condition for condition in conditions if condition["type"] == kind), None)


def outcome(deployed: Deployed, version: str, name: str) -> str | None:
    condition = scheduled(deployed, version, name)
    return None if condition is None else condition["status"]


def gang_job(name: str, version: str, *, members: int) -> Json:
    template = pod(name, cpu="1")
    template["spec"] |= {"restartPolicy": "Never", "schedulerName": "test"}
    scheduling = {"schedulingPolicy": {"gang": {}}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "completions": members,
            "parallelism": members,
            "completionMode": "Indexed",
            "template": {"spec": template["spec"]},
            # Kubernetes 1.36 makes a gang of every job like this one, and does not know the field.
            **({"scheduling": scheduling} if version == "v1beta1" else {}),
        },
    }


@pytest.mark.any_features
def test_a_job_starts_whole_and_its_pod_group_shows_it(deployed: Deployed) -> None:
    version = serve_pod_groups(deployed)
    deployed.control_plane.add_node(ready_node("a", cpu="2"))
    deployed.put_policies(main=POLICY)
    deployed.control_plane.start_controller_manager()

    with deployed.running():
        deployed.api.post("/apis/batch/v1/namespaces/default/jobs", gang_job("train", version, members=3))
        wait_for(lambda: len(deployed.pods()) == 3, "the pods of the job")
        names = {member["spec"].get("schedulingGroup", {}).get("podGroupName") for member in deployed.pods()}
        (group,) = names
        assert group, "the Job controller made no PodGroup"
        wait_for(lambda: outcome(deployed, version, group) == "False", "the reason why it waits")
        reason = scheduled(deployed, version, group)
        placed_halves = [member for member in deployed.pods() if member["spec"].get("nodeName")]
        deployed.control_plane.add_node(ready_node("b", cpu="2"))
        deployed.all_bound(3)
        wait_for(lambda: outcome(deployed, version, group) == "True", "its condition to be true")

    assert placed_halves == []
    assert reason is not None and reason["reason"] == "Unschedulable"
    assert f"gang default/{group}: 2 of 3 members fit now" in reason["message"]


@pytest.mark.any_features
def test_a_group_that_is_deleted_keeps_its_pods_pending(deployed: Deployed) -> None:
    version = serve_pod_groups(deployed)
    deployed.control_plane.add_node(ready_node("a", cpu="4"))
    deployed.put_policies(main=POLICY)

    with deployed.running() as program:
        deployed.create("w0", cpu="1", schedulingGroup={"podGroupName": "train"})
        missing = "PodGroup default/train (scheduling.k8s.io), which does not exist"
        wait_for(lambda: missing in deployed.condition("w0")["message"], "the reason")
        create_group(deployed, version, "train", 1)
        deployed.bound("w0")
        lines = program.logged("pods wait for their PodGroup")

    assert [line["reason"].endswith(missing) for line in lines] == [True]


@pytest.mark.any_features
def test_pods_wait_while_the_server_does_not_serve_the_api(deployed: Deployed) -> None:
    version = serve_pod_groups(deployed)
    served = Features(GATES, (f"scheduling.k8s.io/{version}",))
    deployed.put_policies(main=POLICY)

    with deployed.running(plant=search_often) as program:
        create_group(deployed, version, "train", 2)
        for name in ("w0", "w1"):
            deployed.create(name, cpu="1", schedulingGroup={"podGroupName": "train"})
        wait_for(lambda: outcome(deployed, version, "train") == "False", "the group to wait")
        deployed.control_plane.restart_apiserver(features=Features())
        program.wait_for_log("pods wait for their PodGroup")
        deployed.control_plane.add_node(ready_node("a", cpu="4"))
        message = "the API server does not serve them"
        wait_for(lambda: message in deployed.condition("w0")["message"], "the reason")
        placed_halves = [member for member in deployed.pods() if member["spec"].get("nodeName")]
        deployed.control_plane.restart_apiserver(features=served)
        deployed.all_bound(2)

    assert placed_halves == []


def test_the_api_is_found_when_the_server_begins_to_serve_it(deployed: Deployed) -> None:
    deployed.control_plane.add_node(ready_node("a", cpu="4"))
    deployed.put_policies(main=POLICY)

    with deployed.running(plant=search_often) as program:
        program.wait_for_state("test", "active")
        version = serve_pod_groups(deployed)
        create_group(deployed, version, "train", 2)
        for name in ("w0", "w1"):
            deployed.create(name, cpu="1", schedulingGroup={"podGroupName": "train"})
        deployed.all_bound(2)
        wait_for(lambda: outcome(deployed, version, "train") == "True", "its condition to be true")


@pytest.mark.any_features
def test_a_group_of_a_composite_pod_group_waits_with_a_message(deployed: Deployed) -> None:
    version = version_of(deployed)
    if version == "v1alpha2":
        pytest.skip("CompositePodGroups exist since Kubernetes 1.37")
    gates = {**GATES, "TopologyAwareWorkloadScheduling": True, "CompositePodGroup": True}
    served = (f"scheduling.k8s.io/{version}", "scheduling.k8s.io/v1alpha3")
    deployed.control_plane.have_features(Features(gates, served))
    deployed.control_plane.add_node(ready_node("a", cpu="4"))
    deployed.put_policies(main=POLICY)

    with deployed.running() as program:
        reference = {"workloadName": "job", "templateName": "workers"}
        create_group(deployed, version, "train", 1, parentCompositePodGroupName="tree", workloadRef=reference)
        deployed.create("w0", cpu="1", schedulingGroup={"podGroupName": "train"})
        said = "belongs to CompositePodGroup tree; CompositePodGroups are not supported"
        wait_for(lambda: said in deployed.condition("w0")["message"], "the reason")
        deployed.event("w0", "FailedScheduling")
        logged = program.logged("pods wait for their PodGroup")
        wait_for(lambda: outcome(deployed, version, "train") == "False", "the group to say so")
        condition = scheduled(deployed, version, "train")
        nodes = [deployed.node_of("w0")]

    assert [said in line["reason"] for line in logged] == [True]
    assert condition is not None and said in condition["message"]
    assert nodes == [""]


@pytest.mark.parametrize(
    ("api", "version", "status", "meta", "phase"),
    [
        (
            "scheduling.x-k8s.io",
            "v1alpha1",
            {},
            {"labels": {"scheduling.x-k8s.io/pod-group": "train"}},
            "Scheduling",
        ),
        (
            "scheduling.volcano.sh",
            "v1beta1",
            {"conditions": {"type": "array", "items": CONDITION}},
            {"annotations": {"scheduling.k8s.io/group-name": "train"}},
            "Running",
        ),
    ],
    ids=["scheduler-plugins", "volcano"],
)
def test_a_custom_resource_that_is_installed_while_the_program_runs_is_a_gang(
    deployed: Deployed, api: str, version: str, status: Json, meta: Json, phase: str
) -> None:
    deployed.control_plane.add_node(ready_node("a", cpu="2"))
    deployed.put_policies(main=POLICY)

    with deployed.running(plant=search_often) as program:
        program.wait_for_state("test", "active")
        deployed.api.post(CRDS, crd(api, version, status))
        groups = groups_path(version, api)
        manifest = {
            "apiVersion": f"{api}/{version}",
            "kind": "PodGroup",
            "metadata": {"name": "train"},
            "spec": {"minMember": 3},
        }
        wait_for(lambda: accepted(deployed, groups, manifest), "the custom resource to be served")
        for name in ("w0", "w1", "w2"):
            member = pod(name, cpu="1", schedulerName="test")
            member["metadata"] |= meta
            deployed.api.post("/api/v1/namespaces/default/pods", member)
        phase_of = lambda: deployed.api.get(f"{groups}/train").get("status", {}).get("phase")  # noqa: E731
        wait_for(lambda: phase_of() == "Pending", "the phase of a group that waits")
        halves = [member for member in deployed.pods() if member["spec"].get("nodeName")]
        deployed.control_plane.add_node(ready_node("b", cpu="2"))
        deployed.all_bound(3)
        wait_for(lambda: phase_of() == phase, f"the phase {phase}")

    assert halves == []


def accepted(deployed: Deployed, path: str, manifest: Json) -> bool:
    try:
        deployed.api.post(path, manifest)
    except ApiError as error:
        if error.status != 404:
            raise
        return False
    return True

"""The control plane of the tests is complete: its API server, scheduler and controllers work.

policysched is not involved. While one of these tests fails, failures of other end-to-end tests mean
nothing.
"""

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.controlplane.api import ApiError
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.objects import deployment, pod, ready_node
from tests.controlplane.sweep import ALL_KINDS, OPTIONAL, created_since, kinds_of, stored_under
from tests.controlplane.waiting import wait_for
from tests.e2e.permissions import Permission, wait_until_allowed
from tests.e2e.pod_group_crds import crd
from tests.kube.api_fields import DOCUMENTS, api_types
from tests.kube.test_api_fields import unexplained_fields

PODS = "/api/v1/namespaces/default/pods"


def kubectl(kubeconfig: Path, *arguments: str, stdin: str = "") -> str:
    """Run the kubectl of this environment. Raises if it fails."""
    program = Path(sys.executable).parent / "kubectl"
    done = subprocess.run(
        [program, "--kubeconfig", kubeconfig, *arguments], input=stdin, capture_output=True, text=True
    )
    assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
    return done.stdout


def test_the_api_server_reports_the_installed_version(control_plane: ControlPlane) -> None:
    installed = control_plane.programs["kube-apiserver"].kubernetes_version

    version = control_plane.api.get("/version")

    assert version["gitVersion"] == installed


def test_every_field_of_its_api_is_read_or_named_or_irrelevant(control_plane: ControlPlane) -> None:
    served = api_types(control_plane.api.get(f"/openapi/v3/{name}") for name in DOCUMENTS)

    assert unexplained_fields(served) == []


def test_kubectl_creates_a_pod_and_it_waits_for_a_scheduler(control_plane: ControlPlane) -> None:
    kubectl(control_plane.kubeconfig_path, "create", "-f", "-", stdin=json.dumps(pod("web")))

    stored = control_plane.api.get(f"{PODS}/web")

    assert stored["status"]["phase"] == "Pending"
    assert "nodeName" not in stored["spec"]
    assert stored["spec"]["serviceAccountName"] == "default"  # set by admission


def test_kube_scheduler_binds_a_pod_to_the_node_with_room(whole_control_plane: ControlPlane) -> None:
    whole_control_plane.add_node(ready_node("small", cpu="100m"))
    whole_control_plane.add_node(ready_node("large", cpu="4"))
    whole_control_plane.start_scheduler("percentageOfNodesToScore: 100")

    whole_control_plane.api.post(PODS, pod("web", cpu="2"))

    assert wait_for(lambda: node_of(whole_control_plane, "web"), "the pod to be bound") == "large"


def test_a_new_node_has_exactly_its_own_taints(control_plane: ControlPlane) -> None:
    reserved = {"key": "team", "value": "ml", "effect": "NoSchedule"}

    control_plane.add_node(ready_node("plain"))
    control_plane.add_node(ready_node("reserved", taints=[reserved]))

    assert "taints" not in control_plane.api.get("/api/v1/nodes/plain")["spec"]
    assert control_plane.api.get("/api/v1/nodes/reserved")["spec"]["taints"] == [reserved]


def test_the_controllers_turn_a_deployment_into_pods(whole_control_plane: ControlPlane) -> None:
    whole_control_plane.start_controller_manager()

    whole_control_plane.api.post(
        "/apis/apps/v1/namespaces/default/deployments", deployment("web", replicas=3)
    )

    pods = wait_for(
        lambda: created if len(created := whole_control_plane.api.items(PODS)) == 3 else None, "three pods"
    )
    assert {p["metadata"]["ownerReferences"][0]["kind"] for p in pods} == {"ReplicaSet"}


def test_a_restarted_api_server_keeps_its_objects(control_plane: ControlPlane) -> None:
    control_plane.api.post(PODS, pod("web"))
    uid = control_plane.api.get(f"{PODS}/web")["metadata"]["uid"]

    control_plane.restart_apiserver()

    assert control_plane.api.get(f"{PODS}/web")["metadata"]["uid"] == uid


def test_watches_and_pages_before_a_compaction_are_refused(
    control_plane: ControlPlane,
) -> None:
    for name in ("a", "b"):
        control_plane.api.post(PODS, pod(name))
    page = control_plane.api.get(PODS, limit="1")["metadata"]
    control_plane.api.patch(f"{PODS}/a", {"metadata": {"labels": {"seen": "later"}}})

    control_plane.forget_history()

    watched = control_plane.api.get(
        PODS, watch="true", timeoutSeconds="1", resourceVersion=page["resourceVersion"]
    )
    assert (watched["type"], watched["object"]["code"]) == ("ERROR", 410)
    with pytest.raises(ApiError) as refusal:
        control_plane.api.get(PODS, limit="1", **{"continue": page["continue"]})
    assert (refusal.value.status, refusal.value.body["reason"]) == (410, "Expired")


def test_a_stopped_api_server_refuses_and_a_paused_one_hangs(control_plane: ControlPlane) -> None:
    control_plane.stop_apiserver()
    with pytest.raises(ConnectionRefusedError):
        control_plane.api.get("/readyz")

    control_plane.start_apiserver()
    control_plane.pause_apiserver()
    with pytest.raises(TimeoutError):
        control_plane.api_as(None, timeout_s=0.5).get("/readyz")

    control_plane.resume_apiserver()
    assert control_plane.api.get("/readyz") == {"text": "ok"}


def test_a_service_account_has_exactly_the_permissions_that_rbac_grants(control_plane: ControlPlane) -> None:
    control_plane.create_namespace("team")
    kubeconfig = control_plane.service_account_kubeconfig("team", "default")
    kubectl(
        control_plane.kubeconfig_path,
        "create",
        "role",
        "reader",
        "-n",
        "team",
        "--verb=get,list",
        "--resource=pods",
    )
    kubectl(
        *(control_plane.kubeconfig_path, "create", "rolebinding", "reader", "-n", "team"),
        *("--role=reader", "--serviceaccount=team:default"),
    )

    reading = [Permission("", "pods", verb, "team") for verb in ("get", "list")]
    wait_until_allowed(control_plane.api, "team:default", reading)
    assert kubectl(kubeconfig, "auth", "whoami", "-o=jsonpath={.status.userInfo.username}") == (
        "system:serviceaccount:team:default"
    )
    assert kubectl(kubeconfig, "get", "pods", "-n", "team", "-o=name") == ""
    with pytest.raises(AssertionError, match="forbidden"):
        kubectl(kubeconfig, "get", "secrets", "-n", "team")


def test_a_client_without_the_certificate_authority_fails_its_own_tls_handshake(
    control_plane: ControlPlane,
) -> None:
    stranger = json.loads(control_plane.kubeconfig_path.read_text())
    del stranger["clusters"][0]["cluster"]["certificate-authority-data"]
    path = control_plane.folder / "stranger.kubeconfig"
    path.write_text(json.dumps(stranger))

    with pytest.raises(AssertionError, match="certificate signed by unknown authority"):
        kubectl(path, "get", "pods")


def test_a_request_without_credentials_is_refused(control_plane: ControlPlane) -> None:
    anonymous = control_plane.api_as(None)

    with pytest.raises(ApiError) as refusal:
        anonymous.get(PODS)

    assert refusal.value.status == 403


def test_a_reset_removes_the_objects_of_a_test(whole_control_plane: ControlPlane) -> None:
    before = set(kubectl(whole_control_plane.kubeconfig_path, *EVERYTHING).split())
    whole_control_plane.create_namespace("team")
    whole_control_plane.add_node(ready_node("a"))
    manager = whole_control_plane.start_controller_manager()
    scheduler = whole_control_plane.start_scheduler()
    whole_control_plane.api.post("/apis/apps/v1/namespaces/team/deployments", deployment("web", replicas=2))
    wait_for(lambda: len(whole_control_plane.api.items("/api/v1/namespaces/team/pods")) == 2, "two pods")

    whole_control_plane.reset()

    assert set(kubectl(whole_control_plane.kubeconfig_path, *EVERYTHING).split()) == before
    assert not manager.running
    assert not scheduler.running


def test_a_reset_knows_from_etcd_which_kinds_have_objects(control_plane: ControlPlane) -> None:
    control_plane.add_node(ready_node("a"))
    control_plane.api.post(PODS, pod("web"))
    control_plane.api.post("/apis/apps/v1/namespaces/default/deployments", deployment("web", replicas=1))
    template = pod("web")
    template["metadata"] = {"labels": {"app": "web"}}
    control_plane.api.post(
        "/api/v1/namespaces/default/replicationcontrollers",
        {"metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}, "template": template}},
    )
    control_plane.api.post(
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        crd("scheduling.x-k8s.io", "v1alpha1", {}),
    )
    # The API server creates it some time after the CRD.
    wait_for(
        lambda: any(
            service["metadata"]["name"] == "v1alpha1.scheduling.x-k8s.io"
            for service in control_plane.api.items("/apis/apiregistration.k8s.io/v1/apiservices")
        ),
        "the APIService of the CRD",
    )

    with closing(control_plane.etcd()) as etcd:
        names, revision = created_since(etcd, 0)
        later, _ = created_since(etcd, revision)

    kinds = {kind for kind in ALL_KINDS if kind not in OPTIONAL and control_plane.api.items(kind)}
    assert {path.rpartition("/")[2] for path in kinds} >= {"nodes", "pods", "services", "clusterroles"}
    assert {kind for kind in kinds if stored_under(kind) not in names} == set()
    assert later == set() and kinds_of(later) == ()
    assert kinds_of({"minions", "pods"}) == ("/api/v1/pods", "/api/v1/nodes")
    assert kinds_of({"pods", "example.com"}) == ALL_KINDS, "any kind may have objects under an unknown name"


def test_a_control_plane_ends_when_the_process_that_started_it_is_killed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with subprocess.Popen([sys.executable, "-c", OWNER, data], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        assert is_alive(pid)

        owner.kill()

    wait_for(lambda: not is_alive(pid), "the process to end")
    wait_for(lambda: not data.exists(), "its folder to go")


def is_alive(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout
    return state.strip() != "" and not state.startswith("Z")


def node_of(control_plane: ControlPlane, name: str) -> str | None:
    spec = control_plane.api.get(f"{PODS}/{name}")["spec"]
    node: str | None = spec.get("nodeName")
    return node


EVERYTHING = (
    "get",
    "nodes,namespaces,pods,deployments,replicasets,configmaps,serviceaccounts,priorityclasses,pv,pvc",
    "--all-namespaces",
    "--output=name",
)

OWNER = """
import sys, time
from pathlib import Path
from tests.controlplane.guardian import Guardian
from tests.controlplane.process import Process

folder = Path(sys.argv[1])
folder.mkdir()
guardian = Guardian()
guardian.folder(folder)
process = Process("sleep", ["sleep", "600"], folder / "log", guardian)
print(process.pid, flush=True)
time.sleep(600)
"""

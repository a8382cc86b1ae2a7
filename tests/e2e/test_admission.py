"""The components of `deploy/admission` on a real API server: what is allowed and what is refused, with the messages."""

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.controlplane.api import Json
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.objects import pod, ready_node
from tests.controlplane.waiting import wait_for
from tests.e2e.deployed import DEPLOY, manifests, refused
from tests.e2e.program import kubectl

ADMISSION = DEPLOY / "admission"
COMPONENTS = ("scheduler-names", "trusted-metadata", "node-metrics", "node-names")
TEAM = "/api/v1/namespaces/team/pods"
DRY_RUN = {"dryRun": "All"}


def labelled(name: str, labels: dict[str, str], **spec: object) -> Json:
    manifest = pod(name, **spec)  # type: ignore[arg-type]
    manifest["metadata"]["labels"] = labels
    return manifest


@contextmanager
def component(control_plane: ControlPlane, name: str, refuses: Callable[[], object]) -> Iterator[None]:
    """`kubectl apply -k` of a component, in force as soon as `refuses` is refused, and lifted at the end: the API server's
    admission learns of both by watches."""
    control_plane.create_namespace("policysched")
    control_plane.create_namespace("team")
    kubectl(control_plane.kubeconfig_path, "apply", "-k", str(ADMISSION / name))
    try:
        wait_for(lambda: "policysched" in (message(refuses) or ""), f"{name} to be in force")
        yield
    finally:
        bindings = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
        control_plane.api.delete(f"{bindings}/policysched-{name}")
        wait_for(lambda: refused(refuses) is None, f"{name} to be lifted")


def message(action: Callable[[], object]) -> str | None:
    error = refused(action)
    if error is None:
        return None
    assert error.status in (403, 422), error
    return str(error)


def test_a_namespace_uses_the_schedulers_of_its_labels(control_plane: ControlPlane) -> None:
    api = control_plane.api

    def create(scheduler: str, namespace: str = "team") -> object:
        path = f"/api/v1/namespaces/{namespace}/pods"
        return api.post(path, pod("web", schedulerName=scheduler), **DRY_RUN)

    with component(control_plane, "scheduler-names", lambda: create("gang-batch")):
        create("default-scheduler")
        api.post(TEAM, pod("unnamed"), **DRY_RUN)
        assert (
            "pods of namespace team may not use the scheduler gang-batch: the namespace does not have the label "
            "schedulers.policysched.dev/gang-batch=allowed"
        ) in (message(lambda: create("gang-batch")) or "")

        kubectl(
            control_plane.kubeconfig_path,
            *("label", "namespace", "team", "schedulers.policysched.dev/gang-batch=allowed"),
        )
        wait_for(lambda: refused(lambda: create("gang-batch")) is None, "the label to count")
        assert refused(lambda: create("yoda")) is not None
        assert refused(lambda: create("gang-batch", "default")) is not None

        kubectl(
            control_plane.kubeconfig_path,
            *("label", "--overwrite", "namespace", "team", "schedulers.policysched.dev/gang-batch=denied"),
        )
        wait_for(lambda: refused(lambda: create("gang-batch")), "the label to be taken away")


def test_a_namespace_writes_the_trusted_keys_of_its_labels(control_plane: ControlPlane) -> None:
    api = control_plane.api
    api_path = f"{TEAM}/web"
    ranked = labelled("first", {"groupPriority": "100"})
    annotated = pod("annotated")
    annotated["metadata"]["annotations"] = {"kubernetes.io/egress-bandwidth": "1G"}

    def create(manifest: Json = ranked) -> object:
        return api.post(TEAM, manifest, **DRY_RUN)

    with component(control_plane, "trusted-metadata", create):
        create(labelled("free", {"app": "web"}))
        assert (
            "pods of namespace team may not set what policies trust without a label of the namespace: "
            "groupPriority (needs trusted.policysched.dev/rank=allowed)"
        ) in (message(create) or "")
        assert "kubernetes.io/egress-bandwidth" in (message(lambda: create(annotated)) or "")
        both = message(lambda: create(labelled("both", {"podGroup": "a", "scv/priority": "9"}))) or ""
        assert "podGroup (needs trusted.policysched.dev/gang=allowed)" in both
        assert "scv/priority (needs trusted.policysched.dev/rank=allowed)" in both

        # Updates, also by the ways that are for other fields.
        api.post(TEAM, labelled("web", {"app": "web"}))
        rank = {"metadata": {"labels": {"groupPriority": "100"}}}
        for way in ("", "/status"):
            assert "groupPriority" in (message(lambda way=way: api.patch(api_path + way, rank)) or ""), way  # type: ignore[misc]
        api.patch(api_path, {"metadata": {"labels": {"app": "other"}}})
        many = {f"key-{index}": "" for index in range(257)}
        for kind in ("labels", "annotations"):
            change = {"metadata": {kind: many}}
            assert "no more than 256 labels" in (
                message(lambda change=change: api.patch(api_path, change)) or ""
            )  # type: ignore[misc]
        applied = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", **rank["metadata"]}}
        apply = {"content_type": "application/apply-patch+yaml", "fieldManager": "test"}
        assert "groupPriority" in (message(lambda: api.patch(api_path, applied, **apply)) or "")

        trust = {"metadata": {"labels": {"trusted.policysched.dev/rank": "allowed"}}}
        api.patch("/api/v1/namespaces/team", trust)
        wait_for(lambda: refused(create) is None, "the label to count")
        api.patch(api_path, rank)
        assert "podGroup" in (message(lambda: create(labelled("gang", {"podGroup": "a"}))) or "")

        # Without the label again: what is there stays, and can be neither changed nor removed.
        api.patch("/api/v1/namespaces/team", {"metadata": {"labels": {"trusted.policysched.dev/rank": None}}})
        wait_for(lambda: refused(create), "the label to be taken away")
        api.patch(f"{api_path}/status", {"status": {"phase": "Running"}})
        for value in ("101", None):
            changed = {"metadata": {"labels": {"groupPriority": value}}}
            assert refused(lambda changed=changed: api.patch(api_path, changed)) is not None  # type: ignore[misc]


def test_nodes_report_no_metrics_of_their_own(control_plane: ControlPlane) -> None:
    api = control_plane.api
    control_plane.add_node(ready_node("a"))
    kubelet = control_plane.api_as(control_plane.client("system:node:a", "system:nodes"))
    agent = control_plane.api_as(control_plane.client("load-agent"))
    lie = {"metadata": {"annotations": {"congestion-factor": "0"}}}

    def write(way: str = "") -> object:
        return kubelet.patch(f"/api/v1/nodes/a{way}", lie, **DRY_RUN)

    group = "/apis/rbac.authorization.k8s.io/v1"
    nodes = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]}
    api.post(f"{group}/clusterroles", {"metadata": {"name": "patches-nodes"}, "rules": [nodes]})
    bind(control_plane, "patches-nodes")
    wait_for(lambda: refused(lambda: agent.patch("/api/v1/nodes/a", lie, **DRY_RUN)) is None, "RBAC")
    with component(control_plane, "node-metrics", write):
        assert (
            "system:node:a may not write annotations that policies read as metrics: congestion-factor "
            "(needs the verb write on nodemetrics.policysched.dev)"
        ) in (message(write) or "")
        assert refused(lambda: write("/status")) is not None
        born = {"metadata": {"name": "b", **lie["metadata"]}}
        newcomer = control_plane.api_as(control_plane.client("system:node:b", "system:nodes"))
        assert "congestion-factor" in (message(lambda: newcomer.post("/api/v1/nodes", born)) or "")
        kubelet.patch("/api/v1/nodes/a/status", {"metadata": {"annotations": {"example.com/other": "1"}}})
        assert refused(lambda: agent.patch("/api/v1/nodes/a", lie)) is not None

        bind(control_plane, "policysched-node-metrics-writer")
        wait_for(lambda: refused(lambda: agent.patch("/api/v1/nodes/a", lie)) is None, "the agent's role")
        kubelet.patch("/api/v1/nodes/a/status", {"status": {"nodeInfo": {"machineID": "1"}}})
        assert refused(write) is None, "as it is already: nothing changes"
        assert refused(
            lambda: kubelet.patch(
                "/api/v1/nodes/a", {"metadata": {"annotations": {"congestion-factor": "9"}}}
            )
        )


def test_pods_name_no_nodes_by_themselves(control_plane: ControlPlane) -> None:
    api = control_plane.api
    control_plane.add_node(ready_node("a"))
    kubelet = control_plane.api_as(control_plane.client("system:node:a", "system:nodes"))
    mirror = pod("static", nodeName="a")
    owner = {"apiVersion": "v1", "kind": "Node", "name": "a", "controller": True}
    owner["uid"] = api.get("/api/v1/nodes/a")["metadata"]["uid"]
    mirror["metadata"] |= {
        "annotations": {"kubernetes.io/config.mirror": "x"},
        "ownerReferences": [owner],
        "namespace": "team",
    }

    def create(namespace: str = "team") -> object:
        return api.post(f"/api/v1/namespaces/{namespace}/pods", pod("placed", nodeName="a"), **DRY_RUN)

    with component(control_plane, "node-names", create):
        assert (
            "pods of namespace team may not name the node they run on (a): the namespace does not have the label "
            "nodes.policysched.dev/named=allowed"
        ) in (message(create) or "")
        control_plane.create_default_service_account("kube-system")
        create("kube-system")
        kubelet.post(TEAM, mirror, **DRY_RUN)
        api.post(TEAM, pod("web"))
        to_node = {"target": {"kind": "Node", "name": "a"}, "metadata": {"name": "web"}}
        api.post(f"{TEAM}/web/binding", to_node)

        kubectl(
            control_plane.kubeconfig_path, "label", "namespace", "team", "nodes.policysched.dev/named=allowed"
        )
        wait_for(lambda: refused(create) is None, "the label to count")


def bind(control_plane: ControlPlane, role: str) -> None:
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "load-agent"}
    control_plane.api.post(
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
        {"metadata": {"name": f"{role}-test"}, "roleRef": reference, "subjects": [subject]},
    )


def test_deploy_builds_with_all_components(tmp_path: Path) -> None:
    folder = tmp_path / "deploy"
    shutil.copytree(DEPLOY, folder)
    path = folder / "kustomization.yaml"
    text = (
        path.read_text().replace("# components:", "components:").replace("#   - admission/", "  - admission/")
    )
    page = (DEPLOY.parent / "docs" / "threat-model.md").read_text()
    (patches,) = re.findall(r"```yaml\n(patches:\n.*?)```", page, re.DOTALL)  # the documentation's example
    path.write_text(text + patches)

    built = manifests(folder)

    kinds = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in built}
    for name in COMPONENTS:
        assert {
            ("ValidatingAdmissionPolicy", f"policysched-{name}"),
            ("ValidatingAdmissionPolicyBinding", f"policysched-{name}"),
        } <= kinds
    names = next(
        manifest["spec"]["variables"][0]
        for manifest in built
        if manifest["kind"] == "ValidatingAdmissionPolicy"
        and manifest["metadata"]["name"] == "policysched-scheduler-names"
    )
    assert names == {"name": "open", "expression": "['default-scheduler', 'kube-default']"}
    assert not any(manifest["kind"].startswith("Validating") for manifest in manifests()), "opt-in"

"""Who may read policysched's port on a real control plane, by its own TokenReview and SubjectAccessReview."""

import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml

from tests.controlplane.cluster import ControlPlane
from tests.controlplane.objects import pod
from tests.controlplane.waiting import PATIENCE_S, wait_for
from tests.e2e.deployed import DEPLOY, PLAIN, Deployed

PATHS = ("/metrics", "/policy", "/decisions", "/quotas", "/configz")
"""Not `/version`: the cluster's role system:public-info-viewer allows it to everybody."""


RBAC = "/apis/rbac.authorization.k8s.io/v1"


def bind_role(deployed: Deployed, path: str, kind: str, role: str, namespace: str) -> None:
    """Give a role to the service account `default` of a namespace."""
    subject = {"kind": "ServiceAccount", "namespace": namespace, "name": "default"}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role}
    binding = {"metadata": {"name": f"{role}-{namespace}"}, "roleRef": reference, "subjects": [subject]}
    deployed.api.post(path, binding)


def test_readers_need_a_permission_and_probes_do_not(control_plane: ControlPlane, tmp_path: Path) -> None:
    deployed = Deployed(control_plane, tmp_path)
    deployed.put_policies(main=PLAIN)
    reader = control_plane.service_account_token("default", "default")
    (role,) = yaml.safe_load_all((DEPLOY / "metrics-reader.yaml").read_text())

    with deployed.running(secure=True) as scheduler:
        scheduler.wait_for_state("test", "active")  # with the certificate of an administrator

        assert {scheduler.status_with_token(path, None) for path in PATHS} == {403}
        assert {scheduler.status_with_token(path, "forged") for path in PATHS} == {401}
        assert {scheduler.status_with_token(path, reader) for path in PATHS} == {403}
        assert {scheduler.status_with_token(path, None) for path in ("/livez", "/readyz")} == {200}
        deployed.api.post(f"{RBAC}/clusterroles", role)
        bind_role(deployed, f"{RBAC}/clusterrolebindings", "ClusterRole", role["metadata"]["name"], "default")
        wait_for(lambda: scheduler.status_with_token("/metrics", reader) == 200, "the reader to be allowed")
        assert scheduler.status_with_token("/policy", reader) == 403

        with pytest.raises((urllib.error.URLError, OSError)):
            urllib.request.urlopen(f"http://127.0.0.1:{scheduler.port}/livez", timeout=PATIENCE_S)


def test_the_page_shows_a_tenant_only_pods_of_their_own_namespace(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    deployed = Deployed(control_plane, tmp_path)
    deployed.put_policies(main=PLAIN)
    role, author = yaml.safe_load_all((DEPLOY / "page-reader.yaml").read_text())
    for made in (role, author):
        deployed.api.post(f"{RBAC}/clusterroles", made)
    for namespace in ("red", "blue"):
        deployed.api.post("/api/v1/namespaces", {"metadata": {"name": namespace}})
        viewer = {
            "metadata": {"name": "viewer"},
            "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}],
        }
        roles = f"{RBAC}/namespaces/{namespace}"
        deployed.api.post(f"{roles}/roles", viewer)
        deployed.api.post(
            f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "default"}}
        )
        bind_role(deployed, f"{roles}/rolebindings", "Role", "viewer", namespace)
        bind_role(deployed, f"{RBAC}/clusterrolebindings", "ClusterRole", role["metadata"]["name"], namespace)
        waiting = pod(f"secret-of-{namespace}", cpu="9999", schedulerName="test")
        deployed.api.post(f"/api/v1/namespaces/{namespace}/pods", waiting)
    tokens = {name: control_plane.service_account_token(name, "default") for name in ("red", "blue")}

    with deployed.running(secure=True) as scheduler:
        scheduler.wait_for_state("test", "active")

        def shown(path: str, namespace: str) -> str:
            return scheduler.answer_with_token(path, tokens[namespace])[1]

        for path in ("/page/pending", "/page/queue"):
            for own, other in (("red", "blue"), ("blue", "red")):
                wait_for(lambda p=path, n=own: f"secret-of-{n}" in shown(p, n), f"{own} to see its pod")
                assert f"secret-of-{other}" not in shown(path, own), path
        assert "secret-of-red" in shown("/page/pod?pod=red/secret-of-red", "red")
        assert "9999" not in shown("/page/pod?pod=blue/secret-of-blue", "red")
        wait_for(
            lambda: all(f"secret-of-{name}" in scheduler.get("/page/pending") for name in tokens),
            "the administrator to see both",
        )

        tried = {"policy": "test", "text": "policy test version 1\nfilter f require nonsense\n"}
        assert scheduler.answer_with_token("/page/try", tokens["red"], tried)[0] == 403
        bindings = f"{RBAC}/clusterrolebindings"
        bind_role(deployed, bindings, "ClusterRole", author["metadata"]["name"], "blue")
        wait_for(
            lambda: "nonsense" in scheduler.answer_with_token("/page/try", tokens["blue"], tried)[1],
            "the author to get the diagnostics",
        )

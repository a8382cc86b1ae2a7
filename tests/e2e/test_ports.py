"""Who may read policysched's port on a real control plane, by its own TokenReview and SubjectAccessReview."""

import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml

from tests.controlplane.cluster import ControlPlane
from tests.controlplane.waiting import PATIENCE_S, wait_for
from tests.e2e.deployed import DEPLOY, PLAIN, Deployed

PATHS = ("/metrics", "/policy", "/decisions", "/quotas", "/configz")
"""Not `/version`: the cluster's role system:public-info-viewer allows it to everybody."""


def test_readers_need_a_permission_and_probes_do_not(control_plane: ControlPlane, tmp_path: Path) -> None:
    deployed = Deployed(control_plane, tmp_path)
    deployed.put_policies(main=PLAIN)
    reader = control_plane.service_account_token("default", "default")
    (role,) = yaml.safe_load_all((DEPLOY / "metrics-reader.yaml").read_text())
    group = "/apis/rbac.authorization.k8s.io/v1"

    with deployed.running(secure=True) as scheduler:
        scheduler.wait_for_state("test", "active")  # with the certificate of an administrator

        assert {scheduler.status_with_token(path, None) for path in PATHS} == {403}
        assert {scheduler.status_with_token(path, "forged") for path in PATHS} == {401}
        assert {scheduler.status_with_token(path, reader) for path in PATHS} == {403}
        assert {scheduler.status_with_token(path, None) for path in ("/livez", "/readyz")} == {200}
        deployed.api.post(f"{group}/clusterroles", role)
        subject = {"kind": "ServiceAccount", "namespace": "default", "name": "default"}
        reference = {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": role["metadata"]["name"],
        }
        binding = {"metadata": {"name": "reader"}, "roleRef": reference, "subjects": [subject]}
        deployed.api.post(f"{group}/clusterrolebindings", binding)
        wait_for(lambda: scheduler.status_with_token("/metrics", reader) == 200, "the reader to be allowed")
        assert scheduler.status_with_token("/policy", reader) == 403

        with pytest.raises((urllib.error.URLError, OSError)):
            urllib.request.urlopen(f"http://127.0.0.1:{scheduler.port}/livez", timeout=PATIENCE_S)

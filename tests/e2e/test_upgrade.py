"""The commands that docs/install.md gives for installing, upgrading and removing, on a real API server."""

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.controlplane.cluster import ControlPlane
from tests.controlplane.waiting import PATIENCE_S
from tests.e2e.deployed import CONFIG_MAPS, DEPLOY, LEASE, example_policies, manifests
from tests.e2e.install_page import run_section
from tests.e2e.older_versions import checkout_of, older_versions
from tests.e2e.program import BIN, kubectl

NAMESPACED = "/apis/apps/v1/namespaces/policysched/deployments/policysched"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder like a checkout, in which the commands may leave files."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "deploy").symlink_to(DEPLOY)
    return folder


def run(title: str, control_plane: ControlPlane, folder: Path) -> str:
    return run_section(title, control_plane.kubeconfig_path, folder)


def policies(control_plane: ControlPlane) -> Mapping[str, str]:
    data: Mapping[str, str] = control_plane.api.get(f"{CONFIG_MAPS}/policies")["data"]
    return data


OWN = {"mine.policy": "policy mine version 1\ninclude kube_default\n"}


def edit_policies(control_plane: ControlPlane) -> Mapping[str, str]:
    """A changed example and a policy of one's own, as `kubectl edit` leaves them."""
    edited = policies(control_plane)["kube-default.policy"].replace(
        "pod.priority desc, pod.queued", "pod.created"
    )
    control_plane.api.patch(f"{CONFIG_MAPS}/policies", {"data": {"kube-default.policy": edited, **OWN}})
    return {"kube-default.policy": edited, **OWN}


def lead(control_plane: ControlPlane) -> dict[str, Any]:
    """What a leader leaves: a holder, and a last known good text. Returns both objects' contents."""
    control_plane.api.patch(LEASE, {"spec": {"holderIdentity": "a-1", "leaseTransitions": 3}})
    control_plane.api.patch(f"{CONFIG_MAPS}/policies-last-good", {"data": OWN})
    return traces(control_plane)


def traces(control_plane: ControlPlane) -> dict[str, Any]:
    last_good = control_plane.api.get(f"{CONFIG_MAPS}/policies-last-good")
    return {"lease": control_plane.api.get(LEASE)["spec"], "last good": last_good["data"]}


def test_an_upgrade_and_a_rollback_change_no_policy(control_plane: ControlPlane, checkout: Path) -> None:
    run("Install", control_plane, checkout)
    assert policies(control_plane) == example_policies()["data"]
    edited, before = edit_policies(control_plane), lead(control_plane)
    control_plane.api.patch(
        NAMESPACED,
        {
            "spec": {
                "template": {"spec": {"containers": [{"name": "policysched", "image": "policysched:0.0.9"}]}}
            }
        },
    )

    run("Upgrade", control_plane, checkout)

    assert (policies(control_plane), traces(control_plane)) == (edited, before)
    (container,) = control_plane.api.get(NAMESPACED)["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "policysched:0.1.0"


@pytest.mark.parametrize("version", older_versions())
def test_an_upgrade_from_and_a_rollback_to_an_older_version_change_no_policy(
    control_plane: ControlPlane, checkout: Path, tmp_path: Path, version: str
) -> None:
    older = checkout_of(version, tmp_path / "older")
    run("Install", control_plane, older)
    edited, before = edit_policies(control_plane), lead(control_plane)
    assert not installed(control_plane, checkout), "the two versions do not differ"

    for folder in (checkout, older, checkout):
        run("Upgrade", control_plane, folder)

        assert installed(control_plane, folder)
        assert (policies(control_plane), traces(control_plane)) == (edited, before)


def installed(control_plane: ControlPlane, folder: Path) -> bool:
    """Whether the manifests of the folder would change nothing."""
    command = [
        BIN / "kubectl",
        "--kubeconfig",
        control_plane.kubeconfig_path,
        "diff",
        "-k",
        folder / "deploy",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode in (0, 1), done.stderr
    return done.returncode == 0


def test_the_namespace_may_exist(control_plane: ControlPlane, checkout: Path) -> None:
    control_plane.create_namespace("policysched")

    run("Install", control_plane, checkout)

    labels = control_plane.api.get("/api/v1/namespaces/policysched")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    assert policies(control_plane) == example_policies()["data"]


def test_an_upgrade_keeps_policies_that_an_older_version_applied(
    control_plane: ControlPlane, checkout: Path
) -> None:
    """Before, the policies were part of the kustomization."""
    older = yaml.safe_dump_all([*manifests(), example_policies()])
    kubectl(control_plane.kubeconfig_path, "apply", "-f", "-", stdin=older)
    mine = {**example_policies(), "data": OWN}
    kubectl(control_plane.kubeconfig_path, "apply", "-f", "-", stdin=yaml.safe_dump(mine))

    run("Upgrade", control_plane, checkout)

    assert policies(control_plane) == OWN


def test_removing_keeps_a_copy_of_the_policies_and_leaves_nothing(
    whole_control_plane: ControlPlane, checkout: Path
) -> None:
    control_plane = whole_control_plane
    control_plane.start_controller_manager()  # deletes what the namespace contains
    run("Install", control_plane, checkout)
    edited = edit_policies(control_plane)

    run("Remove", control_plane, checkout)

    copy = yaml.safe_load((checkout / "policies-backup.yaml").read_text())
    assert copy["data"] == edited
    left = kubectl(
        control_plane.kubeconfig_path, "get", "-k", str(DEPLOY), "--ignore-not-found", "-o", "name"
    )
    assert left.split() in ([], ["namespace/policysched"]), "the namespace controller deletes the namespace"

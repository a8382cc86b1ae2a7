"""The chart on a real API server: the commands that docs/install.md gives, and what they must not change."""

import subprocess
from pathlib import Path

import pytest

from tests.controlplane.cluster import ControlPlane
from tests.e2e.deployed import DEPLOY, example_policies
from tests.e2e.install_page import run_section
from tests.e2e.older_versions import checkout_of, older_versions
from tests.e2e.program import kubectl
from tests.e2e.test_upgrade import NAMESPACED, edit_policies, lead, policies, traces
from tests.helm.program import CHART, helm_binary, run_helm

pytestmark = pytest.mark.usefixtures("requires_helm")
RELEASE = ("policysched", str(CHART), "--namespace", "policysched")


class Cluster:
    def __init__(self, control_plane: ControlPlane, folder: Path) -> None:
        self.control_plane = control_plane
        self._folder = folder

    def helm(self, *arguments: str, code: int = 0) -> str:
        """Its output, or its errors if it must fail with `code`."""
        environment = {"KUBECONFIG": str(self.control_plane.kubeconfig_path)}
        done: subprocess.CompletedProcess[str] = run_helm(
            *arguments, folder=self._folder, environment=environment
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stderr if code else done.stdout

    def kubectl(self, *arguments: str) -> str:
        return kubectl(self.control_plane.kubeconfig_path, *arguments)

    def image(self) -> str:
        (container,) = self.control_plane.api.get(NAMESPACED)["spec"]["template"]["spec"]["containers"]
        image: str = container["image"]
        return image

    def manifest(self) -> str:
        return self.helm("get", "manifest", "policysched", "--namespace", "policysched")


@pytest.fixture
def cluster(control_plane: ControlPlane, tmp_path: Path) -> Cluster:
    return Cluster(control_plane, tmp_path)


def test_upgrade_rollback_and_uninstall_keep_the_policies(cluster: Cluster) -> None:
    """In a namespace that exists."""
    cluster.kubectl("create", "namespace", "policysched")
    cluster.helm("install", *RELEASE, "--set", "examplePolicies.create=true,image.tag=0.0.9")
    edited, before = edit_policies(cluster.control_plane), lead(cluster.control_plane)
    assert cluster.image() == "policysched:0.0.9"

    cluster.helm("upgrade", *RELEASE, "--reset-values", "--set", "examplePolicies.create=true,replicas=3")
    assert (policies(cluster.control_plane), traces(cluster.control_plane)) == (edited, before)
    assert cluster.image() == "policysched:0.1.0"

    cluster.helm("rollback", "policysched", "--namespace", "policysched")
    assert (policies(cluster.control_plane), traces(cluster.control_plane)) == (edited, before)
    assert cluster.image() == "policysched:0.0.9"

    cluster.helm("uninstall", "policysched", "--namespace", "policysched")
    assert policies(cluster.control_plane) == edited
    left = cluster.kubectl("get", "deployments,leases", "-n", "policysched", "-o", "name")
    assert left == ""

    cluster.helm("install", *RELEASE, "--set", "examplePolicies.create=true")
    assert policies(cluster.control_plane) == edited
    cluster.helm("uninstall", "policysched", "--namespace", "policysched")


@pytest.mark.parametrize("version", older_versions())
def test_an_upgrade_from_and_a_rollback_to_an_older_version_keep_the_policies(
    cluster: Cluster, tmp_path: Path, version: str
) -> None:
    older = checkout_of(version, tmp_path / "older")
    cluster.kubectl("create", "namespace", "policysched")
    release = ("policysched", str(older / "deploy" / "chart"), "--namespace", "policysched")
    cluster.helm("install", *release, "--set", "examplePolicies.create=true")
    edited, before = edit_policies(cluster.control_plane), lead(cluster.control_plane)
    older_manifest = cluster.manifest()

    cluster.helm("upgrade", *RELEASE, "--reset-then-reuse-values")
    assert (policies(cluster.control_plane), traces(cluster.control_plane)) == (edited, before)

    cluster.helm("rollback", "policysched", "--namespace", "policysched")
    assert (policies(cluster.control_plane), traces(cluster.control_plane)) == (edited, before)
    assert cluster.manifest() == older_manifest
    cluster.helm("uninstall", "policysched", "--namespace", "policysched")


def test_the_commands_of_the_page_install_upgrade_roll_back_and_remove(
    cluster: Cluster, tmp_path: Path
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "helm").symlink_to(helm_binary())
    (tmp_path / "deploy").symlink_to(DEPLOY)

    said = run_section("With Helm", cluster.control_plane.kubeconfig_path, tmp_path, programs)

    assert [line for line in said.splitlines() if line.startswith(("STATUS", "Rollback", "release"))] == [
        "STATUS: deployed",
        "STATUS: deployed",
        "Rollback was a success! Happy Helming!",
        'release "policysched" uninstalled',
    ]
    assert policies(cluster.control_plane) == example_policies()["data"]


def test_an_installation_by_kustomize_is_taken_over(cluster: Cluster) -> None:
    cluster.kubectl("create", "namespace", "policysched")
    cluster.kubectl("create", "-f", str(DEPLOY / "example-policies.yaml"))
    cluster.kubectl("apply", "-k", str(DEPLOY))
    edited, before = edit_policies(cluster.control_plane), lead(cluster.control_plane)

    refused = cluster.helm("install", *RELEASE, code=1)
    assert "cannot be imported into the current release" in refused
    cluster.helm("install", *RELEASE, "--take-ownership", "--force-conflicts", "--set", "replicas=3")

    assert (policies(cluster.control_plane), traces(cluster.control_plane)) == (edited, before)
    assert cluster.control_plane.api.get(NAMESPACED)["spec"]["replicas"] == 3
    cluster.helm("uninstall", "policysched", "--namespace", "policysched")


def test_a_wrong_value_changes_nothing(cluster: Cluster) -> None:
    cluster.kubectl("create", "namespace", "policysched")

    output = cluster.helm("install", *RELEASE, "--set", "replicas=two", code=1)

    assert "at '/replicas': got string, want integer" in output
    assert (
        cluster.kubectl(
            "get",
            "deploy,configmap",
            "-n",
            "policysched",
            "-o",
            "name",
            "--field-selector=metadata.name!=kube-root-ca.crt",
        )
        == ""
    )

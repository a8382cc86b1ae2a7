"""docs/install.md as somebody follows it who has nothing else: each section in order, on a real API server.

Nodes, kubelet and controllers are the sandbox's (`sandbox --real`), and kube-scheduler places what names no policy. Containers do
not run: `policysched run` is a process with the arguments, settings and ServiceAccount of the Deployment. `make image` and `skopeo`
are programs that note what they are asked (the image has tests of its own).
"""

import json
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from tests.controlplane.process import free_ports
from tests.controlplane.programs import Programs
from tests.controlplane.waiting import wait_for
from tests.e2e.deployed import DEPLOY, NAMESPACE
from tests.e2e.install_page import REPOSITORY, run_section
from tests.e2e.program import Running, kubectl
from tests.e2e.test_real_sandbox import RealCluster, assets, started

__all__ = ["assets"]
WEB = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "web", "namespace": "default"},
    "spec": {
        "replicas": 2,
        "selector": {"matchLabels": {"app": "web"}},
        "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "web", "image": "web:1"}]},
        },
    },
}


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the page's command clones, with this checkout's uncommitted manifests."""
    monkeypatch.setenv("REPOSITORY", str(REPOSITORY))
    run_section("A checkout", tmp_path / "none", tmp_path)
    folder = tmp_path / "policysched"
    shutil.copytree(
        DEPLOY, folder / "deploy", ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True
    )
    return folder


@contextmanager
def kube_scheduler(programs: Programs, kubeconfig: Path, folder: Path) -> Iterator[None]:
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(kubeconfig)},
    }
    (folder / "kube-scheduler.yaml").write_text(yaml.safe_dump(config))
    arguments = [f"--config={folder / 'kube-scheduler.yaml'}", "--secure-port=0"]
    with (folder / "kube-scheduler.log").open("w") as log:
        process = subprocess.Popen([*programs["kube-scheduler"].argv, *arguments], stdout=log, stderr=log)
    try:
        yield
    finally:
        process.kill()
        process.wait()


@contextmanager
def containers(cluster: RealCluster, folder: Path) -> Iterator[Running]:
    """What the kubelet would start for one replica."""
    (deployment,) = json.loads(cluster.kubectl("get", "deployments", "-n", NAMESPACE, "-o", "json"))["items"]
    spec = deployment["spec"]["template"]["spec"]
    (container,), (volume,) = spec["containers"], spec["volumes"]
    (mount,) = container["volumeMounts"]
    name = volume["configMap"]["name"]
    settings = json.loads(cluster.kubectl("get", "configmap", name, "-n", NAMESPACE, "-o", "json"))["data"]
    for key, text in settings.items():
        (folder / key).write_text(text)
    token = cluster.kubectl("create", "token", spec["serviceAccountName"], "-n", NAMESPACE).strip()
    account = yaml.safe_load(cluster.kubeconfig.read_text())
    account["users"][0]["user"] = {"token": token}
    kubeconfig = folder / "service-account"
    kubeconfig.write_text(yaml.safe_dump(account))
    port = free_ports(1)[0]
    arguments = [word.replace(mount["mountPath"], str(folder)) for word in container["args"]]
    own = ["--kubeconfig", str(kubeconfig), "--http", f"127.0.0.1:{port}", "--insecure-http"]
    process = Running([*arguments, *own], folder / "policysched.log", port)
    try:
        yield process
    except BaseException:
        print(process.log()[-20_000:])
        raise
    finally:
        process.kill()


def schedulers(cluster: RealCluster) -> set[str]:
    """Those that the pods of the Deployment name."""
    listed = json.loads(cluster.kubectl("get", "pods", "-l", "app=web", "-o", "json"))["items"]
    return {pod["spec"]["schedulerName"] for pod in listed}


def test_the_image_is_published_and_named(checkout: Path, tmp_path: Path) -> None:
    programs, asked = tmp_path / "programs", tmp_path / "asked"
    programs.mkdir()
    (checkout / "dist").mkdir()
    (checkout / "dist" / "policysched-0.1.0-image.tar").touch()
    for name in ("make", "skopeo"):
        (programs / name).write_text(f'#!/bin/sh\necho {name} "$@" >> {shlex.quote(str(asked))}\n')
        (programs / name).chmod(0o755)

    run_section("The image", tmp_path / "none", checkout, programs)

    assert asked.read_text().splitlines() == [
        "make image",
        "skopeo copy --all oci-archive:dist/policysched-0.1.0-image.tar docker://registry.example.com/policysched:0.1.0",
    ]
    rendered = kubectl(tmp_path / "none", "kustomize", str(checkout / "deploy"))
    images = [
        container["image"]
        for document in yaml.safe_load_all(rendered)
        if document["kind"] == "Deployment"
        for container in document["spec"]["template"]["spec"]["containers"]
    ]
    assert images == ["registry.example.com/policysched:0.1.0"]


def test_a_stranger_installs_it_moves_a_deployment_over_and_back_and_removes_it(
    assets: pytest.MonkeyPatch, control_plane_programs: Programs, checkout: Path, tmp_path: Path
) -> None:
    with (
        started(tmp_path) as cluster,
        kube_scheduler(control_plane_programs, cluster.kubeconfig, tmp_path),
    ):
        cluster.apply(WEB)

        def run(title: str) -> str:
            return run_section(title, cluster.kubeconfig, checkout)

        run("Install")
        with containers(cluster, tmp_path) as process:
            process.wait_for_log("acquired the lease; leading")
            moved = run("Move one Deployment over")
            wait_for(lambda: schedulers(cluster) == {"kube-default"}, "the old pods to be gone")
            bound = process.metric("policysched_binds_total")
            run("Move it back")
            wait_for(lambda: schedulers(cluster) == {"default-scheduler"}, "the pods to be moved back")
            process.terminate()
        listed = run("Remove")

        assert bound == moved.count(" kube-default ") == 2, moved
        assert "web-" not in listed, "a pod still names a policy"
        assert yaml.safe_load((checkout / "policies-backup.yaml").read_text())["data"]
        left = cluster.kubectl("get", "-k", str(checkout / "deploy"), "--ignore-not-found", "-o", "name")
        assert left.split() in ([], ["namespace/policysched"]), (
            "the namespace controller deletes the namespace"
        )
        cluster.kubectl("rollout", "status", "deployment/web")

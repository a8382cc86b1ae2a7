"""`policysched sandbox --real`: the simulated nodes, kubelet and controllers on a real kube-apiserver and etcd."""

import json
import os
import shlex
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from policysched.sandbox.real import programs
from tests.cli.builders import run
from tests.controlplane.process import free_ports
from tests.controlplane.programs import Programs
from tests.controlplane.waiting import PATIENCE_S, wait_for
from tests.e2e.preloaded import PreloadedProcess, no_change
from tests.e2e.program import Json, Running, kubectl
from tests.e2e.sandbox import PLAIN, POLICIES

WITHIN = f"--timeout={PATIENCE_S:g}s"


@pytest.fixture(scope="module")
def assets(
    server_programs: Programs, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[pytest.MonkeyPatch]:
    """A folder with the two programs, as setup-envtest makes one, in the environment."""
    folder = tmp_path_factory.mktemp("assets")
    for name in ("etcd", "kube-apiserver"):
        words = " ".join(shlex.quote(word) for word in server_programs[name].argv)
        (folder / name).write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        (folder / name).chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBEBUILDER_ASSETS", str(folder))
        yield patch


class RealCluster:
    """A sandbox process on a real server."""

    def __init__(self, folder: Path, plant: Callable[[], None] = no_change) -> None:
        self._folder = folder
        self.kubeconfig = folder / "kubeconfig"
        self._log = folder / "sandbox.log"
        arguments = ["sandbox", "--real", "--nodes", "2", "--kubeconfig", str(self.kubeconfig)]
        self.process = PreloadedProcess(arguments, self._log, plant)
        wait_for(lambda: "listens on" in self.log() or self.process.poll() is not None, "the sandbox")
        assert self.process.poll() is None, self.log()

    def log(self) -> str:
        return self._log.read_text()

    def kubectl(self, *arguments: str, stdin: str = "") -> str:
        return kubectl(self.kubeconfig, *arguments, stdin=stdin)

    def apply(self, *manifests: Json) -> None:
        self.kubectl(
            "apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests})
        )

    def program_pids(self) -> dict[str, int]:
        """The processes that it started, by name."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        lines = {int(pid): Path(f"/proc/{pid}/cmdline").read_bytes().decode() for pid in children}
        return {
            name: next(pid for pid, line in lines.items() if name in line.split("\0"))
            for name in ("etcd", "kube-apiserver")
        }


@contextmanager
def started(folder: Path, plant: Callable[[], None] = no_change) -> Iterator[RealCluster]:
    cluster = RealCluster(folder, plant)
    try:
        yield cluster
    finally:
        cluster.process.kill()
        cluster.process.wait()


@pytest.fixture(scope="module")
def cluster(assets: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    with started(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def scheduler(cluster: RealCluster, tmp_path: Path) -> Iterator[Running]:
    policies = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"main.policy": PLAIN}}
    cluster.apply({**policies, "metadata": {"namespace": "kube-system", "name": "policies"}})
    port = free_ports(1)[0]
    arguments = [
        *("run", "--kubeconfig", str(cluster.kubeconfig), "--policies", POLICIES),
        *("--http", f"127.0.0.1:{port}", "--insecure-http", "--log-format", "json"),
    ]
    process = Running(arguments, tmp_path / "run.log", port)
    yield process
    process.kill()


def template(app: str, **spec: object) -> Json:
    containers = [{"name": "c", "image": "app:1"}]
    return {
        "metadata": {
            "labels": {"app": app},
            "annotations": {"sandbox.policysched/run-seconds": "0"} if spec else {},
        },
        "spec": {"schedulerName": "test", "containers": containers, **spec},
    }


def images(cluster: RealCluster) -> list[str]:
    """Those of the pods of the Deployment."""
    wanted = "jsonpath={.items[*].spec.containers[*].image}"
    return cluster.kubectl("get", "pods", "-n", "batch", "-l", "app=web", "-o", wanted).split()


def test_workloads_are_rolled_out_run_to_their_end_and_go_with_their_namespace(
    cluster: RealCluster, scheduler: Running
) -> None:
    where = {"namespace": "batch"}
    cluster.kubectl("create", "namespace", "batch")
    cluster.apply(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "web", **where},
            "spec": {"replicas": 3, "selector": {"matchLabels": {"app": "web"}}, "template": template("web")},
        },
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "sum", **where},
            "spec": {"completions": 2, "template": template("sum", restartPolicy="Never")},
        },
    )

    cluster.kubectl("rollout", "status", "-n", "batch", "deployment/web", WITHIN)
    cluster.kubectl("wait", "-n", "batch", "job/sum", "--for=condition=complete", WITHIN)
    cluster.kubectl("set", "image", "-n", "batch", "deployment/web", "c=app:2")
    cluster.kubectl("rollout", "status", "-n", "batch", "deployment/web", WITHIN)
    wait_for(lambda: images(cluster) == ["app:2"] * 3, "the old pods to be gone")
    cluster.kubectl("delete", "namespace", "batch", WITHIN)

    assert cluster.kubectl("get", "pods,jobs,deployments", "-A", "-o", "name") == ""


def test_roles_are_enforced(cluster: RealCluster) -> None:
    with pytest.raises(AssertionError, match="Forbidden"):
        cluster.kubectl("get", "pods", "--as=guest")


def test_an_owned_object_goes_with_a_custom_resource(cluster: RealCluster) -> None:
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "trains.rail.example.com"},
        "spec": {
            "group": "rail.example.com",
            "scope": "Namespaced",
            "names": {"plural": "trains", "singular": "train", "kind": "Train"},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": {"type": "object"}},
                }
            ],
        },
    }
    cluster.apply(definition)
    cluster.kubectl("wait", "--for=condition=established", "crd/trains.rail.example.com", WITHIN)
    cluster.apply(
        {
            "apiVersion": "rail.example.com/v1",
            "kind": "Train",
            "metadata": {"name": "night", "namespace": "default"},
        }
    )
    uid = cluster.kubectl("get", "train", "night", "-o", "jsonpath={.metadata.uid}")
    owner = {"apiVersion": "rail.example.com/v1", "kind": "Train", "name": "night", "uid": uid}
    cluster.apply(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "plan", "namespace": "default", "ownerReferences": [owner]},
        }
    )

    cluster.kubectl("delete", "train", "night", WITHIN)

    wait_for(lambda: "plan" not in cluster.kubectl("get", "configmaps", "-o", "name"), "the collection")


def test_a_program_that_ends_ends_the_sandbox_with_one_line(
    assets: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with started(tmp_path) as cluster:
        os.kill(cluster.program_pids()["kube-apiserver"], signal.SIGKILL)

        assert cluster.process.wait(timeout=PATIENCE_S) == 2
        last = cluster.log().splitlines()[-1]

    assert last.startswith("policysched: kube-apiserver ended with exit code -9")


def test_a_killed_sandbox_leaves_no_program(assets: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with started(tmp_path) as cluster:
        pids = cluster.program_pids().values()

    assert len(pids) == 2
    wait_for(lambda: not any(Path(f"/proc/{pid}/cmdline").exists() for pid in pids), "both to be gone")


def let_programs_outlive_the_sandbox() -> None:
    programs._end_with_parent = lambda: None


def test_a_program_that_outlives_the_sandbox_is_detected(assets: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with started(tmp_path, let_programs_outlive_the_sandbox) as cluster:
        pids = cluster.program_pids().values()

    assert len(pids) == 2
    assert all(Path(f"/proc/{pid}/cmdline").exists() for pid in pids)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def test_without_the_programs_one_line_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    (tmp_path / "etcd").touch(mode=0o755)

    done = run("sandbox", "--real")

    assert (done.code, len(done.err.splitlines())) == (2, 1)
    assert "--real: kube-apiserver not found" in done.err
    assert "setup-envtest" in done.err

"""`policysched shadow` beside the real kube-scheduler, with no more than the rights of deploy/shadow."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conformance.live.draw import NAMESPACES, Drawn, draw
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.waiting import wait_for
from tests.e2e.permissions import granted, wait_until_allowed

ROOT = Path(__file__).resolve().parents[2]
ROLE = yaml.safe_load((ROOT / "deploy/shadow/rbac.yaml").read_text())
KUBE_DEFAULT = ROOT / "policies/kube-default.policy"
PODS = int(os.environ.get("POLICYSCHED_SHADOW_PODS", "120"))
AT_ONCE = 20
UNCHANGED_S = 20.0
"""What has no record by then was late or unseen, on a busy machine; the summary counts it."""
AFTER_LAST_BIND_S = 1.5

OTHER_POLICY = (
    'policy kube-default version 1\ninclude kube_default\nscore far weight 50 prefer node.name == "s1-n0"\n'
)
"""Its first node in any cluster that is drawn here is preferred to all others."""


def random_pods(count: int) -> Iterator[dict[str, Any]]:
    """Pods of `draw` that need nothing but nodes."""
    made, seed = 0, 1000
    while made < count:
        seed += 1
        for pod in draw(seed, Drawn.PLAIN)["pending"]:
            spec = pod["spec"]
            claims = any(
                "persistentVolumeClaim" in volume or "ephemeral" in volume
                for volume in spec.get("volumes", ())
            )
            if claims or "runtimeClassName" in spec or "priorityClassName" in spec or made == count:
                continue
            made += 1
            yield pod


def add_cluster(control_plane: ControlPlane) -> None:
    """Some fifty nodes, fewer than kube-scheduler takes a sample of, with room for every pod."""
    for name in NAMESPACES:
        if name != "default":
            control_plane.create_namespace(name)
            control_plane.api.patch(f"/api/v1/namespaces/{name}", {"metadata": {"labels": NAMESPACES[name]}})
    for seed in range(1, 9):
        for node in draw(seed, Drawn.PLAIN)["nodes"]:
            room = {"cpu": "64", "memory": "256Gi", "pods": "110"}
            node["status"]["allocatable"] = node["status"]["capacity"] = node["status"]["capacity"] | room
            control_plane.add_node(node)


class Shadow:
    def __init__(self, process: "subprocess.Popen[str]", output: Path) -> None:
        self.process = process
        self._output = output

    def records(self) -> list[dict[str, Any]]:
        whole, _, _ = self._output.read_text().rpartition("\n")
        return [json.loads(line) for line in whole.splitlines()]

    def stop(self) -> dict[str, Any]:
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(60) == 0
        summary: dict[str, Any] = self.records()[-1]["summary"]
        return summary


@contextmanager
def shadowing(policy: Path, kubeconfig: Path, folder: Path) -> Iterator[Shadow]:
    output = folder / "shadow.jsonl"
    command = [sys.executable, "-m", "policysched", "shadow", "--policy", str(policy)]
    command += ["--kubeconfig", str(kubeconfig), "--output-format", "json"]
    with output.open("w") as file:
        process = subprocess.Popen(command, stdout=file, text=True)
    try:
        yield Shadow(process, output)
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def kubeconfig(whole_control_plane: ControlPlane) -> Path:
    """Of a ServiceAccount that may do what deploy/shadow says."""
    control_plane = whole_control_plane
    account = {"kind": "ServiceAccount", "name": "default", "namespace": "default"}
    control_plane.api.post("/apis/rbac.authorization.k8s.io/v1/clusterroles", ROLE)
    control_plane.api.post(
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
        {
            "metadata": {"name": "shadow"},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": "policysched-shadow",
            },
            "subjects": [account],
        },
    )
    wait_until_allowed(control_plane.api, "default:default", granted([ROLE]))
    return control_plane.service_account_kubeconfig("default", "default")


def bound_pods(control_plane: ControlPlane) -> int:
    pods = control_plane.api.get("/api/v1/pods")["items"]
    return sum("nodeName" in pod["spec"] for pod in pods)


def schedule_beside(
    control_plane: ControlPlane, policy: Path, kubeconfig: Path, folder: Path
) -> dict[str, Any]:
    """Random pods, many at once, and the summary of a shadow with this policy. It compares no bind that it sees ten seconds late,
    so on a busy machine the next pods wait for it."""
    add_cluster(control_plane)
    with shadowing(policy, kubeconfig, folder) as shadow:
        # The first pod shows that the shadow watches; it is bound when the scheduler starts.
        pods = list(random_pods(PODS))
        control_plane.start_scheduler()
        wait_for(lambda: _watches(control_plane, shadow), "the shadow to compare a bind")
        counts, missing, changed_s = (0, 0), 0, time.monotonic()

        def settled() -> bool:
            nonlocal counts, missing, changed_s
            before, counts = (
                counts,
                (bound_pods(control_plane) - _probes(control_plane), len(shadow.records())),
            )
            if counts != before:
                changed_s = time.monotonic()
                return False
            if time.monotonic() - changed_s > UNCHANGED_S:
                missing = max(0, counts[0] - counts[1])
            return counts[1] >= counts[0] - missing

        for number, pod in enumerate(pods, start=1):
            control_plane.api.post(f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods", pod)
            if number % AT_ONCE == 0:
                wait_for(settled, "every bind to be compared")
        wait_for(lambda: bound_pods(control_plane) > PODS // 2, "most pods to be bound")
        wait_for(settled, "every bind to be compared")
        return shadow.stop()


def _probes(control_plane: ControlPlane) -> int:
    pods = control_plane.api.get("/api/v1/namespaces/default/pods")["items"]
    return sum(pod["metadata"]["name"].startswith("probe-") for pod in pods)


def _watches(control_plane: ControlPlane, shadow: Shadow) -> bool:
    """Whether a probe was compared; one that is bound before the shadow watches is not."""
    if shadow.records():
        return True
    number = _probes(control_plane)
    spec = {"containers": [{"name": "c", "image": "app:1"}], "tolerations": [{"operator": "Exists"}]}
    control_plane.api.post(
        "/api/v1/namespaces/default/pods", {"metadata": {"name": f"probe-{number}"}, "spec": spec}
    )
    try:
        wait_for(shadow.records, "the probe", within_s=5.0)
    except AssertionError:
        return False
    return True


def test_kube_default_differs_from_kube_scheduler_only_among_equals(
    whole_control_plane: ControlPlane, kubeconfig: Path, tmp_path: Path
) -> None:
    summary = schedule_beside(whole_control_plane, KUBE_DEFAULT, kubeconfig, tmp_path)

    results = summary["results"]
    assert results["differs"] == results["rejects"] == 0, (tmp_path / "shadow.jsonl").read_text()
    assert summary["binds"] > PODS // 2
    assert summary["unseen"] == 0


def test_a_policy_with_another_score_is_seen_to_differ_by_it(
    whole_control_plane: ControlPlane, kubeconfig: Path, tmp_path: Path
) -> None:
    policy = tmp_path / "other.policy"
    policy.write_text(OTHER_POLICY)

    summary = schedule_beside(whole_control_plane, policy, kubeconfig, tmp_path)

    by_rule = {(row["result"], row["rule"], row["location"]): row["binds"] for row in summary["rules"]}
    assert by_rule["differs", "far", "other.policy:3"] > PODS // 4

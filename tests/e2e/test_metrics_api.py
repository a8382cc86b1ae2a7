"""The metrics API on a real API server: permitted by `deploy/metrics-api.yaml`, and by no other
shipped manifest.

metrics-server needs kubelets, so its objects are served as a custom resource with the same group,
version and form.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from policysched.metric_sources.metrics_api import PATH
from tests.controlplane.api import ApiError
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.objects import ready_node
from tests.controlplane.waiting import wait_for
from tests.e2e.deployed import DEPLOY, Deployed
from tests.e2e.program import Running

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
POLICY = """\
policy test version 1
metric used: cpu {
  query = "cpu"
  unit = "cores"
  join = node
  every = 1s
  stale = 10m
}
include kube_default
filter idle require used < 2 missing reject
"""
SOURCES = {"sources": {"usage": {"kind": "metrics-api"}}}


@pytest.fixture
def usage(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """A cluster with the metrics API."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    definition = {
        "metadata": {
            "name": "nodes.metrics.k8s.io",
            "annotations": {"api-approved.kubernetes.io": "unapproved, a test's stand-in for metrics-server"},
        },
        "spec": {
            "group": "metrics.k8s.io",
            "scope": "Cluster",
            "names": {"plural": "nodes", "kind": "NodeMetrics", "listKind": "NodeMetricsList"},
            "versions": [
                {"name": "v1beta1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
            ],
        },
    }
    control_plane.api.post(DEFINITIONS, definition)
    wait_for(lambda: served(control_plane), "the metrics API to be served")
    try:
        yield control_plane
    finally:
        control_plane.api.delete(f"{DEFINITIONS}/nodes.metrics.k8s.io")


def served(control_plane: ControlPlane) -> bool:
    try:
        control_plane.api.get(PATH)
    except ApiError:
        return False
    return True


def put_usage(control_plane: ControlPlane, name: str, cpu: str) -> None:
    control_plane.api.post(
        PATH,
        {
            "apiVersion": "metrics.k8s.io/v1beta1",
            "kind": "NodeMetrics",
            "metadata": {"name": name},
            "timestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "window": "20s",
            "usage": {"cpu": cpu, "memory": "1Gi"},
        },
    )


def failure(scheduler: Running) -> Any:
    return scheduler.json("/policy")["policies"][0]["metrics"]["used"]["failure"]


def test_usage_is_used_once_the_role_is_applied_and_a_missing_role_is_reported(
    usage: ControlPlane, tmp_path: Path
) -> None:
    deployed = Deployed(usage, tmp_path)
    for name, cpu in (("busy", "3500m"), ("quiet", "120000000n")):
        usage.add_node(ready_node(name))
        put_usage(usage, name, cpu)
    deployed.put_policies(main=POLICY)
    with deployed.running(settings=SOURCES) as scheduler:
        scheduler.wait_for_state("test", "active")
        deployed.create("web")

        refused = wait_for(lambda: failure(scheduler), "the refusal")
        assert refused["kind"] == "credentials"
        assert "apply deploy/metrics-api.yaml" in refused["message"]
        assert "had no sample of used" in deployed.condition("web")["message"]

        deployed.kubectl("apply", "-f", str(DEPLOY / "metrics-api.yaml"))
        assert deployed.bound("web") == "quiet"
        wait_for(lambda: failure(scheduler) is None, "a good poll")

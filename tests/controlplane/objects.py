"""Short builders of objects for the API server: `ready_node("a", cpu="4")`, `pod("web",
cpu="500m")`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.controlplane.api import Json


def ready_node(
    name: str,
    *,
    cpu: str = "4",
    memory: str = "8Gi",
    pods: str = "110",
    labels: Mapping[str, str] | None = None,
    taints: Sequence[Json] = (),
) -> Json:
    """A Node that is ready and has these allocatable amounts, for `ControlPlane.add_node`."""
    room = {"cpu": cpu, "memory": memory, "pods": pods, "ephemeral-storage": "100Gi"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
        "spec": {"taints": list(taints)},
        "status": {
            "capacity": room,
            "allocatable": room,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    }


def pod(name: str, *, cpu: str = "100m", memory: str = "64Mi", **spec: Any) -> Json:
    """A pod with one container; `spec` has further fields of its spec, under the API's names."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [_container(cpu, memory)], "terminationGracePeriodSeconds": 0, **spec},
    }


def deployment(name: str, *, replicas: int, cpu: str = "100m", memory: str = "64Mi") -> Json:
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [_container(cpu, memory)]}},
        },
    }


def _container(cpu: str, memory: str) -> Json:
    return {
        "name": "main",
        "image": "registry.test/app:1",
        "resources": {"requests": {"cpu": cpu, "memory": memory}},
    }

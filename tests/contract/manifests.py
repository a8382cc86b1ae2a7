"""Manifests as a client sends them."""

from typing import Any

Json = dict[str, Any]


def pod(
    name: str | None = None, *, generate_name: str | None = None, labels: Json | None = None, **spec: Any
) -> Json:
    """A pod with one container without requests; `spec` overrides its fields."""
    metadata: Json = {"name": name} if name else {"generateName": generate_name}
    if labels:
        metadata["labels"] = labels
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": [{"name": "c", "image": "app:1"}], **spec},
    }


def container(
    name: str = "c", *, requests: Json | None = None, limits: Json | None = None, **more: Any
) -> Json:
    resources = {key: value for key, value in (("requests", requests), ("limits", limits)) if value}
    return {"name": name, "image": "app:1", "resources": resources, **more}


def binding(pod_name: str, node: str, *, uid: str | None = None) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": pod_name, **({"uid": uid} if uid else {})},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }


def config_map(name: str, **data: str) -> Json:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def lease(name: str, holder: str) -> Json:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15},
    }


def node(name: str, *, cpu: str = "4") -> Json:
    resources = {"cpu": cpu, "memory": "8Gi", "pods": "110"}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": {"capacity": resources}}


def deployment(name: str, *, replicas: int | None = None, app: str = "web") -> Json:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            **({} if replicas is None else {"replicas": replicas}),
            "selector": {"matchLabels": {"app": app}},
            "template": {
                "metadata": {"labels": {"app": app}},
                "spec": {"containers": [{"name": "c", "image": "app:1"}]},
            },
        },
    }


def event(name: str, namespace: str, about: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name},
        "involvedObject": {"kind": "Pod", "namespace": namespace, "name": about, "apiVersion": "v1"},
        "reason": "FailedScheduling",
        "message": "0/1 nodes are available",
        "type": "Warning",
        "firstTimestamp": "2026-01-01T00:00:00Z",
        "lastTimestamp": "2026-01-01T00:00:00Z",
        "count": 1,
        "source": {"component": "policysched"},
    }

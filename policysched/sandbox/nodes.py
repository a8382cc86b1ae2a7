"""Node manifests for a simulated cluster: ready, empty and spread over zones."""

from dataclasses import dataclass, field
from typing import Any
from uuid import NAMESPACE_DNS, uuid5

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class NodeShape:
    """The capacity and labels of each node. Quantities are Kubernetes strings."""

    cpu: str = "8"
    memory: str = "32Gi"
    pods: int = 110
    ephemeral_storage: str = "100Gi"
    zones: tuple[str, ...] = ("zone-a", "zone-b", "zone-c")
    region: str = "sandbox"
    labels: dict[str, str] = field(default_factory=dict)


def make_nodes(
    count: int, shape: NodeShape | None = None, *, now: str = "1970-01-01T00:00:00Z"
) -> list[Json]:
    """Make `count` Node manifests `node-1`, `node-2`, ... with alternating zones, ready since `now`."""
    assert 0 <= count <= 65_000, f"{count} nodes: there are addresses for 65000"
    return [_node(at, shape or NodeShape(), now) for at in range(1, count + 1)]


def _node(at: int, shape: NodeShape, now: str) -> Json:
    name = f"node-{at}"
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "topology.kubernetes.io/region": shape.region,
        **shape.labels,
    }
    if shape.zones:
        labels["topology.kubernetes.io/zone"] = shape.zones[(at - 1) % len(shape.zones)]
    resources = {
        "cpu": shape.cpu,
        "memory": shape.memory,
        "pods": str(shape.pods),
        "ephemeral-storage": shape.ephemeral_storage,
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {"podCIDR": f"10.{100 + at // 256}.{at % 256}.0/24"},
        "status": {"capacity": dict(resources), "allocatable": resources, **node_status(name, now, at=at)},
    }


def node_status(name: str, now: str, *, at: int = 0) -> Json:
    """The status that a kubelet reports for a healthy node: conditions, addresses and node info."""
    return {
        "conditions": [
            *(
                _condition(kind, "False", reason, message, now)
                for kind, reason, message in (
                    (
                        "MemoryPressure",
                        "KubeletHasSufficientMemory",
                        "kubelet has sufficient memory available",
                    ),
                    ("DiskPressure", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
                    ("PIDPressure", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
                )
            ),
            _condition("Ready", "True", "KubeletReady", "the sandbox's simulated kubelet is ready", now),
        ],
        "addresses": [
            {"type": "InternalIP", "address": f"10.0.{at // 256}.{at % 256}"},
            {"type": "Hostname", "address": name},
        ],
        "nodeInfo": {
            "kubeletVersion": "v1.36.0-sandbox",
            "osImage": "pretend",
            "kernelVersion": "none",
            "containerRuntimeVersion": "pretend://1",
            "operatingSystem": "linux",
            "architecture": "amd64",
            # Required by the API: typed clients reject a node without them.
            "kubeProxyVersion": "",
            "bootID": str(uuid5(NAMESPACE_DNS, f"boot.{name}")),
            "machineID": uuid5(NAMESPACE_DNS, f"machine.{name}").hex,
            "systemUUID": str(uuid5(NAMESPACE_DNS, f"system.{name}")),
        },
    }


def _condition(kind: str, status: str, reason: str, message: str, now: str) -> Json:
    return {
        "type": kind,
        "status": status,
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
        "reason": reason,
        "message": message,
    }


def ready_node(manifest: Json, now: str, *, at: int = 0) -> Json:
    """Add the hostname label, a ready status and the required node info to a Node manifest, where they are missing.
    `at` makes the address, so it differs from node to node."""
    name = manifest["metadata"]["name"]
    labels = {"kubernetes.io/hostname": name, **(manifest["metadata"].get("labels") or {})}
    default_status, manifest_status = node_status(name, now, at=at), manifest.get("status") or {}
    info = {**default_status["nodeInfo"], **(manifest_status.get("nodeInfo") or {})}
    status = {**default_status, **manifest_status, "nodeInfo": info}
    return {**manifest, "metadata": {**manifest["metadata"], "labels": labels}, "status": status}

"""Builders of pods, nodes and cluster caches for tests.

Everything is decoded by `kube.decode.pods` and its neighbours from a manifest, so that defaults are the real
ones.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from policysched.cluster.cache import ClusterCache
from policysched.kube.decode import core_objects as wire
from policysched.kube.decode.pods import decode_kubelet_rejection, decode_pod
from policysched.model.identifiers import NodeName
from policysched.model.namespaces import Namespace
from policysched.model.nodes import Node
from policysched.model.pod_status import ObservedPod
from policysched.model.pods import Pod
from policysched.model.workloads import SelectorOwner, SelectorOwnerKind


def pod_manifest(
    name: str = "p",
    *,
    cpu: str | None = None,
    memory: str | None = None,
    resources: Mapping[str, str] | None = None,
    limits: Mapping[str, str] | None = None,
    namespace: str = "default",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    scheduler: str = "test",
    priority: int = 0,
    image: str = "app:1",
    tolerations: Iterable[str] = (),
    node_selector: Mapping[str, str] | None = None,
    host_ports: Iterable[int] = (),
    gates: Iterable[str] = (),
    uid: str | None = None,
    created: str = "2026-01-01T00:00:00Z",
    node: str | None = None,
    phase: str = "Pending",
    owner: tuple[str, str, str] | None = None,
    spec: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A v1 Pod. `tolerations` are written `key=value:Effect`, `key:Effect` (Exists) or `` (all
    taints). `owner` is its controller's apiVersion, kind and name. `spec` overrides other fields.
    """
    requests = {
        **({"cpu": cpu} if cpu else {}),
        **({"memory": memory} if memory else {}),
        **(resources or {}),
    }
    container: dict[str, Any] = {
        "name": "c",
        "image": image,
        "resources": {"requests": requests, **({"limits": dict(limits)} if limits else {})},
        "ports": [{"containerPort": port, "hostPort": port} for port in host_ports],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": uid or f"uid-{namespace}-{name}",
            "labels": dict(labels or {}),
            "annotations": dict(annotations or {}),
            "creationTimestamp": created,
            **({"ownerReferences": [_owner(*owner)]} if owner else {}),
        },
        "spec": {
            "schedulerName": scheduler,
            "priority": priority,
            "containers": [container],
            "tolerations": [_toleration(text) for text in tolerations],
            "nodeSelector": dict(node_selector or {}),
            "schedulingGates": [{"name": gate} for gate in gates],
            **({"nodeName": node} if node else {}),
            **(spec or {}),
        },
        "status": {"phase": phase},
    }


def node_manifest(
    name: str = "a",
    *,
    cpu: str = "4",
    memory: str = "8Gi",
    pods: str = "110",
    resources: Mapping[str, str] | None = None,
    zone: str | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    taints: Iterable[str] = (),
    unschedulable: bool = False,
    images: Mapping[str, int] | None = None,
    ready: bool = True,
    features: Iterable[str] = (),
) -> dict[str, Any]:
    """A v1 Node. `taints` are written `key=value:Effect`."""
    zones = {"topology.kubernetes.io/zone": zone} if zone else {}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "labels": {"kubernetes.io/hostname": name, **zones, **(labels or {})},
            "annotations": dict(annotations or {}),
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {
            "taints": [_taint(text) for text in taints],
            **({"unschedulable": True} if unschedulable else {}),
        },
        "status": {
            "allocatable": {"cpu": cpu, "memory": memory, "pods": pods, **(resources or {})},
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
            "images": [{"names": [image], "sizeBytes": size} for image, size in (images or {}).items()],
            "declaredFeatures": list(features),
        },
    }


def pod(name: str = "p", **more: Any) -> Pod:
    """A decoded pod, with the arguments of `pod_manifest`."""
    return decode_pod(pod_manifest(name, **more)).pod


def node(name: str = "a", **more: Any) -> Node:
    """A decoded node, with the arguments of `node_manifest`."""
    return wire.decode_node(node_manifest(name, **more))


def namespace(name: str = "default", **labels: str) -> Namespace:
    return Namespace(name, labels, {})


def service(name: str = "web", *, namespace: str = "default", **selector: str) -> SelectorOwner:
    return selector_owner("Service", name, selector, namespace=namespace)


def selector_owner(
    kind: SelectorOwnerKind, name: str, selector: Mapping[str, Any] | None, *, namespace: str = "default"
) -> SelectorOwner:
    """A Service or controller; `selector` in the form of its kind."""
    metadata = {"name": name, "namespace": namespace}
    return wire.decode_selector_owner({"metadata": metadata, "spec": {"selector": selector}}, kind)


def pending(value: Pod) -> ObservedPod:
    return ObservedPod(value, node=None, phase="Pending", deleting=False, nominated_node=None)


def placed(value: Pod, on: str) -> ObservedPod:
    return ObservedPod(value, node=NodeName(on), phase="Running", deleting=False, nominated_node=None)


def finished(value: Pod, on: str) -> ObservedPod:
    return replace(placed(value, on), phase="Succeeded")


def rejected(value: Pod, on: str, reason: str, message: str = "") -> ObservedPod:
    """A pod that the kubelet of its node rejected. `message` is the kubelet's."""
    status = {"phase": "Failed", "reason": reason, "message": f"Pod was rejected: {message}"}
    return replace(placed(value, on), phase="Failed", rejection=decode_kubelet_rejection(status))


def too_little(resource: str, requested: int, used: int, capacity: int) -> str:
    """The kubelet's message for an insufficient resource."""
    return f"Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, capacity: {capacity}"


def world(
    nodes: Iterable[Node] = (),
    pods: Iterable[ObservedPod] = (),
    namespaces: Iterable[Namespace] = (Namespace("default", {}, {}),),
    selector_owners: Iterable[SelectorOwner] = (),
) -> ClusterCache:
    """A cache with these objects."""
    cache = ClusterCache()
    for space in namespaces:
        cache.put_namespace(space)
    for item in nodes:
        cache.put_node(item)
    for group in selector_owners:
        cache.put_selector_owner(group)
    for observed in pods:
        cache.put_pod(observed)
    return cache


def _owner(api: str, kind: str, name: str) -> dict[str, Any]:
    return {"apiVersion": api, "kind": kind, "name": name, "uid": f"uid-{kind}-{name}", "controller": True}


def _toleration(text: str) -> dict[str, str]:
    if not text:
        return {"operator": "Exists"}
    rest, _, effect = text.partition(":")
    key, equals, value = rest.partition("=")
    written = {"key": key, "operator": "Equal" if equals else "Exists", "effect": effect}
    return {**written, **({"value": value} if equals else {})}


def _taint(text: str) -> dict[str, str]:
    rest, _, effect = text.partition(":")
    key, _, value = rest.partition("=")
    return {"key": key, "value": value, "effect": effect}

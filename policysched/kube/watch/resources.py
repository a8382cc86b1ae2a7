"""What is mirrored of the API server: for each resource its path, its key, and the events that it becomes."""

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from policysched.kube.decode import devices, pods, storage
from policysched.kube.decode.malformed import Malformed
from policysched.model.devices import DeviceKind, ResourceClaim
from policysched.model.objects import NodeName, PodSetKind, PodUid
from policysched.model.storage import StorageKind
from policysched.scheduler.events import (
    BudgetGone,
    BudgetSeen,
    DeviceKindServed,
    DeviceObjectGone,
    DeviceObjectSeen,
    NamespaceGone,
    NamespaceSeen,
    NodeGone,
    NodeObjectGone,
    NodeObjectSeen,
    NodeSeen,
    PodGone,
    PodSeen,
    PodSetGone,
    PodSetSeen,
    StorageGone,
    StorageSeen,
)

Json = Mapping[str, Any]
Emitted = TypeVar("Emitted")


@dataclass(frozen=True, slots=True)
class Resource(Generic[Emitted]):
    """`key` identifies an object from its creation to its end. `seen` may raise Malformed. `holds` says whether an
    object holds something (room) that must not be forgotten because a later version of it cannot be read. `served`,
    where it is given, is emitted when the server turns out to show the kind, or not to (404, 403): without it every server does."""

    kind: str
    path: str
    key: Callable[[Json], str]
    seen: Callable[[Json], Emitted]
    gone: Callable[[str], Emitted]
    holds: Callable[[Emitted], bool]
    params: Mapping[str, str] = field(default_factory=dict)
    served: Callable[[bool], Emitted] | None = None


def _uid(meta: Json) -> str:
    return str(meta["uid"])


def _name(meta: Json) -> str:
    return str(meta["name"])


def _holds_nothing(_event: object) -> bool:
    return False


PODS: Resource[PodSeen | PodGone] = Resource(
    kind="Pod",
    path="/api/v1/pods",
    key=_uid,
    seen=lambda obj: PodSeen(pods.pod(obj)),
    gone=lambda key: PodGone(PodUid(key)),
    holds=lambda event: isinstance(event, PodSeen) and event.pod.node is not None,
)

NODES: Resource[NodeSeen | NodeGone] = Resource(
    kind="Node",
    path="/api/v1/nodes",
    key=_name,
    seen=lambda obj: NodeSeen(pods.node(obj)),
    gone=lambda key: NodeGone(NodeName(key)),
    holds=_holds_nothing,
)

NAMESPACES: Resource[NamespaceSeen | NamespaceGone] = Resource(
    kind="Namespace",
    path="/api/v1/namespaces",
    key=_name,
    seen=lambda obj: NamespaceSeen(pods.namespace(obj)),
    gone=NamespaceGone,
    holds=_holds_nothing,
)


def _full_name(meta: Json) -> str:
    return f"{meta['namespace']}/{meta['name']}"


def _budget_gone(key: str) -> BudgetGone:
    namespace, _, name = key.partition("/")
    return BudgetGone(namespace, name)


BUDGETS: Resource[BudgetSeen | BudgetGone] = Resource(
    kind="PodDisruptionBudget",
    path="/apis/policy/v1/poddisruptionbudgets",
    key=_full_name,
    seen=lambda obj: BudgetSeen(pods.disruption_budget(obj)),
    gone=_budget_gone,
    holds=_holds_nothing,
)


def _pod_sets(kind: PodSetKind, path: str) -> Resource[PodSetSeen | PodSetGone]:
    def gone(key: str) -> PodSetGone:
        namespace, _, name = key.partition("/")
        return PodSetGone(kind, namespace, name)

    return Resource(
        kind=kind,
        path=path,
        key=_full_name,
        seen=lambda obj: PodSetSeen(pods.pod_set(obj, kind)),
        gone=gone,
        holds=_holds_nothing,
    )


def node_objects(
    kind: str, *, group: str, version: str, resource: str
) -> Resource[NodeObjectSeen | NodeObjectGone]:
    """Custom resources, one a node and of its name, that the operator calls `kind`."""
    return Resource(
        kind=f"{resource}.{group}",
        path=f"/apis/{group}/{version}/{resource}",
        key=_name,
        seen=lambda obj: NodeObjectSeen(kind, NodeName(pods.required_name(obj)), pods.json_text(obj)),
        gone=lambda key: NodeObjectGone(kind, NodeName(key)),
        holds=_holds_nothing,
    )


POD_SETS: tuple[Resource[PodSetSeen | PodSetGone], ...] = (
    _pod_sets("Service", "/api/v1/services"),
    _pod_sets("ReplicationController", "/api/v1/replicationcontrollers"),
    _pod_sets("ReplicaSet", "/apis/apps/v1/replicasets"),
    _pod_sets("StatefulSet", "/apis/apps/v1/statefulsets"),
)
"""What pods that say nothing of spreading are spread by."""


def _namespaced(meta: Json) -> str:
    return _full_name(meta) if meta.get("namespace") else _name(meta)


def _storage(kind: StorageKind, path: str) -> Resource[StorageSeen | StorageGone]:
    read = storage.READERS[kind]

    def gone(key: str) -> StorageGone:
        namespace, _, name = key.rpartition("/")
        return StorageGone(kind, namespace, name)

    return Resource(
        kind=kind,
        path=path,
        key=_namespaced,
        seen=lambda obj: StorageSeen(read(obj)),
        gone=gone,
        holds=_holds_nothing,
    )


STORAGE = (
    _storage("PersistentVolume", "/api/v1/persistentvolumes"),
    _storage("PersistentVolumeClaim", "/api/v1/persistentvolumeclaims"),
    _storage("StorageClass", "/apis/storage.k8s.io/v1/storageclasses"),
    _storage("CSINode", "/apis/storage.k8s.io/v1/csinodes"),
    _storage("CSIDriver", "/apis/storage.k8s.io/v1/csidrivers"),
    _storage("CSIStorageCapacity", "/apis/storage.k8s.io/v1/csistoragecapacities"),
    _storage("VolumeAttachment", "/apis/storage.k8s.io/v1/volumeattachments"),
)


def _devices(kind: DeviceKind, path: str) -> Resource[DeviceObjectSeen | DeviceObjectGone | DeviceKindServed]:
    read = devices.READERS[kind]

    def gone(key: str) -> DeviceObjectGone:
        namespace, _, name = key.rpartition("/")
        return DeviceObjectGone(kind, namespace, name)

    return Resource(
        kind=kind,
        path=path,
        key=_namespaced,
        seen=lambda obj: DeviceObjectSeen(read(obj)),
        gone=gone,
        # A claim that cannot be read any more has its devices all the same.
        holds=lambda event: (
            isinstance(event, DeviceObjectSeen)
            and isinstance(event.seen, ResourceClaim)
            and event.seen.allocation is not None
        ),
        served=lambda served: DeviceKindServed(kind, served),
    )


DEVICES = (
    _devices("ResourceClaim", "/apis/resource.k8s.io/v1/resourceclaims"),
    _devices("ResourceSlice", "/apis/resource.k8s.io/v1/resourceslices"),
    _devices("DeviceClass", "/apis/resource.k8s.io/v1/deviceclasses"),
)
"""Served from Kubernetes 1.34 on."""


@dataclass(frozen=True, slots=True)
class ConfigMapSeen:
    """`binary` is its `binaryData`, where kubectl puts a file that is not UTF-8."""

    data: Mapping[str, str]
    resource_version: str
    uid: str
    binary: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ConfigMapGone:
    pass


def _config_map_gone(_key: str) -> ConfigMapGone:
    return ConfigMapGone()


def _holds_policies(_event: object) -> bool:
    """The policies of a ConfigMap that cannot be read any more run on: broken is not deleted."""
    return True


def config_map(namespace: str, name: str) -> Resource[ConfigMapSeen | ConfigMapGone]:
    """One ConfigMap: the field selector is also what lets RBAC allow the watch of this name alone."""
    return Resource(
        kind="ConfigMap",
        path=f"/api/v1/namespaces/{namespace}/configmaps",
        key=_name,
        seen=read_config_map,
        gone=_config_map_gone,
        holds=_holds_policies,
        params={"fieldSelector": f"metadata.name={name}"},
    )


def read_config_map(obj: Json) -> ConfigMapSeen:
    """Raises Malformed."""
    meta, data = obj.get("metadata") or {}, obj.get("data") or {}
    if not isinstance(data, Mapping) or not all(isinstance(text, str) for text in data.values()):
        raise Malformed("ConfigMap", pods.object_name(obj), "data", "is not a map of strings")
    version, uid = str(meta.get("resourceVersion", "")), str(meta.get("uid", ""))
    return ConfigMapSeen(data, version, uid, _binary(obj))


def _binary(obj: Json) -> dict[str, bytes]:
    try:
        encoded: Mapping[str, str] = obj.get("binaryData") or {}
        return {key: base64.b64decode(text, validate=True) for key, text in encoded.items()}
    except (AttributeError, TypeError, ValueError):
        raise Malformed(
            "ConfigMap", pods.object_name(obj), "binaryData", "is not a map of base64 texts"
        ) from None

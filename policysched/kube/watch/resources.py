"""The watched resources: the path, the key and the events of each."""

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, TypeVar

from policysched.kube.client.watch_lines import split_object
from policysched.kube.decode import core_objects, devices, large_pods, storage
from policysched.kube.decode.counted_names import CountedNames
from policysched.kube.decode.errors import MalformedObject
from policysched.kube.decode.large_claims import decode_watched_claim
from policysched.kube.decode.pod_groups import decode_pod_group
from policysched.kube.decode.pod_updates import (
    DecodedPod,
    Shorten,
    decode_large_pod_update,
    decode_pod_update,
)
from policysched.kube.decode.pods import decode_pod
from policysched.kube.decode.primitives import object_name
from policysched.kube.watch.large_objects import params_to_list
from policysched.kube.watch.outdated_objects import OutdatedObjects
from policysched.model.devices import DeviceKind, ResourceClaim
from policysched.model.identifiers import NodeName, PodUid
from policysched.model.pod_groups import PodGroupApi, PodGroupKey
from policysched.model.pod_status import ObservedPod
from policysched.model.storage import StorageKind
from policysched.model.workloads import SelectorOwnerKind
from policysched.scheduler.events import (
    DeviceKindServed,
    DeviceObjectDeleted,
    DeviceObjectUpdated,
    DisruptionBudgetDeleted,
    DisruptionBudgetUpdated,
    NamespaceDeleted,
    NamespaceUpdated,
    NodeDeleted,
    NodeObjectDeleted,
    NodeObjectUpdated,
    NodeUpdated,
    PodDeleted,
    PodGroupApiServed,
    PodGroupChange,
    PodGroupDeleted,
    PodGroupUpdated,
    PodUpdated,
    SelectorOwnerDeleted,
    SelectorOwnerUpdated,
    StorageObjectDeleted,
    StorageObjectUpdated,
    WorkloadDeleted,
    WorkloadsServed,
    WorkloadUpdated,
)

Json = Mapping[str, Any]
Emitted = TypeVar("Emitted")


@dataclass(frozen=True, slots=True)
class WatchedResource(Generic[Emitted]):
    """`key` identifies an object from creation to deletion. `updated_event` may raise `MalformedObject`. `keep_when_malformed`:
    the object occupies resources and stays when a later version is malformed. `served_event` is emitted when the server
    turns out to serve the kind or not (404, 403); None for kinds that every server has. `older` are other versions of
    the kind, in the order in which they are tried where this one is not served. `may_end`: the server may stop to serve
    the kind while it runs; its objects are then deleted. `decode_update` replaces `updated_event` for kinds with large
    objects: it also takes and returns what the next version of the object can be decoded with; `decode_line` does so with
    the line of a large event. `outdated`: objects of which more is needed than was kept. `counts_for_others`: decisions
    about others need the object, so that the first list waits for it. `held_event`: what a standby keeps of an update."""

    kind: str
    path: str
    key: Callable[[Json], str]
    updated_event: Callable[[Json], Emitted]
    deleted_event: Callable[[str], Emitted]
    keep_when_malformed: Callable[[Emitted], bool]
    params: Mapping[str, str] = field(default_factory=dict)
    served_event: Callable[[bool], Emitted] | None = None
    older: tuple["WatchedResource[Emitted]", ...] = ()
    may_end: bool = False
    decode_update: Callable[[Json, Any], tuple[Emitted, object]] | None = None
    decode_line: Callable[[bytes, Any], tuple[Emitted, object]] | None = None
    outdated: OutdatedObjects | None = None
    counts_for_others: Callable[[Json], bool] = lambda _: True
    held_event: Callable[[Any], Emitted] = lambda event: event


Keep = Callable[[large_pods.DecodePod, Any], tuple[ObservedPod, object]]
"""Decodes a pod and keeps of it what is read."""


def _keep_all(decode: large_pods.DecodePod, before: Any) -> tuple[ObservedPod, object]:
    return decode(before)


def _pod_update(
    obj: Json, before: Any, *, keep: Keep = _keep_all, shorten: Shorten | None = None
) -> tuple[PodUpdated | PodDeleted, object]:
    pod, decoded = keep(partial(decode_pod_update, obj, shorten=shorten), before)
    return PodUpdated(pod), decoded


def _large_pod_update(
    line: bytes, before: Any, *, keep: Keep = _keep_all, shorten: Shorten | None = None
) -> tuple[PodUpdated | PodDeleted, object]:
    obj, spec_line = split_object(line)
    if spec_line is None:
        return _pod_update(obj, before, keep=keep, shorten=shorten)
    pod, decoded = keep(partial(decode_large_pod_update, obj, spec_line, shorten=shorten), before)
    return PodUpdated(pod), decoded


def _uid(meta: Json) -> str:
    return str(meta["uid"])


def _name(meta: Json) -> str:
    return str(meta["name"])


def _never_keep(_event: object) -> bool:
    return False


PODS: WatchedResource[PodUpdated | PodDeleted] = WatchedResource(
    kind="Pod",
    path="/api/v1/pods",
    key=_uid,
    updated_event=lambda obj: PodUpdated(decode_pod(obj)),
    deleted_event=lambda key: PodDeleted(PodUid(key)),
    keep_when_malformed=lambda event: isinstance(event, PodUpdated) and event.pod.node is not None,
    decode_update=_pod_update,
    decode_line=_large_pod_update,
    counts_for_others=large_pods.counts_for_others,
    held_event=lambda event: PodUpdated(large_pods.held(event.pod)),
)


def pods_within(
    decision_budget: int, names: CountedNames | None = None
) -> WatchedResource[PodUpdated | PodDeleted]:
    """Pods, without most of those that exceed this budget of a decision (`decode.large_pods`). `names`: which of
    their items are kept first."""
    counted = CountedNames() if names is None else names

    def keep(decode: large_pods.DecodePod, before: Any) -> tuple[ObservedPod, object]:
        return large_pods.decode_without_unread_items(decode, before, decision_budget, counted)

    def params_to_read(decoded: object) -> Mapping[str, str] | None:
        if not isinstance(decoded, DecodedPod) or not large_pods.lacks_names(decoded, counted.known_revision):
            return None
        pod = decoded.pod
        return params_to_list(pod.namespace, pod.name)

    def shorten(obj: Json) -> Json:
        return large_pods.shortened(obj, decision_budget, counted)

    return replace(
        PODS,
        decode_update=partial(_pod_update, keep=keep, shorten=shorten),
        decode_line=partial(_large_pod_update, keep=keep, shorten=shorten),
        outdated=OutdatedObjects(counted.revision, params_to_read),
    )


NODES: WatchedResource[NodeUpdated | NodeDeleted] = WatchedResource(
    kind="Node",
    path="/api/v1/nodes",
    key=_name,
    updated_event=lambda obj: NodeUpdated(core_objects.decode_node(obj)),
    deleted_event=lambda key: NodeDeleted(NodeName(key)),
    keep_when_malformed=_never_keep,
)

NAMESPACES: WatchedResource[NamespaceUpdated | NamespaceDeleted] = WatchedResource(
    kind="Namespace",
    path="/api/v1/namespaces",
    key=_name,
    updated_event=lambda obj: NamespaceUpdated(core_objects.decode_namespace(obj)),
    deleted_event=NamespaceDeleted,
    keep_when_malformed=_never_keep,
)


def _namespaced_name(meta: Json) -> str:
    return f"{meta['namespace']}/{meta['name']}"


def _disruption_budget_deleted(key: str) -> DisruptionBudgetDeleted:
    namespace, _, name = key.partition("/")
    return DisruptionBudgetDeleted(namespace, name)


DISRUPTION_BUDGETS: WatchedResource[DisruptionBudgetUpdated | DisruptionBudgetDeleted] = WatchedResource(
    kind="PodDisruptionBudget",
    path="/apis/policy/v1/poddisruptionbudgets",
    key=_namespaced_name,
    updated_event=lambda obj: DisruptionBudgetUpdated(core_objects.decode_disruption_budget(obj)),
    deleted_event=_disruption_budget_deleted,
    keep_when_malformed=_never_keep,
)


def _selector_owner_resource(
    kind: SelectorOwnerKind, path: str
) -> WatchedResource[SelectorOwnerUpdated | SelectorOwnerDeleted]:
    def gone(key: str) -> SelectorOwnerDeleted:
        namespace, _, name = key.partition("/")
        return SelectorOwnerDeleted(kind, namespace, name)

    return WatchedResource(
        kind=kind,
        path=path,
        key=_namespaced_name,
        updated_event=lambda obj: SelectorOwnerUpdated(core_objects.decode_selector_owner(obj, kind)),
        deleted_event=gone,
        keep_when_malformed=_never_keep,
    )


def node_objects(
    kind: str, *, group: str, version: str, resource: str
) -> WatchedResource[NodeObjectUpdated | NodeObjectDeleted]:
    """Custom resources, one per node and named like it, configured under the name `kind`."""
    return WatchedResource(
        kind=f"{resource}.{group}",
        path=f"/apis/{group}/{version}/{resource}",
        key=_name,
        updated_event=lambda obj: NodeObjectUpdated(
            kind, NodeName(core_objects.required_name(obj)), core_objects.canonical_json(obj)
        ),
        deleted_event=lambda key: NodeObjectDeleted(kind, NodeName(key)),
        keep_when_malformed=_never_keep,
    )


SELECTOR_OWNERS: tuple[WatchedResource[SelectorOwnerUpdated | SelectorOwnerDeleted], ...] = (
    _selector_owner_resource("Service", "/api/v1/services"),
    _selector_owner_resource("ReplicationController", "/api/v1/replicationcontrollers"),
    _selector_owner_resource("ReplicaSet", "/apis/apps/v1/replicasets"),
    _selector_owner_resource("StatefulSet", "/apis/apps/v1/statefulsets"),
)
"""Pods without spread constraints are spread over the pod sets that select them."""


def _qualified_name(meta: Json) -> str:
    return _namespaced_name(meta) if meta.get("namespace") else _name(meta)


def _storage_resource(
    kind: StorageKind, path: str
) -> WatchedResource[StorageObjectUpdated | StorageObjectDeleted]:
    read = storage.STORAGE_DECODERS[kind]

    def gone(key: str) -> StorageObjectDeleted:
        namespace, _, name = key.rpartition("/")
        return StorageObjectDeleted(kind, namespace, name)

    return WatchedResource(
        kind=kind,
        path=path,
        key=_qualified_name,
        updated_event=lambda obj: StorageObjectUpdated(read(obj)),
        deleted_event=gone,
        keep_when_malformed=_never_keep,
    )


STORAGE_RESOURCES = (
    _storage_resource("PersistentVolume", "/api/v1/persistentvolumes"),
    _storage_resource("PersistentVolumeClaim", "/api/v1/persistentvolumeclaims"),
    _storage_resource("StorageClass", "/apis/storage.k8s.io/v1/storageclasses"),
    _storage_resource("CSINode", "/apis/storage.k8s.io/v1/csinodes"),
    _storage_resource("CSIDriver", "/apis/storage.k8s.io/v1/csidrivers"),
    _storage_resource("CSIStorageCapacity", "/apis/storage.k8s.io/v1/csistoragecapacities"),
    _storage_resource("VolumeAttachment", "/apis/storage.k8s.io/v1/volumeattachments"),
)


def _device_resource(
    kind: DeviceKind, path: str
) -> WatchedResource[DeviceObjectUpdated | DeviceObjectDeleted | DeviceKindServed]:
    read = decode_watched_claim if kind == "ResourceClaim" else devices.DEVICE_DECODERS[kind]

    def gone(key: str) -> DeviceObjectDeleted:
        namespace, _, name = key.rpartition("/")
        return DeviceObjectDeleted(kind, namespace, name)

    return WatchedResource(
        kind=kind,
        path=path,
        key=_qualified_name,
        updated_event=lambda obj: DeviceObjectUpdated(read(obj)),
        deleted_event=gone,
        # A malformed claim keeps its devices.
        keep_when_malformed=lambda event: (
            isinstance(event, DeviceObjectUpdated)
            and isinstance(event.device_object, ResourceClaim)
            and event.device_object.allocation is not None
        ),
        served_event=lambda served: DeviceKindServed(kind, served),
    )


DEVICE_RESOURCES = (
    _device_resource("ResourceClaim", "/apis/resource.k8s.io/v1/resourceclaims"),
    _device_resource("ResourceSlice", "/apis/resource.k8s.io/v1/resourceslices"),
    _device_resource("DeviceClass", "/apis/resource.k8s.io/v1/deviceclasses"),
    _device_resource("DeviceTaintRule", "/apis/resource.k8s.io/v1/devicetaintrules"),
)
"""Served since Kubernetes 1.34, DeviceTaintRules since 1.37."""


def _pod_group_resource(
    api: PodGroupApi, version: str, *older: WatchedResource[PodGroupChange]
) -> WatchedResource[PodGroupChange]:
    def gone(key: str) -> PodGroupDeleted:
        namespace, _, name = key.partition("/")
        return PodGroupDeleted(PodGroupKey(api, namespace, name))

    is_validated = api == "scheduling.k8s.io"  # the others have a CRD, which may be another one than we know
    return WatchedResource(
        kind=f"PodGroup.{api}",
        path=f"/apis/{api}/{version}/podgroups",
        key=_namespaced_name,
        updated_event=lambda obj: PodGroupUpdated(
            decode_pod_group(obj, api, version, is_validated=is_validated)
        ),
        deleted_event=gone,
        keep_when_malformed=_never_keep,
        served_event=lambda served: PodGroupApiServed(api, version if served else None),
        older=older,
        may_end=True,
    )


def _workload_resource(
    version: str, *older: WatchedResource[PodGroupChange]
) -> WatchedResource[PodGroupChange]:
    def gone(key: str) -> WorkloadDeleted:
        namespace, _, name = key.partition("/")
        return WorkloadDeleted(namespace, name)

    return WatchedResource(
        kind="Workload",
        path=f"/apis/scheduling.k8s.io/{version}/workloads",
        key=_namespaced_name,
        updated_event=lambda obj: WorkloadUpdated(
            str(obj["metadata"]["namespace"]), core_objects.required_name(obj)
        ),
        deleted_event=gone,
        keep_when_malformed=_never_keep,
        served_event=WorkloadsServed,
        older=older,
        may_end=True,
    )


POD_GROUP_RESOURCES = (
    _pod_group_resource(
        "scheduling.k8s.io",
        "v1beta1",
        _pod_group_resource("scheduling.k8s.io", "v1alpha3"),
        _pod_group_resource("scheduling.k8s.io", "v1alpha2"),
    ),
    _workload_resource("v1beta1", _workload_resource("v1alpha3"), _workload_resource("v1alpha2")),
    _pod_group_resource("scheduling.x-k8s.io", "v1alpha1"),
    _pod_group_resource("scheduling.volcano.sh", "v1beta1"),
)
"""Served where a feature gate (Kubernetes 1.36: v1alpha2, 1.37: v1beta1) or a CRD adds them."""


@dataclass(frozen=True, slots=True)
class ConfigMapUpdated:
    """`binary` is `binaryData`, where kubectl puts files that are not UTF-8."""

    data: Mapping[str, str]
    resource_version: str
    uid: str
    binary: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ConfigMapDeleted:
    pass


def _always_keep(_event: object) -> bool:
    """The policies of a malformed ConfigMap stay active: malformed is not deleted."""
    return True


def config_map(namespace: str, name: str) -> WatchedResource[ConfigMapUpdated | ConfigMapDeleted]:
    """One ConfigMap. The field selector lets RBAC restrict the watch to this name."""
    return WatchedResource(
        kind="ConfigMap",
        path=f"/api/v1/namespaces/{namespace}/configmaps",
        key=_name,
        updated_event=decode_config_map,
        deleted_event=lambda _key: ConfigMapDeleted(),
        keep_when_malformed=_always_keep,
        params={"fieldSelector": f"metadata.name={name}"},
    )


@dataclass(frozen=True, slots=True)
class TeamConfigMapUpdated:
    """The ConfigMap of a team's policies in its namespace; `content` None: deleted."""

    namespace: str
    content: ConfigMapUpdated | None


def team_config_maps(name: str) -> WatchedResource[TeamConfigMapUpdated]:
    """The ConfigMaps of one name in all namespaces. The field selector lets RBAC restrict the watch to this name."""
    return WatchedResource(
        kind="team ConfigMap",
        path="/api/v1/configmaps",
        key=lambda meta: str(meta["namespace"]),
        updated_event=lambda obj: TeamConfigMapUpdated(
            str(obj["metadata"]["namespace"]), decode_config_map(obj)
        ),
        deleted_event=lambda namespace: TeamConfigMapUpdated(namespace, None),
        keep_when_malformed=_always_keep,
        params={"fieldSelector": f"metadata.name={name}"},
    )


def decode_config_map(obj: Json) -> ConfigMapUpdated:
    """Raises MalformedObject."""
    meta, data = obj.get("metadata") or {}, obj.get("data") or {}
    if not isinstance(data, Mapping) or not all(isinstance(text, str) for text in data.values()):
        raise MalformedObject("ConfigMap", object_name(obj), "data", "is not a map of strings")
    version, uid = str(meta.get("resourceVersion", "")), str(meta.get("uid", ""))
    return ConfigMapUpdated(data, version, uid, _binary(obj))


def _binary(obj: Json) -> dict[str, bytes]:
    try:
        encoded: Mapping[str, str] = obj.get("binaryData") or {}
        return {key: base64.b64decode(text, validate=True) for key, text in encoded.items()}
    except (AttributeError, TypeError, ValueError):
        raise MalformedObject(
            "ConfigMap", object_name(obj), "binaryData", "is not a map of base64 strings"
        ) from None

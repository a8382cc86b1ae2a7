"""The table of resources. A resource without special rules needs only a row here.

A row has the API's data of a resource (names, group, scope, subresources, fields for selectors) and the
differences between kube-apiserver's strategies (does create keep the status, does replace need a
resourceVersion). Rules that need code are in `defaulting`, `validation` and `admission`, by plural.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from policysched.sandbox.apiserver.custom_schema import CustomSchema
from policysched.sandbox.apiserver.errors import qualified


@dataclass(frozen=True, slots=True)
class PrinterColumn:
    """A column that a CustomResourceDefinition adds to `kubectl get`. `values_of` reads an object."""

    name: str
    type: str
    values_of: Callable[[Any], list[Any]]
    wide: bool = False


@dataclass(frozen=True, slots=True)
class ScalePaths:
    """Where the replicas of a custom resource are, such as `.spec.replicas`. `selector` may be empty."""

    spec: str
    status: str
    selector: str


@dataclass(frozen=True, slots=True, eq=False)
class CustomVersion:
    """What a CustomResourceDefinition says of one version, besides the names. `openapi` is its schema as it was given."""

    schema: CustomSchema
    openapi: dict[str, Any]
    columns: tuple[PrinterColumn, ...]
    scale: ScalePaths | None


@dataclass(frozen=True, slots=True)
class ResourceKind:
    """A resource in one version. Two versions of the same objects share `stored_as`."""

    plural: str
    name: str
    group: str = ""
    version: str = "v1"
    namespaced: bool = True
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()
    selectable_fields: tuple[str, ...] = ()
    """What a field selector may name besides `metadata.name` and `metadata.namespace`."""
    has_status: bool = False
    """A create keeps the status that it brings; otherwise the status begins empty."""
    has_generation: bool = False
    created_by_replace: bool = False
    replaced_with_version_only: bool = False
    returned_when_deleted: bool = False
    """A deletion answers with the object instead of a Status."""
    singular: str = ""
    list_kind: str = ""
    custom: CustomVersion | None = None

    api_version: str = field(init=False)
    stored_as: str = field(init=False)
    """The key of its objects in the store, the same for all versions of a resource."""
    rules: str = field(init=False)
    """What the rules of built-in resources are looked up by: the plural, and nothing for a custom resource."""
    prefix: bytes = field(init=False)
    """What is written in front of a stored object when it leaves alone."""

    def __post_init__(self) -> None:
        api_version = f"{self.group}/{self.version}" if self.group else self.version
        stored_as = self.plural if self.plural == "events" else qualified(self.group, self.plural)
        object.__setattr__(self, "api_version", api_version)
        object.__setattr__(self, "stored_as", stored_as)
        object.__setattr__(self, "rules", self.plural if self.custom is None else "")
        object.__setattr__(self, "singular", self.singular or self.name.lower())
        object.__setattr__(self, "list_kind", self.list_kind or f"{self.name}List")
        prefix = f'{{"kind":"{self.name}","apiVersion":"{api_version}",'.encode()
        object.__setattr__(self, "prefix", prefix)


_OBJECT_FIELDS = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
_EVENT_FIELDS = (
    *(f"{owner}.{part}" for owner in ("involvedObject", "regarding") for part in _OBJECT_FIELDS),
    *("reason", "reportingComponent", "reportingController", "source", "type"),
)

_SCALED = ("status", "scale")

KINDS: tuple[ResourceKind, ...] = (
    ResourceKind(
        "namespaces",
        "Namespace",
        namespaced=False,
        short_names=("ns",),
        subresources=("status", "finalize"),
        selectable_fields=("status.phase",),
    ),
    ResourceKind(
        "nodes",
        "Node",
        namespaced=False,
        short_names=("no",),
        subresources=("status",),
        selectable_fields=("spec.unschedulable",),
        has_status=True,
    ),
    ResourceKind(
        "pods",
        "Pod",
        short_names=("po",),
        categories=("all",),
        subresources=("status", "binding", "eviction"),
        selectable_fields=(
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        ),
        has_generation=True,
        returned_when_deleted=True,
    ),
    ResourceKind("configmaps", "ConfigMap", short_names=("cm",)),
    # Stored as plain as everything in the sandbox.
    ResourceKind("secrets", "Secret", selectable_fields=("type",)),
    # Stored but not enforced.
    ResourceKind("resourcequotas", "ResourceQuota", short_names=("quota",), subresources=("status",)),
    ResourceKind("limitranges", "LimitRange", short_names=("limits",)),
    ResourceKind(
        "events", "Event", short_names=("ev",), selectable_fields=_EVENT_FIELDS, created_by_replace=True
    ),
    ResourceKind(
        "events",
        "Event",
        "events.k8s.io",
        short_names=("ev",),
        selectable_fields=_EVENT_FIELDS,
        created_by_replace=True,
    ),
    ResourceKind("serviceaccounts", "ServiceAccount", short_names=("sa",)),
    ResourceKind(
        "services",
        "Service",
        short_names=("svc",),
        categories=("all",),
        subresources=("status",),
        returned_when_deleted=True,
    ),
    ResourceKind(
        "persistentvolumes",
        "PersistentVolume",
        namespaced=False,
        short_names=("pv",),
        subresources=("status",),
    ),
    ResourceKind(
        "persistentvolumeclaims", "PersistentVolumeClaim", short_names=("pvc",), subresources=("status",)
    ),
    ResourceKind(
        "deployments",
        "Deployment",
        "apps",
        short_names=("deploy",),
        categories=("all",),
        subresources=_SCALED,
        has_generation=True,
    ),
    ResourceKind(
        "replicasets",
        "ReplicaSet",
        "apps",
        short_names=("rs",),
        categories=("all",),
        subresources=_SCALED,
        selectable_fields=("status.replicas",),
        has_generation=True,
    ),
    ResourceKind(
        "statefulsets",
        "StatefulSet",
        "apps",
        short_names=("sts",),
        categories=("all",),
        subresources=_SCALED,
        has_generation=True,
    ),
    ResourceKind(
        "daemonsets",
        "DaemonSet",
        "apps",
        short_names=("ds",),
        categories=("all",),
        subresources=("status",),
        has_generation=True,
    ),
    ResourceKind(
        "replicationcontrollers",
        "ReplicationController",
        short_names=("rc",),
        categories=("all",),
        subresources=_SCALED,
        selectable_fields=("status.replicas",),
        has_generation=True,
    ),
    ResourceKind(
        "jobs",
        "Job",
        "batch",
        categories=("all",),
        subresources=("status",),
        selectable_fields=("status.successful",),
        has_generation=True,
    ),
    ResourceKind(
        "priorityclasses", "PriorityClass", "scheduling.k8s.io", namespaced=False, short_names=("pc",)
    ),
    ResourceKind("flowschemas", "FlowSchema", "flowcontrol.apiserver.k8s.io", namespaced=False),
    ResourceKind(
        "leases", "Lease", "coordination.k8s.io", created_by_replace=True, replaced_with_version_only=True
    ),
    ResourceKind(
        "poddisruptionbudgets",
        "PodDisruptionBudget",
        "policy",
        short_names=("pdb",),
        subresources=("status",),
        has_generation=True,
    ),
    ResourceKind(
        "networkpolicies",
        "NetworkPolicy",
        "networking.k8s.io",
        short_names=("netpol",),
        has_generation=True,
    ),
    ResourceKind("storageclasses", "StorageClass", "storage.k8s.io", namespaced=False, short_names=("sc",)),
    ResourceKind("csinodes", "CSINode", "storage.k8s.io", namespaced=False),
    ResourceKind("csidrivers", "CSIDriver", "storage.k8s.io", namespaced=False),
    ResourceKind("csistoragecapacities", "CSIStorageCapacity", "storage.k8s.io"),
    ResourceKind(
        "volumeattachments",
        "VolumeAttachment",
        "storage.k8s.io",
        namespaced=False,
        subresources=("status",),
        has_status=True,
    ),
    ResourceKind("resourceclaims", "ResourceClaim", "resource.k8s.io", subresources=("status",)),
    ResourceKind("resourceclaimtemplates", "ResourceClaimTemplate", "resource.k8s.io"),
    ResourceKind(
        "resourceslices",
        "ResourceSlice",
        "resource.k8s.io",
        namespaced=False,
        selectable_fields=("spec.nodeName", "spec.driver"),
    ),
    ResourceKind("deviceclasses", "DeviceClass", "resource.k8s.io", namespaced=False),
    ResourceKind("devicetaintrules", "DeviceTaintRule", "resource.k8s.io", namespaced=False),
    # Stored but not enforced: there is no authorization.
    ResourceKind("roles", "Role", "rbac.authorization.k8s.io"),
    ResourceKind("rolebindings", "RoleBinding", "rbac.authorization.k8s.io"),
    ResourceKind("clusterroles", "ClusterRole", "rbac.authorization.k8s.io", namespaced=False),
    ResourceKind(
        "customresourcedefinitions",
        "CustomResourceDefinition",
        "apiextensions.k8s.io",
        namespaced=False,
        short_names=("crd", "crds"),
        categories=("api-extensions",),
        subresources=("status",),
        has_generation=True,
    ),
    ResourceKind("clusterrolebindings", "ClusterRoleBinding", "rbac.authorization.k8s.io", namespaced=False),
)


def _pod_group_kind(group: str, version: str) -> ResourceKind:
    return ResourceKind("podgroups", "PodGroup", group, version, subresources=("status",))


POD_GROUP_KINDS: tuple[ResourceKind, ...] = (
    _pod_group_kind("scheduling.k8s.io", "v1beta1"),
    ResourceKind("workloads", "Workload", "scheduling.k8s.io", "v1beta1"),
    _pod_group_kind("scheduling.x-k8s.io", "v1alpha1"),
    _pod_group_kind("scheduling.volcano.sh", "v1beta1"),
)
"""Served with a feature gate, and with the CRDs of scheduler-plugins and Volcano: `extra_kinds`, or `serve` later."""

OLDER_POD_GROUP_KINDS: tuple[ResourceKind, ...] = (
    _pod_group_kind("scheduling.k8s.io", "v1alpha2"),
    ResourceKind("workloads", "Workload", "scheduling.k8s.io", "v1alpha2"),
)
"""Those of Kubernetes 1.36. The objects are the same."""


@dataclass(frozen=True, slots=True)
class SubresourceKind:
    """The discovery data of a subresource whose body has its own kind."""

    kind: str
    group: str
    version: str


SUBRESOURCE_KINDS: dict[str, SubresourceKind] = {
    "binding": SubresourceKind("Binding", "", "v1"),
    "eviction": SubresourceKind("Eviction", "policy", "v1"),
    "scale": SubresourceKind("Scale", "autoscaling", "v1"),
}

SUBRESOURCE_VERBS: dict[str, tuple[str, ...]] = {
    "status": ("get", "patch", "update"),
    "scale": ("get", "patch", "update"),
    "finalize": ("update",),
    "binding": ("create",),
    "eviction": ("create",),
}

VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")

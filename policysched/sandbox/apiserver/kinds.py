"""Which resources there are. One row each: adding a resource that needs no rules of its own is adding a row.

A row says what the API says of a resource (names, group, scope, subresources, fields that a selector may name) and
the few ways in which the real server's strategies differ (does a create keep the status? does a replace need a
version?). Rules that need code are in `defaulting`, `validation` and `admission`, by `Kind.plural`.
"""

from dataclasses import dataclass, field

from policysched.sandbox.apiserver.errors import qualified


@dataclass(frozen=True, slots=True)
class Kind:
    """One resource in one version. `stored_as` is shared where two versions show the same objects."""

    plural: str
    name: str
    group: str = ""
    version: str = "v1"
    namespaced: bool = True
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    """What a field selector may name besides `metadata.name` and `metadata.namespace`."""
    keeps_status: bool = False
    """A create keeps the status that it brings; otherwise the status begins empty."""
    counts_generations: bool = False
    created_by_replace: bool = False
    replaced_with_version_only: bool = False
    returned_when_deleted: bool = False
    """A deletion answers with the object instead of a Status."""

    api_version: str = field(init=False)
    stored_as: str = field(init=False)
    """The key of its objects in the store: one a resource, whatever the version."""
    prefix: bytes = field(init=False)
    """What is written in front of a stored object when it leaves alone."""

    def __post_init__(self) -> None:
        api_version = f"{self.group}/{self.version}" if self.group else self.version
        stored_as = self.plural if self.plural == "events" else qualified(self.group, self.plural)
        object.__setattr__(self, "api_version", api_version)
        object.__setattr__(self, "stored_as", stored_as)
        prefix = f'{{"kind":"{self.name}","apiVersion":"{api_version}",'.encode()
        object.__setattr__(self, "prefix", prefix)


_OBJECT_FIELDS = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
_EVENT_FIELDS = (
    *(f"{owner}.{part}" for owner in ("involvedObject", "regarding") for part in _OBJECT_FIELDS),
    *("reason", "reportingComponent", "reportingController", "source", "type"),
)

_SCALED = ("status", "scale")

KINDS: tuple[Kind, ...] = (
    Kind(
        "namespaces",
        "Namespace",
        namespaced=False,
        short_names=("ns",),
        subresources=("status", "finalize"),
        fields=("status.phase",),
    ),
    Kind(
        "nodes",
        "Node",
        namespaced=False,
        short_names=("no",),
        subresources=("status",),
        fields=("spec.unschedulable",),
        keeps_status=True,
    ),
    Kind(
        "pods",
        "Pod",
        short_names=("po",),
        categories=("all",),
        subresources=("status", "binding", "eviction"),
        fields=(
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        ),
        counts_generations=True,
        returned_when_deleted=True,
    ),
    Kind("configmaps", "ConfigMap", short_names=("cm",)),
    Kind("events", "Event", short_names=("ev",), fields=_EVENT_FIELDS, created_by_replace=True),
    Kind(
        "events", "Event", "events.k8s.io", short_names=("ev",), fields=_EVENT_FIELDS, created_by_replace=True
    ),
    Kind("serviceaccounts", "ServiceAccount", short_names=("sa",)),
    Kind(
        "services",
        "Service",
        short_names=("svc",),
        categories=("all",),
        subresources=("status",),
        returned_when_deleted=True,
    ),
    Kind(
        "persistentvolumes",
        "PersistentVolume",
        namespaced=False,
        short_names=("pv",),
        subresources=("status",),
    ),
    Kind("persistentvolumeclaims", "PersistentVolumeClaim", short_names=("pvc",), subresources=("status",)),
    Kind(
        "deployments",
        "Deployment",
        "apps",
        short_names=("deploy",),
        categories=("all",),
        subresources=_SCALED,
        counts_generations=True,
    ),
    Kind(
        "replicasets",
        "ReplicaSet",
        "apps",
        short_names=("rs",),
        categories=("all",),
        subresources=_SCALED,
        fields=("status.replicas",),
        counts_generations=True,
    ),
    Kind(
        "statefulsets",
        "StatefulSet",
        "apps",
        short_names=("sts",),
        categories=("all",),
        subresources=_SCALED,
        counts_generations=True,
    ),
    Kind(
        "replicationcontrollers",
        "ReplicationController",
        short_names=("rc",),
        categories=("all",),
        subresources=_SCALED,
        fields=("status.replicas",),
        counts_generations=True,
    ),
    Kind(
        "jobs",
        "Job",
        "batch",
        categories=("all",),
        subresources=("status",),
        fields=("status.successful",),
        counts_generations=True,
    ),
    Kind("priorityclasses", "PriorityClass", "scheduling.k8s.io", namespaced=False, short_names=("pc",)),
    Kind("leases", "Lease", "coordination.k8s.io", created_by_replace=True, replaced_with_version_only=True),
    Kind(
        "poddisruptionbudgets",
        "PodDisruptionBudget",
        "policy",
        short_names=("pdb",),
        subresources=("status",),
        counts_generations=True,
    ),
    Kind("storageclasses", "StorageClass", "storage.k8s.io", namespaced=False, short_names=("sc",)),
    Kind("csinodes", "CSINode", "storage.k8s.io", namespaced=False),
    Kind("csidrivers", "CSIDriver", "storage.k8s.io", namespaced=False),
    Kind("csistoragecapacities", "CSIStorageCapacity", "storage.k8s.io"),
    Kind(
        "volumeattachments",
        "VolumeAttachment",
        "storage.k8s.io",
        namespaced=False,
        subresources=("status",),
        keeps_status=True,
    ),
    Kind("resourceclaims", "ResourceClaim", "resource.k8s.io", subresources=("status",)),
    Kind("resourceclaimtemplates", "ResourceClaimTemplate", "resource.k8s.io"),
    Kind(
        "resourceslices",
        "ResourceSlice",
        "resource.k8s.io",
        namespaced=False,
        fields=("spec.nodeName", "spec.driver"),
    ),
    Kind("deviceclasses", "DeviceClass", "resource.k8s.io", namespaced=False),
    # Kept as they are written: here everybody may do everything.
    Kind("roles", "Role", "rbac.authorization.k8s.io"),
    Kind("rolebindings", "RoleBinding", "rbac.authorization.k8s.io"),
    Kind("clusterroles", "ClusterRole", "rbac.authorization.k8s.io", namespaced=False),
    Kind("clusterrolebindings", "ClusterRoleBinding", "rbac.authorization.k8s.io", namespaced=False),
)


@dataclass(frozen=True, slots=True)
class Subresource:
    """What discovery says of a subresource whose body is of another kind than its owner's."""

    kind: str
    group: str
    version: str


SUBRESOURCE_KINDS: dict[str, Subresource] = {
    "binding": Subresource("Binding", "", "v1"),
    "eviction": Subresource("Eviction", "policy", "v1"),
    "scale": Subresource("Scale", "autoscaling", "v1"),
}

SUBRESOURCE_VERBS: dict[str, tuple[str, ...]] = {
    "status": ("get", "patch", "update"),
    "scale": ("get", "patch", "update"),
    "finalize": ("update",),
    "binding": ("create",),
    "eviction": ("create",),
}

VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")

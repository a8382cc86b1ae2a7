"""Remove what a test has left in a control plane, so that one start serves many tests.

The controller-manager may not be running, so nothing is left to it: pods are deleted immediately
(there is no kubelet), finalizers are removed, and namespaces are finalized here. Objects from the
start stay as they are: a test that edits or deletes an object that the API server created has to
restore it.
"""

import base64
from collections.abc import Iterable, Iterator, Set

from tests.controlplane.api import Api, ApiError, Json

CLUSTER_SCOPED = (
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
    "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
    "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "/api/v1/nodes",
    "/api/v1/persistentvolumes",
    "/apis/storage.k8s.io/v1/storageclasses",
    "/apis/storage.k8s.io/v1/csinodes",
    "/apis/storage.k8s.io/v1/csidrivers",
    "/apis/storage.k8s.io/v1/volumeattachments",
    "/apis/resource.k8s.io/v1/deviceclasses",
    "/apis/resource.k8s.io/v1/resourceslices",
    "/apis/scheduling.k8s.io/v1/priorityclasses",
    "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas",
    "/apis/node.k8s.io/v1/runtimeclasses",
    "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    # Last: their objects are removed with them.
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
)
# Owners before what they own: a controller that still runs would recreate it.
NAMESPACED = (
    "/apis/apps/v1/deployments",
    "/apis/apps/v1/statefulsets",
    "/apis/apps/v1/daemonsets",
    "/apis/batch/v1/cronjobs",
    "/apis/batch/v1/jobs",
    "/apis/apps/v1/replicasets",
    "/apis/policy/v1/poddisruptionbudgets",
    "/apis/networking.k8s.io/v1/networkpolicies",
    "/api/v1/pods",
    "/apis/resource.k8s.io/v1/resourceclaims",
    "/apis/resource.k8s.io/v1/resourceclaimtemplates",
    "/api/v1/services",
    "/api/v1/replicationcontrollers",
    "/api/v1/persistentvolumeclaims",
    "/apis/storage.k8s.io/v1/csistoragecapacities",
    "/api/v1/configmaps",
    "/api/v1/secrets",
    "/api/v1/resourcequotas",
    "/api/v1/serviceaccounts",
    "/apis/coordination.k8s.io/v1/leases",
    "/apis/events.k8s.io/v1/events",
    "/apis/rbac.authorization.k8s.io/v1/roles",
    "/apis/rbac.authorization.k8s.io/v1/rolebindings",
)
# Served only where `Features` or the release of Kubernetes has them.
OPTIONAL = (
    "/apis/scheduling.k8s.io/v1alpha3/compositepodgroups",
    "/apis/scheduling.k8s.io/v1beta1/podgroups",
    "/apis/scheduling.k8s.io/v1beta1/workloads",
    "/apis/scheduling.k8s.io/v1alpha2/podgroups",
    "/apis/scheduling.k8s.io/v1alpha2/workloads",
    "/apis/resource.k8s.io/v1beta2/devicetaintrules",
)
NAMESPACES = frozenset(
    f"/api/v1/namespaces/{name}" for name in ("default", "kube-system", "kube-public", "kube-node-lease")
)
"""The API server creates these some time after it is ready, so they are waited for."""

# These too, but nothing waits for them.
MADE_LATE = (
    "/api/v1/namespaces/default/services/kubernetes",
    "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication",
    "/api/v1/namespaces/kube-system/configmaps/kube-apiserver-legacy-service-account-token-tracking",
    "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/apiserver-",
)

STORED_UNDER = {
    "customresourcedefinitions": "apiextensions.k8s.io",
    "nodes": "minions",
    "replicationcontrollers": "controllers",
}
"""The key of an object in etcd begins with /registry/ and the plural of its kind, or another name."""


def created_since(etcd: Api, revision: int) -> tuple[frozenset[str], int]:
    """Under which names etcd has objects that were created since its revision, and its next revision."""
    answer = etcd.post(
        "/v3/kv/range",
        {
            "key": _base64("/registry/"),
            "range_end": _base64("/registry0"),
            "keys_only": True,
            "min_create_revision": revision,
        },
    )
    keys = [base64.b64decode(pair["key"]).decode() for pair in answer.get("kvs", [])]
    return frozenset(key.split("/")[2] for key in keys), int(answer["header"]["revision"]) + 1


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


ALL_KINDS = (*NAMESPACED, *OPTIONAL, *CLUSTER_SCOPED, "/api/v1/namespaces")


def kinds_of(names: Set[str]) -> tuple[str, ...]:
    """The kinds of the objects that etcd has under these names, in order; all kinds if one of the names is unknown."""
    name_by_kind = {kind: stored_under(kind) for kind in ALL_KINDS}
    if not names <= {*name_by_kind.values()}:
        return ALL_KINDS
    return tuple(kind for kind, name in name_by_kind.items() if name in names)


def stored_under(kind: str) -> str:
    plural = kind.rpartition("/")[2]
    return STORED_UNDER.get(plural, plural)


def object_paths(api: Api) -> frozenset[str]:
    """The API path of every object of the kinds above, including namespaces."""
    return frozenset(path for path, _ in _objects(api))


def sweep(api: Api, *, keep: Set[str], kinds: Iterable[str] = ALL_KINDS) -> None:
    """Delete every object of the kinds whose path is not in `keep`, the result of `object_paths` before the
    tests.
    """
    for path, item in _objects(api, kinds):
        if path not in keep and not path.startswith(MADE_LATE):
            if path.startswith("/api/v1/namespaces/") and item.get("spec", {}).get("finalizers"):
                _remove_namespace(api, path)
            else:
                _remove(api, path, item)


def _objects(api: Api, kinds: Iterable[str] = ALL_KINDS) -> Iterator[tuple[str, Json]]:
    for kind in kinds:
        for item in _items(api, kind):
            yield _path(kind, item), item


def _items(api: Api, kind: str) -> list[Json]:
    try:
        return api.items(kind)
    except ApiError as error:
        if error.status == 404 and kind in OPTIONAL:
            return []
        raise


def _path(kind: str, item: Json) -> str:
    group, _, plural = kind.rpartition("/")
    meta = item["metadata"]
    namespace = f"namespaces/{meta['namespace']}/" if "namespace" in meta else ""
    return f"{group}/{namespace}{plural}/{meta['name']}"


def _remove(api: Api, path: str, item: Json) -> None:
    try:
        if item["metadata"].get("finalizers"):
            api.patch(path, {"metadata": {"finalizers": None}})
        api.delete(path, {"gracePeriodSeconds": 0, "propagationPolicy": "Background"})
    except ApiError as error:
        if error.status != 404:
            raise


def _remove_namespace(api: Api, path: str) -> None:
    try:
        api.delete(path)
        namespace = api.get(path)
        namespace["spec"]["finalizers"] = []
        api.put(f"{path}/finalize", namespace)
    except ApiError as error:
        if error.status != 404:
            raise

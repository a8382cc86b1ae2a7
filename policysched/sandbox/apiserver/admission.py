"""The default admission plugins of kube-apiserver: namespaces, priorities, default tolerations.

NamespaceLifecycle, Priority and DefaultStorageClass for creates; DefaultTolerationSeconds for creates
and updates. Omitted on purpose: ServiceAccount (a pod is admitted before its account exists, and gets
no token volume) and TaintNodesByCondition (a node starts without the not-ready taint, because nothing
here would remove it).
"""

from typing import Any

from policysched.sandbox.apiserver.errors import forbidden, not_found
from policysched.sandbox.apiserver.kinds import ResourceKind
from policysched.sandbox.apiserver.store import ObjectStore

Json = dict[str, Any]

IMMORTAL_NAMESPACES = ("default", "kube-system", "kube-public")
_CLASSES = "priorityclasses.scheduling.k8s.io"
_STORAGE_CLASSES = "storageclasses.storage.k8s.io"
_IS_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
_OLD_CLASS = "volume.beta.kubernetes.io/storage-class"


def check_namespace(store: ObjectStore, kind: ResourceKind, namespace: str, name: str) -> None:
    """Check that the namespace exists and is not terminating. Raises kube-apiserver's 404 and 403."""
    entry = store.get("namespaces", ("", namespace))
    if entry is None:
        raise not_found("", "namespaces", namespace)
    if entry.obj["metadata"].get("deletionTimestamp"):
        reason = f"unable to create new content in namespace {namespace} because it is being terminated"
        refusal = forbidden(kind.group, kind.plural, name, reason)
        assert refusal.details is not None
        refusal.details["causes"] = [
            {
                "reason": "NamespaceTerminating",
                "message": f"namespace {namespace} is being terminated",
                "field": "metadata.namespace",
            }
        ]
        raise refusal


def check_may_be_deleted(kind: ResourceKind, name: str) -> None:
    if kind.rules == "namespaces" and name in IMMORTAL_NAMESPACES:
        raise forbidden("", "namespaces", name, "this namespace may not be deleted")


def admit_create(store: ObjectStore, kind: ResourceKind, obj: Json) -> None:
    """Mutate or reject an object before it is created."""
    if kind.rules == "pods":
        _set_priority(store, obj)
        _add_default_tolerations(obj["spec"])
    elif kind.rules == "persistentvolumeclaims":
        _set_default_storage_class(store, obj)
    elif kind.rules == "priorityclasses" and obj.get("globalDefault"):
        for entry in store.collection(_CLASSES).entries.values():
            if entry.obj.get("globalDefault"):
                reason = f"PriorityClass {entry.key[1]} is already marked as globalDefault"
                raise forbidden(kind.group, kind.plural, obj["metadata"]["name"], reason)


def admit_update(kind: ResourceKind, obj: Json) -> None:
    """Mutate an object before it is replaced or patched."""
    if kind.rules == "pods":
        _add_default_tolerations(obj["spec"])


def _set_default_storage_class(store: ObjectStore, obj: Json) -> None:
    """DefaultStorageClass: set the default class, the newest if there are several."""
    metadata, spec = obj["metadata"], obj["spec"]
    if spec.get("storageClassName") is not None or _OLD_CLASS in (metadata.get("annotations") or {}):
        return
    entries = store.collection(_STORAGE_CLASSES).entries.values()
    default = [
        entry.obj
        for entry in entries
        if (entry.obj["metadata"].get("annotations") or {}).get(_IS_DEFAULT_CLASS) == "true"
    ]
    if default:
        newest = max(
            default,
            key=lambda storage_class: (
                storage_class["metadata"]["creationTimestamp"],
                storage_class["metadata"]["name"],
            ),
        )
        spec["storageClassName"] = newest["metadata"]["name"]


def _set_priority(store: ObjectStore, obj: Json) -> None:
    spec, name = obj["spec"], obj["metadata"].get("name") or obj["metadata"].get("generateName") or ""
    class_name = spec.get("priorityClassName")
    classes = store.collection(_CLASSES).entries
    if class_name:
        entry = classes.get(("", class_name))
        if entry is None:
            raise forbidden("", "pods", name, f"no PriorityClass with name {class_name} was found")
        chosen: Json | None = entry.obj
    else:
        defaults = [entry.obj for entry in classes.values() if entry.obj.get("globalDefault")]
        chosen = min(defaults, key=lambda default: default["value"], default=None)
        if chosen is not None:
            spec["priorityClassName"] = chosen["metadata"]["name"]
    priority = chosen["value"] if chosen is not None else 0
    policy = (chosen or {}).get("preemptionPolicy") or "PreemptLowerPriority"
    if spec.get("priority") not in (None, priority):
        raise forbidden(
            "", "pods", name, _computed_field_message("integer value of priority", spec["priority"], priority)
        )
    if spec.get("preemptionPolicy") not in (None, policy):
        preemption_policy = spec["preemptionPolicy"]
        raise forbidden(
            "",
            "pods",
            name,
            _computed_field_message("string value of PreemptionPolicy", preemption_policy, policy),
        )
    spec["priority"] = priority
    spec["preemptionPolicy"] = policy


def _computed_field_message(noun: str, actual: object, computed: object) -> str:
    return (
        f"the {noun} ({actual}) must not be provided in pod spec; "
        f"priority admission controller computed {computed} from the given PriorityClass name"
    )


def _add_default_tolerations(spec: Json) -> None:
    tolerations = spec.setdefault("tolerations", [])
    for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
        if not any(
            toleration.get("key") in (key, None, "") and toleration.get("effect") in ("NoExecute", None, "")
            for toleration in tolerations
        ):
            tolerations.append(
                {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
            )

"""Subresources with logic of their own: eviction, and the scale of workloads."""

from typing import Any

from policysched.sandbox.apiserver.errors import StatusError, bad_request, bad_value, invalid
from policysched.sandbox.apiserver.kinds import ResourceKind
from policysched.sandbox.apiserver.registry import DeleteOptions, ResourceRegistry, with_condition
from policysched.sandbox.apiserver.selectors import (
    label_requirements,
    labels_match,
    selected_labels,
)
from policysched.sandbox.apiserver.store import StoredObject
from policysched.sandbox.apiserver.timestamps import timestamp

Json = dict[str, Any]


def evict(registry: ResourceRegistry, kind: ResourceKind, namespace: str, name: str, eviction: Any) -> None:
    """Delete a pod unless a disruption budget forbids it: 429, as in kube-apiserver."""
    if not isinstance(eviction, dict):
        raise bad_request("an Eviction is an object")
    if (eviction.get("metadata") or {}).get("name", name) != name:
        raise bad_request("name in URL does not match name in Eviction object")
    pod = registry.get(kind, namespace, name)
    options = DeleteOptions.read(eviction.get("deleteOptions") or {}, {})
    waiting = (pod.obj.get("status") or {}).get("phase") in ("Pending", "Succeeded", "Failed")
    if not waiting and not pod.obj["metadata"].get("deletionTimestamp"):
        _consume_budget(registry, pod, dry_run=options.dry_run)
    if not options.dry_run:
        disruption = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting",
        }
        pod = registry.patch(
            kind,
            namespace,
            name,
            lambda obj: {
                **obj,
                "status": with_condition(obj["status"], disruption, timestamp(registry.now())),
            },
            subresource="status",
        )
    registry.delete(kind, namespace, name, options)


def _consume_budget(registry: ResourceRegistry, pod: StoredObject, *, dry_run: bool) -> None:
    budgets = registry.store.collection("poddisruptionbudgets.policy")
    for entry in tuple(budgets.in_namespace(pod.key[0])):
        selector = (entry.obj.get("spec") or {}).get("selector")
        if selector is None:
            continue
        if not labels_match(label_requirements(selector), pod.obj["metadata"].get("labels")):
            continue
        allowed = (entry.obj.get("status") or {}).get("disruptionsAllowed", 0)
        if allowed < 1:
            cause = {
                "reason": "DisruptionBudget",
                "message": f"The disruption budget {entry.key[1]} does not allow another disruption now",
            }
            message = "Cannot evict pod as it would violate the pod's disruption budget."
            raise StatusError(429, "TooManyRequests", message, details={"causes": [cause]})
        if not dry_run:
            status = {**entry.obj["status"], "disruptionsAllowed": allowed - 1}
            obj = {**entry.obj, "metadata": dict(entry.obj["metadata"]), "status": status}
            registry.store.put("poddisruptionbudgets.policy", entry.key, obj)


def scale_of(entry: StoredObject) -> Json:
    """The `Scale` of a workload."""
    metadata, spec, status = entry.obj["metadata"], entry.obj["spec"], entry.obj.get("status") or {}
    selector = ",".join(f"{key}={value}" for key, value in selected_labels(spec).items())
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: metadata[key] for key in kept if key in metadata},
        "spec": {"replicas": spec["replicas"]},
        "status": {"replicas": status.get("replicas", 0), "selector": selector},
    }


def apply_scale(obj: Json, scale: Any) -> Json:
    """Apply the replicas of a `Scale` to the object. A resourceVersion in the scale must match."""
    wanted = scale.get("spec") if isinstance(scale, dict) else None
    replicas = (wanted or {}).get("replicas", 0)
    name = obj["metadata"]["name"]
    if not isinstance(replicas, int) or replicas < 0:
        cause = bad_value("spec.replicas", replicas, "must be greater than or equal to 0")
        raise invalid("autoscaling", "Scale", name, [cause])
    version = (scale.get("metadata") or {}).get("resourceVersion")
    metadata = {**obj["metadata"], **({"resourceVersion": version} if version else {})}
    return {**obj, "metadata": metadata, "spec": {**obj["spec"], "replicas": replicas}}

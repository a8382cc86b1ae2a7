"""Subresources with logic of their own: binding, eviction, and the scale of workloads."""

from typing import Any

from policysched.sandbox.apiserver.errors import (
    StatusError,
    bad_request,
    bad_value,
    conflict,
    invalid,
    version_conflict,
)
from policysched.sandbox.apiserver.json_path import parse_json_path
from policysched.sandbox.apiserver.kinds import ResourceKind, ScalePaths
from policysched.sandbox.apiserver.registry import DeleteOptions, ResourceRegistry, with_condition
from policysched.sandbox.apiserver.selectors import (
    label_requirements,
    labels_match,
    selected_labels,
)
from policysched.sandbox.apiserver.store import StoredObject
from policysched.sandbox.apiserver.timestamps import timestamp

Json = dict[str, Any]


def bind(
    registry: ResourceRegistry,
    kind: ResourceKind,
    namespace: str,
    name: str,
    binding: Any,
    *,
    dry_run: bool = False,
) -> StoredObject:
    """Bind a pod to a node, once. Does not check capacity or whether the node exists.

    Order and messages of errors: `BindingREST` in kubernetes' pkg/registry/core/pod/storage.
    """
    if not isinstance(binding, dict):
        raise bad_request("a Binding is an object")
    metadata, target = binding.get("metadata") or {}, binding.get("target") or {}
    if metadata.get("name", name) != name:
        raise bad_request("name in URL does not match name in Binding object")
    if target.get("kind") not in (None, "", "Node"):
        cause = ("FieldValueNotSupported", "target.kind", f'Unsupported value: "{target["kind"]}"')
        raise invalid("", "Binding", name, [cause])
    if not target.get("name"):
        raise invalid("", "Binding", name, [("FieldValueRequired", "target.name", "Required value")])
    entry = registry.get(kind, namespace, name)
    pod = entry.obj
    if metadata.get("uid") not in (None, "", pod["metadata"]["uid"]):
        uids = f"UID in precondition: {metadata['uid']}, UID in object meta: {pod['metadata']['uid']}"
        raise conflict("", "pods", name, f"Precondition failed: {uids}")
    if metadata.get("resourceVersion") not in (None, "", pod["metadata"]["resourceVersion"]):
        raise version_conflict("", "pods", name)
    if pod["metadata"].get("deletionTimestamp"):
        raise conflict("", "pods/binding", name, f"pod {name} is being deleted, cannot be assigned to a host")
    if pod["spec"].get("nodeName"):
        reason = f'pod {name} is already assigned to node "{pod["spec"]["nodeName"]}"'
        raise conflict("", "pods/binding", name, reason)
    if pod["spec"].get("schedulingGates"):
        raise conflict("", "pods/binding", name, f"pod {name} has non-empty .spec.schedulingGates")
    bound = {
        **pod,
        "metadata": dict(pod["metadata"]),
        "spec": {**pod["spec"], "nodeName": target["name"]},
        "status": with_condition(
            pod.get("status") or {}, {"type": "PodScheduled", "status": "True"}, timestamp(registry.now())
        ),
    }
    for field_name in ("annotations", "labels"):
        if metadata.get(field_name):
            bound["metadata"][field_name] = {
                **(pod["metadata"].get(field_name) or {}),
                **metadata[field_name],
            }
    return registry.write(kind, entry.key, bound, dry_run=dry_run)


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


def scale_of(kind: ResourceKind, entry: StoredObject) -> Json:
    """The `Scale` of a workload or a custom resource."""
    obj, paths = entry.obj, _scale_paths(kind)
    metadata = obj["metadata"]
    if paths is _WORKLOAD:
        selector = ",".join(f"{key}={value}" for key, value in selected_labels(obj["spec"]).items())
    else:
        selector = str(_read(obj, paths.selector) or "")
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: metadata[key] for key in kept if key in metadata},
        "spec": {"replicas": _read(obj, paths.spec) or 0},
        "status": {"replicas": _read(obj, paths.status) or 0, "selector": selector},
    }


_WORKLOAD = ScalePaths(".spec.replicas", ".status.replicas", "")


def _scale_paths(kind: ResourceKind) -> ScalePaths:
    return kind.custom.scale or _WORKLOAD if kind.custom is not None else _WORKLOAD


def _read(obj: Json, path: str) -> Any:
    values = (parse_json_path(path) or (lambda _: []))(obj)
    return values[0] if values else None


def apply_scale(kind: ResourceKind, obj: Json, scale: Any) -> Json:
    """Apply the replicas of a `Scale` to the object. A resourceVersion in the scale must match."""
    wanted = scale.get("spec") if isinstance(scale, dict) else None
    replicas = (wanted or {}).get("replicas", 0)
    name = obj["metadata"]["name"]
    if not isinstance(replicas, int) or replicas < 0:
        cause = bad_value("spec.replicas", replicas, "must be greater than or equal to 0")
        raise invalid("autoscaling", "Scale", name, [cause])
    version = (scale.get("metadata") or {}).get("resourceVersion")
    metadata = {**obj["metadata"], **({"resourceVersion": version} if version else {})}
    changed = {**obj, "metadata": metadata}
    part = changed
    *parents, last = _scale_paths(kind).spec.strip(".").split(".")
    for name in parents:
        part[name] = dict(part.get(name) or {})
        part = part[name]
    part[last] = replicas
    return changed

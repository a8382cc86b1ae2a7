"""JSON from the API server (or a file) as the typed values of `cluster`: the edge where everything is checked once.

Only what scheduling reads is read. What a built-in does not cover yet is noted by name in `Pod.uncovered`, so that
such a pod stays pending with words instead of being bound wrongly.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, TypeVar

import orjson

from policysched.cluster import objects as o
from policysched.kube.affinity import label_selector, node_affinity
from policysched.kube.malformed import Malformed
from policysched.kube.pod_affinity import pod_affinity, spread_constraints
from policysched.kube.rejection import rejection
from policysched.kube.requests import BadQuantity, amounts, demand

Json = Mapping[str, Any]
Value = TypeVar("Value")

_UNCOVERED_VOLUMES = {
    "persistentVolumeClaim": "persistentVolumeClaim",
    "ephemeral": "ephemeral",
    "gcePersistentDisk": "gcePersistentDisk",
    "awsElasticBlockStore": "awsElasticBlockStore",
    "azureDisk": "azureDisk",
    "rbd": "rbd",
    "iscsi": "iscsi",
    "cinder": "cinder",
    "vsphereVolume": "vsphereVolume",
    "portworxVolume": "portworxVolume",
}


def pod(obj: Json) -> o.ObservedPod:
    """A v1 Pod. Raises Malformed."""
    return _reading("Pod", obj, _pod)


def node(obj: Json) -> o.Node:
    """A v1 Node. Raises Malformed."""
    return _reading("Node", obj, _node)


def namespace(obj: Json) -> o.Namespace:
    """A v1 Namespace. Raises Malformed."""
    return _reading("Namespace", obj, _namespace)


def disruption_budget(obj: Json) -> o.DisruptionBudget:
    """A policy/v1 PodDisruptionBudget. Raises Malformed."""
    return _reading("PodDisruptionBudget", obj, _disruption_budget)


def pod_set(obj: Json, kind: o.PodSetKind) -> o.PodSet:
    """A v1 Service or ReplicationController, an apps/v1 ReplicaSet or StatefulSet. Raises Malformed."""
    return _reading(kind, obj, lambda read: _pod_set(read, kind))


def required_name(obj: Json) -> str:
    """The object's own name. Raises Malformed."""
    return _reading("object", obj, lambda read: str(read["metadata"]["name"]))


def json_text(obj: Json) -> str:
    """The object as JSON, without what the API server writes there for itself."""
    meta = {name: value for name, value in (obj.get("metadata") or {}).items() if name != "managedFields"}
    return orjson.dumps({**obj, "metadata": meta}, option=orjson.OPT_SORT_KEYS).decode()


def object_name(obj: Any) -> str:
    """`namespace/name`, or what of it there is: for words about an object that may be malformed."""
    meta = obj.get("metadata") if isinstance(obj, Mapping) else None
    meta = meta if isinstance(meta, Mapping) else {}
    own = str(meta.get("name") or "(without a name)")
    return f"{meta['namespace']}/{own}" if meta.get("namespace") else own


def _reading(kind: str, obj: Json, read: Callable[[Json], Value]) -> Value:
    try:
        return read(obj)
    except BadQuantity as error:
        raise Malformed(kind, object_name(obj), error.field, str(error)) from error
    except KeyError as error:
        raise Malformed(kind, object_name(obj), str(error.args[0]), "is missing") from error
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise Malformed(
            kind, object_name(obj), "(object)", f"is not shaped as the API says: {error}"
        ) from error


def _pod(obj: Json) -> o.ObservedPod:
    meta, spec, status = obj["metadata"], obj["spec"], obj.get("status") or {}
    needs = demand(spec, status)
    affinity = spec.get("affinity") or {}
    owners: list[Json] = [one for one in meta.get("ownerReferences") or () if one.get("controller")]
    owner = owners[0] if owners else {}
    deadline_s = spec.get("activeDeadlineSeconds")
    space = _text(meta.get("namespace") or "default")
    labels = _strings(meta.get("labels"), "metadata.labels")
    value = o.Pod(
        uid=o.PodUid(_text(meta.get("uid") or f"{space}/{meta['name']}")),
        name=_text(meta["name"]),
        namespace=space,
        labels=labels,
        annotations=_strings(meta.get("annotations"), "metadata.annotations"),
        scheduler=_text(spec.get("schedulerName") or "default-scheduler"),
        priority=int(spec.get("priority") or 0),
        preemption_policy="Never" if spec.get("preemptionPolicy") == "Never" else "PreemptLowerPriority",
        created_ns=_time_ns(meta.get("creationTimestamp")),
        deadline_ns=None if deadline_s is None else int(deadline_s) * 10**9,
        owner_api=_text(owner.get("apiVersion") or ""),
        owner_kind=_text(owner.get("kind") or ""),
        owner_name=_text(owner.get("name") or ""),
        service_account=_text(spec.get("serviceAccountName") or ""),
        requests=needs.requests,
        limits=needs.limits,
        scoring_requests=needs.scoring,
        scoring_held=needs.scoring_held,
        qos=needs.qos,
        node_selector=_strings(spec.get("nodeSelector"), "spec.nodeSelector"),
        affinity=node_affinity(affinity.get("nodeAffinity")),
        tolerations=tuple(_toleration(one) for one in spec.get("tolerations") or ()),
        host_ports=_host_ports(spec),
        images=_images(spec),
        image_volumes=_image_volumes(spec),
        gates=tuple(_text(gate["name"]) for gate in spec.get("schedulingGates") or ()),
        pod_affinity=pod_affinity(affinity, space, labels),
        spread=spread_constraints(spec.get("topologySpreadConstraints"), labels),
        terminating=meta.get("deletionTimestamp") is not None,
        required_features=_required_features(spec),
        uncovered=_uncovered(spec),
    )
    return o.ObservedPod(
        pod=value,
        node=o.NodeName(spec["nodeName"]) if spec.get("nodeName") else None,
        phase=_phase(status.get("phase") or "Pending"),
        deleting=meta.get("deletionTimestamp") is not None,
        nominated_node=o.NodeName(status["nominatedNodeName"]) if status.get("nominatedNodeName") else None,
        started_ns=_time_ns(status["startTime"]) if status.get("startTime") else None,
        preempted=any(_ends_by_preemption(one) for one in status.get("conditions") or ()),
        rejection=rejection(status),
        # Nothing is written on a bound pod that would have to go by these, and there are many.
        version="" if spec.get("nodeName") else str(meta.get("resourceVersion") or ""),
        generation=int(meta.get("generation") or 0),
    )


def _ends_by_preemption(condition: Json) -> bool:
    wanted = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    return all(condition.get(key) == value for key, value in wanted.items())


def _node(obj: Json) -> o.Node:
    meta, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    conditions = {_text(one["type"]): _text(one["status"]) for one in status.get("conditions") or ()}
    # Without allocatable the API server takes the capacity; a file of manifests may have only that.
    listed = "allocatable" if status.get("allocatable") else "capacity"
    return o.Node(
        name=o.NodeName(_text(meta["name"])),
        uid=_text(meta.get("uid") or meta["name"]),
        labels=_strings(meta.get("labels"), "metadata.labels"),
        annotations=_strings(meta.get("annotations"), "metadata.annotations"),
        taints=tuple(
            o.Taint(_text(one["key"]), _text(one.get("value") or ""), _effect(one["effect"]))
            for one in spec.get("taints") or ()
        ),
        unschedulable=bool(spec.get("unschedulable")),
        allocatable=amounts(status.get(listed), f"status.{listed}"),
        images={
            _text(name): int(image.get("sizeBytes") or 0)
            for image in status.get("images") or ()
            for name in image.get("names") or ()
        },
        conditions=conditions,
        addresses=tuple(_text(one["address"]) for one in status.get("addresses") or ()),
        created_ns=_time_ns(meta.get("creationTimestamp")),
        ready=conditions.get("Ready") == "True",
        declared_features=frozenset(_text(one) for one in status.get("declaredFeatures") or ()),
    )


def _namespace(obj: Json) -> o.Namespace:
    meta = obj["metadata"]
    return o.Namespace(
        name=_text(meta["name"]),
        labels=_strings(meta.get("labels"), "metadata.labels"),
        annotations=_strings(meta.get("annotations"), "metadata.annotations"),
    )


def _disruption_budget(obj: Json) -> o.DisruptionBudget:
    meta, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    return o.DisruptionBudget(
        namespace=_text(meta.get("namespace") or "default"),
        name=_text(meta["name"]),
        selector=label_selector(spec.get("selector")),
        disruptions_allowed=int(status.get("disruptionsAllowed") or 0),
        disrupted_pods=frozenset(_text(name) for name in status.get("disruptedPods") or ()),
    )


def _pod_set(obj: Json, kind: o.PodSetKind) -> o.PodSet:
    meta, selector = obj["metadata"], (obj.get("spec") or {}).get("selector")
    if kind in ("Service", "ReplicationController"):
        labels = _strings(selector, "spec.selector")
        found = tuple(o.Requirement(key, "In", (labels[key],)) for key in sorted(labels))
        read = o.LabelSelector(found) if found else None  # of an empty one is no trace left in what is stored
    else:
        read = label_selector(selector)
    return o.PodSet(kind, _text(meta.get("namespace") or "default"), _text(meta["name"]), read)


def _uncovered(spec: Json) -> tuple[str, ...]:
    found = []
    if spec.get("resourceClaims"):
        found.append("spec.resourceClaims")
    if spec.get("schedulingGroup") or spec.get("workloadRef"):
        found.append("spec.schedulingGroup")
    kinds = {
        kind
        for volume in spec.get("volumes") or ()
        for kind in _UNCOVERED_VOLUMES
        if volume.get(kind) is not None
    }
    found.extend(f"spec.volumes ({kind})" for kind in sorted(kinds))
    return tuple(found)


def _required_features(spec: Json) -> frozenset[str]:
    """What kubelets declare that not all of them can do, where the pod needs it to run. Source: `InferForScheduling` of the features in
    k8s.io/component-helpers v0.36.3, `nodedeclaredfeatures/features`; the others concern updates of running pods."""
    found = set()
    if any(
        rule.get("action") == "RestartAllContainers"
        for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ()))
        for rule in container.get("restartPolicyRules") or ()
    ):
        found.add("RestartAllContainersOnContainerExits")
    if spec.get("hostNetwork") and spec.get("hostUsers") is False:
        found.add("UserNamespacesHostNetworkSupport")
    return frozenset(found)


def _host_ports(spec: Json) -> tuple[o.HostPort, ...]:
    """Sidecars hold their ports beside the containers; other init containers are gone by then."""
    holders = [*(spec.get("containers") or ())]
    holders += [one for one in spec.get("initContainers") or () if one.get("restartPolicy") == "Always"]
    found = []
    for container in holders:
        for port in container.get("ports") or ():
            # With hostNetwork the API server sets hostPort to containerPort.
            number = port.get("hostPort") or (port.get("containerPort") if spec.get("hostNetwork") else None)
            if number:
                found.append(
                    o.HostPort(port.get("hostIP") or "0.0.0.0", port.get("protocol") or "TCP", int(number))
                )
    return tuple(found)


def _images(spec: Json) -> tuple[str, ...]:
    names = [
        one.get("image") or "" for kind in ("initContainers", "containers") for one in spec.get(kind) or ()
    ]
    return tuple(normalized_image_name(name) for name in names)


def _image_volumes(spec: Json) -> tuple[str, ...]:
    found = (volume["image"] for volume in spec.get("volumes") or () if volume.get("image"))
    return tuple(normalized_image_name(one.get("reference") or "") for one in found)


def normalized_image_name(name: str) -> str:
    """A name without a tag means `:latest`, as ImageLocality has it."""
    return name if name.rfind(":") > name.rfind("/") else f"{name}:latest"


def _toleration(one: Json) -> o.Toleration:
    return o.Toleration(
        key=_text(one.get("key") or ""),
        operator=_text(one.get("operator") or "Equal"),
        value=_text(one.get("value") or ""),
        effect=_text(one.get("effect") or ""),
    )


def _phase(text: Any) -> o.Phase:
    match text:
        case "Pending" | "Running" | "Succeeded" | "Failed" | "Unknown":
            return text  # type: ignore[no-any-return]
        case _:
            raise ValueError(f"unknown phase `{text}`")


def _effect(text: Any) -> o.TaintEffect:
    match text:
        case "NoSchedule" | "PreferNoSchedule" | "NoExecute":
            return text  # type: ignore[no-any-return]
        case _:
            raise ValueError(f"unknown taint effect `{text}`")


def _strings(value: Any, field: str) -> Mapping[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(one, str) for one in value.values()):
        raise BadQuantity(field, "is not a map of strings")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    return value


def _time_ns(text: Any) -> int:
    """RFC 3339 to ns since 1970; 0 where there is none (a manifest from a file)."""
    if text is None:
        return 0
    return round(datetime.fromisoformat(str(text)).timestamp()) * 10**9

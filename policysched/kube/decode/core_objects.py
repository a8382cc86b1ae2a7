"""Decodes nodes, namespaces, disruption budgets and selector owners: JSON from the API server or a file is checked here
once, and only fields that scheduling uses are read."""

from collections.abc import Mapping
from typing import Any

import orjson

from policysched.kube.decode.affinity import SELECTOR_PARTS_MAX, decode_short_selector
from policysched.kube.decode.errors import OverLimit
from policysched.kube.decode.pod_resources import decode_resource_list
from policysched.kube.decode.primitives import decode_object, string_map, text, time_ns
from policysched.model.identifiers import NodeName
from policysched.model.namespaces import Namespace
from policysched.model.nodes import Node, Taint, TaintEffect
from policysched.model.selectors import LabelSelector, SelectorRequirement
from policysched.model.workloads import DisruptionBudget, SelectorOwner, SelectorOwnerKind

Json = Mapping[str, Any]


def decode_node(obj: Json) -> Node:
    """A v1 Node. Raises MalformedObject."""
    return decode_object("Node", obj, _node)


def decode_namespace(obj: Json) -> Namespace:
    """A v1 Namespace. Raises MalformedObject."""
    return decode_object("Namespace", obj, _namespace)


def decode_disruption_budget(obj: Json) -> DisruptionBudget:
    """A policy/v1 PodDisruptionBudget. Raises MalformedObject."""
    return decode_object("PodDisruptionBudget", obj, _disruption_budget)


def decode_selector_owner(obj: Json, kind: SelectorOwnerKind) -> SelectorOwner:
    """A v1 Service or ReplicationController, an apps/v1 ReplicaSet or StatefulSet. Raises MalformedObject."""
    return decode_object(kind, obj, lambda read: _selector_owner(read, kind))


def required_name(obj: Json) -> str:
    """`metadata.name` of an object of any kind. Raises MalformedObject."""
    return decode_object("object", obj, lambda read: str(read["metadata"]["name"]))


def canonical_json(obj: Json) -> str:
    """The object as JSON without `managedFields`. Raises MalformedObject: YAML has values that JSON lacks."""

    def encode(obj: Json) -> str:
        meta = {name: value for name, value in (obj.get("metadata") or {}).items() if name != "managedFields"}
        return orjson.dumps({**obj, "metadata": meta}, option=orjson.OPT_SORT_KEYS).decode()

    return decode_object(str(obj.get("kind")), obj, encode)


def _node(obj: Json) -> Node:
    meta, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    conditions = {
        text(condition["type"]): text(condition["status"]) for condition in status.get("conditions") or ()
    }
    # Without allocatable the API server uses the capacity; a manifest in a file may have only that.
    field = "allocatable" if status.get("allocatable") else "capacity"
    return Node(
        name=NodeName(text(meta["name"])),
        uid=text(meta.get("uid") or meta["name"]),
        labels=string_map(meta.get("labels"), "metadata.labels"),
        annotations=string_map(meta.get("annotations"), "metadata.annotations"),
        taints=tuple(
            Taint(text(taint["key"]), text(taint.get("value") or ""), _effect(taint["effect"]))
            for taint in spec.get("taints") or ()
        ),
        unschedulable=bool(spec.get("unschedulable")),
        allocatable=decode_resource_list(status.get(field), f"status.{field}"),
        images={
            text(name): int(image.get("sizeBytes") or 0)
            for image in status.get("images") or ()
            for name in image.get("names") or ()
        },
        conditions=conditions,
        addresses=tuple(text(address["address"]) for address in status.get("addresses") or ()),
        created_ns=time_ns(meta.get("creationTimestamp")),
        ready=conditions.get("Ready") == "True",
        declared_features=frozenset(text(feature) for feature in status.get("declaredFeatures") or ()),
    )


def _namespace(obj: Json) -> Namespace:
    meta = obj["metadata"]
    return Namespace(
        name=text(meta["name"]),
        labels=string_map(meta.get("labels"), "metadata.labels"),
        annotations=string_map(meta.get("annotations"), "metadata.annotations"),
    )


def _disruption_budget(obj: Json) -> DisruptionBudget:
    meta, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    return DisruptionBudget(
        namespace=text(meta.get("namespace") or "default"),
        name=text(meta["name"]),
        selector=decode_short_selector(spec.get("selector")),
        disruptions_allowed=int(status.get("disruptionsAllowed") or 0),
        disrupted_pods=frozenset(text(name) for name in status.get("disruptedPods") or ()),
    )


def _selector_owner(obj: Json, kind: SelectorOwnerKind) -> SelectorOwner:
    meta, selector = obj["metadata"], (obj.get("spec") or {}).get("selector")
    if kind in ("Service", "ReplicationController"):
        labels = string_map(selector, "spec.selector")
        if len(labels) > SELECTOR_PARTS_MAX:
            raise OverLimit("spec.selector", f"has more than {SELECTOR_PARTS_MAX} labels")
        requirements = tuple(SelectorRequirement(key, "In", (labels[key],)) for key in sorted(labels))
        read = LabelSelector(requirements) if requirements else None  # an empty selector is not stored
    else:
        read = decode_short_selector(selector)
    return SelectorOwner(kind, text(meta.get("namespace") or "default"), text(meta["name"]), read)


def _effect(value: Any) -> TaintEffect:
    match value:
        case "NoSchedule" | "PreferNoSchedule" | "NoExecute":
            return value  # type: ignore[no-any-return]
        case _:
            raise ValueError(f"unknown taint effect `{value}`")

"""Validation of objects before they are stored: all field errors in one response.

It checks what users of a scheduler run into: names, labels, containers, quantities, selectors,
immutable fields. kube-apiserver checks more. An object that is accepted here and rejected there is a
gap; the opposite is a bug.
"""

import base64
from collections.abc import Callable
from typing import Any

from policysched.sandbox.apiserver.custom_resources import changed_definition_causes, definition_causes
from policysched.sandbox.apiserver.errors import Cause, bad_value, forbidden_field, invalid
from policysched.sandbox.apiserver.events import event_causes
from policysched.sandbox.apiserver.kinds import ResourceKind
from policysched.sandbox.apiserver.name_rules import changed_metadata_causes, metadata_causes
from policysched.sandbox.apiserver.pod_rules import changed_pod_causes, pod_causes
from policysched.sandbox.apiserver.workload_rules import (
    changed_job_causes,
    changed_stateful_set_causes,
    changed_workload_causes,
    daemon_set_causes,
    job_causes,
    replication_controller_causes,
    workload_causes,
)

Json = dict[str, Any]


def validate_create(kind: ResourceKind, obj: Json) -> None:
    """Reject an invalid new object with a 422."""
    causes = [*metadata_causes(kind, obj), *_rules_of(kind)(obj)]
    group = kind.group
    if kind.rules == "events":
        causes += event_causes(obj, through_events_v1=group == "events.k8s.io")
        group = ""  # errors name the core group for both versions
    if causes:
        raise invalid(group, kind.name, obj["metadata"].get("name", ""), causes)


def validate_update(kind: ResourceKind, old: Json, new: Json) -> None:
    """Reject an invalid update with a 422."""
    causes = [
        *metadata_causes(kind, new),
        *changed_metadata_causes(old, new),
        *_CHANGE_RULES.get(kind.rules, _no_change_rules)(old, new),
    ]
    if kind.rules != "pods":
        causes += _rules_of(kind)(new)
    if causes:
        raise invalid(kind.group, kind.name, new["metadata"]["name"], causes)


def _rules_of(kind: ResourceKind) -> Callable[[Json], list[Cause]]:
    return _RULES.get(kind.rules, _no_rules) if kind.custom is None else kind.custom.schema.causes


def _no_rules(obj: Json) -> list[Cause]:  # noqa: ARG001 - one signature for all rules
    return []


def _no_change_rules(old: Json, new: Json) -> list[Cause]:  # noqa: ARG001 - one signature for all rules
    return []


def _changed_configmap(old: Json, new: Json) -> list[Cause]:
    if not old.get("immutable"):
        return []
    fields = ("data", "binaryData", "immutable")
    return [
        forbidden_field(field, "field is immutable when `immutable` is set")
        for field in fields
        if old.get(field) != new.get(field)
    ]


_CONFIG_MAP_BYTES_MAX = 2**20


def _config_map(obj: Json) -> list[Cause]:
    texts, binaries = obj.get("data") or {}, obj.get("binaryData") or {}
    size = sum(len(text.encode()) for text in texts.values())
    size += sum(len(base64.b64decode(binary)) for binary in binaries.values())
    if size <= _CONFIG_MAP_BYTES_MAX:
        return []
    return [("FieldValueTooLong", "", f"Too long: may not be more than {_CONFIG_MAP_BYTES_MAX} bytes")]


def _secret(obj: Json) -> list[Cause]:
    size = sum(len(base64.b64decode(value)) for value in (obj.get("data") or {}).values())
    if size <= _CONFIG_MAP_BYTES_MAX:
        return []
    return [("FieldValueTooLong", "data", f"Too long: may not be more than {_CONFIG_MAP_BYTES_MAX} bytes")]


def _changed_secret(old: Json, new: Json) -> list[Cause]:
    causes = _changed_configmap(old, new)
    if old.get("type") != new.get("type"):
        causes.append(bad_value("type", new.get("type"), "field is immutable"))
    return causes


def _changed_priority_class(old: Json, new: Json) -> list[Cause]:
    return [
        forbidden_field(field, "may not be changed in an update.")
        for field in ("value", "preemptionPolicy")
        if old.get(field) != new.get(field)
    ]


_BUILT_IN_CLASSES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


def _priority_class(obj: Json) -> list[Cause]:
    name = obj["metadata"]["name"]
    if name.startswith("system-"):
        if _BUILT_IN_CLASSES.get(name) == obj["value"]:
            return []
        return [
            forbidden_field(
                "metadata.name", "priority class names with 'system-' prefix are reserved for system use only"
            )
        ]
    if obj["value"] > 1_000_000_000:
        return [forbidden_field("value", "maximum allowed value of a user defined priority is 1000000000")]
    return []


_RULES: dict[str, Callable[[Json], list[Cause]]] = {
    "pods": pod_causes,
    "deployments": workload_causes,
    "replicasets": workload_causes,
    "statefulsets": workload_causes,
    "replicationcontrollers": replication_controller_causes,
    "jobs": job_causes,
    "configmaps": _config_map,
    "daemonsets": daemon_set_causes,
    "secrets": _secret,
    "priorityclasses": _priority_class,
    "customresourcedefinitions": definition_causes,
}

_CHANGE_RULES: dict[str, Callable[[Json, Json], list[Cause]]] = {
    "pods": changed_pod_causes,
    "deployments": changed_workload_causes,
    "replicasets": changed_workload_causes,
    "statefulsets": changed_stateful_set_causes,
    "jobs": changed_job_causes,
    "configmaps": _changed_configmap,
    "daemonsets": changed_workload_causes,
    "secrets": _changed_secret,
    "priorityclasses": _changed_priority_class,
    "customresourcedefinitions": changed_definition_causes,
}

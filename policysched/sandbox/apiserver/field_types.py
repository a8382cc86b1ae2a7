"""Types of fields in request bodies, to reject wrong ones as kube-apiserver's decoder does.

kube-apiserver decodes into Go structs; `nodeSelector: {gpu: true}` fails there before validation. Only
fields that the simulator reads are listed, by path; other fields are stored unchecked.
"""

from collections.abc import Iterator
from typing import Any

TEXT, NUMBER, TEXTS, OBJECT, OBJECTS = (
    "a string",
    "a whole number",
    "an object of strings",
    "an object",
    "a list of objects",
)

_POD_SPEC = {
    "nodeName": TEXT,
    "schedulerName": TEXT,
    "priorityClassName": TEXT,
    "serviceAccountName": TEXT,
    "restartPolicy": TEXT,
    "nodeSelector": TEXTS,
    "tolerations": OBJECTS,
    "schedulingGates": OBJECTS,
    "topologySpreadConstraints": OBJECTS,
    "volumes": OBJECTS,
    "affinity": OBJECT,
    "affinity.nodeAffinity": OBJECT,
    "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution": OBJECT,
    "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms": OBJECTS,
    "affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution": OBJECTS,
    "affinity.podAffinity": OBJECT,
    "affinity.podAntiAffinity": OBJECT,
    "initContainers": OBJECTS,
    "containers": OBJECTS,
}
_TEMPLATE = {
    "template": OBJECT,
    "template.metadata": OBJECT,
    "template.metadata.labels": TEXTS,
    "template.metadata.annotations": TEXTS,
    "template.spec": OBJECT,
    **{f"template.spec.{path}": type_name for path, type_name in _POD_SPEC.items()},
}
_SELECTED = {"replicas": NUMBER, "selector": OBJECT, "selector.matchLabels": TEXTS, **_TEMPLATE}

_SPECS = {
    "pods": _POD_SPEC,
    "nodes": {"taints": OBJECTS},
    "deployments": _SELECTED,
    "daemonsets": {"selector": OBJECT, "selector.matchLabels": TEXTS, **_TEMPLATE},
    "replicasets": _SELECTED,
    "statefulsets": _SELECTED,
    "replicationcontrollers": {"replicas": NUMBER, "selector": TEXTS, **_TEMPLATE},
    "services": {"selector": TEXTS},
    "jobs": {"parallelism": NUMBER, "completions": NUMBER, "backoffLimit": NUMBER, **_TEMPLATE},
}
_SHAPES = {
    "configmaps": {"data": TEXTS, "binaryData": TEXTS},
    "secrets": {"data": TEXTS, "stringData": TEXTS},
    **{
        plural: {f"spec.{path}": type_name for path, type_name in spec.items()}
        for plural, spec in _SPECS.items()
    },
}


def field_type_errors(plural: str, obj: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Each field of the wrong type with the expected type, parents before children. Absent and null
    fields have every type."""
    for path, type_name in _SHAPES.get(plural, {}).items():
        value: Any = obj
        for part in path.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if value is not None and not _has_type(value, type_name):
            yield path, type_name


def _has_type(value: Any, type_name: str) -> bool:
    match type_name:
        case "a string":
            return isinstance(value, str)
        case "a whole number":
            return isinstance(value, int) and not isinstance(value, bool)
        case "an object of strings":
            return isinstance(value, dict) and all(isinstance(item, str) for item in value.values())
        case "an object":
            return isinstance(value, dict)
        case _:
            assert type_name == OBJECTS, type_name
            return isinstance(value, list) and all(isinstance(item, dict) for item in value)

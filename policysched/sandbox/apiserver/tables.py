"""Tables, as printed by `kubectl get`: columns and cells by resource.

kube-apiserver renders the cells, not kubectl, so they are rendered here with the same text. Resources
without columns of their own have two. Columns with priority 1 appear with `-o wide`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from policysched.sandbox.apiserver.kinds import CustomVersion, PrinterColumn, ResourceKind
from policysched.sandbox.apiserver.selectors import selected_labels
from policysched.sandbox.apiserver.store import StoredObject
from policysched.sandbox.apiserver.timestamps import age_text, duration_text, parse_timestamp_s

Json = dict[str, Any]

_NONE = "<none>"


@dataclass(frozen=True, slots=True)
class Column:
    """A heading and a function from an object and the time to its cell."""

    name: str
    cell: Callable[[Json, float], object]
    type: str = "string"
    wide: bool = False

    def definition(self) -> Json:
        return {
            "name": self.name,
            "type": self.type,
            "format": "name" if self.name == "Name" else "",
            "description": "",
            "priority": 1 if self.wide else 0,
        }


def _at(path: str, missing: object = "") -> Callable[[Json, float], object]:
    parts = path.split(".")

    def cell(obj: Json, now_s: float) -> object:  # noqa: ARG001 - one signature for all cells
        value: Any = obj
        for part in parts:
            value = value.get(part) if isinstance(value, dict) else None
        return missing if value is None or value == "" else value

    return cell


def _age(obj: Json, now_s: float) -> str:
    return age_text(obj["metadata"].get("creationTimestamp"), now_s)


_NAME = Column("Name", _at("metadata.name"))
_AGE = Column("Age", _age)


def _pod_ready(obj: Json, now_s: float) -> str:  # noqa: ARG001
    statuses = (obj.get("status") or {}).get("containerStatuses") or []
    return (
        f"{sum(1 for status in statuses if status.get('ready'))}/{len(obj['spec'].get('containers') or [])}"
    )


def _pod_status(obj: Json, now_s: float) -> str:  # noqa: ARG001
    status = obj.get("status") or {}
    if obj["metadata"].get("deletionTimestamp"):
        return "Terminating"
    gated = any(
        condition.get("type") == "PodScheduled" and condition.get("reason") == "SchedulingGated"
        for condition in status.get("conditions") or ()
    )
    if gated:
        return "SchedulingGated"
    word = str(status.get("reason") or status.get("phase") or "Unknown")
    for container in status.get("containerStatuses") or ():
        state = container.get("state") or {}
        for name in ("waiting", "terminated"):
            if (state.get(name) or {}).get("reason"):
                word = str(state[name]["reason"])
    return word


def _pod_restarts(obj: Json, now_s: float) -> str:  # noqa: ARG001
    statuses = (obj.get("status") or {}).get("containerStatuses") or []
    return str(sum(status.get("restartCount", 0) for status in statuses))


def _pod_gates(obj: Json, now_s: float) -> str:  # noqa: ARG001
    gates = (obj.get("status") or {}).get("conditions") or []
    wanted = [gate.get("conditionType") for gate in obj["spec"].get("readinessGates") or ()]
    if not wanted:
        return _NONE
    true = {condition["type"] for condition in gates if condition.get("status") == "True"}
    return f"{sum(1 for gate in wanted if gate in true)}/{len(wanted)}"


def _node_status(obj: Json, now_s: float) -> str:  # noqa: ARG001
    ready = next(
        (c for c in (obj.get("status") or {}).get("conditions") or () if c.get("type") == "Ready"), None
    )
    states = ["Unknown" if ready is None else "Ready" if ready.get("status") == "True" else "NotReady"]
    if (obj.get("spec") or {}).get("unschedulable"):
        states.append("SchedulingDisabled")
    return ",".join(states)


def _node_roles(obj: Json, now_s: float) -> str:  # noqa: ARG001
    prefix = "node-role.kubernetes.io/"
    roles = [
        key.removeprefix(prefix) for key in obj["metadata"].get("labels") or {} if key.startswith(prefix)
    ]
    return ",".join(sorted(roles)) or _NONE


def _node_address(kind: str) -> Callable[[Json, float], object]:
    def cell(obj: Json, now_s: float) -> str:  # noqa: ARG001
        addresses = (obj.get("status") or {}).get("addresses") or ()
        return next((str(a["address"]) for a in addresses if a.get("type") == kind), _NONE)

    return cell


def _containers(field: str) -> Callable[[Json, float], object]:
    def cell(obj: Json, now_s: float) -> str:  # noqa: ARG001
        containers = obj["spec"]["template"]["spec"].get("containers") or ()
        return ",".join(str(container.get(field, "")) for container in containers)

    return cell


def _selector(obj: Json, now_s: float) -> str:  # noqa: ARG001
    labels = selected_labels(obj["spec"])
    return ",".join(f"{key}={value}" for key, value in labels.items()) or _NONE


def _deployment_ready(obj: Json, now_s: float) -> str:  # noqa: ARG001
    return f"{(obj.get('status') or {}).get('readyReplicas', 0)}/{obj['spec'].get('replicas', 0)}"


def _job_status(obj: Json, now_s: float) -> str:  # noqa: ARG001
    true = {c["type"] for c in (obj.get("status") or {}).get("conditions") or () if c.get("status") == "True"}
    for word, shown in (("Complete", "Complete"), ("Failed", "Failed"), ("Suspended", "Suspended")):
        if word in true:
            return shown
    return "Running"


def _job_completions(obj: Json, now_s: float) -> str:  # noqa: ARG001
    succeeded = (obj.get("status") or {}).get("succeeded", 0)
    wanted = obj["spec"].get("completions")
    return (
        f"{succeeded}/{wanted}"
        if wanted is not None
        else f"{succeeded}/1 of {obj['spec'].get('parallelism', 1)}"
    )


def _job_duration(obj: Json, now_s: float) -> str:
    status = obj.get("status") or {}
    if not status.get("startTime"):
        return ""
    end_s = parse_timestamp_s(status["completionTime"]) if status.get("completionTime") else now_s
    return duration_text(end_s - parse_timestamp_s(status["startTime"]))


def _event_last_seen(obj: Json, now_s: float) -> str:
    series = obj.get("series") or {}
    last_seen = (
        series.get("lastObservedTime")
        or obj.get("lastTimestamp")
        or obj.get("firstTimestamp")
        or obj.get("eventTime")
    )
    return age_text(last_seen, now_s)


def _event_first_seen(obj: Json, now_s: float) -> str:
    return age_text(obj.get("firstTimestamp") or obj.get("eventTime"), now_s)


def _event_object(obj: Json, now_s: float) -> str:  # noqa: ARG001
    involved = obj.get("involvedObject") or {}
    return f"{str(involved.get('kind', '')).lower()}/{involved.get('name', '')}"


def _event_source(obj: Json, now_s: float) -> str:  # noqa: ARG001
    source = obj.get("source") or {}
    source_parts = [source.get("component") or obj.get("reportingComponent") or "", source.get("host") or ""]
    return ", ".join(word for word in source_parts if word)


def _event_count(obj: Json, now_s: float) -> int:  # noqa: ARG001
    return int((obj.get("series") or {}).get("count") or obj.get("count") or 1)


def _data_count(obj: Json, now_s: float) -> int:  # noqa: ARG001
    return len(obj.get("data") or {}) + len(obj.get("binaryData") or {})


def _priority_is_default(obj: Json, now_s: float) -> str:  # noqa: ARG001
    return "true" if obj.get("globalDefault") else "false"


_UNSET = "<unset>"
_SHORT_MODES = {
    "ReadWriteOnce": "RWO",
    "ReadOnlyMany": "ROX",
    "ReadWriteMany": "RWX",
    "ReadWriteOncePod": "RWOP",
}
_IS_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"


def _terminating_or(path: str) -> Callable[[Json, float], object]:
    shown = _at(path)
    return lambda obj, now_s: "Terminating" if obj["metadata"].get("deletionTimestamp") else shown(obj, now_s)


def _if_bound(path: str) -> Callable[[Json, float], object]:
    shown = _at(path)
    return lambda obj, now_s: shown(obj, now_s) if obj["spec"].get("volumeName") else ""


def _access_modes(half: str) -> Callable[[Json, float], object]:
    """Access modes in the order of the API."""

    def cell(obj: Json, now_s: float) -> str:  # noqa: ARG001
        modes = (obj.get(half) or {}).get("accessModes") or ()
        return ",".join(short for mode, short in _SHORT_MODES.items() if mode in modes)

    return cell


def _claim_of_volume(obj: Json, now_s: float) -> str:  # noqa: ARG001
    ref = obj["spec"].get("claimRef")
    return f"{ref.get('namespace', '')}/{ref.get('name', '')}" if ref else ""


def _class_name(obj: Json, now_s: float) -> str:  # noqa: ARG001
    metadata = obj["metadata"]
    is_default = (metadata.get("annotations") or {}).get(_IS_DEFAULT_CLASS) == "true"
    return f"{metadata['name']} (default)" if is_default else str(metadata["name"])


def _drivers(obj: Json, now_s: float) -> int:  # noqa: ARG001
    return len((obj.get("spec") or {}).get("drivers") or ())


def _true_or_false(path: str) -> Callable[[Json, float], object]:
    shown = _at(path)
    return lambda obj, now_s: shown(obj, now_s) is True


_TEMPLATE = (
    Column("Containers", _containers("name"), wide=True),
    Column("Images", _containers("image"), wide=True),
    Column("Selector", _selector, wide=True),
)

COLUMNS: dict[str, tuple[Column, ...]] = {
    "pods": (
        _NAME,
        Column("Ready", _pod_ready),
        Column("Status", _pod_status),
        Column("Restarts", _pod_restarts),
        _AGE,
        Column("IP", _at("status.podIP", _NONE), wide=True),
        Column("Node", _at("spec.nodeName", _NONE), wide=True),
        Column("Nominated Node", _at("status.nominatedNodeName", _NONE), wide=True),
        Column("Readiness Gates", _pod_gates, wide=True),
    ),
    "nodes": (
        _NAME,
        Column("Status", _node_status),
        Column("Roles", _node_roles),
        _AGE,
        Column("Version", _at("status.nodeInfo.kubeletVersion")),
        Column("Internal-IP", _node_address("InternalIP"), wide=True),
        Column("External-IP", _node_address("ExternalIP"), wide=True),
        Column("OS-Image", _at("status.nodeInfo.osImage", "<unknown>"), wide=True),
        Column("Kernel-Version", _at("status.nodeInfo.kernelVersion", "<unknown>"), wide=True),
        Column("Container-Runtime", _at("status.nodeInfo.containerRuntimeVersion", "<unknown>"), wide=True),
    ),
    "namespaces": (_NAME, Column("Status", _at("status.phase")), _AGE),
    "configmaps": (_NAME, Column("Data", _data_count, "integer"), _AGE),
    "secrets": (
        _NAME,
        Column("Type", _at("type")),
        Column("Data", _data_count, "integer"),
        _AGE,
    ),
    "daemonsets": (
        _NAME,
        Column("Desired", _at("status.desiredNumberScheduled", 0), "integer"),
        Column("Current", _at("status.currentNumberScheduled", 0), "integer"),
        Column("Ready", _at("status.numberReady", 0), "integer"),
        Column("Up-to-date", _at("status.updatedNumberScheduled", 0), "integer"),
        Column("Available", _at("status.numberAvailable", 0), "integer"),
        _AGE,
        *_TEMPLATE,
    ),
    "serviceaccounts": (_NAME, _AGE),
    "events": (
        Column("Last Seen", _event_last_seen),
        Column("Type", _at("type")),
        Column("Reason", _at("reason")),
        Column("Object", _event_object),
        Column("Subobject", _at("involvedObject.fieldPath"), wide=True),
        Column("Source", _event_source, wide=True),
        Column("Message", _at("message")),
        Column("First Seen", _event_first_seen, wide=True),
        Column("Count", _event_count, "integer", wide=True),
        Column("Name", _at("metadata.name"), wide=True),
    ),
    "deployments": (
        _NAME,
        Column("Ready", _deployment_ready),
        Column("Up-to-date", _at("status.updatedReplicas", 0), "integer"),
        Column("Available", _at("status.availableReplicas", 0), "integer"),
        _AGE,
        *_TEMPLATE,
    ),
    "replicasets": (
        _NAME,
        Column("Desired", _at("spec.replicas", 0), "integer"),
        Column("Current", _at("status.replicas", 0), "integer"),
        Column("Ready", _at("status.readyReplicas", 0), "integer"),
        _AGE,
        *_TEMPLATE,
    ),
    "statefulsets": (_NAME, Column("Ready", _deployment_ready), _AGE, *_TEMPLATE[:2]),
    "replicationcontrollers": (
        _NAME,
        Column("Desired", _at("spec.replicas", 0), "integer"),
        Column("Current", _at("status.replicas", 0), "integer"),
        Column("Ready", _at("status.readyReplicas", 0), "integer"),
        _AGE,
        *_TEMPLATE,
    ),
    "jobs": (
        _NAME,
        Column("Status", _job_status),
        Column("Completions", _job_completions),
        Column("Duration", _job_duration),
        _AGE,
        *_TEMPLATE,
    ),
    "priorityclasses": (
        _NAME,
        Column("Value", _at("value", 0), "integer"),
        Column("Global-Default", _priority_is_default, "boolean"),
        _AGE,
        Column("PreemptionPolicy", _at("preemptionPolicy")),
    ),
    "leases": (_NAME, Column("Holder", _at("spec.holderIdentity")), _AGE),
    "poddisruptionbudgets": (
        _NAME,
        Column("Min Available", _at("spec.minAvailable", "N/A")),
        Column("Max Unavailable", _at("spec.maxUnavailable", "N/A")),
        Column("Allowed Disruptions", _at("status.disruptionsAllowed", 0), "integer"),
        _AGE,
    ),
    "persistentvolumeclaims": (
        _NAME,
        Column("Status", _terminating_or("status.phase")),
        Column("Volume", _at("spec.volumeName")),
        Column("Capacity", _if_bound("status.capacity.storage")),
        Column("Access Modes", _access_modes("status")),
        Column("StorageClass", _at("spec.storageClassName")),
        Column("VolumeAttributesClass", _at("spec.volumeAttributesClassName", _UNSET)),
        _AGE,
        Column("VolumeMode", _at("spec.volumeMode", _UNSET), wide=True),
    ),
    "persistentvolumes": (
        _NAME,
        Column("Capacity", _at("spec.capacity.storage")),
        Column("Access Modes", _access_modes("spec")),
        Column("Reclaim Policy", _at("spec.persistentVolumeReclaimPolicy")),
        Column("Status", _terminating_or("status.phase")),
        Column("Claim", _claim_of_volume),
        Column("StorageClass", _at("spec.storageClassName")),
        Column("VolumeAttributesClass", _at("spec.volumeAttributesClassName", _UNSET)),
        Column("Reason", _at("status.reason")),
        _AGE,
        Column("VolumeMode", _at("spec.volumeMode", _UNSET), wide=True),
    ),
    "storageclasses": (
        Column("Name", _class_name),
        Column("Provisioner", _at("provisioner")),
        Column("ReclaimPolicy", _at("reclaimPolicy")),
        Column("VolumeBindingMode", _at("volumeBindingMode")),
        Column("AllowVolumeExpansion", _true_or_false("allowVolumeExpansion")),
        _AGE,
    ),
    "customresourcedefinitions": (
        _NAME,
        Column("CREATED AT", _at("metadata.creationTimestamp"), "date"),
    ),
    "csinodes": (_NAME, Column("Drivers", _drivers, "integer"), _AGE),
    "csistoragecapacities": (
        _NAME,
        Column("StorageClassName", _at("storageClassName")),
        Column("Capacity", _at("capacity")),
    ),
    "volumeattachments": (
        _NAME,
        Column("Attacher", _at("spec.attacher")),
        Column("PV", _at("spec.source.persistentVolumeName")),
        Column("Node", _at("spec.nodeName")),
        Column("Attached", _true_or_false("status.attached"), "boolean"),
        _AGE,
    ),
}


def _custom_columns(custom: CustomVersion) -> tuple[Column, ...]:
    """Those that the definition has, or the age."""
    columns = (
        Column(column.name, _printer_cell(column), column.type, column.wide) for column in custom.columns
    )
    return (_NAME, *(tuple(columns) or (_AGE,)))


def _printer_cell(column: PrinterColumn) -> Callable[[Json, float], object]:
    def cell(obj: Json, now_s: float) -> object:
        values = column.values_of(obj)
        if not values:
            return ""
        if column.type == "date":
            try:
                return age_text(values[0], now_s)
            except (TypeError, ValueError):
                return "<invalid>"
        if column.type != "string":
            return values[0]
        words = (word if isinstance(word, str) else orjson.dumps(word).decode() for word in values)
        return ",".join(words)

    return cell


def table(
    kind: ResourceKind, entries: list[StoredObject], metadata: Json, now_s: float, include: str
) -> Json:
    """Make a `Table`. `include` is what a row has besides cells: Metadata (the default), Object or None."""
    columns = _custom_columns(kind.custom) if kind.custom else COLUMNS.get(kind.plural, (_NAME, _AGE))
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": [column.definition() for column in columns],
        "rows": [_row(kind, columns, entry.obj, now_s, include) for entry in entries],
    }


def _row(kind: ResourceKind, columns: tuple[Column, ...], obj: Json, now_s: float, include: str) -> Json:
    row: Json = {"cells": [column.cell(obj, now_s) for column in columns]}
    if include == "Object":
        row["object"] = {"kind": kind.name, "apiVersion": kind.api_version, **obj}
    elif include != "None":
        metadata = obj["metadata"]
        row["object"] = {
            "kind": "PartialObjectMetadata",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": metadata,
        }
    return row


class TableView:
    """A watch whose objects are tables of one row, for `kubectl get --watch`. Headings are sent once."""

    def __init__(self, kind: ResourceKind, now: Callable[[], float], include: str):
        self._kind = kind
        self._now = now
        self._include = include
        self._headed = False

    def event(self, event_type: str, entry: StoredObject) -> bytes:
        metadata = {"resourceVersion": str(entry.version)}
        shown = table(self._kind, [entry], metadata, self._now(), self._include)
        if self._headed:
            shown["columnDefinitions"] = None
        self._headed = True
        return orjson.dumps({"type": event_type, "object": shown}) + b"\n"

    def bookmark(self, version: int, annotations: dict[str, str]) -> bytes:
        metadata: Json = {"resourceVersion": str(version)}
        # A bookmark's row carries what the object form would: clients read version and annotations from there.
        row_object = {
            "kind": "PartialObjectMetadata",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": {**metadata},
        }
        if annotations:
            row_object["metadata"] = {**metadata, "annotations": annotations}
        shown = table(self._kind, [], metadata, self._now(), self._include)
        shown["rows"] = [{"cells": [], "object": row_object}]
        return orjson.dumps({"type": "BOOKMARK", "object": shown}) + b"\n"

"""The built-in attributes of pods, nodes and namespaces, which a policy can read without a declaration.

One row per attribute. The checker takes the type from it, the compiler the stage and the requeue events, the evaluator
the reader (`evaluate.scalar.leaves`) and the column (`evaluate.columns.column_kinds`), the docs all of it. A new attribute
that is a field of `Pod`, `Node` or `Namespace` is one row here and its reader in the reference implementation of the
tests. A map (`labels`, `requests`) is one row; the policy names the key.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from policysched.lang.ir.expr import Owner, Stage
from policysched.lang.types.kinds import (
    BOOL,
    BYTES,
    CPU,
    DURATION,
    INT,
    QOS,
    RATIO,
    STRING,
    TIMESTAMP,
    Type,
    TypeKind,
)
from policysched.model.cluster_events import ClusterEvent


@dataclass(frozen=True, slots=True)
class BuiltinAttribute:
    """`field` is what is read: `FIELD` of the `Pod`, `Node` or `Namespace`, `FIELD[].ITEM` for that field of each item of
    a list, `usage.TOTAL` for the running totals of the node, `share` for those of the namespace,
    `victim_share` for those of the victim's namespace, `node.FIELD` for a field of the node that a counted pod is
    placed on, `facts.FACT` for what the queue knows of the pod, `group.FIELD` for its PodGroup, missing without one.

    `requeue_events` are the events that can change the value. `key_kind` is what the keys of a map are: texts (labels),
    where an absent key is missing, names of resources, where an absent key is 0 (of `shares` each value is a ratio), or names of the policy's quotas.
    `written_path`: as in a policy, where that differs from `path`.
    """

    owner: Owner
    path: tuple[str, ...]
    type: Type
    stage: Stage
    field: str
    requeue_events: frozenset[ClusterEvent]
    doc: str
    key_kind: Literal["texts", "resources", "shares", "quotas"] | None = None
    unit: str = ""
    written_path: tuple[str, ...] | None = None

    @property
    def qualified_name(self) -> str:
        """As in a policy: `pod.owner.kind`."""
        return ".".join((self.owner, *(self.written_path or self.path)))


_STRING_MAP = Type(TypeKind.MAP, element=STRING)
_INT_MAP = Type(TypeKind.MAP, element=INT)
_STRING_LIST = Type(TypeKind.LIST, element=STRING)

_E = ClusterEvent
_NO_EVENTS: frozenset[ClusterEvent] = frozenset()
_POD_UPDATE_EVENTS = frozenset({_E.UNSCHEDULED_POD_UPDATE})
_NAMESPACE_EVENTS = frozenset({_E.NAMESPACE})
_PLACED_POD_EVENTS = frozenset(
    {_E.NODE_ADD, _E.ASSIGNED_POD_ADD, _E.ASSIGNED_POD_UPDATE, _E.ASSIGNED_POD_DELETE}
)


def _pod_attribute(
    path: str,
    type_: Type,
    field: str,
    doc: str,
    *,
    requeue_events: frozenset[ClusterEvent] = _NO_EVENTS,
    keys: Literal["texts", "resources", "quotas"] | None = None,
    stage: Stage = Stage.POD,
    unit: str = "",
) -> BuiltinAttribute:
    return BuiltinAttribute(
        "pod", tuple(path.split(".")), type_, stage, field, requeue_events, doc, keys, unit
    )


def _node_attribute(
    path: str,
    type_: Type,
    field: str,
    requeue_events: frozenset[ClusterEvent],
    doc: str,
    *,
    keys: Literal["texts", "resources", "quotas"] | None = None,
    unit: str = "",
) -> BuiltinAttribute:
    return BuiltinAttribute(
        "node", (path,), type_, Stage.NODE, field, requeue_events | {_E.NODE_ADD}, doc, keys, unit
    )


def _group_attribute(path: str, type_: Type, field: str, doc: str, unit: str = "") -> BuiltinAttribute:
    return _pod_attribute(
        f"group.{path}",
        type_.as_optional(),
        f"group.{field}",
        doc,
        requeue_events=_POD_UPDATE_EVENTS,
        unit=unit,
    )


_RESOURCE_UNIT = "cpu: thousandths of a core; memory, ephemeral-storage, hugepages-*: bytes; others: a count"

_POD_ROWS: tuple[BuiltinAttribute, ...] = (
    _pod_attribute("name", STRING, "name", "The pod's name."),
    _pod_attribute("namespace", STRING, "namespace", "The namespace's name."),
    _pod_attribute("uid", STRING, "uid", "Its UID."),
    _pod_attribute(
        "labels",
        _STRING_MAP,
        "labels",
        "A label by its quoted key.",
        requeue_events=_POD_UPDATE_EVENTS,
        keys="texts",
    ),
    _pod_attribute(
        "annotations",
        _STRING_MAP,
        "annotations",
        "An annotation by its key.",
        requeue_events=_POD_UPDATE_EVENTS,
        keys="texts",
    ),
    _pod_attribute(
        "requests",
        _INT_MAP,
        "requests",
        "Its effective request of a resource as kube-scheduler computes it, init containers and overhead included; `pods` is 1.",
        requeue_events=_POD_UPDATE_EVENTS,
        keys="resources",
        unit=_RESOURCE_UNIT,
    ),
    _pod_attribute(
        "limits",
        _INT_MAP,
        "limits",
        "Its limit.",
        requeue_events=_POD_UPDATE_EVENTS,
        keys="resources",
        unit=_RESOURCE_UNIT,
    ),
    _pod_attribute(
        "quota_share",
        Type(TypeKind.MAP, element=RATIO),
        "quotas.share",
        "The dominant share of its entity in a quota of the policy: the largest part of its amounts that the entity uses, above 1 where it borrows. For `queue by`.",
        keys="quotas",
        stage=Stage.POD | Stage.NAMESPACE_SHARES,
    ),
    _pod_attribute("priority", INT, "priority", "The value of its priority class, 0 without one."),
    _pod_attribute("qos", QOS, "qos", "BestEffort < Burstable < Guaranteed, from its requests and limits."),
    _pod_attribute("created", TIMESTAMP, "created_ns", "When it was created.", unit="ns"),
    _pod_attribute(
        "queued", TIMESTAMP, "facts.queued_ns", "When it was first added to the queue.", unit="ns"
    ),
    _pod_attribute(
        "waited",
        DURATION,
        "facts.waited",
        "How long it has been in the queue: now less `pod.queued`.",
        requeue_events=frozenset({_E.TIME}),
        stage=Stage.POD | Stage.TIME,
        unit="ns",
    ),
    _pod_attribute("attempts", INT, "facts.attempts", "Previous scheduling attempts."),
    _pod_attribute(
        "deadline",
        DURATION.as_optional(),
        "deadline_ns",
        "spec.activeDeadlineSeconds; missing where it has none.",
        requeue_events=_POD_UPDATE_EVENTS,
        unit="ns",
    ),
    _pod_attribute(
        "owner.kind",
        STRING,
        "owner_kind",
        "The kind of its controller, such as ReplicaSet; empty without one.",
    ),
    _pod_attribute("owner.name", STRING, "owner_name", "The name of its controller; empty without one."),
    _pod_attribute("scheduler", STRING, "scheduler", "Its schedulerName."),
    _pod_attribute("service_account", STRING, "service_account", "The name of its ServiceAccount."),
    _pod_attribute("images", _STRING_LIST, "images", "The image of each container, by full name."),
    _pod_attribute(
        "tolerations",
        _STRING_LIST,
        "tolerations[].key",
        "The keys of the taints that it tolerates.",
        requeue_events=_POD_UPDATE_EVENTS,
    ),
    _group_attribute("name", STRING, "name", "The name of its PodGroup, where that exists."),
    _group_attribute(
        "min", INT, "minimum", "How many members start together; 1 where the group asks for no gang."
    ),
    _group_attribute(
        "topology", STRING, "topology", "The key of the node label on which the nodes of its members agree."
    ),
    _group_attribute("timeout", DURATION, "timeout_ns", "How long the group may wait for a placement.", "ns"),
    _group_attribute(
        "disruption",
        STRING,
        "disruption",
        "Whether its members are preempted one by one (`single`) or together (`all`).",
    ),
    _group_attribute("workload", STRING, "workload", "The name of the Workload that it was made for."),
    _group_attribute("api", STRING, "api", "The API group of its PodGroup, such as `scheduling.k8s.io`."),
)

_NODE_ROWS: tuple[BuiltinAttribute, ...] = (
    _node_attribute("name", STRING, "name", _NO_EVENTS, "The node's name."),
    _node_attribute(
        "labels",
        _STRING_MAP,
        "labels",
        frozenset({_E.NODE_LABEL}),
        "A label by its quoted key.",
        keys="texts",
    ),
    _node_attribute(
        "annotations",
        _STRING_MAP,
        "annotations",
        frozenset({_E.NODE_ANNOTATION}),
        "An annotation by its quoted key.",
        keys="texts",
    ),
    _node_attribute(
        "objects",
        _STRING_MAP,
        "objects",
        frozenset({_E.NODE_OBJECT}),
        "The custom resource with the node's name, as JSON, by the name that the settings give its kind; for inputs with `at`.",
        keys="texts",
    ),
    _node_attribute(
        "allocatable",
        _INT_MAP,
        "allocatable",
        frozenset({_E.NODE_ALLOCATABLE}),
        "What the node has of a resource for pods; `pods` is the maximum number of pods.",
        keys="resources",
        unit=_RESOURCE_UNIT,
    ),
    _node_attribute(
        "requested",
        _INT_MAP,
        "usage.requested",
        _PLACED_POD_EVENTS,
        "The sum of the requests of its pods, assumed pods included, at most 2^62 - 1; `pods` is their number.",
        keys="resources",
        unit=_RESOURCE_UNIT,
    ),
    _node_attribute(
        "free",
        _INT_MAP,
        "usage.free",
        _PLACED_POD_EVENTS | {_E.NODE_ALLOCATABLE},
        "`allocatable` minus `requested`.",
        keys="resources",
        unit=_RESOURCE_UNIT,
    ),
    _node_attribute("pods", INT, "usage.pods", _PLACED_POD_EVENTS, "How many pods are on it."),
    _node_attribute(
        "taints", _STRING_LIST, "taints[].key", frozenset({_E.NODE_TAINT}), "The keys of its taints."
    ),
    replace(
        _node_attribute(
            "taint_values",
            _STRING_MAP,
            "taint_values",
            frozenset({_E.NODE_TAINT}),
            "The value of its taint with the key, empty where the taint has none; of several the first.",
            keys="texts",
        ),
        written_path=("taints",),
    ),
    _node_attribute(
        "conditions",
        _STRING_MAP,
        "conditions",
        frozenset({_E.NODE_CONDITION}),
        "The status of a condition: `True`, `False` or `Unknown`.",
        keys="texts",
    ),
    _node_attribute(
        "images",
        _STRING_LIST,
        "images",
        frozenset({_E.NODE_IMAGE}),
        "The images that it has, by full name.",
    ),
    _node_attribute("created", TIMESTAMP, "created_ns", _NO_EVENTS, "When it was created.", unit="ns"),
    _node_attribute(
        "ready", BOOL, "ready", frozenset({_E.NODE_CONDITION}), "Whether its Ready condition is `True`."
    ),
    _node_attribute(
        "unschedulable",
        BOOL,
        "unschedulable",
        frozenset({_E.NODE_TAINT}),
        "Whether it is cordoned (spec.unschedulable).",
    ),
)


_NAMESPACE_ROWS: tuple[BuiltinAttribute, ...] = (
    BuiltinAttribute(
        "namespace", ("name",), STRING, Stage.POD, "name", _NO_EVENTS, "The same as `pod.namespace`."
    ),
    BuiltinAttribute(
        "namespace",
        ("labels",),
        _STRING_MAP,
        Stage.POD,
        "labels",
        _NAMESPACE_EVENTS,
        "A label by its quoted key.",
        "texts",
    ),
    BuiltinAttribute(
        "namespace",
        ("annotations",),
        _STRING_MAP,
        Stage.POD,
        "annotations",
        _NAMESPACE_EVENTS,
        "An annotation by its key.",
        "texts",
    ),
    BuiltinAttribute(
        "namespace",
        ("share",),
        Type(TypeKind.MAP, element=RATIO),
        Stage.POD | Stage.NAMESPACE_SHARES,
        "share",
        _PLACED_POD_EVENTS | {_E.NODE_ALLOCATABLE, _E.NODE_DELETE},
        "The fraction of all nodes' allocatable amount of a resource that its placed pods request; 0 if no node has any. Of `pods` it is their number.",
        "shares",
    ),
)


def _placed_pod_attribute(owner: Owner, row: BuiltinAttribute) -> BuiltinAttribute:
    """The attribute of a placed pod. It changes with the pods of the node."""
    stage = Stage.NODE if owner == "other" else Stage.CONSTANT
    events = _PLACED_POD_EVENTS | {_E.POD_READY} if row is _READY else _PLACED_POD_EVENTS
    return replace(row, owner=owner, stage=stage, requeue_events=events)


_READY = _pod_attribute("ready", BOOL, "ready", "Whether it is on a node and its Ready condition is `True`.")
_PLACED_ROWS = (
    *(row for row in _POD_ROWS if not row.field.startswith("facts.") and row.key_kind != "quotas"),
    _READY,
)

_SHARES_OF_VICTIM_ROWS = tuple(
    replace(
        row, owner="victim", path=("namespace", *row.path), stage=Stage.CONSTANT, field=f"victim_{row.field}"
    )
    for row in _NAMESPACE_ROWS
    if row.path[0] == "share"
)
_NODE_OF_COUNTED_ROWS = tuple(
    replace(
        row,
        owner="other",
        path=("node", *row.path),
        field=f"node.{row.field}",
        requeue_events=row.requeue_events | _PLACED_POD_EVENTS,
    )
    for row in _NODE_ROWS
    if row.path in (("name",), ("labels",))
)

ATTRIBUTES: Mapping[tuple[Owner, tuple[str, ...]], BuiltinAttribute] = {
    (row.owner, row.path): row
    for row in (
        *_POD_ROWS,
        *_NODE_ROWS,
        *_NAMESPACE_ROWS,
        *(_placed_pod_attribute("victim", row) for row in _PLACED_ROWS),
        *(_placed_pod_attribute("other", row) for row in _PLACED_ROWS),
        *_NODE_OF_COUNTED_ROWS,
        *_SHARES_OF_VICTIM_ROWS,
    )
}
"""By owner and path; the path of a map has no key."""

OWNERS: tuple[Owner, ...] = ("pod", "node", "namespace", "victim", "other")


def resource_type(resource: str) -> Type:
    """The type of an amount of a resource."""
    if resource == "cpu":
        return CPU
    if resource in ("memory", "ephemeral-storage") or resource.startswith("hugepages-"):
        return BYTES
    return INT


def value_type(attribute: BuiltinAttribute, key: str | None) -> Type:
    """The type of the attribute; for a map the type of the value under `key`."""
    if attribute.key_kind is None:
        return attribute.type
    assert key is not None, f"{attribute.qualified_name} is a map and needs a key"
    if attribute.key_kind in ("quotas", "shares"):
        return RATIO
    return STRING.as_optional() if attribute.key_kind == "texts" else resource_type(key)


def find_attribute(owner: Owner, path: tuple[str, ...]) -> BuiltinAttribute:
    """The attribute of an `expr.Attr`, whose path ends with the key of a map."""
    return ATTRIBUTES.get((owner, path)) or ATTRIBUTES[(owner, path[:-1])]

"""Every built-in attribute: what a policy may read of pods, nodes and namespaces without declaring anything.

One row an attribute. The checker takes the type from it, the compiler the stage and the waking events, the docs all of
it; `plan` and `oracle` hold one extractor for each row. A map (`labels`, `requests`) is one row too, its keys are the
policy's.
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
    Kind,
    Type,
)
from policysched.model.cluster_events import ClusterEvent


@dataclass(frozen=True, slots=True)
class Attribute:
    """`field` names what it reads of the cluster's value of its owner: a field of `Pod`, `Node` or `Namespace`,
    `usage.FIELD` for the running totals of the node, `share.FIELD` for those of the namespace, `facts.FIELD` for what the
    queue knows of the pod.

    `wakes` are the events after which the value can be another one. `keys` says what a map's keys are: texts
    (labels), where an absent key is missing, or names of resources, where an absent one is 0.
    """

    owner: Owner
    path: tuple[str, ...]
    type: Type
    stage: Stage
    field: str
    wakes: frozenset[ClusterEvent]
    doc: str
    keys: Literal["texts", "resources"] | None = None
    unit: str = ""

    @property
    def name(self) -> str:
        """As a policy writes it: `pod.owner.kind`."""
        return ".".join((self.owner, *self.path))


_TEXTS = Type(Kind.MAP, element=STRING)
_AMOUNTS = Type(Kind.MAP, element=INT)
_WORDS = Type(Kind.LIST, element=STRING)

_E = ClusterEvent
_NEVER: frozenset[ClusterEvent] = frozenset()
_POD_EDIT = frozenset({_E.UNSCHEDULED_POD_UPDATE})
_NAMESPACE = frozenset({_E.NAMESPACE})
_PLACED = frozenset({_E.NODE_ADD, _E.ASSIGNED_POD_ADD, _E.ASSIGNED_POD_UPDATE, _E.ASSIGNED_POD_DELETE})


def _of_pod(
    path: str,
    type_: Type,
    field: str,
    doc: str,
    *,
    wakes: frozenset[ClusterEvent] = _NEVER,
    keys: Literal["texts", "resources"] | None = None,
    stage: Stage = Stage.POD,
    unit: str = "",
) -> Attribute:
    return Attribute("pod", tuple(path.split(".")), type_, stage, field, wakes, doc, keys, unit)


def _of_node(
    path: str,
    type_: Type,
    field: str,
    wakes: frozenset[ClusterEvent],
    doc: str,
    *,
    keys: Literal["texts", "resources"] | None = None,
    unit: str = "",
) -> Attribute:
    return Attribute("node", (path,), type_, Stage.NODE, field, wakes | {_E.NODE_ADD}, doc, keys, unit)


_RESOURCE_UNIT = "cpu: thousandths of a core; memory, ephemeral-storage, hugepages-*: bytes; others: a count"

_POD_ROWS: tuple[Attribute, ...] = (
    _of_pod("name", STRING, "name", "The pod's name."),
    _of_pod("namespace", STRING, "namespace", "The namespace's name."),
    _of_pod("uid", STRING, "uid", "The UID that the API server gave it."),
    _of_pod("labels", _TEXTS, "labels", "A label by its quoted key.", wakes=_POD_EDIT, keys="texts"),
    _of_pod("annotations", _TEXTS, "annotations", "An annotation by its key.", wakes=_POD_EDIT, keys="texts"),
    _of_pod(
        "requests",
        _AMOUNTS,
        "requests",
        "What it requests of a resource, init containers and overhead counted as kube-scheduler counts them; `pods` is 1.",
        wakes=_POD_EDIT,
        keys="resources",
        unit=_RESOURCE_UNIT,
    ),
    _of_pod(
        "limits", _AMOUNTS, "limits", "Its limit.", wakes=_POD_EDIT, keys="resources", unit=_RESOURCE_UNIT
    ),
    _of_pod("priority", INT, "priority", "The number that its priority class stands for, 0 without one."),
    _of_pod("qos", QOS, "qos", "BestEffort < Burstable < Guaranteed, from its requests and limits."),
    _of_pod("created", TIMESTAMP, "created_ns", "When it was created.", unit="ns"),
    _of_pod("queued", TIMESTAMP, "facts.queued_ns", "When it first came into the queue.", unit="ns"),
    _of_pod(
        "waited",
        DURATION,
        "facts.queued_ns",
        "How long it has been in the queue: now less `pod.queued`.",
        wakes=frozenset({_E.TIME}),
        stage=Stage.POD | Stage.TIME,
        unit="ns",
    ),
    _of_pod("attempts", INT, "facts.attempts", "How often it was tried, this time not counted."),
    _of_pod(
        "deadline",
        DURATION.absent_allowed(),
        "deadline_ns",
        "spec.activeDeadlineSeconds; missing where it has none.",
        wakes=_POD_EDIT,
        unit="ns",
    ),
    _of_pod(
        "owner.kind",
        STRING,
        "owner_kind",
        "The kind of its controller, such as ReplicaSet; empty without one.",
    ),
    _of_pod("owner.name", STRING, "owner_name", "The name of its controller; empty without one."),
    _of_pod("scheduler", STRING, "scheduler", "Its schedulerName."),
    _of_pod("service_account", STRING, "service_account", "The name of its ServiceAccount."),
    _of_pod("images", _WORDS, "images", "The image of each container, in its full name."),
    _of_pod(
        "tolerations", _WORDS, "tolerations", "The keys of the taints that it tolerates.", wakes=_POD_EDIT
    ),
)

_NODE_ROWS: tuple[Attribute, ...] = (
    _of_node("name", STRING, "name", _NEVER, "The node's name."),
    _of_node(
        "labels", _TEXTS, "labels", frozenset({_E.NODE_LABEL}), "A label by its quoted key.", keys="texts"
    ),
    _of_node(
        "annotations",
        _TEXTS,
        "annotations",
        frozenset({_E.NODE_ANNOTATION}),
        "An annotation by its quoted key.",
        keys="texts",
    ),
    _of_node(
        "objects",
        _TEXTS,
        "objects",
        frozenset({_E.NODE_OBJECT}),
        "The custom resource of the node's name, as JSON, by what the operator's settings call its kind; for inputs with `at`.",
        keys="texts",
    ),
    _of_node(
        "allocatable",
        _AMOUNTS,
        "allocatable",
        frozenset({_E.NODE_ALLOCATABLE}),
        "What the node has of a resource for pods; `pods` is how many it takes.",
        keys="resources",
        unit=_RESOURCE_UNIT,
    ),
    _of_node(
        "requested",
        _AMOUNTS,
        "usage.requested",
        _PLACED,
        "What the pods on it request, those counted in that we have just placed, up to 2^62 - 1 of it; `pods` is how many they are.",
        keys="resources",
        unit=_RESOURCE_UNIT,
    ),
    _of_node(
        "free",
        _AMOUNTS,
        "usage.requested",
        _PLACED | {_E.NODE_ALLOCATABLE},
        "`allocatable` less `requested`.",
        keys="resources",
        unit=_RESOURCE_UNIT,
    ),
    _of_node("pods", INT, "usage.pods", _PLACED, "How many pods are on it."),
    _of_node("taints", _WORDS, "taints", frozenset({_E.NODE_TAINT}), "The keys of its taints."),
    _of_node(
        "conditions",
        _TEXTS,
        "conditions",
        frozenset({_E.NODE_CONDITION}),
        "The status of a condition: `True`, `False` or `Unknown`.",
        keys="texts",
    ),
    _of_node(
        "images", _WORDS, "images", frozenset({_E.NODE_IMAGE}), "The images that it has, by their full names."
    ),
    _of_node("created", TIMESTAMP, "created_ns", _NEVER, "When it joined.", unit="ns"),
    _of_node(
        "ready", BOOL, "ready", frozenset({_E.NODE_CONDITION}), "Whether its Ready condition is `True`."
    ),
)


def _share(resource: str, doc: str) -> Attribute:
    wakes = _PLACED | {_E.NODE_ALLOCATABLE, _E.NODE_DELETE}
    return Attribute(
        "namespace", ("share", resource), RATIO, Stage.POD | Stage.SHARES, f"share.{resource}", wakes, doc
    )


_NAMESPACE_ROWS: tuple[Attribute, ...] = (
    Attribute("namespace", ("name",), STRING, Stage.POD, "name", _NEVER, "The same as `pod.namespace`."),
    Attribute(
        "namespace",
        ("labels",),
        _TEXTS,
        Stage.POD,
        "labels",
        _NAMESPACE,
        "A label by its quoted key.",
        "texts",
    ),
    Attribute(
        "namespace",
        ("annotations",),
        _TEXTS,
        Stage.POD,
        "annotations",
        _NAMESPACE,
        "An annotation by its key.",
        "texts",
    ),
    _share(
        "cpu", "The part of all nodes' allocatable cpu that its placed pods request; 0 where there is none."
    ),
    _share("memory", "The part of all nodes' allocatable memory that its placed pods request."),
)


def _as(owner: Owner, row: Attribute) -> Attribute:
    """The same of a pod that is placed: what changes it is what changes the pods of a node."""
    stage = Stage.NODE if owner == "other" else Stage.CONSTANT
    return replace(row, owner=owner, stage=stage, wakes=_PLACED)


_PLACED_ROWS = tuple(row for row in _POD_ROWS if not row.field.startswith("facts."))

ATTRIBUTES: Mapping[tuple[Owner, tuple[str, ...]], Attribute] = {
    (row.owner, row.path): row
    for row in (
        *_POD_ROWS,
        *_NODE_ROWS,
        *_NAMESPACE_ROWS,
        *(_as("victim", row) for row in _PLACED_ROWS),
        *(_as("other", row) for row in _PLACED_ROWS),
    )
}
"""By owner and path; a map stands under its own path, without a key."""

OWNERS: tuple[Owner, ...] = ("pod", "node", "namespace", "victim", "other")


def resource_type(resource: str) -> Type:
    """The type of an amount of a resource, as it is held."""
    if resource == "cpu":
        return CPU
    if resource in ("memory", "ephemeral-storage") or resource.startswith("hugepages-"):
        return BYTES
    return INT


def value_type(attribute: Attribute, key: str | None) -> Type:
    """The type of the attribute's value; for a map that of the value under `key`."""
    if attribute.keys is None:
        return attribute.type
    assert key is not None, f"{attribute.name} is a map and was read without a key"
    return STRING.absent_allowed() if attribute.keys == "texts" else resource_type(key)


def attribute_of(owner: Owner, path: tuple[str, ...]) -> Attribute:
    """The row behind an `expr.Attr`, whose path has the key of a map as its last part."""
    return ATTRIBUTES.get((owner, path)) or ATTRIBUTES[(owner, path[:-1])]

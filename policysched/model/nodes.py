"""Nodes as scheduling sees them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from policysched.model.identifiers import NodeName
from policysched.model.selectors import NodeSelectorTerm, requirement_holds
from policysched.model.storage import CsiAttachment, CsiNode

Resources = Mapping[str, int]

TaintEffect = Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]


@dataclass(frozen=True, slots=True)
class Taint:
    key: str
    value: str
    effect: TaintEffect


@dataclass(frozen=True, slots=True)
class Node:
    """`allocatable` includes `pods`. `images` maps normalised names to bytes. `ready` is the Ready condition, which
    kube-scheduler's default filters do not look at (taints say it); `conditions` map type to status. `declared_features`
    is what the kubelet says it can do. `csi` and `attachments` come from objects of their own and are put here by the
    `ClusterCache`."""

    name: NodeName
    uid: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    taints: tuple[Taint, ...]
    unschedulable: bool
    allocatable: Resources
    images: Mapping[str, int]
    conditions: Mapping[str, str]
    addresses: tuple[str, ...]
    created_ns: int
    ready: bool
    declared_features: frozenset[str]
    objects: Mapping[str, str] = field(default_factory=dict)
    """Custom resources that bear the node's name, as JSON, by what the operator calls their kind. The cache puts them here."""
    csi: CsiNode | None = None
    attachments: frozenset[CsiAttachment] = frozenset()


def node_matches(terms: Iterable[NodeSelectorTerm], node: Node) -> bool:
    """Whether a node selector with these terms selects the node, by its labels and its name. A term without any requirement
    selects nothing. Source: `NodeSelector.Match` in k8s.io/component-helpers/scheduling/corev1/nodeaffinity."""
    fields = {"metadata.name": str(node.name)}
    return any(
        bool(term.expressions or term.fields)
        and all(requirement_holds(one, node.labels) for one in term.expressions)
        and all(one.key in fields and requirement_holds(one, fields) for one in term.fields)
        for term in terms
    )

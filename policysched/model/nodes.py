"""Nodes, as far as scheduling reads them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from policysched.model.identifiers import NodeName
from policysched.model.selectors import NodeSelectorTerm, requirement_holds
from policysched.model.storage import CsiAttachment, CsiNode

Resources = Mapping[str, int]
"""Amounts by resource: `cpu` in thousandths of a core, everything else in its base unit (bytes, counts), rounded up as
Kubernetes rounds. Never changed after construction."""

TaintEffect = Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]


@dataclass(frozen=True, slots=True)
class Taint:
    key: str
    value: str
    effect: TaintEffect


@dataclass(frozen=True, slots=True)
class Node:
    """`allocatable` includes `pods`. `images` maps normalised names to bytes. `ready` is the Ready condition, which
    kube-scheduler's default filters do not read (they read the taints that it causes); `conditions` maps type to status.
    `declared_features` are those that the kubelet reports. The `ClusterCache` fills in `csi`, `attachments` and
    `objects` from other API objects."""

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
    """Custom resources with the node's name, as JSON, by the name that the settings give their kind."""
    csi: CsiNode | None = None
    attachments: frozenset[CsiAttachment] = frozenset()

    @property
    def taint_values(self) -> Mapping[str, str]:
        """The values of its taints by key, of several with one key the first."""
        return {taint.key: taint.value for taint in reversed(self.taints)}


def node_matches(terms: Iterable[NodeSelectorTerm], node: Node) -> bool:
    """Whether a node selector with these terms selects the node, by its labels and its name. A term without requirements
    selects nothing. Source: `NodeSelector.Match` in k8s.io/component-helpers/scheduling/corev1/nodeaffinity."""
    fields = {"metadata.name": str(node.name)}
    return any(
        bool(term.expressions or term.fields)
        and all(requirement_holds(requirement, node.labels) for requirement in term.expressions)
        and all(
            requirement.key in fields and requirement_holds(requirement, fields)
            for requirement in term.fields
        )
        for term in terms
    )

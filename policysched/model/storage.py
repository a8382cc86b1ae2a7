"""Volumes, claims and what else of storage decides where a pod can run, as typed values.

`version` is the object's resourceVersion as a number (0 in a file): two versions of one object compare by it. Sizes
are bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from policysched.model.identifiers import NodeName, PodUid, VolumeClaimKey
from policysched.model.selectors import LabelSelector, NodeSelectorTerm, SelectorRequirement

NO_PROVISIONER = "kubernetes.io/no-provisioner"
"""The provisioner of a class whose volumes are made by hand."""

NodeSelectorTerms = tuple[NodeSelectorTerm, ...]


@dataclass(frozen=True, slots=True)
class Disk:
    """A volume that a pod names without a claim and that two pods may not write to at a time. `name` tells disks of one
    `kind` apart; RBD images are the same only where the `monitors` overlap (empty for the other kinds)."""

    kind: Literal["gcePersistentDisk", "awsElasticBlockStore", "iscsi", "rbd"]
    name: str
    monitors: frozenset[str]
    read_only: bool


@dataclass(frozen=True, slots=True)
class CsiVolume:
    """A volume as its CSI driver knows it: what counts once towards a node's limit."""

    driver: str
    handle: str


@dataclass(frozen=True, slots=True)
class CsiNode:
    """The CSINode of a node: how many volumes of each driver may be attached (a driver without a limit is not here), and
    which in-tree plugins its kubelet leaves to CSI drivers."""

    name: NodeName
    limits: Mapping[str, int]
    migrated_plugins: frozenset[str]


@dataclass(frozen=True, slots=True)
class CsiAttachment:
    """What a VolumeAttachment says of its node: which driver has attached which PersistentVolume, or is about to."""

    attacher: str
    volume: str


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """`spec.claimRef` of a volume: the claim that it is, or is to be, bound to. An empty `uid`: whatever claim has that
    name."""

    claim: VolumeClaimKey
    uid: str


@dataclass(frozen=True, slots=True)
class CsiMigration:
    """An in-tree volume on a node whose kubelet leaves `plugin` to a CSI driver: its node affinity there."""

    plugin: str
    node_affinity_terms: NodeSelectorTerms | None


@dataclass(frozen=True, slots=True)
class PersistentVolume:
    """`node_affinity_terms` is its node affinity (None: it has none). `csi_volume`: what a CSI driver attaches for it, None where no
    driver does; `is_csi` False: it is of a kind that was in-tree once. `bound_by_controller`: the annotation is there."""

    name: str
    uid: str
    version: int
    labels: Mapping[str, str]
    class_name: str
    capacity_bytes: int
    access_modes: frozenset[str]
    is_block: bool
    attributes_class: str
    node_affinity_terms: NodeSelectorTerms | None
    claim_ref: ClaimRef | None
    bound_by_controller: bool
    phase: str
    deleting: bool
    csi_volume: CsiVolume | None
    is_csi: bool
    migration: CsiMigration | None

    def belongs_to(self, claim: "PersistentVolumeClaim", holder: ClaimRef | None) -> bool:
        """Whether `holder` (what the volume is bound to, or promised) is this claim."""
        if holder is None or holder.claim != claim.key:
            return False
        return not holder.uid or holder.uid == claim.uid


@dataclass(frozen=True, slots=True)
class PersistentVolumeClaim:
    """`request_bytes` None: it names no size. `bind_completed`: the PV controller has gone through with its binding.
    `selected_node`: where a scheduler asked for its volume to be made. `controller_uid`: the object that it belongs to."""

    key: VolumeClaimKey
    uid: str
    version: int
    class_name: str
    request_bytes: int | None
    access_modes: frozenset[str]
    is_block: bool
    attributes_class: str
    selector: LabelSelector | None
    volume_name: str
    bind_completed: bool
    selected_node: NodeName | None
    phase: str
    deleting: bool
    controller_uid: PodUid | None

    @property
    def fully_bound(self) -> bool:
        return bool(self.volume_name) and self.bind_completed


@dataclass(frozen=True, slots=True)
class StorageClass:
    """`waits_for_first_consumer`: its claims are bound when a pod is placed (WaitForFirstConsumer). `allowed_topologies` are the nodes on which a volume
    can be made: one of the terms, each of which asks for all of its labels; none: everywhere."""

    name: str
    provisioner: str
    waits_for_first_consumer: bool
    allowed_topologies: tuple[tuple[SelectorRequirement, ...], ...]


@dataclass(frozen=True, slots=True)
class CsiDriver:
    """`tracks_capacity`: volumes are made only where a CSIStorageCapacity says that there is room."""

    name: str
    tracks_capacity: bool


@dataclass(frozen=True, slots=True)
class StorageCapacity:
    """A CSIStorageCapacity: the largest volume of the class that can be made for nodes that `topology` selects. None as
    `limit_bytes`: unknown, so none; None as `topology`: for no node."""

    namespace: str
    name: str
    class_name: str
    limit_bytes: int | None
    topology: LabelSelector | None


@dataclass(frozen=True, slots=True)
class VolumeAttachment:
    """`volume_name` is the PersistentVolume's name; empty where it is not about one."""

    name: str
    node: NodeName
    attacher: str
    volume: str


StorageObject = (
    PersistentVolume | PersistentVolumeClaim | StorageClass | CsiDriver | StorageCapacity | VolumeAttachment
)
StorageKind = Literal[
    "PersistentVolume",
    "PersistentVolumeClaim",
    "StorageClass",
    "CSIDriver",
    "CSINode",
    "CSIStorageCapacity",
    "VolumeAttachment",
]

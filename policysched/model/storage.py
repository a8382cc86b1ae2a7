"""Volumes, claims and the other storage objects that scheduling reads.

`version` is the object's resourceVersion as a number (0 when read from a file); it orders versions of one object.
Sizes are bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from policysched.model.identifiers import NodeName, PodUid, VolumeClaimKey
from policysched.model.selectors import LabelSelector, NodeSelectorTerm, SelectorRequirement

NO_PROVISIONER = "kubernetes.io/no-provisioner"
"""The provisioner of a class whose volumes are created manually."""

NodeSelectorTerms = tuple[NodeSelectorTerm, ...]


@dataclass(frozen=True, slots=True)
class Disk:
    """An inline volume that two pods cannot write to at once. `name` identifies it within its `kind`; two RBD images are
    the same only where their `monitors` overlap (empty for other kinds)."""

    kind: Literal["gcePersistentDisk", "awsElasticBlockStore", "iscsi", "rbd"]
    name: str
    monitors: frozenset[str]
    read_only: bool

    @property
    def identities(self) -> tuple[tuple[str, ...], ...]:
        """Two disks are the same where they share one."""
        if self.kind == "rbd":
            return tuple([(self.kind, self.name, monitor) for monitor in self.monitors])
        return ((self.kind, self.name),)


@dataclass(frozen=True, slots=True)
class CsiVolume:
    """A volume by its CSI handle. Counts once towards a node's volume limit."""

    driver: str
    handle: str


@dataclass(frozen=True, slots=True)
class CsiNode:
    """The CSINode of a node: its drivers, volume limits by driver (drivers without a limit are omitted), and the
    in-tree plugins migrated to CSI."""

    name: NodeName
    limits: Mapping[str, int]
    migrated_plugins: frozenset[str]
    drivers: frozenset[str]


@dataclass(frozen=True, slots=True)
class CsiAttachment:
    """A PersistentVolume that is attached, or being attached, to a node. `attacher` is the driver."""

    attacher: str
    volume: str


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """`spec.claimRef` of a volume: the claim that it is or will be bound to. An empty `uid` matches any claim of that
    name."""

    claim: VolumeClaimKey
    uid: str


@dataclass(frozen=True, slots=True)
class CsiMigration:
    """Node affinity of an in-tree volume on nodes where `plugin` is migrated to CSI."""

    plugin: str
    node_affinity_terms: NodeSelectorTerms | None


@dataclass(frozen=True, slots=True)
class PersistentVolume:
    """`node_affinity_terms` None: no node affinity. `csi_volume`: the volume that a CSI driver attaches, None where no
    driver does; `is_csi` False: a migrated in-tree kind. `bound_by_controller`: the annotation is set."""

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
        """Whether `holder` (the claim that the volume is bound to or reserved for) is this claim."""
        if holder is None or holder.claim != claim.key:
            return False
        return not holder.uid or holder.uid == claim.uid


@dataclass(frozen=True, slots=True)
class PersistentVolumeClaim:
    """`request_bytes` None: no size requested. `bind_completed`: the PV controller has completed the binding.
    `selected_node`: the node that a scheduler chose for provisioning. `controller_uid`: the controlling owner."""

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
    """`waits_for_first_consumer`: volumeBindingMode WaitForFirstConsumer. `allowed_topologies`: a node where volumes can
    be provisioned matches all requirements of one of the terms (no terms: every node)."""

    name: str
    provisioner: str
    waits_for_first_consumer: bool
    allowed_topologies: tuple[tuple[SelectorRequirement, ...], ...]


@dataclass(frozen=True, slots=True)
class CsiDriver:
    """`tracks_capacity`: volumes are provisioned only where a CSIStorageCapacity has enough capacity.
    `needed_on_node`: pods with its volumes are not placed on nodes without the driver
    (`preventPodSchedulingIfMissing`)."""

    name: str
    tracks_capacity: bool
    needed_on_node: bool


@dataclass(frozen=True, slots=True)
class StorageCapacity:
    """A CSIStorageCapacity: the largest volume of the class that can be provisioned for nodes that `topology` selects.
    `limit_bytes` None: unknown, treated as no capacity. `capacity_bytes`: the capacity that is left, for scores; as
    `limit_bytes` where the driver reports only that. `topology` None: no node."""

    namespace: str
    name: str
    class_name: str
    limit_bytes: int | None
    capacity_bytes: int | None
    topology: LabelSelector | None


@dataclass(frozen=True, slots=True)
class VolumeAttachment:
    """`volume` is the name of the PersistentVolume, empty for an inline volume."""

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

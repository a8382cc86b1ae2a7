"""What the shell tells the core: everything that happened outside, as values."""

from collections.abc import Mapping
from dataclasses import dataclass

from policysched.cluster.samples import MetricSamples
from policysched.lang.check.bundle import PolicyBundle
from policysched.lang.ir.extender_results import ExtenderResults
from policysched.model.devices import DeviceKind, DeviceObject
from policysched.model.identifiers import NodeName, PodUid, PrebindTarget, ResourceClaimKey
from policysched.model.namespaces import Namespace
from policysched.model.nodes import Node
from policysched.model.pod_status import ObservedPod
from policysched.model.storage import CsiNode, StorageKind, StorageObject
from policysched.model.workloads import DisruptionBudget, PodSet, PodSetKind


@dataclass(frozen=True, slots=True)
class PodUpdated:
    """A pod was added or changed; a relist may show the same again."""

    pod: ObservedPod


@dataclass(frozen=True, slots=True)
class PodDeleted:
    uid: PodUid


@dataclass(frozen=True, slots=True)
class NodeUpdated:
    node: Node


@dataclass(frozen=True, slots=True)
class NodeDeleted:
    name: NodeName


@dataclass(frozen=True, slots=True)
class NodeObjectUpdated:
    """A custom resource that bears a node's name was added or changed. `kind` is what the operator calls its kind, `text` the
    object as JSON. The node need not be there."""

    kind: str
    name: NodeName
    text: str


@dataclass(frozen=True, slots=True)
class NodeObjectDeleted:
    kind: str
    name: NodeName


@dataclass(frozen=True, slots=True)
class NamespaceUpdated:
    namespace: Namespace


@dataclass(frozen=True, slots=True)
class NamespaceDeleted:
    name: str


@dataclass(frozen=True, slots=True)
class DisruptionBudgetUpdated:
    """A PodDisruptionBudget was added or changed."""

    budget: DisruptionBudget


@dataclass(frozen=True, slots=True)
class DisruptionBudgetDeleted:
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class PodSetUpdated:
    """A Service, ReplicationController, ReplicaSet or StatefulSet was added or changed."""

    pod_set: PodSet


@dataclass(frozen=True, slots=True)
class PodSetDeleted:
    kind: PodSetKind
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class StorageObjectUpdated:
    """A volume, a claim, or another object of storage was added or changed."""

    storage_object: StorageObject | CsiNode


@dataclass(frozen=True, slots=True)
class StorageObjectDeleted:
    """`namespace` is empty for what has none."""

    kind: StorageKind
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class DeviceObjectUpdated:
    """A claim for devices, a slice of them, or a class was added or changed."""

    device_object: DeviceObject


@dataclass(frozen=True, slots=True)
class DeviceObjectDeleted:
    """`namespace` is empty for what has none."""

    kind: DeviceKind
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class DeviceKindServed:
    """Whether the API server lets us see objects of this kind."""

    kind: DeviceKind
    served: bool


@dataclass(frozen=True, slots=True)
class ExtendedClaimDeleted:
    """A claim that was made for a pod's extended resources is not there any more, or never came to be."""

    claim: ResourceClaimKey


@dataclass(frozen=True, slots=True)
class Synced:
    """The first whole lists of everything that is mirrored are in: deciding may begin."""


@dataclass(frozen=True, slots=True)
class PoliciesUpdated:
    """The policies' ConfigMap as it now stands, compiled in the shell, or its absence (`bundle` None).

    `last_good` comes with the first offer only: what our own ConfigMap kept of earlier runs, compiled. `source_name` and
    `last_good_source_name` are for words: where the texts stand, and where the last known good ones (empty: nowhere).
    """

    bundle: PolicyBundle | None
    resource_version: str
    last_good: PolicyBundle | None = None
    source_name: str = "the policies' ConfigMap"
    last_good_source_name: str = "the ConfigMap of last known good texts"


@dataclass(frozen=True, slots=True)
class SavedPolicyStatesLoaded:
    """What an earlier process kept of the values of policies' states, by policy, as it was written. Before the first policies."""

    texts: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SamplesArrived:
    """Fresh samples of one metric of one policy, in the held unit of the metric's type."""

    policy: str
    metric: str
    samples: MetricSamples


@dataclass(frozen=True, slots=True)
class SamplesFailed:
    """A policy's metric was asked for in vain, or nobody serves it: there is nothing to wait for."""

    policy: str
    metric: str


@dataclass(frozen=True, slots=True)
class BindConfirmed:
    """The pod is on that node: the server said 201, or showed it there when asked."""

    uid: PodUid
    node: NodeName


@dataclass(frozen=True, slots=True)
class BindRefused:
    """The bind was answered and did not happen. `reason` is the server's word. The pod may be tried again."""

    uid: PodUid
    reason: str


@dataclass(frozen=True, slots=True)
class BindLost:
    """The pod that was to be bound is gone, is bound elsewhere, or has another UID now: nothing to try again."""

    uid: PodUid
    reason: str


@dataclass(frozen=True, slots=True)
class PrebindWritten:
    """A `Prebind` was carried out: these are the versions in which the objects say so, by a volume's name or a claim's
    key."""

    uid: PodUid
    versions: Mapping[PrebindTarget, int]


@dataclass(frozen=True, slots=True)
class PrebindRefused:
    """A `Prebind` ended before everything was written; `versions` are those of what was. `reason` is the server's
    word."""

    uid: PodUid
    reason: str
    versions: Mapping[PrebindTarget, int]


@dataclass(frozen=True, slots=True)
class Evicted:
    """An `Evict` was carried out: each victim was told to end (`victims`), or had gone before (`already_deleted`)."""

    preemptor: PodUid
    victims: tuple[PodUid, ...]
    already_deleted: tuple[PodUid, ...] = ()


@dataclass(frozen=True, slots=True)
class EvictionRefused:
    """An `Evict` ended before all victims were told to end; `victims` were. `forbidden`: by RBAC, so that another try
    would end in the same way. `reason` is the server's word."""

    preemptor: PodUid
    reason: str
    forbidden: bool = False
    victims: tuple[PodUid, ...] = ()


@dataclass(frozen=True, slots=True)
class ExtendersAnswered:
    """What became of a `CallExtenders`. `failure`: an extender that must not be left out gave no answer, and why."""

    call_id: int
    answers: ExtenderResults
    failure: str | None = None


PolicyName = str

Event = (
    PodUpdated
    | PodDeleted
    | NodeUpdated
    | NodeDeleted
    | NodeObjectUpdated
    | NodeObjectDeleted
    | NamespaceUpdated
    | NamespaceDeleted
    | DisruptionBudgetUpdated
    | DisruptionBudgetDeleted
    | PodSetUpdated
    | PodSetDeleted
    | StorageObjectUpdated
    | StorageObjectDeleted
    | DeviceObjectUpdated
    | DeviceObjectDeleted
    | DeviceKindServed
    | ExtendedClaimDeleted
    | Synced
    | PoliciesUpdated
    | SavedPolicyStatesLoaded
    | SamplesArrived
    | SamplesFailed
    | BindConfirmed
    | BindRefused
    | BindLost
    | PrebindWritten
    | PrebindRefused
    | Evicted
    | EvictionRefused
    | ExtendersAnswered
)

LastGoodTexts = Mapping[PolicyName, str]
"""A policy's name to the expanded text that last checked."""

"""What the shell tells the core: everything that happened outside, as values."""

from collections.abc import Mapping
from dataclasses import dataclass

from policysched.cluster.samples import MetricSamples
from policysched.lang.check.bundle import Bundle
from policysched.lang.ir.extender_answers import Answers
from policysched.model.devices import DeviceKind, DeviceObject
from policysched.model.objects import (
    CsiNode,
    DisruptionBudget,
    Namespace,
    Node,
    NodeName,
    ObservedPod,
    PodSet,
    PodSetKind,
    PodUid,
    Preparable,
    ResourceClaimKey,
)
from policysched.model.storage import StorageKind, StorageObject


@dataclass(frozen=True, slots=True)
class PodSeen:
    """A pod was added or changed; a relist may show the same again."""

    pod: ObservedPod


@dataclass(frozen=True, slots=True)
class PodGone:
    uid: PodUid


@dataclass(frozen=True, slots=True)
class NodeSeen:
    node: Node


@dataclass(frozen=True, slots=True)
class NodeGone:
    name: NodeName


@dataclass(frozen=True, slots=True)
class NodeObjectSeen:
    """A custom resource that bears a node's name was added or changed. `kind` is what the operator calls its kind, `text` the
    object as JSON. The node need not be there."""

    kind: str
    name: NodeName
    text: str


@dataclass(frozen=True, slots=True)
class NodeObjectGone:
    kind: str
    name: NodeName


@dataclass(frozen=True, slots=True)
class NamespaceSeen:
    namespace: Namespace


@dataclass(frozen=True, slots=True)
class NamespaceGone:
    name: str


@dataclass(frozen=True, slots=True)
class BudgetSeen:
    """A PodDisruptionBudget was added or changed."""

    budget: DisruptionBudget


@dataclass(frozen=True, slots=True)
class BudgetGone:
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class PodSetSeen:
    """A Service, ReplicationController, ReplicaSet or StatefulSet was added or changed."""

    pod_set: PodSet


@dataclass(frozen=True, slots=True)
class PodSetGone:
    kind: PodSetKind
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class StorageSeen:
    """A volume, a claim, or another object of storage was added or changed."""

    seen: StorageObject | CsiNode


@dataclass(frozen=True, slots=True)
class StorageGone:
    """`namespace` is empty for what has none."""

    kind: StorageKind
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class DeviceObjectSeen:
    """A claim for devices, a slice of them, or a class was added or changed."""

    seen: DeviceObject


@dataclass(frozen=True, slots=True)
class DeviceObjectGone:
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
class ClaimDropped:
    """A claim that was made for a pod's extended resources is not there any more, or never came to be."""

    claim: ResourceClaimKey


@dataclass(frozen=True, slots=True)
class Synced:
    """The first whole lists of everything that is mirrored are in: deciding may begin."""


@dataclass(frozen=True, slots=True)
class PoliciesOffered:
    """The policies' ConfigMap as it now stands, compiled in the shell, or its absence (`bundle` None).

    `last_good` comes with the first offer only: what our own ConfigMap kept of earlier runs, compiled. `place` and
    `kept_in` are for words: where the texts stand, and where the last known good ones (empty: nowhere).
    """

    bundle: Bundle | None
    resource_version: str
    last_good: Bundle | None = None
    place: str = "the policies' ConfigMap"
    kept_in: str = "the ConfigMap of last known good texts"


@dataclass(frozen=True, slots=True)
class StatesKept:
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
class PreparationWritten:
    """A `Prepare` was carried out: these are the versions in which the objects say so, by a volume's name or a claim's
    key."""

    uid: PodUid
    versions: Mapping[Preparable, int]


@dataclass(frozen=True, slots=True)
class PreparationRefused:
    """A `Prepare` ended before everything was written; `versions` are those of what was. `reason` is the server's
    word."""

    uid: PodUid
    reason: str
    versions: Mapping[Preparable, int]


@dataclass(frozen=True, slots=True)
class Evicted:
    """An `Evict` was carried out: each victim was told to end (`victims`), or had gone before (`gone`)."""

    preemptor: PodUid
    victims: tuple[PodUid, ...]
    gone: tuple[PodUid, ...] = ()


@dataclass(frozen=True, slots=True)
class EvictionRefused:
    """An `Evict` ended before all victims were told to end; `victims` were. `forbidden`: by RBAC, so that another try
    would end in the same way. `reason` is the server's word."""

    preemptor: PodUid
    reason: str
    forbidden: bool = False
    victims: tuple[PodUid, ...] = ()


@dataclass(frozen=True, slots=True)
class Consulted:
    """What became of a `Consult`. `failure`: an extender that must not be left out gave no answer, and why."""

    number: int
    answers: Answers
    failure: str | None = None


PolicyName = str

Event = (
    PodSeen
    | PodGone
    | NodeSeen
    | NodeGone
    | NodeObjectSeen
    | NodeObjectGone
    | NamespaceSeen
    | NamespaceGone
    | BudgetSeen
    | BudgetGone
    | PodSetSeen
    | PodSetGone
    | StorageSeen
    | StorageGone
    | DeviceObjectSeen
    | DeviceObjectGone
    | DeviceKindServed
    | ClaimDropped
    | Synced
    | PoliciesOffered
    | StatesKept
    | SamplesArrived
    | SamplesFailed
    | BindConfirmed
    | BindRefused
    | BindLost
    | PreparationWritten
    | PreparationRefused
    | Evicted
    | EvictionRefused
    | Consulted
)

Kept = Mapping[PolicyName, str]
"""A policy's name to the expanded text that last checked."""

"""Events: the values with which the runtime reports to the scheduler what happened outside."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from policysched.cluster.metric_samples import MetricSamples
from policysched.lang.check.bundle import PolicyBundle
from policysched.lang.ir.extender_results import ExtenderResults
from policysched.lang.ir.program import Program
from policysched.model.devices import DeviceKind, DeviceObject
from policysched.model.identifiers import NodeName, PodUid, PrebindTarget, ResourceClaimKey
from policysched.model.namespaces import Namespace
from policysched.model.nodes import Node
from policysched.model.pod_groups import PodGroup, PodGroupApi, PodGroupKey
from policysched.model.pod_status import ObservedPod
from policysched.model.storage import CsiNode, StorageKind, StorageObject
from policysched.model.workloads import DisruptionBudget, SelectorOwner, SelectorOwnerKind


@dataclass(frozen=True, slots=True)
class PodUpdated:
    """A pod was added or changed. A relist may repeat it."""

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
    """A custom resource named after a node was added or changed.

    `kind` is the kind's name in the operator's settings, `text` the object as JSON. The node may not exist.
    """

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
class SelectorOwnerUpdated:
    """A Service, ReplicationController, ReplicaSet or StatefulSet was added or changed."""

    selector_owner: SelectorOwner


@dataclass(frozen=True, slots=True)
class SelectorOwnerDeleted:
    kind: SelectorOwnerKind
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class StorageObjectUpdated:
    """A volume, a volume claim or another storage object was added or changed."""

    storage_object: StorageObject | CsiNode


@dataclass(frozen=True, slots=True)
class StorageObjectDeleted:
    """`namespace` is empty for what has none."""

    kind: StorageKind
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class DeviceObjectUpdated:
    """A ResourceClaim, ResourceSlice, DeviceClass or DeviceTaintRule was added or changed."""

    device_object: DeviceObject


@dataclass(frozen=True, slots=True)
class DeviceObjectDeleted:
    """`namespace` is empty for what has none."""

    kind: DeviceKind
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class DeviceKindServed:
    """Whether the API server serves objects of this kind."""

    kind: DeviceKind
    served: bool


@dataclass(frozen=True, slots=True)
class PodGroupChange:
    """A change of what pods know of their groups; the subclasses say which."""


@dataclass(frozen=True, slots=True)
class PodGroupUpdated(PodGroupChange):
    """A PodGroup was added or changed, or its status."""

    group: PodGroup


@dataclass(frozen=True, slots=True)
class PodGroupDeleted(PodGroupChange):
    key: PodGroupKey


@dataclass(frozen=True, slots=True)
class PodGroupApiServed(PodGroupChange):
    """The API server serves PodGroups of this API in this version; None: in none that this scheduler reads."""

    api: PodGroupApi
    version: str | None


@dataclass(frozen=True, slots=True)
class WorkloadUpdated(PodGroupChange):
    """A Workload of `scheduling.k8s.io` exists."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class WorkloadDeleted(PodGroupChange):
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class WorkloadsServed(PodGroupChange):
    """Whether the API server serves Workloads."""

    served: bool


@dataclass(frozen=True, slots=True)
class ExtendedClaimDeleted:
    """The claim for a pod's extended resources was deleted or never created. `uid`: that of the claim that was deleted."""

    claim: ResourceClaimKey
    uid: str = ""


@dataclass(frozen=True, slots=True)
class Synced:
    """The initial lists of all reflectors are complete; scheduling may begin."""


@dataclass(frozen=True, slots=True)
class PoliciesUpdated:
    """The compiled content of the policies' ConfigMap, or its absence (`bundle` None).

    `last_good` are compiled last known good texts of an earlier process, each in one event. The first event has the operator's;
    `unchecked_texts` are those of teams that come later, by name. `source_name` and
    `last_good_source_name` name both sources in messages; an empty `last_good_source_name` means that there is no such source. The keys of a team's texts are
    `NAMESPACE/KEY`; `unread_teams` are the namespaces whose texts this process has not checked yet. `fallbacks` are, by
    name, what runs of the policies of teams that have no valid text.
    """

    bundle: PolicyBundle | None
    resource_version: str
    last_good: PolicyBundle | None = None
    source_name: str = "the policies' ConfigMap"
    last_good_source_name: str = "the ConfigMap of last known good texts"
    unread_teams: frozenset[str] = frozenset()
    fallbacks: Mapping[str, Program] = field(default_factory=dict)
    unchecked_texts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SavedPolicyStatesLoaded:
    """The policies' states as an earlier process saved them (policy name to text). Precedes the first `PoliciesUpdated`."""

    texts: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SamplesArrived:
    """New samples of one metric of one policy, in the base unit of the metric's type."""

    policy: str
    metric: str
    samples: MetricSamples


@dataclass(frozen=True, slots=True)
class SamplesFailed:
    """A policy's metric could not be read or has no source. Waiting for its samples is pointless."""

    policy: str
    metric: str


@dataclass(frozen=True, slots=True)
class BindConfirmed:
    """The pod is on that node: the server answered 201, or a read of the pod showed it."""

    uid: PodUid
    node: NodeName


@dataclass(frozen=True, slots=True)
class BindRefused:
    """The server refused the bind with this reason. The pod may be retried. `stalled`: it was not sent, because this process
    stalled after the decision."""

    uid: PodUid
    reason: str
    stalled: bool = False


@dataclass(frozen=True, slots=True)
class BindLost:
    """The pod is deleted, bound elsewhere or replaced by one with another UID. There is nothing to retry."""

    uid: PodUid
    reason: str


@dataclass(frozen=True, slots=True)
class BindDelayed:
    """Requests of the bind, or of its namespace, keep failing. The outcome is unknown, so the pod stays assumed. `reason`
    is reported on the pod; None: nothing to report yet."""

    uid: PodUid
    reason: str | None


@dataclass(frozen=True, slots=True)
class PrebindWritten:
    """The `Prebind` of this attempt succeeded. `versions` are those of the written objects, by volume name or claim key."""

    uid: PodUid
    versions: Mapping[PrebindTarget, int]
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class PrebindRefused:
    """The `Prebind` of this attempt failed for the server's `reason`. `versions` are those of the objects written before."""

    uid: PodUid
    reason: str
    versions: Mapping[PrebindTarget, int]
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class Evicted:
    """An `Evict` succeeded: each victim was deleted (`victims`) or no longer existed."""

    preemptor: PodUid
    victims: tuple[PodUid, ...]


@dataclass(frozen=True, slots=True)
class EvictionRefused:
    """An `Evict` failed for the server's `reason`. `victims` were deleted before, those in `gone` no longer existed.

    `forbidden` means that an authorizer denies it (RBAC), so that a retry would fail in the same way, for whichever victims.
    `refused`: the victim whose deletion the server answered with an error, often of a webhook of its namespace.
    """

    preemptor: PodUid
    reason: str
    forbidden: bool = False
    victims: tuple[PodUid, ...] = ()
    gone: tuple[PodUid, ...] = ()
    refused: PodUid | None = None


@dataclass(frozen=True, slots=True)
class ExtendersAnswered:
    """The result of a `CallExtenders`. `failure` says why an extender that is not ignorable gave no answer."""

    call_id: int
    answers: ExtenderResults
    failure: str | None = None


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
    | SelectorOwnerUpdated
    | SelectorOwnerDeleted
    | StorageObjectUpdated
    | StorageObjectDeleted
    | DeviceObjectUpdated
    | DeviceObjectDeleted
    | DeviceKindServed
    | PodGroupChange
    | ExtendedClaimDeleted
    | Synced
    | PoliciesUpdated
    | SavedPolicyStatesLoaded
    | SamplesArrived
    | SamplesFailed
    | BindConfirmed
    | BindRefused
    | BindLost
    | BindDelayed
    | PrebindWritten
    | PrebindRefused
    | Evicted
    | EvictionRefused
    | ExtendersAnswered
)

"""Commands: the values that the scheduler returns for its runtime to execute.

The union `Command` lists them in order of importance.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from policysched.cluster.devices.extended_resources import ExtendedResourceMapping
from policysched.model.devices import ClaimConsumer, DeviceAllocation, DeviceRequest
from policysched.model.identifiers import NodeName, PodUid, ResourceClaimKey, VolumeClaimKey
from policysched.model.pod_groups import PodGroupKey, PodGroupStatus

PendingReason = Literal["Unschedulable", "PolicyPending", "SchedulerError"]
"""The reason of a pod's PodScheduled condition while it is pending."""


@dataclass(frozen=True, slots=True)
class Bind:
    """POST the binding and repeat it unchanged until the server answers. The ledger has assumed the pod before."""

    uid: PodUid
    namespace: str
    name: str
    node: NodeName
    policy: str
    policy_sha256: str


@dataclass(frozen=True, slots=True)
class VolumeToBind:
    """Set the volume's claimRef to `claim`.

    `mark_bound_by_controller` also sets the annotation that the binding was not made by the user. `version` is the volume's
    version at the time of the decision; nothing is written to any other version.
    """

    volume: str
    uid: str
    version: int
    claim: VolumeClaimKey
    claim_uid: str
    mark_bound_by_controller: bool


@dataclass(frozen=True, slots=True)
class VolumeToProvision:
    """Request a volume for the claim by setting its selected-node annotation. `version` as in `VolumeToBind`."""

    claim: VolumeClaimKey
    uid: str
    version: int


@dataclass(frozen=True, slots=True)
class ClaimToReserve:
    """Reserve the claim for the pod and, unless it is allocated already, allocate devices to it.

    `allocation` is None if the claim is allocated; `current_allocation` then holds its devices. `at_ns` is the time of the
    allocation. `version`, `finalizers` (None: very many, which are to be read) and `reserved_for` are the claim's values at the
    time of the decision; a later version of the same claim is only written where the decision still applies.
    """

    claim: ResourceClaimKey
    uid: str
    version: int
    allocation: DeviceAllocation | None
    finalizers: tuple[str, ...] | None
    reserved_for: tuple[ClaimConsumer, ...]
    at_ns: int
    current_allocation: DeviceAllocation | None = None


@dataclass(frozen=True, slots=True)
class ClaimToCreate:
    """Create the claim for the pod's extended resources, allocate devices to it and reserve it for the pod.

    `at_ns` is the time of the allocation. `mapped` goes into the pod's status: which container uses which request.
    """

    claim: ResourceClaimKey
    requests: tuple[DeviceRequest, ...]
    allocation: DeviceAllocation
    mapped: tuple[ExtendedResourceMapping, ...]
    at_ns: int


@dataclass(frozen=True, slots=True)
class CancelBind:
    """Do not send the pod's `Bind` if no request for it has been sent yet. This command has no answer of its own: the
    `Bind` is then answered by `BindRefused`, otherwise as usual."""

    uid: PodUid


@dataclass(frozen=True, slots=True)
class AbandonEviction:
    """The pod was deleted: do not begin its `Evict`, which is answered by `EvictionRefused` then, or as usual."""

    uid: PodUid


@dataclass(frozen=True, slots=True)
class AbandonBind:
    """The pod was deleted: do not repeat its `Bind`, which is then answered by `BindLost`, or as usual. Nor begin its `Prebind`:
    that is answered by `PrebindRefused` then."""

    uid: PodUid


@dataclass(frozen=True, slots=True)
class Prebind:
    """Write what the PV controller and the provisioners need to bind the pod's claims for this node.

    With `nominate` the pod is nominated to the node before that, so that autoscalers keep the node. Volumes are written first, then volume claims, then device claims; the claim that is created for the pod comes last. Answered
    by exactly one `PrebindWritten` or `PrebindRefused` of the same `attempt`. The bind follows once the claims are bound.
    """

    uid: PodUid
    namespace: str
    name: str
    node: NodeName
    volumes_to_bind: tuple[VolumeToBind, ...]
    volumes_to_provision: tuple[VolumeToProvision, ...]
    claims_to_reserve: tuple[ClaimToReserve, ...] = ()
    claim_to_create: ClaimToCreate | None = None
    nominate: bool = False
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class Unreserve:
    """Remove the pod's reservation from each claim (key and UID) that still has it. Not answered."""

    uid: PodUid
    claims: tuple[tuple[ResourceClaimKey, str], ...]


@dataclass(frozen=True, slots=True)
class Deallocate:
    """Remove the claim's allocation if the claim still has this version. Not answered."""

    claim: ResourceClaimKey
    uid: str
    version: int


@dataclass(frozen=True, slots=True)
class DeleteExtendedClaim:
    """Delete the claim that was created, or was about to be created, for the pod's extended resources.

    Answered by one `ExtendedClaimDeleted` once the claim is gone. If the claim remains there is no answer: the watch shows it.
    """

    claim: ResourceClaimKey
    uid: PodUid


@dataclass(frozen=True, slots=True)
class Victim:
    """A pod that preemption evicts. `generation` is that of its spec, 0 if the server does not set one."""

    uid: PodUid
    namespace: str
    name: str
    generation: int = 0


@dataclass(frozen=True, slots=True)
class Evict:
    """Nominate the pod to the node (None: to none), then set the condition DisruptionTarget on each victim and delete it.
    `message`: why, in the condition.

    Victims that are terminating already are left out, so `victims` may be empty. Answered by exactly one `Evicted` or
    `EvictionRefused`.
    """

    uid: PodUid
    namespace: str
    name: str
    scheduler: str
    node: NodeName | None
    victims: tuple[Victim, ...]
    message: str = "preempting to accommodate a higher priority pod"


@dataclass(frozen=True, slots=True)
class ClearNomination:
    """Clear the pod's nominated node. Not answered."""

    uid: PodUid
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class CallExtenders:
    """Call extenders for the pod and these nodes.

    `extenders` are pairs of a name and whether scores are wanted. Answered by exactly one `ExtendersAnswered` with the same
    `call_id`.
    """

    call_id: int
    uid: PodUid
    namespace: str
    name: str
    nodes: tuple[NodeName, ...]
    extenders: tuple[tuple[str, bool], ...]


@dataclass(frozen=True, slots=True)
class ReportPreempted:
    """Normal event `Preempted` on a victim. The other fields name the preemptor and its node."""

    victim: Victim
    uid: PodUid
    namespace: str
    name: str
    scheduler: str
    node: NodeName


@dataclass(frozen=True, slots=True)
class ReportScheduled:
    """Normal event `Scheduled` on the pod, sent once the bind is confirmed."""

    uid: PodUid
    namespace: str
    name: str
    node: NodeName
    scheduler: str


@dataclass(frozen=True, slots=True)
class ReportPending:
    """Warning event `FailedScheduling`, and the condition PodScheduled=False with this reason and message."""

    uid: PodUid
    namespace: str
    name: str
    scheduler: str
    reason: PendingReason
    message: str


@dataclass(frozen=True, slots=True)
class ReportPodEvent:
    """Any other event on a pod, such as an invalid label or gang members that disagree."""

    uid: PodUid
    namespace: str
    name: str
    scheduler: str
    type: Literal["Normal", "Warning"]
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class ReportPodGroup:
    """Write the status of a PodGroup. `uid`: of another group of that name nothing is written. `api_version` is the one
    that the server serves."""

    key: PodGroupKey
    uid: str
    api_version: str
    status: PodGroupStatus


@dataclass(frozen=True, slots=True)
class ReportPolicyEvent:
    """An event on the policies' ConfigMap, or on that of the team that `owner` names: `PolicyRejected`, `PolicyRecovered`, `PolicyMissing`, `MetricOutage`,
    `PreemptionForbidden`, `PreemptionStopped`, `PolicyCheckDelayed`."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str
    owner: str | None = None


@dataclass(frozen=True, slots=True)
class SavePolicyTexts:
    """Write the last known good texts (policy name to expanded text) to the scheduler's own ConfigMap."""

    texts: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SavePolicyStates:
    """Write the values of the policies' states (policy name to text) to the scheduler's own ConfigMap."""

    texts: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Call `decide` at this time even if no event arrives. A later `SetTimer` replaces an earlier one."""

    at_ns: int


@dataclass(frozen=True, slots=True)
class Log:
    """Write a log line. The scheduler itself has no logger."""

    level: Literal["debug", "info", "warning", "error"]
    message: str
    fields: Mapping[str, str | int | float]


Command = (
    Bind
    | Prebind
    | Unreserve
    | Deallocate
    | DeleteExtendedClaim
    | Evict
    | CancelBind
    | AbandonBind
    | AbandonEviction
    | ClearNomination
    | CallExtenders
    | ReportPreempted
    | ReportScheduled
    | ReportPending
    | ReportPodEvent
    | ReportPodGroup
    | ReportPolicyEvent
    | SavePolicyTexts
    | SavePolicyStates
    | SetTimer
    | Log
)

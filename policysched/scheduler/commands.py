"""What the core wants done: values that the shell carries out, in this order of importance."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from policysched.cluster.devices.extended_resources import ExtendedResourceMapping
from policysched.model.devices import ClaimConsumer, DeviceAllocation, DeviceRequest
from policysched.model.identifiers import NodeName, PodUid, ResourceClaimKey, VolumeClaimKey

PendingReason = Literal["Unschedulable", "PolicyPending", "SchedulerError"]
"""The reason of a pod's PodScheduled condition while it is pending."""


@dataclass(frozen=True, slots=True)
class Bind:
    """POST the binding, unchanged, until it is answered. Always after the ledger assumed it."""

    uid: PodUid
    namespace: str
    name: str
    node: NodeName
    policy: str
    policy_sha256: str


@dataclass(frozen=True, slots=True)
class VolumeToBind:
    """Make `claim` the volume's claimRef; with `mark_bound_by_controller` say besides that it was not the user who did so. `version` is the one
    that it was decided on: of another version nothing is written."""

    volume: str
    uid: str
    version: int
    claim: VolumeClaimKey
    claim_uid: str
    mark_bound_by_controller: bool


@dataclass(frozen=True, slots=True)
class VolumeToProvision:
    """Have a volume made for the claim: name the node in its annotations. `version` as in `VolumeToBind`."""

    claim: VolumeClaimKey
    uid: str
    version: int


@dataclass(frozen=True, slots=True)
class ClaimToReserve:
    """Reserve the claim for the pod, and give it these devices if it has none (None: it `current_allocation` these), as of `at_ns`. `version`,
    `finalizers` and `reserved_for` are those that it was decided on; of a later version of the same claim only what still holds
    is written."""

    claim: ResourceClaimKey
    uid: str
    version: int
    allocation: DeviceAllocation | None
    finalizers: tuple[str, ...]
    reserved_for: tuple[ClaimConsumer, ...]
    at_ns: int
    current_allocation: DeviceAllocation | None = None


@dataclass(frozen=True, slots=True)
class ClaimToCreate:
    """Make a claim for the pod's extended resources that asks for this, give it these devices as of `at_ns`, reserve it for the pod,
    and say in the pod's status which container uses which request."""

    claim: ResourceClaimKey
    requests: tuple[DeviceRequest, ...]
    allocation: DeviceAllocation
    mapped: tuple[ExtendedResourceMapping, ...]
    at_ns: int


@dataclass(frozen=True, slots=True)
class Prebind:
    """Write what the PV controller and the provisioners need to bind the pod's claims for this node, volumes first, then its
    claims for devices, last the one that is made for it. Answered by exactly one `PrebindWritten` or `PrebindRefused`; the bind follows once the claims
    are bound."""

    uid: PodUid
    namespace: str
    name: str
    node: NodeName
    volumes_to_bind: tuple[VolumeToBind, ...]
    volumes_to_provision: tuple[VolumeToProvision, ...]
    claims_to_reserve: tuple[ClaimToReserve, ...] = ()
    claim_to_create: ClaimToCreate | None = None


@dataclass(frozen=True, slots=True)
class Unreserve:
    """The claims are not reserved for the pod any more, where they are. Not answered."""

    uid: PodUid
    claims: tuple[tuple[ResourceClaimKey, str], ...]


@dataclass(frozen=True, slots=True)
class Deallocate:
    """Take the claim's devices back, so that it may be given others: if it is still of this version. Not answered."""

    claim: ResourceClaimKey
    uid: str
    version: int


@dataclass(frozen=True, slots=True)
class DeleteExtendedClaim:
    """Take away a claim that was made, or was to be made, for this pod's extended resources. Answered by one `ExtendedClaimDeleted` once it
    is not there any more; not at all where it stays, which the watch shows."""

    claim: ResourceClaimKey
    uid: PodUid


@dataclass(frozen=True, slots=True)
class Victim:
    """A pod that is to make room. `generation` of its spec, 0 where the server counts none."""

    uid: PodUid
    namespace: str
    name: str
    generation: int = 0


@dataclass(frozen=True, slots=True)
class Evict:
    """Nominate the pod to the node, then mark each victim (condition DisruptionTarget) and delete it. Victims that are
    ending already are not among them, so there may be none. Answered by exactly one `Evicted` or `EvictionRefused`."""

    uid: PodUid
    namespace: str
    name: str
    scheduler: str
    node: NodeName
    victims: tuple[Victim, ...]


@dataclass(frozen=True, slots=True)
class ClearNomination:
    """The pod is nominated to no node any more. Not answered."""

    uid: PodUid
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class CallExtenders:
    """Ask these extenders about the pod on these nodes; with each its name, and whether scores are wanted. Answered by
    exactly one `ExtendersAnswered` of that number."""

    call_id: int
    uid: PodUid
    namespace: str
    name: str
    nodes: tuple[NodeName, ...]
    extenders: tuple[tuple[str, bool], ...]


@dataclass(frozen=True, slots=True)
class ReportPreempted:
    """Normal event `Preempted` on a victim that was told to end, for this pod."""

    victim: Victim
    uid: PodUid
    namespace: str
    name: str
    scheduler: str
    node: NodeName


@dataclass(frozen=True, slots=True)
class ReportScheduled:
    """Normal event `Scheduled` on the pod: sent once the bind is confirmed."""

    uid: PodUid
    namespace: str
    name: str
    node: NodeName
    scheduler: str


@dataclass(frozen=True, slots=True)
class ReportPending:
    """Warning event `FailedScheduling` and the condition PodScheduled=False with this reason and message."""

    uid: PodUid
    namespace: str
    name: str
    scheduler: str
    reason: PendingReason
    message: str


@dataclass(frozen=True, slots=True)
class ReportPodEvent:
    """Any other event on a pod: an invalid label counted as its default, gang members that disagree."""

    uid: PodUid
    namespace: str
    name: str
    scheduler: str
    type: Literal["Normal", "Warning"]
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class ReportPolicyEvent:
    """An event on the policies' ConfigMap: `PolicyRejected`, `PolicyRecovered`, `PolicyMissing`, `MetricOutage`,
    `PreemptionForbidden`, `PreemptionStopped`."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class SavePolicyTexts:
    """Write the last known good texts (policy name to expanded text) to our own ConfigMap."""

    texts: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SavePolicyStates:
    """Write the values of policies' states (policy name to text) to our own ConfigMap, beside the policies."""

    texts: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Call `decide` again at this time (ns) even if nothing happens. A later one replaces an earlier one."""

    at_ns: int


@dataclass(frozen=True, slots=True)
class Log:
    """Worth saying: the core has no logger. `fields` are plain values."""

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
    | ClearNomination
    | CallExtenders
    | ReportPreempted
    | ReportScheduled
    | ReportPending
    | ReportPodEvent
    | ReportPolicyEvent
    | SavePolicyTexts
    | SavePolicyStates
    | SetTimer
    | Log
)

"""Pods, as far as scheduling reads them: the spec, not the node that a pod runs on."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from policysched.model.affinity import NodeAffinity, PodAffinity, TopologySpreadConstraint
from policysched.model.identifiers import NodeName, PodUid, ResourceClaimKey, VolumeClaimKey
from policysched.model.nodes import Resources
from policysched.model.pod_groups import GroupReference, PodGroup
from policysched.model.storage import CsiVolume, Disk

PORT_MAX = 65_535


@dataclass(frozen=True, slots=True)
class Toleration:
    """An empty `effect` or `key` matches any, as in the API."""

    key: str
    operator: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True)
class HostPort:
    """Defaults are filled in: `ip` 0.0.0.0, `protocol` TCP."""

    ip: str
    protocol: str
    port: int


@dataclass(frozen=True, slots=True)
class HostPortNumbers:
    """Host ports of a pod that has very many, of one protocol, as if each were on all addresses. `bits`: one for each number, as
    hexadecimal digits of four numbers each."""

    protocol: str
    bits: str

    @classmethod
    def of(cls, protocol: str, numbers: Iterable[int]) -> "HostPortNumbers":
        """Numbers that are no port are left out."""
        digits = [0] * (PORT_MAX // 4 + 1)
        for number in numbers:
            if 0 < number <= PORT_MAX:
                digits[number // 4] |= 1 << number % 4
        return cls(protocol, "".join([f"{digit:x}" for digit in digits]))

    def __contains__(self, number: int) -> bool:
        return 0 < number <= PORT_MAX and bool(int(self.bits[number // 4], 16) >> number % 4 & 1)


@dataclass(frozen=True, slots=True)
class PodVolumeClaim:
    """A volume of a pod that refers to a claim. `owner_pod` is set for a generic ephemeral volume: its claim must be
    owned by this pod."""

    claim: VolumeClaimKey
    owner_pod: PodUid | None


@dataclass(frozen=True, slots=True)
class PodResourceClaim:
    """An entry of the pod's `resourceClaims`. `claim` None: not created from its template yet. `owner_pod` is set for a
    claim from a template: it must be owned by this pod."""

    claim: ResourceClaimKey | None
    owner_pod: PodUid | None


@dataclass(frozen=True, slots=True)
class ExtendedResourceRequest:
    """A container's request for an extended resource that devices may back.

    `container_index` counts init containers first, then containers. `resource_index` is the position of the resource
    among all that the container requests, sorted by name. `runs_to_completion`: an init container that is not a sidecar.
    """

    container: str
    container_index: int
    runs_to_completion: bool
    resource: str
    resource_index: int
    amount: int


@dataclass(frozen=True, slots=True)
class Pod:
    """The spec and metadata of a pod. Its node is in `Placement`, or in `ObservedPod` as the API server reports it.

    `requests` is the effective request as kube-scheduler computes it (init and sidecar containers, overhead, pod-level
    resources), without the `pods` resource. `scoring_requests` is (cpu milli, memory bytes) with the 100m and 200 MiB that
    kube-scheduler assumes for containers without requests, used while the pod is scored; `scoring_requests_placed` is the same
    for a pod on a node (only there do pod-level resources count). `images` are normalised names, one per container (init
    containers included, as in ImageLocality), `image_volumes` those of volumes. `terminating`: the pod has a deletionTimestamp,
    so topology spread does not count it. `ready`: it is on a node and its condition Ready is `True`. `owner_api`, `owner_kind`
    and `owner_name` describe its controller ("" without one). `required_features` must be among the node's declared features.
    `uncovered` names the fields that the pod uses and no built-in supports. `too_large`: why it is not known whole, so that it is
    not decided about (`kube.decode.large_pods`); `dropped`: the fields of which items are not known; `host_port_numbers`: its
    host ports instead of `host_ports`.

    `claims` are its volumes with a claim, in order; `disks` the inline volumes that pods cannot share freely; `mounts`
    the inline volumes that a CSI driver attaches (migrated in-tree kinds). `device_claims` are its resource claims,
    `extended` its requests for extended resources that device classes may back.

    `group_references` are the PodGroups that it names. `group` is the PodGroup itself, if it exists, and
    `group_problem` says why the pod cannot be placed with it; `cluster.pod_groups` sets both, and replaces `priority`
    and `preemption_policy` by those of the group.
    """

    uid: PodUid
    name: str
    namespace: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    scheduler: str
    priority: int
    preemption_policy: Literal["PreemptLowerPriority", "Never"]
    created_ns: int
    deadline_ns: int | None
    owner_api: str
    owner_kind: str
    owner_name: str
    service_account: str
    requests: Resources
    limits: Resources
    scoring_requests: tuple[int, int]
    scoring_requests_placed: tuple[int, int]
    qos: int
    node_selector: Mapping[str, str]
    affinity: NodeAffinity | None
    tolerations: tuple[Toleration, ...]
    host_ports: tuple[HostPort, ...]
    images: tuple[str, ...]
    image_volumes: tuple[str, ...]
    gates: tuple[str, ...]
    pod_affinity: PodAffinity | None
    spread: tuple[TopologySpreadConstraint, ...]
    terminating: bool
    required_features: frozenset[str]
    uncovered: tuple[str, ...]
    ready: bool = False
    claims: tuple[PodVolumeClaim, ...] = ()
    disks: tuple[Disk, ...] = ()
    mounts: tuple[CsiVolume, ...] = ()
    device_claims: tuple[PodResourceClaim, ...] = ()
    extended: tuple[ExtendedResourceRequest, ...] = ()
    group_references: tuple[GroupReference, ...] = ()
    group: PodGroup | None = None
    group_problem: str | None = None
    too_large: str = ""
    dropped: frozenset[str] = frozenset()
    host_port_numbers: tuple[HostPortNumbers, ...] = ()

    @property
    def full_name(self) -> str:
        """`namespace/name`, as in events."""
        return f"{self.namespace}/{self.name}"


def differ_in_readiness_alone(before: Pod, after: Pod) -> bool:
    return before.ready != after.ready and replace(before, ready=after.ready) == after


def have_equal_totals(before: Pod, after: Pod) -> bool:
    """Whether the totals of a node and of a namespace are the same with either: for a pod whose labels changed, for example. The
    API server adds labels of the node to each pod that it binds."""
    return (
        before.requests == after.requests
        and before.scoring_requests_placed == after.scoring_requests_placed
        and before.priority == after.priority
        and before.namespace == after.namespace
        and before.claims == after.claims
        and before.disks == after.disks
        and before.host_ports == after.host_ports
        and before.host_port_numbers == after.host_port_numbers
    )


@dataclass(frozen=True, slots=True)
class Placement:
    """A pod on a node: assumed by this scheduler, or reported by the API server."""

    pod: Pod
    node: NodeName


@dataclass(frozen=True, slots=True)
class QueuedPodInfo:
    """A pod's history in the queue: when it was first added (ns) and how often it was attempted."""

    queued_ns: int
    attempts: int

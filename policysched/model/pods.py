"""Pods as scheduling sees them: the spec, not where the pod runs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from policysched.model.affinity import NodeAffinity, PodAffinity, TopologySpreadConstraint
from policysched.model.identifiers import NodeName, PodUid, ResourceClaimKey, VolumeClaimKey
from policysched.model.nodes import Resources
from policysched.model.storage import CsiVolume, Disk


@dataclass(frozen=True, slots=True)
class Toleration:
    """`effect` and `key` empty match any, as in the API."""

    key: str
    operator: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True)
class HostPort:
    """`ip` is `0.0.0.0` where none is given, `protocol` TCP."""

    ip: str
    protocol: str
    port: int


@dataclass(frozen=True, slots=True)
class PodVolumeClaim:
    """A volume of a pod that is a claim. `owner_pod`: a generic ephemeral volume, whose claim has to be made for this very
    pod; None for a claim that stands by itself."""

    claim: VolumeClaimKey
    owner_pod: PodUid | None


@dataclass(frozen=True, slots=True)
class PodResourceClaim:
    """A claim for devices in the pod's `resourceClaims`. `claim` None: it is yet to be made from its template. `owner_pod`:
    it has to be made for this very pod; None for a claim that stands by itself."""

    claim: ResourceClaimKey | None
    owner_pod: PodUid | None


@dataclass(frozen=True, slots=True)
class ExtendedResourceRequest:
    """What a container asks of a resource that devices may stand for: `container_index` is its place among the init containers and
    the containers after them, `resource_index` that of the resource among all that it requests, by name. `runs_to_completion`: an init container that
    is over before what comes after it starts."""

    container: str
    container_index: int
    runs_to_completion: bool
    resource: str
    resource_index: int
    amount: int


@dataclass(frozen=True, slots=True)
class Pod:
    """What a pod asks for. Not where it is: that is a `Placement`, or what the API says of it in `ObservedPod`.

    `requests` is the effective request as kube-scheduler counts it (init and sidecar containers, overhead, pod-level
    resources), without the `pods` resource. `scoring_requests` is (cpu milli, memory bytes) with the 100m and 200 MiB
    that kube-scheduler assumes for containers that name none, while the pod is being scored; `scoring_requests_placed` is the same
    as it counts once the pod is on a node (only there do pod-level resources count). `images` are normalised names, one a container (init
    containers included, as ImageLocality counts them), `image_volumes` those of volumes. `terminating`: it has a
    deletionTimestamp, and spreading does not count it. `owner_api`, `owner_kind` and `owner_name` are of the owner that
    is its controller ("" without one). `required_features` are what the node's kubelet must have declared to be able to run it. `uncovered` names what the pod uses that no built-in covers.
    `claims` are its volumes with a claim, in their order; `disks` those that pods may not share freely; `mounts` those that
    it names itself and a CSI driver attaches (kinds that were in-tree once). `device_claims` are those for devices, `extended` what it
    asks of resources that device classes may stand for.
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
    claims: tuple[PodVolumeClaim, ...] = ()
    disks: tuple[Disk, ...] = ()
    mounts: tuple[CsiVolume, ...] = ()
    device_claims: tuple[PodResourceClaim, ...] = ()
    extended: tuple[ExtendedResourceRequest, ...] = ()

    @property
    def full_name(self) -> str:
        """`namespace/name`, as events and people write it."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Placement:
    """A pod on a node: promised by us, or reported by the API server."""

    pod: Pod
    node: NodeName


@dataclass(frozen=True, slots=True)
class QueuedPodInfo:
    """What the queue knows of a pod that the API does not: when it first entered (ns), how often it was tried."""

    queued_ns: int
    attempts: int

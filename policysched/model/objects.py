"""Pods, nodes and namespaces as scheduling sees them.

Resources are whole numbers: `cpu` in thousandths of a core, everything else in its base unit (bytes, counts), rounded
up where Kubernetes rounds up. The mappings are never changed after they are made.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, NewType

PodUid = NewType("PodUid", str)
NodeName = NewType("NodeName", str)
Resources = Mapping[str, int]

SelectorOperator = Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
TaintEffect = Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]


@dataclass(frozen=True, slots=True)
class SelectorRequirement:
    """One `matchExpressions` (or `matchFields`) entry."""

    key: str
    operator: SelectorOperator
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """All requirements hold; an empty one matches everything. `matchLabels` are In requirements of one value. The API
    has no Gt and Lt here."""

    requirements: tuple[SelectorRequirement, ...]

    def selects(self, labels: Mapping[str, str]) -> bool:
        """An absent label satisfies NotIn. Source: `labels.Requirement.Matches` in k8s.io/apimachinery."""
        for one in self.requirements:
            found = labels.get(one.key)
            match one.operator:
                case "In":
                    holds = found in one.values
                case "NotIn":
                    holds = found not in one.values
                case "Exists":
                    holds = found is not None
                case "DoesNotExist":
                    holds = found is None
                case "Gt" | "Lt":
                    raise AssertionError(f"a label selector has no operator {one.operator}")
            if not holds:
                return False
        return True


@dataclass(frozen=True, slots=True)
class NodeSelectorTerm:
    """Both lists hold; a term with neither matches nothing."""

    expressions: tuple[SelectorRequirement, ...]
    fields: tuple[SelectorRequirement, ...]


@dataclass(frozen=True, slots=True)
class PreferredSchedulingTerm:
    weight: int
    term: NodeSelectorTerm


@dataclass(frozen=True, slots=True)
class NodeAffinity:
    """`required` None: no requirement; else one of the terms must match."""

    required: tuple[NodeSelectorTerm, ...] | None
    preferred: tuple[PreferredSchedulingTerm, ...]


@dataclass(frozen=True, slots=True)
class Toleration:
    """`effect` and `key` empty match any, as in the API."""

    key: str
    operator: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True)
class Taint:
    key: str
    value: str
    effect: TaintEffect


@dataclass(frozen=True, slots=True)
class HostPort:
    """`ip` is `0.0.0.0` where none is given, `protocol` TCP."""

    ip: str
    protocol: str
    port: int


@dataclass(frozen=True, slots=True)
class PodSelector:
    """Some pods: those in `namespaces`, and in the namespaces whose labels `namespace_selector` matches (None: no more
    of them; without requirements: all), that `label_selector` matches. None as `label_selector` matches nothing."""

    namespaces: tuple[str, ...]
    namespace_selector: LabelSelector | None
    label_selector: LabelSelector | None


@dataclass(frozen=True, slots=True)
class PodAffinityTerm:
    """Pods, and the node label whose equal values make one domain. What matchLabelKeys and mismatchLabelKeys demand
    stands in the selector, as in what the API server stores."""

    pods: PodSelector
    topology_key: str


@dataclass(frozen=True, slots=True)
class WeightedPodAffinityTerm:
    """A preferred term; affinity has weights above 0, anti-affinity the same below."""

    weight: int
    term: PodAffinityTerm


@dataclass(frozen=True, slots=True)
class PodAffinity:
    """`spec.affinity.podAffinity` and `.podAntiAffinity`. `selects_itself`: the labels of all required terms match the
    pod's own, so that it may be the first of its kind."""

    required: tuple[PodAffinityTerm, ...]
    required_anti: tuple[PodAffinityTerm, ...]
    preferred: tuple[WeightedPodAffinityTerm, ...]
    selects_itself: bool


@dataclass(frozen=True, slots=True)
class TopologySpreadConstraint:
    """One of `spec.topologySpreadConstraints`, with the API's defaults filled in. `hard` is DoNotSchedule. The pods that
    are counted are those of the pod's namespace that `label_selector` matches, what matchLabelKeys demand included.
    `honors_affinity`, `honors_taints`: nodes that the pod's nodeSelector and node affinity, or its tolerations, rule
    out are not counted. `selects_itself`: the pod itself would be counted."""

    topology_key: str
    max_skew: int
    min_domains: int
    hard: bool
    label_selector: LabelSelector | None
    honors_affinity: bool
    honors_taints: bool
    selects_itself: bool


class VolumeClaimKey(NamedTuple):
    """A PersistentVolumeClaim's place in the API."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class PodVolumeClaim:
    """A volume of a pod that is a claim. `owner_pod`: a generic ephemeral volume, whose claim has to be made for this very
    pod; None for a claim that stands by itself."""

    claim: VolumeClaimKey
    owner_pod: PodUid | None


@dataclass(frozen=True, slots=True, order=True)
class ResourceClaimKey:
    """A ResourceClaim's place in the API. No tuple, so that it never equals a PersistentVolumeClaim's."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


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


AnyClaim = VolumeClaimKey | ResourceClaimKey

PrebindTarget = str | VolumeClaimKey | ResourceClaimKey
"""What is written before a bind: a volume, by its name, a claim for one, a claim for devices."""


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


Phase = Literal["Pending", "Running", "Succeeded", "Failed", "Unknown"]


@dataclass(frozen=True, slots=True)
class ResourceShortage:
    """Of what a kubelet had too little for a pod: `free` by its own count, in the units of `Node.allocatable`; None where
    it does not say."""

    resource: str
    free: int | None


@dataclass(frozen=True, slots=True)
class KubeletRejection:
    """A kubelet did not take a pod that was bound to its node. `shortage` None: for another reason than room."""

    reason: str
    shortage: ResourceShortage | None


@dataclass(frozen=True, slots=True)
class ContainerEvent:
    """A container was started, or terminated, at `at_ns`. `run_id` names the run: every restart is another. `run_duration_ns`: how long it
    ran, 0 where it has only started; `exit_code` and `reason` are those of the end. `downtime_ns`: from the end of the run before
    to the start of this one, None where none is known. `pod_failed`: the pod as a whole has failed by then.

    `is_pod_event`: no container did anything, it is the pod that failed (evicted, lost with its node, or with its last container)."""

    name: str
    run_id: str
    terminated: bool
    at_ns: int
    exit_code: int = 0
    reason: str = ""
    run_duration_ns: int = 0
    restarts: int = 0
    downtime_ns: int | None = None
    pod_failed: bool = False
    is_pod_event: bool = False


@dataclass(frozen=True, slots=True)
class ObservedPod:
    """A pod as the API server last showed it. `node` None: not bound. `finished` pods hold no room. `started_ns`: when
    the kubelet took it up (None: not yet). `preempted`: a scheduler's preemption is what ends it.
    `rejection`: why its node's kubelet did not take it.

    `version` is the `resourceVersion` of a pod on no node, which a write on it names as the one it goes by; `generation`
    that of its spec (0: the server counts none). `container_events` is what the
    containers did lately. These make no two pods differ."""

    pod: Pod
    node: NodeName | None
    phase: Phase
    deleting: bool
    nominated_node: NodeName | None
    started_ns: int | None = None
    preempted: bool = False
    rejection: KubeletRejection | None = None
    version: str = field(default="", compare=False)
    generation: int = field(default=0, compare=False)
    container_events: tuple[ContainerEvent, ...] = field(default=(), compare=False)

    @property
    def finished(self) -> bool:
        return self.phase in ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class Placement:
    """A pod on a node: promised by us, or reported by the API server."""

    pod: Pod
    node: NodeName


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
class Node:
    """`allocatable` includes `pods`. `images` maps normalised names to bytes. `ready` is the Ready condition, which
    kube-scheduler's default filters do not look at (taints say it); `conditions` map type to status. `declared_features`
    is what the kubelet says it can do. `csi` and `attachments` come from objects of their own and are put here by the
    `ClusterCache`."""

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
    """Custom resources that bear the node's name, as JSON, by what the operator calls their kind. The cache puts them here."""
    csi: CsiNode | None = None
    attachments: frozenset[CsiAttachment] = frozenset()


@dataclass(frozen=True, slots=True)
class Namespace:
    name: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class DisruptionBudget:
    """A PodDisruptionBudget, as far as preemption asks: how many of the selected pods may go now, and the names of
    those that the API server has let go already. `selector` None selects nothing."""

    namespace: str
    name: str
    selector: LabelSelector | None
    disruptions_allowed: int
    disrupted_pods: frozenset[str]


PodSetKind = Literal["Service", "ReplicationController", "ReplicaSet", "StatefulSet"]


@dataclass(frozen=True, slots=True)
class PodSet:
    """A Service or a controller as the pods of its namespace that it selects; `selector` None selects none. Those of
    Services and ReplicationControllers are In requirements of one value, in the order of their keys."""

    kind: PodSetKind
    namespace: str
    name: str
    selector: LabelSelector | None


@dataclass(frozen=True, slots=True)
class QueuedPodInfo:
    """What the queue knows of a pod that the API does not: when it first entered (ns), how often it was tried."""

    queued_ns: int
    attempts: int

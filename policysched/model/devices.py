"""Devices and resource claims: resource.k8s.io/v1.

A driver publishes its devices in ResourceSlices; several slices may form a pool. A DeviceClass selects devices. A
ResourceClaim requests devices, and once it is allocated, its status lists its devices and the pods they are reserved
for. `version` is the object's resourceVersion as a number (0 when read from a file). Amounts are exact. Fields that are
only copied from one object to another stay JSON text.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal, NamedTuple

from policysched.model.identifiers import NodeName, PodUid, ResourceClaimKey
from policysched.model.nodes import Node, node_matches
from policysched.model.selectors import NodeSelectorTerm

NodeSelectorTerms = tuple[NodeSelectorTerm, ...]
Amounts = Mapping[str, Fraction]


class DeviceId(NamedTuple):
    """A device name is unique within its pool, and a pool name within its driver."""

    driver: str
    pool: str
    device: str

    def __str__(self) -> str:
        return f"{self.driver}/{self.pool}/{self.device}"


class PoolId(NamedTuple):
    driver: str
    pool: str

    def __str__(self) -> str:
        return f"{self.driver}/{self.pool}"


# ── devices ─────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class AccessibleNodes:
    """The nodes that can use a device: `node`, all, or those that `terms` select. No field set: none."""

    node: NodeName | None = None
    all_nodes: bool = False
    terms: NodeSelectorTerms | None = None

    def includes(self, node: Node) -> bool:
        if self.node is not None:
            return node.name == self.node
        return self.all_nodes or (self.terms is not None and node_matches(self.terms, node))


@dataclass(frozen=True, slots=True)
class DeviceAttribute:
    """`kind` other: not supported (lists, whose feature gate DRAListTypeAttributes is off)."""

    kind: Literal["string", "int", "bool", "version", "other"]
    value: str | int | bool


@dataclass(frozen=True, slots=True)
class CapacityRequestPolicy:
    """How much of a capacity one request consumes: `default` where it names no amount; else one of `valid_values`, or
    with `has_range` an amount from `range_min` to `range_max` in steps of `range_step`."""

    default: Fraction | None
    valid_values: tuple[Fraction, ...]
    has_range: bool
    range_min: Fraction | None
    range_max: Fraction | None
    range_step: Fraction | None


@dataclass(frozen=True, slots=True)
class DeviceCapacity:
    amount: Fraction
    policy: CapacityRequestPolicy | None


@dataclass(frozen=True, slots=True)
class DeviceTaint:
    key: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True)
class DeviceToleration:
    key: str
    operator: str
    value: str
    effect: str

    def tolerates(self, taint: DeviceTaint) -> bool:
        if self.effect and self.effect != taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        if self.operator in ("", "Equal"):
            return self.value == taint.value
        return self.operator == "Exists"


@dataclass(frozen=True, slots=True)
class CounterConsumption:
    """What a device consumes of a counter set that it shares with others (partitions of one card)."""

    counter_set: str
    counters: Amounts


@dataclass(frozen=True, slots=True)
class Device:
    """`accessible_nodes` None: those of the slice. `shareable`: several claims may share its capacity. Pods are bound
    once all `binding_conditions` are reported, and fail with any of `binding_failure_conditions`. A device that
    `maps_node_resources` stands for cpu, memory or other resources of its node, which is not supported."""

    name: str
    attributes: Mapping[str, DeviceAttribute]
    capacity: Mapping[str, DeviceCapacity]
    consumes_counters: tuple[CounterConsumption, ...] = ()
    accessible_nodes: AccessibleNodes | None = None
    taints: tuple[DeviceTaint, ...] = ()
    binds_to_node: bool = False
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()
    shareable: bool = False
    maps_node_resources: bool = False


@dataclass(frozen=True, slots=True)
class ResourceSlice:
    """`per_device_node_selection`: each device has its own `accessible_nodes`. A slice with `counters` has no devices.
    `slice_count` is the number of slices of the pool in this generation. A slice that is not supported counts as
    missing, so that its pool is incomplete."""

    name: str
    version: int
    pool: PoolId
    generation: int
    slice_count: int
    accessible_nodes: AccessibleNodes
    per_device_node_selection: bool
    devices: tuple[Device, ...]
    counters: Mapping[str, Amounts]
    is_supported: bool = True

    def accessible_nodes_of(self, device: Device) -> AccessibleNodes:
        return (
            (device.accessible_nodes or AccessibleNodes())
            if self.per_device_node_selection
            else self.accessible_nodes
        )


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """`selectors` are CEL expressions (None: an unknown kind); `configs` opaque configurations, as JSON.
    `extended_resource_name`: the resource name by which pods can request its devices, "" without one."""

    name: str
    selectors: tuple[str | None, ...]
    configs: tuple[str, ...]
    extended_resource_name: str
    created_ns: int = 0


# ── claims ────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class ExactDeviceRequest:
    """`name` is that of the request or subrequest. `tolerations_json` is copied into the allocation. `derives_attributes`:
    it has derived attributes, which are not supported."""

    name: str
    class_name: str
    selectors: tuple[str | None, ...]
    mode: str
    count: int
    admin_access: bool
    tolerations: tuple[DeviceToleration, ...]
    tolerations_json: str
    capacity: Amounts
    derives_attributes: bool = False


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """Either `exactly`, or the first satisfiable one of `first_available`. Neither: an unknown kind."""

    name: str
    exactly: ExactDeviceRequest | None
    first_available: tuple[ExactDeviceRequest, ...]


@dataclass(frozen=True, slots=True)
class DeviceConstraint:
    """`attribute` must be equal (`match`) or different (`distinct`) on the devices of these requests (empty: all)."""

    kind: Literal["match", "distinct", "other"]
    requests: frozenset[str]
    attribute: str


@dataclass(frozen=True, slots=True)
class DeviceClaimConfig:
    """An opaque configuration, as JSON, for these requests (empty: all)."""

    requests: tuple[str, ...]
    config: str


@dataclass(frozen=True, slots=True)
class AllocatedDevice:
    """`share_id` identifies the share of a shared device, "" otherwise. `admin_access`: does not count as in use. The
    conditions are copied from the device."""

    request: str
    device: DeviceId
    admin_access: bool = False
    share_id: str = ""
    consumed_capacity: tuple[tuple[str, Fraction], ...] = ()
    tolerations: str = "[]"
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceAllocationConfig:
    source: Literal["FromClass", "FromClaim"]
    requests: tuple[str, ...]
    config: str


@dataclass(frozen=True, slots=True)
class DeviceAllocation:
    """The devices of a claim. `node_selector_terms` select the nodes that can use them (None: all). `allocated_ns` None:
    not written yet, or unknown."""

    devices: tuple[AllocatedDevice, ...]
    configs: tuple[DeviceAllocationConfig, ...]
    node_selector_terms: NodeSelectorTerms | None
    allocated_ns: int | None = field(default=None, compare=False)

    def usable_on(self, node: Node) -> bool:
        return self.node_selector_terms is None or node_matches(self.node_selector_terms, node)

    def same_devices(self, other: "DeviceAllocation") -> bool:
        """Whether both allocate the same devices to the same requests."""
        return [(result.request, result.device) for result in self.devices] == [
            (result.request, result.device) for result in other.devices
        ]


@dataclass(frozen=True, slots=True)
class DeviceCondition:
    type: str
    status: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class DeviceStatus:
    """Conditions of an allocated device, as reported by its driver or a controller."""

    device: DeviceId
    conditions: tuple[DeviceCondition, ...]


@dataclass(frozen=True, slots=True)
class ClaimConsumer:
    """An object (usually a pod) that a claim is reserved for."""

    api_group: str
    resource: str
    name: str
    uid: str


RESERVED_FOR_MAX = 256
"""Consumers of one claim. Source: `ResourceClaimReservedForMaxSize` in k8s.io/api/resource/v1."""


@dataclass(frozen=True, slots=True)
class ResourceClaim:
    """`spec_text` is the spec as text, or a digest of it; claims with equal text have equal requests. `for_extended_resources`:
    created by a scheduler for the extended resources of the pod that owns it; its `uid` is "" while it is only reserved. `finalizers`
    None: very many."""

    key: ResourceClaimKey
    uid: str
    version: int
    deleting: bool
    controller_uid: PodUid | None
    spec_text: str
    requests: tuple[DeviceRequest, ...]
    constraints: tuple[DeviceConstraint, ...]
    configs: tuple[DeviceClaimConfig, ...]
    allocation: DeviceAllocation | None
    reserved_for: tuple[ClaimConsumer, ...]
    finalizers: tuple[str, ...] | None
    for_extended_resources: bool = False
    device_statuses: tuple[DeviceStatus, ...] = ()
    _selectors: tuple[str, ...] = field(init=False, repr=False, compare=False)
    _class_names: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        asks = [
            ask
            for request in self.requests
            for ask in (*([request.exactly] if request.exactly else ()), *request.first_available)
        ]
        selectors = dict.fromkeys(selector for ask in asks for selector in ask.selectors)
        object.__setattr__(self, "_selectors", tuple(each for each in selectors if each is not None))
        object.__setattr__(self, "_class_names", tuple(dict.fromkeys(ask.class_name for ask in asks)))

    @property
    def selectors(self) -> tuple[str, ...]:
        """The distinct CEL selectors of all its requests: up to 8,192."""
        return self._selectors

    @property
    def class_names(self) -> tuple[str, ...]:
        """The distinct device classes of its requests."""
        return self._class_names

    def is_reserved_for(self, pod: PodUid) -> bool:
        return any(consumer.uid == pod for consumer in self.reserved_for)


@dataclass(frozen=True, slots=True)
class DeviceTaintRule:
    """Taints the devices of this driver, pool and name; None: any. Without a selector (`selects` False) none."""

    name: str
    taint: DeviceTaint
    selects: bool
    driver: str | None = None
    pool: str | None = None
    device: str | None = None


DeviceObject = ResourceClaim | ResourceSlice | DeviceClass | DeviceTaintRule
DeviceKind = Literal["ResourceClaim", "ResourceSlice", "DeviceClass", "DeviceTaintRule"]

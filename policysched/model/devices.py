"""Devices that drivers offer and the claims that ask for them, as typed values: resource.k8s.io/v1.

A driver publishes its devices in ResourceSlices, several of which may make up a pool; a DeviceClass names kinds of
them; a ResourceClaim asks for some, and once it is allocated its status says which it has, and for whom they are
reserved. `version` is the object's resourceVersion as a number (0 in a file). Amounts are exact. What is only copied
from one object into another stays JSON text.
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
    """A device's place: its name is its own within the pool, and the pool's within the driver."""

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


# ── what drivers offer ─────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class AccessibleNodes:
    """Which nodes can use a device: the one of this name, all, or those that `node_selector_terms` select. Nothing said: none."""

    node: NodeName | None = None
    all_nodes: bool = False
    terms: NodeSelectorTerms | None = None

    def includes(self, node: Node) -> bool:
        if self.node is not None:
            return node.name == self.node
        return self.all_nodes or (self.terms is not None and node_matches(self.terms, node))


@dataclass(frozen=True, slots=True)
class DeviceAttribute:
    """`kind` other: of a kind that is not read (lists, whose feature gate DRAListTypeAttributes is off)."""

    kind: Literal["string", "int", "bool", "version", "other"]
    value: str | int | bool


@dataclass(frozen=True, slots=True)
class CapacityRequestPolicy:
    """How much of a capacity one request takes: `default` where it does not say; else one of `valid_values`, or between `range_min`
    and `range_max` in steps (where there is a `has_range`)."""

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
    """What a device takes of a counter set that it shares with others (partitions of one card)."""

    counter_set: str
    counters: Amounts


@dataclass(frozen=True, slots=True)
class Device:
    """`accessible_nodes` None: the slice's. `shareable`: several claims may have it at a time, each a share of its capacity.
    `binding_conditions`: what a controller reports before pods may be bound to it; one of `binding_failure_conditions`: that it never will."""

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


@dataclass(frozen=True, slots=True)
class ResourceSlice:
    """`per_device_node_selection`: each device says itself which nodes it is for. A slice with `counters` has no devices. `slice_count` is
    how many slices the pool has in this generation."""

    name: str
    version: int
    pool: PoolId
    generation: int
    slice_count: int
    accessible_nodes: AccessibleNodes
    per_device_node_selection: bool
    devices: tuple[Device, ...]
    counters: Mapping[str, Amounts]

    def accessible_nodes_of(self, device: Device) -> AccessibleNodes:
        return (
            (device.accessible_nodes or AccessibleNodes())
            if self.per_device_node_selection
            else self.accessible_nodes
        )


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """`selectors` are CEL (None: of a kind that is not known); `configs` the opaque configurations, as JSON.
    `extended_resource_name`: the name under which pods may ask for its devices in `resources`, "" without one."""

    name: str
    selectors: tuple[str | None, ...]
    configs: tuple[str, ...]
    extended_resource_name: str
    created_ns: int = 0


# ── what claims ask for ────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class ExactDeviceRequest:
    """`name` is the request's, or the subrequest's within it. `tolerations_json` is copied into what is allocated."""

    name: str
    class_name: str
    selectors: tuple[str | None, ...]
    mode: str
    count: int
    admin_access: bool
    tolerations: tuple[DeviceToleration, ...]
    tolerations_json: str
    capacity: Amounts


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """`exactly` what it asks for, or the first of several that can be had. Neither: of a kind that is not known."""

    name: str
    exactly: ExactDeviceRequest | None
    first_available: tuple[ExactDeviceRequest, ...]


@dataclass(frozen=True, slots=True)
class DeviceConstraint:
    """What the devices of these requests (empty: of all) must have in common (`match`) or each its own (`distinct`)."""

    kind: Literal["match", "distinct", "other"]
    requests: frozenset[str]
    attribute: str


@dataclass(frozen=True, slots=True)
class DeviceClaimConfig:
    """Opaque, as JSON, for these requests (empty: for all)."""

    requests: tuple[str, ...]
    config: str


@dataclass(frozen=True, slots=True)
class AllocatedDevice:
    """`share_id` tells those apart who share the device, "" where nobody does. `admin_access`: beside whoever has it.
    The conditions are as the device had them."""

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
    """What a claim has. `node_selector_terms` are the nodes on which it can be used, None: all. `allocated_ns` is since when; None: not written yet,
    or nobody wrote it."""

    devices: tuple[AllocatedDevice, ...]
    configs: tuple[DeviceAllocationConfig, ...]
    node_selector_terms: NodeSelectorTerms | None
    allocated_ns: int | None = field(default=None, compare=False)

    def usable_on(self, node: Node) -> bool:
        return self.node_selector_terms is None or node_matches(self.node_selector_terms, node)

    def same_devices(self, other: "DeviceAllocation") -> bool:
        """What is written in a status says no more than which devices."""
        return [(one.request, one.device) for one in self.devices] == [
            (one.request, one.device) for one in other.devices
        ]


@dataclass(frozen=True, slots=True)
class DeviceCondition:
    type: str
    status: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class DeviceStatus:
    """What a driver or a controller reports of a device that the claim has."""

    device: DeviceId
    conditions: tuple[DeviceCondition, ...]


@dataclass(frozen=True, slots=True)
class ClaimConsumer:
    """For whom a claim is reserved."""

    api_group: str
    resource: str
    name: str
    uid: str


RESERVED_FOR_MAX = 256
"""As many may share a claim. Source: `ResourceClaimReservedForMaxSize` of k8s.io/api/resource/v1."""


@dataclass(frozen=True, slots=True)
class ResourceClaim:
    """`spec_text` is what it asks for as text: claims of equal text ask for the same. `for_extended_resources`: a scheduler made it for the extended
    resources of the pod that controls it; one that is only promised so far has the `uid` ""."""

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
    finalizers: tuple[str, ...]
    for_extended_resources: bool = False
    device_statuses: tuple[DeviceStatus, ...] = ()

    def is_reserved_for(self, pod: PodUid) -> bool:
        return any(one.uid == pod for one in self.reserved_for)


DeviceObject = ResourceClaim | ResourceSlice | DeviceClass
DeviceKind = Literal["ResourceClaim", "ResourceSlice", "DeviceClass"]

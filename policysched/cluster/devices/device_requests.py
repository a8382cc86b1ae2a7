"""Requests of claims before the search: their options, what is wrong with them, and which devices
they select.

Messages are those of kube-scheduler. Source: `allocator_incubating.go` in
k8s.io/dynamic-resource-allocation v0.36.3, `structured/internal/incubating`.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass

from policysched.cluster.devices.capacity import capacity_steps, has_capacity
from policysched.cluster.devices.cel_selectors import CelSelectorError
from policysched.cluster.devices.constraints import ConstraintChecker
from policysched.cluster.devices.device_usage import AllocatedDevices
from policysched.cluster.devices.pools import DevicePool
from policysched.model.devices import (
    DeviceClass,
    DeviceId,
    DeviceRequest,
    ExactDeviceRequest,
    ResourceClaim,
    ResourceSlice,
)
from policysched.model.nodes import Node

RESULTS_MAX = 32
"""Devices of one claim. Source: `AllocationResultsMaxSize` of k8s.io/api/resource/v1."""

CLAIM_PLACEHOLDER = "\0"
"""Stands for the claim's name in the message of a `DeviceSearchFailed`."""

_PARTS_PER_STEP, _PARTS_PER_OPTION = 64, 16

SelectorMatches = Callable[[str, ResourceSlice, int], bool]
"""Whether a CEL expression selects the device at an index of a slice. May raise CelSelectorError."""


class DeviceSearchFailed(Exception):
    """The search cannot succeed; the message is kube-scheduler's. `claim_index` is the claim that
    replaces `CLAIM_PLACEHOLDER`. `rejects_node_only`: other nodes may be searched. Otherwise the
    attempt stops, as kube-scheduler's does at any error but `ErrFailedAllocationOnNode`."""

    def __init__(
        self, message: str, claim_index: int | None = None, *, rejects_node_only: bool = False
    ) -> None:
        super().__init__(message)
        self.message = message
        self.claim_index = claim_index
        self.rejects_node_only = rejects_node_only


@dataclass(frozen=True, slots=True)
class RequestOption:
    """A request, or one of its alternatives (`parent_request` is then the name of the request).
    `all_devices` are the devices of a request for all devices."""

    request: ExactDeviceRequest
    parent_request: str
    device_class: DeviceClass
    count: int
    all_devices: tuple[tuple[DevicePool, ResourceSlice, int], ...] | None

    @property
    def full_name(self) -> str:
        return f"{self.parent_request}/{self.request.name}" if self.parent_request else self.request.name


class DeviceMatcher:
    """Which devices a node can use for an option, by class, request and node."""

    def __init__(self, node: Node, matches: SelectorMatches) -> None:
        self._node = node
        self._matches = matches
        self._selected: dict[tuple[int, int, int, str, int], bool] = {}

    def is_selected(
        self,
        claim: int,
        request: int,
        alternative: int,
        option: RequestOption,
        resource_slice: ResourceSlice,
        index: int,
    ) -> bool:
        key = claim, request, alternative, resource_slice.name, index
        selected = self._selected.get(key)
        if selected is None:
            device = resource_slice.devices[index]
            selected = self._selected[key] = (
                self._matches_all(
                    claim, option.device_class, option.device_class.selectors, resource_slice, index
                )
                and self._matches_all(claim, None, option.request.selectors, resource_slice, index)
                and (
                    not resource_slice.per_device_node_selection
                    or resource_slice.accessible_nodes_of(device).includes(self._node)
                )
            )
            if selected and device.maps_node_resources:
                message = f"device {DeviceId(*resource_slice.pool, device.name)} has nodeAllocatableResources"
                raise DeviceSearchFailed(f"{message}, which is not supported", rejects_node_only=True)
        return selected

    def _matches_all(
        self,
        claim: int,
        device_class: DeviceClass | None,
        selectors: Sequence[str | None],
        resource_slice: ResourceSlice,
        index: int,
    ) -> bool:
        for number, selector in enumerate(selectors):
            owner = f"claim {CLAIM_PLACEHOLDER}" if device_class is None else f"class {device_class.name}"
            if selector is None:
                raise DeviceSearchFailed(f"{owner}: selector #{number}: unsupported selector type", claim)
            try:
                if not self._matches(selector, resource_slice, index):
                    return False
            except CelSelectorError as error:
                device_id = DeviceId(*resource_slice.pool, resource_slice.devices[index].name)
                location = "" if error.is_compile_error else f" on device {device_id}"
                raise DeviceSearchFailed(f"{owner}: selector #{number}{location}: {error}", claim) from error
        return True


class RequestLoader:
    """Reads claims into options and constraint checkers. `count_steps` is called for each device
    that is looked at, for claims, of which a pod has up to thousands, and for options: a claim has up to 256, with 32 selectors
    each. All are read for each node. It returns whether a piece is over, at which the generators yield."""

    def __init__(
        self,
        pools: Sequence[DevicePool],
        allocated: AllocatedDevices,
        classes: Mapping[str, DeviceClass],
        matcher: DeviceMatcher,
        count_steps: Callable[[int], bool],
    ) -> None:
        self._pools = pools
        self._allocated = allocated
        self._classes = classes
        self._matcher = matcher
        self._count_steps = count_steps
        self._parts = 0

    def load_claim(
        self, index: int, claim: ResourceClaim
    ) -> Generator[None, None, tuple[list[list[RequestOption]], list[ConstraintChecker], int]]:
        """The options of each request, the constraints, and how many devices the claim needs at
        least."""
        if self._count_steps(1 + len(claim.constraints) // 2):
            yield
        options = []
        devices_min = 0
        for request_index, request in enumerate(claim.requests):
            of_request = yield from self._options_of(index, request_index, request)
            options.append(of_request)
            added = min(option.count for option in of_request)
            if devices_min + added > RESULTS_MAX:
                message = (
                    f"claim {CLAIM_PLACEHOLDER}, request {request.name}: adding {added} devices exceeds the claim limit of "
                    f"{RESULTS_MAX}, with {devices_min} already accounted for"
                )
                raise DeviceSearchFailed(message, index)
            devices_min += added
        constraints = []
        for number, constraint in enumerate(claim.constraints):
            if constraint.kind == "other":
                message = f"claim {CLAIM_PLACEHOLDER}, constraint #{number}: empty constraint (unsupported constraint type?)"
                raise DeviceSearchFailed(message, index)
            constraints.append(ConstraintChecker(constraint))
        return options, constraints, devices_min

    def _options_of(
        self, claim: int, request_index: int, request: DeviceRequest
    ) -> Generator[None, None, list[RequestOption]]:
        if request.exactly is not None:
            return [(yield from self._option(claim, request_index, 0, request.exactly, ""))]
        if not request.first_available:
            raise DeviceSearchFailed(
                f"resource claim {CLAIM_PLACEHOLDER}, request {request.name}: unknown request type", claim
            )
        options = []
        for alternative, exact_request in enumerate(request.first_available):
            option = yield from self._option(claim, request_index, alternative, exact_request, request.name)
            options.append(option)
        return options

    def _option(
        self, claim: int, request_index: int, alternative: int, request: ExactDeviceRequest, parent: str
    ) -> Generator[None, None, RequestOption]:
        self._parts += _PARTS_PER_OPTION + len(request.selectors)
        self._count_steps(self._parts // _PARTS_PER_STEP)
        self._parts %= _PARTS_PER_STEP
        subject = f"claim {CLAIM_PLACEHOLDER}, request {request.name}"
        if None in request.selectors:
            number = request.selectors.index(None)
            message = f"{subject}, selector #{number}: CEL expression empty (unsupported selector type?)"
            raise DeviceSearchFailed(message, claim)
        if request.derives_attributes:
            message = f"{subject}: cannot handle request with derived attributes, the feature is disabled"
            raise DeviceSearchFailed(message, claim)
        device_class = self._classes.get(request.class_name)
        if device_class is None:
            raise DeviceSearchFailed(
                f"{subject}: could not retrieve device class {request.class_name}", claim
            )
        if request.mode == "ExactCount":
            return RequestOption(request, parent, device_class, request.count, None)
        if request.mode != "All":
            raise DeviceSearchFailed(f"{subject}: unsupported count mode {request.mode}", claim)
        option = RequestOption(request, parent, device_class, 0, None)
        devices = []
        for pool in self._pools:
            if pool.incomplete or pool.invalid:
                state = "being updated" if pool.incomplete else "invalid"
                message = f"{subject}: asks for all devices, but resource pool {pool.id} is currently {state}"
                raise DeviceSearchFailed(message, claim)
            for resource_slice in pool.slices:
                for index, device in enumerate(resource_slice.devices):
                    steps = 1 + len(request.selectors) // 8 + capacity_steps(device, request.capacity)
                    if self._count_steps(steps):
                        yield
                    # What is consumed does not count here: a full device stays, and all cannot be had.
                    if self._matcher.is_selected(
                        claim, request_index, alternative, option, resource_slice, index
                    ) and has_capacity(device, request.capacity, {}):
                        devices.append((pool, resource_slice, index))
        return RequestOption(request, parent, device_class, len(devices), tuple(devices))

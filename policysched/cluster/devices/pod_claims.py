"""Chooses devices for a pod's claims on a node, or says why it cannot: kube-scheduler's
DynamicResources for one node.

A claim is allocated already (and its allocation limits the nodes), or is allocated when the pod
gets its node. Extended resources that a device class provides and the node does not offer need one
more claim, which is created then. Source: `pkg/scheduler/framework/plugins/dynamicresources` of
kubernetes v1.36.3.
"""

from collections.abc import Generator, Hashable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import NamedTuple

from policysched.cluster.devices.allocation import allocation_score, build_allocation, search_result_score
from policysched.cluster.devices.allocator import DeviceSearchResult
from policysched.cluster.devices.availability import AvailableDevices
from policysched.cluster.devices.binding_conditions import has_binding_conditions, is_unbindable
from policysched.cluster.devices.device_overlay import Groups
from policysched.cluster.devices.device_requests import CLAIM_PLACEHOLDER, DeviceSearchFailed
from policysched.cluster.devices.extended_resources import ExtendedResourceMapping, requests_and_mappings
from policysched.cluster.devices.reservations import DeviceChoice
from policysched.model.devices import (
    RESERVED_FOR_MAX,
    DeviceAllocation,
    DeviceRequest,
    ExactDeviceRequest,
    ResourceClaim,
)
from policysched.model.identifiers import ResourceClaimKey
from policysched.model.nodes import Node
from policysched.model.pods import ExtendedResourceRequest, Pod

CANNOT_ALLOCATE_ALL = "cannot allocate all claims"
NOT_AVAILABLE_ON_NODE = "resourceclaim not available on the node"
STALE_EXTENDED_CLAIM = "cannot schedule extended resource claim"
RESOURCE_NOT_OFFERED = "cannot fit resource"


@dataclass(frozen=True, slots=True)
class PodExtendedResources:
    """Extended resources of a pod, of which at least one is provided by a device class.

    `device_classes`: class names by resource. `without_class`: resources that no class provides.
    `has_stale_claim`: the claim of an earlier attempt still exists.
    """

    namespace: str
    requests: tuple[ExtendedResourceRequest, ...]
    device_classes: dict[str, str]
    without_class: tuple[str, ...]
    has_stale_claim: bool
    _claims: dict[frozenset[str], ResourceClaim] = field(default_factory=dict, compare=False)

    def claim_on(self, node: Node) -> ResourceClaim | str | None:
        """The claim to create for the node, which depends on the resources that the node offers
        itself; None if none is needed. Or the reason why the node is infeasible."""
        if self.has_stale_claim:
            return STALE_EXTENDED_CLAIM
        if any(resource not in node.allocatable for resource in self.without_class):
            return RESOURCE_NOT_OFFERED
        return self._claim(
            frozenset(resource for resource in self.device_classes if not node.allocatable.get(resource))
        )

    def _claim(self, resources: frozenset[str]) -> ResourceClaim | None:
        if not resources:
            return None
        claim = self._claims.get(resources)
        if claim is None:
            requests, _ = requests_and_mappings(
                self.requests, {resource: self.device_classes[resource] for resource in resources}
            )
            claim = self._claims[resources] = _claim_to_create(self.namespace, requests)
        return claim

    def mappings_on(self, node: Node) -> tuple[ExtendedResourceMapping, ...]:
        """How the containers use the claim that is created for the node."""
        wanted = {
            resource: name
            for resource, name in self.device_classes.items()
            if not node.allocatable.get(resource)
        }
        return requests_and_mappings(self.requests, wanted)[1]


_PLACEHOLDER_NAME = "<extended-resources>"
"""The name of a claim that is not created yet. Not a valid object name."""
_NAME_LENGTH_MAX = 63
_SUFFIX_BYTES = 5


def _claim_to_create(namespace: str, requests: tuple[DeviceRequest, ...]) -> ResourceClaim:
    return ResourceClaim(
        key=ResourceClaimKey(namespace, _PLACEHOLDER_NAME),
        uid="",
        version=0,
        deleting=False,
        controller_uid=None,
        spec_text=f"extended {requests}",
        requests=requests,
        constraints=(),
        configs=(),
        allocation=None,
        reserved_for=(),
        finalizers=(),
        for_extended_resources=True,
    )


def _with_unique_name(claim: ResourceClaim, pod: Pod, available: AvailableDevices) -> ResourceClaim:
    """The claim to create for this attempt. Its name is never reused, so that a late answer cannot
    refer to another claim."""
    suffix = blake2b(f"{pod.uid} {available.stamp}".encode(), digest_size=_SUFFIX_BYTES).hexdigest()
    base = f"{pod.name}-extended-resources-"[: _NAME_LENGTH_MAX - 2 * _SUFFIX_BYTES]
    return replace(claim, key=ResourceClaimKey(pod.namespace, f"{base}{suffix}"), controller_uid=pod.uid)


@dataclass(frozen=True, slots=True)
class PodResourceClaims:
    """The claims of the pod, each once, in its order. `extended`: its extended resources, if a
    class provides any. `unbindable`: claims whose device binding failed or timed out."""

    claims: tuple[ResourceClaim, ...]
    extended: PodExtendedResources | None = None
    unbindable: frozenset[ResourceClaimKey] = frozenset()

    @property
    def has_alternatives(self) -> bool:
        return any(request.first_available for claim in self.claims for request in claim.requests)

    def has_unallocated(self, available: AvailableDevices) -> bool:
        """Whether devices are searched on some node."""
        return self.extended is not None or any(
            available.allocation(claim.key) is None for claim in self.claims
        )

    @property
    def is_needed(self) -> bool:
        return bool(self.claims) or self.extended is not None


def uses_devices(pod: Pod) -> bool:
    """Whether the pod may use devices. Most pods do not."""
    return bool(pod.device_claims or pod.extended)


def _pod_extended_resources(
    pod: Pod, available: AvailableDevices, *, has_stale_claim: bool
) -> PodExtendedResources | None:
    resources = sorted({request.resource for request in pod.extended})
    class_of = {resource: available.class_of_resource(resource) for resource in resources}
    classes = {
        resource: device_class.name for resource, device_class in class_of.items() if device_class is not None
    }
    if not classes:
        return None
    others = tuple(resource for resource in resources if resource not in classes)
    return PodExtendedResources(pod.namespace, pod.extended, classes, others, has_stale_claim)


def pod_resource_claims(
    pod: Pod, available: AvailableDevices, *, has_stale_claim: bool = False
) -> PodResourceClaims | str:
    """The pod's claims, or the reason why it fits no node. `has_stale_claim`: a claim for its
    extended resources exists already, or may exist."""
    if not pod.device_claims:
        return PodResourceClaims((), _pod_extended_resources(pod, available, has_stale_claim=has_stale_claim))
    if available.unserved_kinds:
        kinds = ", ".join(sorted(available.unserved_kinds))
        return f"the API server does not serve resource.k8s.io/v1 ({kinds}), which the pod's resource claims need"
    claims: dict[str, ResourceClaim] = {}
    for use in pod.device_claims:
        if use.claim is None:
            return f'pod "{pod.namespace}/{pod.name}": ResourceClaim not created yet'
        claim = available.claim(use.claim)
        if claim is None:
            return f'could not find ResourceClaim "{use.claim}"'
        if claim.deleting:
            return f'resourceclaim "{claim.key.name}" is being deleted'
        if use.owner_pod not in (None, claim.controller_uid):
            return f"ResourceClaim {use.claim} was not created for Pod {pod.full_name} (Pod is not owner)"
        claims[claim.key.name] = claim
    for claim in claims.values():
        rejection = _claim_rejection(pod, claim, available)
        if rejection is not None:
            return rejection
    return PodResourceClaims(
        tuple(claims.values()), _pod_extended_resources(pod, available, has_stale_claim=has_stale_claim)
    )


def _claim_rejection(pod: Pod, claim: ResourceClaim, available: AvailableDevices) -> str | None:
    if claim.allocation is not None:
        if not claim.is_reserved_for(pod.uid) and len(claim.reserved_for) >= RESERVED_FOR_MAX:
            return "resourceclaim in use"
        return None
    for request in claim.requests:
        exact_requests: list[tuple[str, ExactDeviceRequest]] = [
            (f"{request.name}/{ask.name}", ask) for ask in request.first_available
        ]
        if request.exactly is not None:
            exact_requests = [(request.name, request.exactly)]
        if not exact_requests:
            return f"resource claim {claim.key}, request {request.name}: unknown request type"
        for name, exact_request in exact_requests:
            if not exact_request.class_name:
                return f"request {name}: unsupported request type"
            if available.device_class(exact_request.class_name) is None:
                return f"request {name}: device class {exact_request.class_name} does not exist"
    return None


ClaimAllocations = tuple[tuple[ResourceClaim, DeviceAllocation | None], ...]


@dataclass(frozen=True, slots=True)
class ClaimsOnNode:
    """The existing allocation of each claim, and the search result for the others, in their order."""

    allocations: ClaimAllocations
    search_result: DeviceSearchResult | None


class DevicesRejection(NamedTuple):
    """Why a node is infeasible, and the claim that replaces `CLAIM_PLACEHOLDER`. `stops_attempt`: an
    error, with which no other node is selected either."""

    message: str
    claim: ResourceClaimKey | None = None
    stops_attempt: bool = False


class ClaimsByNode:
    """The claims of a pod on one node after the other, as long as nothing changes. What is the same on all nodes is read once: a
    pod has hundreds of claims."""

    def __init__(self, devices: PodResourceClaims, available: AvailableDevices) -> None:
        self._devices = devices
        self._available = available
        self._of_all_nodes = _Claims(devices.claims, available)
        self._with_extended: dict[
            str, _Claims
        ] = {}  # by the spec of the claim to create, which many nodes share

    def on(self, node: Node) -> ClaimsOnNode | DevicesRejection:
        """The devices for the claims on the node, or why it is infeasible."""
        claims, extended = self._of_all_nodes, self._devices.extended
        if extended is not None:
            extended_claim = extended.claim_on(node)
            if isinstance(extended_claim, str):
                return DevicesRejection(extended_claim)
            if extended_claim is not None:
                claims = self._beside(extended_claim)
        unallocated = claims.unallocated
        outcome = self._available.find(unallocated, node, claims.specs) if unallocated else None
        if unallocated and outcome is None:
            return DevicesRejection(CANNOT_ALLOCATE_ALL)
        if isinstance(outcome, DeviceSearchFailed):
            claim_key = None if outcome.claim_index is None else unallocated[outcome.claim_index].key
            return DevicesRejection(outcome.message, claim_key, not outcome.rejects_node_only)
        if self._devices.unbindable or not all(
            allocation.usable_on(node) for allocation in claims.by_terms.values()
        ):
            return DevicesRejection(NOT_AVAILABLE_ON_NODE)
        return ClaimsOnNode(claims.allocations, outcome)

    def _beside(self, extended_claim: ResourceClaim) -> "_Claims":
        known = self._with_extended.get(extended_claim.spec_text)
        if known is None:
            known = _Claims((*self._devices.claims, extended_claim), self._available)
            self._with_extended[extended_claim.spec_text] = known
        return known

    def groups(self, nodes: Sequence[Node | None]) -> Generator[None, None, Groups]:
        """The positions of the nodes, together where `on` has the same result on an overlay. Yields for each node that is looked
        at."""
        claims = self._of_all_nodes
        if self._devices.extended is not None or claims.by_terms:  # they depend on the node itself
            return [(position,) for position, node in enumerate(nodes) if node is not None]
        return (yield from self._available.groups(claims.unallocated, nodes, claims.specs))

    def rejection(self, node: Node) -> DevicesRejection | None:
        """Why the node is infeasible, and the claim that the message names; None if it is feasible."""
        outcome = self.on(node)
        return None if isinstance(outcome, ClaimsOnNode) else outcome

    def evaluate(self, node: Node) -> ClaimsOnNode | str:
        """The devices for the claims on the node, or the reason why the node is infeasible."""
        outcome = self.on(node)
        if isinstance(outcome, ClaimsOnNode):
            return outcome
        return fill_claim_name(outcome.message, outcome.claim)

    def attempt_error(self, node: Node) -> str | None:
        """The error of the node that stops the attempt, if there is one."""
        rejection = self.rejection(node)
        if rejection is None or not rejection.stops_attempt:
            return None
        return fill_claim_name(rejection.message, rejection.claim)

    def score(self, node: Node) -> int:
        """Higher for alternatives earlier in their lists. 0 if the node is infeasible, or if all claims
        are allocated already."""
        outcome = self.on(node)
        if isinstance(outcome, DevicesRejection) or outcome.search_result is None:
            return 0
        of_allocated = self._of_all_nodes.score  # what is created for extended resources is not allocated
        return search_result_score(outcome.search_result) + of_allocated


class _Claims:
    """Some claims: their allocations, one for each terms that select nodes, and the score of all; claims without an allocation, and
    their specs."""

    def __init__(self, claims: Sequence[ResourceClaim], available: AvailableDevices) -> None:
        self.allocations = tuple([(claim, available.allocation(claim.key)) for claim in claims])
        self.unallocated = tuple([claim for claim, allocation in self.allocations if allocation is None])
        self.specs = tuple([claim.spec_text for claim in self.unallocated])
        allocated = [(claim, allocation) for claim, allocation in self.allocations if allocation is not None]
        self.by_terms = {allocation.node_selector_terms: allocation for _, allocation in allocated}
        self.score = sum(allocation_score(claim, allocation) for claim, allocation in allocated)


def fill_claim_name(message: str, claim: ResourceClaimKey | None) -> str:
    return message if claim is None else message.replace(CLAIM_PLACEHOLDER, str(claim))


def node_independent_key(devices: PodResourceClaims, available: AvailableDevices) -> Hashable | None:
    """A key of everything but the node that the result depends on. None if that includes the
    allocation of a claim."""
    if devices.unbindable or any(available.allocation(claim.key) is not None for claim in devices.claims):
        return None
    extended = devices.extended
    requested = (
        ()
        if extended is None
        else (
            extended.requests,
            tuple(extended.device_classes.items()),
            extended.without_class,
            extended.has_stale_claim,
        )
    )
    return tuple([claim.spec_text for claim in devices.claims]), requested


def claim_index(devices: PodResourceClaims, key: ResourceClaimKey) -> int:
    """The index of the claim; the claim to create comes last."""
    return next((at for at, claim in enumerate(devices.claims) if claim.key == key), len(devices.claims))


def claim_key_at(devices: PodResourceClaims, index: int) -> ResourceClaimKey:
    """The key of the claim at that index."""
    if index < len(devices.claims):
        return devices.claims[index].key
    assert devices.extended is not None, f"{devices} has no claim {index}"
    return ResourceClaimKey(devices.extended.namespace, _PLACEHOLDER_NAME)


def choose_devices(
    pod: Pod, devices: PodResourceClaims, node: Node, available: AvailableDevices
) -> DeviceChoice | str:
    """What the claims need on the node, or the reason why the node is infeasible."""
    outcome = ClaimsByNode(devices, available).evaluate(node)
    if isinstance(outcome, str):
        return outcome
    allocated, reserved, awaited, search_index = [], [], [], 0
    mapped: tuple[ExtendedResourceMapping, ...] = ()
    for claim, allocation in outcome.allocations:
        if allocation is None:
            assert outcome.search_result is not None, f"no devices were searched for {claim.key}"
            if not claim.uid:
                assert devices.extended is not None, f"{claim.key} has no extended resources"
                claim, mapped = _with_unique_name(claim, pod, available), devices.extended.mappings_on(node)
            allocation = build_allocation(outcome.search_result, search_index, claim, node)
            search_index += 1
        if claim.allocation is None:
            allocated.append((claim, allocation))
        elif not available.is_reserved_for(claim, pod.uid):
            reserved.append(claim)
        if has_binding_conditions(allocation):
            awaited.append(claim.key)
    found = outcome.search_result
    return DeviceChoice(tuple(allocated), tuple(reserved), mapped, tuple(awaited), found)


def unbindable_claims(devices: PodResourceClaims, now_ns: int, timeout_s: int) -> frozenset[ResourceClaimKey]:
    """Claims whose device binding failed or timed out."""
    return frozenset(claim.key for claim in devices.claims if is_unbindable(claim, now_ns, timeout_s))


def claim_to_deallocate(pod: Pod, devices: PodResourceClaims) -> ResourceClaim | None:
    """For a pod that fits no node: a claim used by no other pod, to be allocated again elsewhere.
    Unbindable claims come first."""
    for claim in sorted(devices.claims, key=lambda candidate: candidate.key not in devices.unbindable):
        others = [consumer for consumer in claim.reserved_for if consumer.uid != pod.uid]
        if claim.allocation is None or others:
            continue
        if claim.allocation.node_selector_terms is not None or claim.key in devices.unbindable:
            return claim
    return None

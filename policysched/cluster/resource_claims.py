"""What a pod's resource claims need on a node, and why there is none of it: kube-scheduler's DynamicResources for one node.

A claim has its devices already (and says on which nodes they can be used), or gets them when the pod gets its node.
Source: `pkg/scheduler/framework/plugins/dynamicresources` of kubernetes v1.36.3.
"""

from dataclasses import dataclass

from policysched.cluster.device_allocation import allocation, preference, preference_found
from policysched.cluster.device_objects import RESERVED_FOR_MAX, Allocation, Ask, ResourceClaim
from policysched.cluster.device_search import CLAIM, Found, SearchFailed
from policysched.cluster.devices import DeviceChoice, DeviceStock
from policysched.cluster.objects import Node, Pod

NOT_ALL = "cannot allocate all claims"
NOT_HERE = "resourceclaim not available on the node"


@dataclass(frozen=True, slots=True)
class PodDevices:
    """The pod's claims, each once, in its order."""

    claims: tuple[ResourceClaim, ...]

    @property
    def have_alternatives(self) -> bool:
        return any(request.first_available for claim in self.claims for request in claim.requests)


def devices_of(pod: Pod, stock: DeviceStock) -> PodDevices | str:
    """The pod's claims, or why there is no sense in looking at any node."""
    if stock.absent:
        kinds = ", ".join(sorted(stock.absent))
        return f"the API server does not serve resource.k8s.io/v1 ({kinds}), which the pod's resource claims need"
    found: dict[str, ResourceClaim] = {}
    for use in pod.device_claims:
        if use.claim is None:
            return f'pod "{pod.namespace}/{pod.name}": ResourceClaim not created yet'
        claim = stock.claim(use.claim)
        if claim is None:
            return f'could not find ResourceClaim "{use.claim}"'
        if claim.deleting:
            return f'resourceclaim "{claim.key.name}" is being deleted'
        if use.made_for not in (None, claim.controller_uid):
            return f"ResourceClaim {use.claim} was not created for Pod {pod.full_name} (Pod is not owner)"
        found[claim.key.name] = claim
    for claim in found.values():
        refusal = _unusable(pod, claim, stock)
        if refusal is not None:
            return refusal
    return PodDevices(tuple(found.values()))


def _unusable(pod: Pod, claim: ResourceClaim, stock: DeviceStock) -> str | None:
    if claim.allocation is not None:
        if any(one.binding_conditions for one in claim.allocation.devices):
            return f"resource claim {claim.key} has devices with bindingConditions, which this version does not cover"
        if not claim.is_reserved_for(pod.uid) and len(claim.reserved_for) >= RESERVED_FOR_MAX:
            return "resourceclaim in use"
        return None
    for request in claim.requests:
        asks: list[tuple[str, Ask]] = [(f"{request.name}/{ask.name}", ask) for ask in request.first_available]
        if request.exactly is not None:
            asks = [(request.name, request.exactly)]
        if not asks:
            return f"resource claim {claim.key}, request {request.name}: unknown request type"
        for name, ask in asks:
            if not ask.class_name:
                return f"request {name}: unsupported request type"
            if stock.device_class(ask.class_name) is None:
                return f"request {name}: device class {ask.class_name} does not exist"
    return None


Given = tuple[tuple[ResourceClaim, Allocation | None], ...]


@dataclass(frozen=True, slots=True)
class OnNode:
    """What a node has for the pod: what each claim has already, and what is found for the others (in their order)."""

    given: Given
    found: Found | None


def look(devices: PodDevices, node: Node, stock: DeviceStock) -> OnNode | str:
    """What the node has for the claims, or the reason why it cannot be it."""
    given = tuple((claim, stock.allocation(claim.key)) for claim in devices.claims)
    unallocated = [claim for claim, known in given if known is None]
    outcome = stock.find(unallocated, node) if unallocated else None
    if unallocated and outcome is None:
        return NOT_ALL
    if isinstance(outcome, SearchFailed):
        if outcome.claim is None:
            return outcome.words
        return outcome.words.replace(CLAIM, str(unallocated[outcome.claim].key))
    if any(known is not None and not known.usable_on(node) for _, known in given):
        return NOT_HERE
    return OnNode(given, outcome)


def preference_on(devices: PodDevices, node: Node, stock: DeviceStock) -> int:
    """The more, the earlier the alternatives that the claims get there stand in their lists; 0 where the node is none."""
    seen = look(devices, node, stock)
    if isinstance(seen, str):
        return 0
    found = 0 if seen.found is None else preference_found(seen.found)
    return found + sum(preference(claim, known) for claim, known in seen.given if known is not None)


def choice_on(pod: Pod, devices: PodDevices, node: Node, stock: DeviceStock) -> DeviceChoice | str:
    """What has to happen to the claims if the pod goes to the node, or the reason why it cannot."""
    seen = look(devices, node, stock)
    if isinstance(seen, str):
        return seen
    allocated, reserved, place = [], [], 0
    for claim, known in seen.given:
        if known is None:
            assert seen.found is not None, f"{claim.key} has nothing"
            known = allocation(seen.found, place, claim, node)
            place += 1
        if claim.allocation is None:
            allocated.append((claim, known))
        elif not claim.is_reserved_for(pod.uid):
            reserved.append(claim)
    return DeviceChoice(tuple(allocated), tuple(reserved))


def unusable_claim(pod: Pod, devices: PodDevices) -> ResourceClaim | None:
    """Of a pod that finds no node: a claim whose devices nobody but this pod uses, so that it may be given others."""
    for claim in devices.claims:
        others = [one for one in claim.reserved_for if one.uid != pod.uid]
        if claim.allocation is not None and claim.allocation.terms is not None and not others:
            return claim
    return None

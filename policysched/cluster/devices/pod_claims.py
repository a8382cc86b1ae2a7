"""What a pod's resource claims need on a node, and why there is none of it: kube-scheduler's DynamicResources for one node.

A claim has its devices already (and says on which nodes they can be used), or gets them when the pod gets its node.
For extended resources that a device class gives, and the node itself does not, there is one claim more, which is made then.
Source: `pkg/scheduler/framework/plugins/dynamicresources` of kubernetes v1.36.3.
"""

from collections.abc import Collection, Hashable
from dataclasses import dataclass, field, replace
from hashlib import blake2b

from policysched.cluster.devices.allocation import allocation, preference, preference_found
from policysched.cluster.devices.allocator import CLAIM, Found, SearchFailed
from policysched.cluster.devices.availability import DeviceStock
from policysched.cluster.devices.binding_conditions import is_awaited, is_lost
from policysched.cluster.devices.extended_resources import Mapped, requests_for
from policysched.cluster.devices.reservations import DeviceChoice
from policysched.model.devices import (
    RESERVED_FOR_MAX,
    Allocation,
    Ask,
    DeviceRequest,
    ResourceClaim,
)
from policysched.model.objects import ExtendedRequest, Node, Pod, ResourceClaimKey

NOT_ALL = "cannot allocate all claims"
NOT_HERE = "resourceclaim not available on the node"
LEFT_OVER = "cannot schedule extended resource claim"
NOBODY_GIVES = "cannot fit resource"


@dataclass(frozen=True, slots=True)
class Extended:
    """What of the extended resources that a pod asks for device classes give (`classes`, by resource: some), and what none does
    (`others`). `left_over`: a claim of an earlier attempt is still there."""

    namespace: str
    asked: tuple[ExtendedRequest, ...]
    classes: dict[str, str]
    others: tuple[str, ...]
    left_over: bool
    _claims: dict[frozenset[str], ResourceClaim] = field(default_factory=dict, compare=False)

    def on(self, node: Node) -> ResourceClaim | str | None:
        """The claim that there would be for the node, which differs by what the node offers itself; None: no need of one.
        Or why the node cannot be it."""
        if self.left_over:
            return LEFT_OVER
        if any(one not in node.allocatable for one in self.others):
            return NOBODY_GIVES
        return self._claim(frozenset(one for one in self.classes if not node.allocatable.get(one)))

    def _claim(self, resources: frozenset[str]) -> ResourceClaim | None:
        if not resources:
            return None
        found = self._claims.get(resources)
        if found is None:
            requests, _ = requests_for(self.asked, {one: self.classes[one] for one in resources})
            found = self._claims[resources] = _unmade(self.namespace, requests)
        return found

    def mapped(self, node: Node) -> tuple[Mapped, ...]:
        """How the containers use the claim that is made for the node."""
        wanted = {one: name for one, name in self.classes.items() if not node.allocatable.get(one)}
        return requests_for(self.asked, wanted)[1]


_NO_NAME = "<extended-resources>"
"""Of a claim that is not made yet: no claim can have it."""
_NAME_LONGEST = 63
_MARK_BYTES = 5


def _unmade(namespace: str, requests: tuple[DeviceRequest, ...]) -> ResourceClaim:
    return ResourceClaim(
        key=ResourceClaimKey(namespace, _NO_NAME),
        uid="",
        version=0,
        deleting=False,
        controller_uid=None,
        spec=f"extended {requests}",
        requests=requests,
        constraints=(),
        configs=(),
        allocation=None,
        reserved_for=(),
        finalizers=(),
        extended=True,
    )


def _named(claim: ResourceClaim, pod: Pod, stock: DeviceStock) -> ResourceClaim:
    """As it is to be made for this pod, this time: a name that was never used means that a late answer means nobody else."""
    mark = blake2b(f"{pod.uid} {stock.stamp}".encode(), digest_size=_MARK_BYTES).hexdigest()
    base = f"{pod.name}-extended-resources-"[: _NAME_LONGEST - 2 * _MARK_BYTES]
    return replace(claim, key=ResourceClaimKey(pod.namespace, f"{base}{mark}"), controller_uid=pod.uid)


@dataclass(frozen=True, slots=True)
class PodDevices:
    """The pod's claims, each once, in its order, and what it asks of extended resources (None: of none that a class gives). `lost` are
    claims whose devices could not be bound in time, or at all."""

    claims: tuple[ResourceClaim, ...]
    extended: Extended | None = None
    lost: frozenset[ResourceClaimKey] = frozenset()

    @property
    def have_alternatives(self) -> bool:
        return any(request.first_available for claim in self.claims for request in claim.requests)

    @property
    def there_are_some(self) -> bool:
        return bool(self.claims) or self.extended is not None


def uses_devices(pod: Pod) -> bool:
    """Whether it may: for most pods nothing of this is looked at."""
    return bool(pod.device_claims or pod.extended)


def _extended(pod: Pod, stock: DeviceStock, *, left_over: bool) -> Extended | None:
    resources = sorted({one.resource for one in pod.extended})
    found = {one: stock.class_of(one) for one in resources}
    classes = {one: given.name for one, given in found.items() if given is not None}
    if not classes:
        return None
    others = tuple(one for one in resources if one not in classes)
    return Extended(pod.namespace, pod.extended, classes, others, left_over)


def devices_of(pod: Pod, stock: DeviceStock, *, left_over: bool = False) -> PodDevices | str:
    """The pod's claims, or why there is no sense in looking at any node. `left_over`: one that was made for its extended resources
    is there already, or may be."""
    if not pod.device_claims:
        return PodDevices((), _extended(pod, stock, left_over=left_over))
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
    return PodDevices(tuple(found.values()), _extended(pod, stock, left_over=left_over))


def _unusable(pod: Pod, claim: ResourceClaim, stock: DeviceStock) -> str | None:
    if claim.allocation is not None:
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
    found = _look(devices, node, stock)
    if isinstance(found, OnNode):
        return found
    return told(found[0], found[1])


def told(words: str, about: ResourceClaimKey | None) -> str:
    return words if about is None else words.replace(CLAIM, str(about))


def same_for_all(devices: PodDevices, stock: DeviceStock) -> Hashable | None:
    """What a node's answer depends on besides the node itself; None where that is more: what one of the claims has."""
    if devices.lost or any(stock.allocation(one.key) is not None for one in devices.claims):
        return None
    more = devices.extended
    asked = () if more is None else (more.asked, tuple(more.classes.items()), more.others, more.left_over)
    return tuple([one.spec for one in devices.claims]), asked


def place_of(devices: PodDevices, about: ResourceClaimKey) -> int:
    """The claim's place among those that the pod has, or would have."""
    return next((at for at, one in enumerate(devices.claims) if one.key == about), len(devices.claims))


def key_at(devices: PodDevices, place: int) -> ResourceClaimKey:
    """The claim at that place."""
    if place < len(devices.claims):
        return devices.claims[place].key
    assert devices.extended is not None, f"{devices} has no claim {place}"
    return ResourceClaimKey(devices.extended.namespace, _NO_NAME)


def refusal(
    devices: PodDevices, node: Node, stock: DeviceStock
) -> tuple[str, ResourceClaimKey | None] | None:
    """Why the node cannot be it, and about which claim that is said; None: it can."""
    found = _look(devices, node, stock)
    return None if isinstance(found, OnNode) else found


def _look(
    devices: PodDevices, node: Node, stock: DeviceStock
) -> OnNode | tuple[str, ResourceClaimKey | None]:
    claims: Collection[ResourceClaim] = devices.claims
    if devices.extended is not None:
        more = devices.extended.on(node)
        if isinstance(more, str):
            return more, None
        claims = claims if more is None else (*claims, more)
    given = tuple((claim, stock.allocation(claim.key)) for claim in claims)
    unallocated = [claim for claim, known in given if known is None]
    outcome = stock.find(unallocated, node) if unallocated else None
    if unallocated and outcome is None:
        return NOT_ALL, None
    if isinstance(outcome, SearchFailed):
        about = None if outcome.claim is None else unallocated[outcome.claim].key
        return outcome.words, about
    if devices.lost or any(known is not None and not known.usable_on(node) for _, known in given):
        return NOT_HERE, None
    return OnNode(given, outcome)


def preference_on(devices: PodDevices, node: Node, stock: DeviceStock) -> int:
    """The more, the earlier the alternatives that the claims get there, or have, stand in their lists; 0 where the node is none, and
    where all have their devices already."""
    seen = look(devices, node, stock)
    if isinstance(seen, str) or seen.found is None:
        return 0
    return preference_found(seen.found) + sum(
        preference(claim, known) for claim, known in seen.given if known is not None
    )


def choice_on(pod: Pod, devices: PodDevices, node: Node, stock: DeviceStock) -> DeviceChoice | str:
    """What has to happen to the claims if the pod goes to the node, or the reason why it cannot."""
    seen = look(devices, node, stock)
    if isinstance(seen, str):
        return seen
    allocated, reserved, awaited, place = [], [], [], 0
    mapped: tuple[Mapped, ...] = ()
    for claim, known in seen.given:
        if known is None:
            assert seen.found is not None, f"{claim.key} has nothing"
            if not claim.uid:
                assert devices.extended is not None, f"{claim.key} is for nothing"
                claim, mapped = _named(claim, pod, stock), devices.extended.mapped(node)
            known = allocation(seen.found, place, claim, node)
            place += 1
        if claim.allocation is None:
            allocated.append((claim, known))
        elif not claim.is_reserved_for(pod.uid):
            reserved.append(claim)
        if is_awaited(known):
            awaited.append(claim.key)
    return DeviceChoice(tuple(allocated), tuple(reserved), mapped, tuple(awaited))


def lost_claims(devices: PodDevices, now_ns: int, timeout_s: int) -> frozenset[ResourceClaimKey]:
    """Those whose devices could not be bound in time, or at all."""
    return frozenset(claim.key for claim in devices.claims if is_lost(claim, now_ns, timeout_s))


def unusable_claim(pod: Pod, devices: PodDevices) -> ResourceClaim | None:
    """Of a pod that finds no node: a claim whose devices nobody but this pod uses, so that it may be given others. First one whose
    devices cannot be bound."""
    for claim in sorted(devices.claims, key=lambda one: one.key not in devices.lost):
        others = [one for one in claim.reserved_for if one.uid != pod.uid]
        if claim.allocation is None or others:
            continue
        if claim.allocation.terms is not None or claim.key in devices.lost:
            return claim
    return None

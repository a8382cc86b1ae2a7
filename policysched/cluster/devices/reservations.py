"""Reservations of devices, from the assume of a pod until the watch shows the allocation in the
claim's status.

unallocated ──reserve (a pod is assumed)──► reserved ──mark_written──► written ──the watch shows it──► dropped
    ▲                                          │ unreserve, or another claim with the same name
    └──────────────────────────────────────────┘
"""

from dataclasses import dataclass, field, replace

from policysched.cluster.devices.allocator import DeviceSearchResult
from policysched.cluster.devices.extended_resources import ExtendedResourceMapping
from policysched.model.devices import DeviceAllocation, ResourceClaim
from policysched.model.identifiers import PodUid, ResourceClaimKey

DeviceWrite = tuple[PodUid, int]
"""A pod and its attempt of PreBind. A pod that leaves and comes back has several."""


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """What a pod's claims need on its node. False if nothing.

    `allocated`: claims to allocate, with their allocations; one may have to be created first, for
    extended resources. `reserved`: allocated claims to reserve for the pod.
    `extended_resource_mappings`: how the containers use the created claim. `awaiting_binding`:
    claims whose devices must be bound before the pod is. `found`: what the search found for the claims
    without an allocation.
    """

    allocated: tuple[tuple[ResourceClaim, DeviceAllocation], ...] = ()
    reserved: tuple[ResourceClaim, ...] = ()
    extended_resource_mappings: tuple[ExtendedResourceMapping, ...] = ()
    awaiting_binding: tuple[ResourceClaimKey, ...] = ()
    found: DeviceSearchResult | None = field(default=None, compare=False, repr=False)

    def __bool__(self) -> bool:
        return bool(self.allocated or self.reserved or self.awaiting_binding)

    @property
    def claim_to_create(self) -> tuple[ResourceClaim, DeviceAllocation] | None:
        """The claim for extended resources that does not exist yet."""
        return next((entry for entry in self.allocated if not entry[0].uid), None)


@dataclass(frozen=True, slots=True)
class DeviceReservation:
    """An allocation that is reserved for a claim.

    `writes`: what is not answered yet, of all pods that share the claim. `written_version`: the
    latest version that an answer reports; None without an answer. `uid` is "" for a claim to create
    for one pod: its reservation lasts until the watch shows the claim or it is deleted.
    """

    writes: frozenset[DeviceWrite]
    uid: str
    allocation: DeviceAllocation
    written_version: int | None = None

    def is_superseded(self, claim: ResourceClaim) -> bool:
        if not self.uid:
            return claim.allocation is not None or (
                self.written_version is not None and claim.version >= self.written_version
            )
        if claim.uid != self.uid:
            return True
        if self.writes:
            return False
        return self.written_version is None or claim.version >= self.written_version

    def with_write_answered(self, write: DeviceWrite, version: int | None) -> "DeviceReservation":
        versions = [written for written in (self.written_version, version) if written is not None]
        return replace(self, writes=self.writes - {write}, written_version=max(versions, default=None))

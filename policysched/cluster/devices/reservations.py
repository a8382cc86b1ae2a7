"""Devices that a pod is to get: chosen for it on its node, and promised to it until they are its own.

asked for ──promise (a pod is assumed)──► promised ──written──► the watch shows it: the claim itself says so
    ▲                                        │ release, or the claim is another
    └────────────────────────────────────────┘
"""

from dataclasses import dataclass, replace

from policysched.cluster.devices.extended_resources import ExtendedResourceMapping
from policysched.model.devices import DeviceAllocation, ResourceClaim
from policysched.model.identifiers import PodUid, ResourceClaimKey


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """What has to happen to a pod's claims on its node: those that get `allocated` (with what), and those that have their
    devices and get `reserved` for it besides. Empty: nothing. One of the allocated may have to be made first, for the pod's
    extended resources; `extended_resource_mappings` says how its containers use it. `awaiting_binding` are those whose devices have to be bound before the pod
    is."""

    allocated: tuple[tuple[ResourceClaim, DeviceAllocation], ...] = ()
    reserved: tuple[ResourceClaim, ...] = ()
    extended_resource_mappings: tuple[ExtendedResourceMapping, ...] = ()
    awaiting_binding: tuple[ResourceClaimKey, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.allocated or self.reserved or self.awaiting_binding)

    @property
    def claim_to_create(self) -> tuple[ResourceClaim, DeviceAllocation] | None:
        """The claim that is not there yet."""
        return next((entry for entry in self.allocated if not entry[0].uid), None)


@dataclass(frozen=True, slots=True)
class DeviceReservation:
    """`pods` are those whose writes are not answered yet: several may share the claim. `written_version`: the youngest version that an
    answer says it stands in; None: no answer does. `uid` "": the claim is yet to be made, for one pod, and the promise lasts
    until it is shown or gone."""

    pods: frozenset[PodUid]
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
        if self.pods:
            return False
        return self.written_version is None or claim.version >= self.written_version

    def with_write_answered(self, pod: PodUid, version: int | None) -> "DeviceReservation":
        known = [written for written in (self.written_version, version) if written is not None]
        return replace(self, pods=self.pods - {pod}, written_version=max(known, default=None))

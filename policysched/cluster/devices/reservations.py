"""Devices that a pod is to get: chosen for it on its node, and promised to it until they are its own.

asked for ──promise (a pod is assumed)──► promised ──written──► the watch shows it: the claim itself says so
    ▲                                        │ release, or the claim is another
    └────────────────────────────────────────┘
"""

from dataclasses import dataclass, replace

from policysched.cluster.devices.extended_resources import Mapped
from policysched.model.devices import Allocation, ResourceClaim
from policysched.model.objects import PodUid, ResourceClaimKey


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """What has to happen to a pod's claims on its node: those that get `allocated` (with what), and those that have their
    devices and get `reserved` for it besides. Empty: nothing. One of the allocated may have to be made first, for the pod's
    extended resources; `mapped` says how its containers use it. `awaited` are those whose devices have to be bound before the pod
    is."""

    allocated: tuple[tuple[ResourceClaim, Allocation], ...] = ()
    reserved: tuple[ResourceClaim, ...] = ()
    mapped: tuple[Mapped, ...] = ()
    awaited: tuple[ResourceClaimKey, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.allocated or self.reserved or self.awaited)

    @property
    def made(self) -> tuple[ResourceClaim, Allocation] | None:
        """The claim that is not there yet."""
        return next((one for one in self.allocated if not one[0].uid), None)


@dataclass(frozen=True, slots=True)
class Promise:
    """`pods` are those whose writes are not answered yet: several may share the claim. `written`: the youngest version that an
    answer says it stands in; None: no answer does. `uid` "": the claim is yet to be made, for one pod, and the promise lasts
    until it is shown or gone."""

    pods: frozenset[PodUid]
    uid: str
    allocation: Allocation
    written: int | None = None

    def is_over(self, claim: ResourceClaim) -> bool:
        if not self.uid:
            return claim.allocation is not None or (
                self.written is not None and claim.version >= self.written
            )
        if claim.uid != self.uid:
            return True
        if self.pods:
            return False
        return self.written is None or claim.version >= self.written

    def answered(self, pod: PodUid, version: int | None) -> "Promise":
        known = [one for one in (self.written, version) if one is not None]
        return replace(self, pods=self.pods - {pod}, written=max(known, default=None))

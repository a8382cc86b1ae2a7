"""Claims, slices and classes of devices as last seen, and which devices are promised to pods that are on their way.

No device that is one claim's is given to a second: what the claims' statuses say and what is promised are counted
together. Pods that share a claim share its promise, which lasts until the writes for all of them are answered: one whose
answer is missing may be repeated, also after the claim has given its devices back.
"""

from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import replace

from policysched.cluster.devices.allocation_cache import AllocationCache
from policysched.cluster.devices.change_stamps import DeviceChangeStamps
from policysched.cluster.devices.extended_resources import classes_by_resource
from policysched.cluster.devices.reservations import DeviceChoice, DeviceReservation
from policysched.cluster.devices.slices import ResourceSliceIndex
from policysched.cluster.devices.usage import DeviceUsage
from policysched.model.cluster_events import ClusterEvent
from policysched.model.devices import (
    DeviceAllocation,
    DeviceClass,
    DeviceKind,
    PoolId,
    ResourceClaim,
    ResourceSlice,
)
from policysched.model.identifiers import NodeName, PodUid, PrebindTarget, ResourceClaimKey

_NO_EVENTS: frozenset[ClusterEvent] = frozenset()
_DELETED_CLAIMS_MAX = 1024


class DeviceCache:
    """`unserved_kinds`: kinds that the API server does not serve. Every `put_` and `drop_` answers whom it could help; a claim's own
    events help those who use it, `DEVICES_FREED` whoever looks for devices."""

    def __init__(self) -> None:
        self.claims: dict[ResourceClaimKey, ResourceClaim] = {}
        self.classes: dict[str, DeviceClass] = {}
        self.unserved_kinds: frozenset[DeviceKind] = frozenset()
        self.usage = DeviceUsage()
        self.stamps = DeviceChangeStamps()
        self._slices = ResourceSliceIndex()
        self.allocation_cache = AllocationCache(self._slices, self.classes, self.usage, self.stamps)
        self._reservations: dict[ResourceClaimKey, DeviceReservation] = {}
        self._counted_allocations: dict[
            ResourceClaimKey, DeviceAllocation
        ] = {}  # what `usage` has of each claim
        # The claims that are made, or promised, for a pod's extended resources.
        self._extended_claims: dict[PodUid, set[ResourceClaimKey]] = {}
        self._deleted_claims: OrderedDict[ResourceClaimKey, None] = (
            OrderedDict()
        )  # what the watch has yet to find out
        self._class_by_resource: dict[str, DeviceClass] = {}

    @property
    def slices(self) -> Mapping[str, ResourceSlice]:
        return self._slices.by_name

    # ── what is served ─────────────────────────────────────────────────────────────────────────────────────────────

    def mark_kind_served(self, kind: DeviceKind) -> frozenset[ClusterEvent]:
        """The API server has shown a whole list of them."""
        if kind not in self.unserved_kinds:
            return _NO_EVENTS
        self.unserved_kinds -= {kind}
        self.stamps.kinds_changed()
        return frozenset({ClusterEvent.DEVICES_FREED})

    def mark_kind_unserved(self, kind: DeviceKind) -> None:
        """The API server does not serve them."""
        self.unserved_kinds |= {kind}
        self.stamps.kinds_changed()

    # ── claims ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def put_claim(self, claim: ResourceClaim) -> frozenset[ClusterEvent]:
        known = self.claims.get(claim.key)
        if known == claim or claim.key in self._deleted_claims:
            return _NO_EVENTS
        self.claims[claim.key] = claim
        if known is not None and known.controller_uid is not None:
            # Another claim of the same name may have come.
            self._forget_extended_claim(known.controller_uid, claim.key)
        if claim.for_extended_resources and claim.controller_uid is not None:
            self._extended_claims.setdefault(claim.controller_uid, set()).add(claim.key)
        promise = self._reservations.get(claim.key)
        if promise is not None and promise.is_superseded(claim):
            del self._reservations[claim.key]
        self.stamps.claim_changed(claim.key)
        freed = self._recount(claim.key)
        own = ClusterEvent.RESOURCE_CLAIM_UPDATE if known else ClusterEvent.RESOURCE_CLAIM_ADD
        return freed | {own}

    def drop_claim(self, key: ResourceClaimKey) -> frozenset[ClusterEvent]:
        self._deleted_claims.pop(key, None)
        known = self.claims.pop(key, None)
        if known is None:
            return _NO_EVENTS
        self._reservations.pop(key, None)
        self.stamps.claim_deleted(key)
        freed = self._recount(key)
        if known.for_extended_resources and known.controller_uid is not None:
            self._forget_extended_claim(known.controller_uid, key)
            freed |= {ClusterEvent.DEVICES_FREED}  # its pod has waited for nothing else
        return freed

    def mark_claim_deleted(self, key: ResourceClaimKey) -> frozenset[ClusterEvent]:
        """A claim that was made for a pod is not there any more, or never came to be: whatever the watch is still to show of it
        is over, for no claim gets its name again."""
        self._deleted_claims[key] = None
        if len(self._deleted_claims) > _DELETED_CLAIMS_MAX:
            self._deleted_claims.popitem(last=False)
        promise = self._reservations.pop(key, None)
        known = self.claims.pop(key, None)
        if promise is None and known is None:
            return _NO_EVENTS
        for pod in (
            *(() if promise is None else promise.pods),
            *(() if known is None else (known.controller_uid,)),
        ):
            if pod is not None:
                self._forget_extended_claim(pod, key)
        self.stamps.claim_deleted(key)
        return self._recount(key) | {ClusterEvent.DEVICES_FREED}

    def _forget_extended_claim(self, pod: PodUid, key: ResourceClaimKey) -> None:
        held = self._extended_claims.get(pod, set())
        held.discard(key)
        if not held:
            self._extended_claims.pop(pod, None)

    def extended_claims_of(self, pod: PodUid) -> frozenset[ResourceClaimKey]:
        """The claims for its extended resources that are there, or may be."""
        return frozenset(self._extended_claims.get(pod, ()))

    # ── slices and classes ─────────────────────────────────────────────────────────────────────────────────────────

    def put_slice(self, resource_slice: ResourceSlice) -> frozenset[ClusterEvent]:
        known = self.slices.get(resource_slice.name)
        if known == resource_slice:
            return _NO_EVENTS
        if known is not None:
            self._remove_slice(known)
        # Whose the pool was, and whose it is then.
        self._pool_changed(resource_slice.pool)
        self._slices.add(resource_slice)
        self._pool_changed(resource_slice.pool)
        return frozenset({ClusterEvent.RESOURCE_SLICE_UPDATE if known else ClusterEvent.RESOURCE_SLICE_ADD})

    def drop_slice(self, name: str) -> frozenset[ClusterEvent]:
        """A slice of a new generation that goes may give the pool back to what is left; kube-scheduler waits for the next
        other event."""
        known = self.slices.get(name)
        if known is None:
            return _NO_EVENTS
        self._remove_slice(known)
        return frozenset({ClusterEvent.RESOURCE_SLICE_UPDATE})

    def _remove_slice(self, resource_slice: ResourceSlice) -> None:
        self._pool_changed(resource_slice.pool)
        self._slices.remove(resource_slice)
        self.allocation_cache.forget_slice(resource_slice.name)

    def put_class(self, device_class: DeviceClass) -> frozenset[ClusterEvent]:
        known = self.classes.get(device_class.name)
        if known == device_class:
            return _NO_EVENTS
        self.classes[device_class.name] = device_class
        self._class_by_resource = classes_by_resource(self.classes.values())
        self.stamps.classes_changed()
        return frozenset({ClusterEvent.DEVICE_CLASS_UPDATE if known else ClusterEvent.DEVICE_CLASS_ADD})

    def drop_class(self, name: str) -> frozenset[ClusterEvent]:
        """Wakes nobody: without its class a claim gets nothing."""
        if self.classes.pop(name, None) is not None:
            self._class_by_resource = classes_by_resource(self.classes.values())
            self.stamps.classes_changed()
        return _NO_EVENTS

    # ── promises ───────────────────────────────────────────────────────────────────────────────────────────────────

    def reserve(self, pod: PodUid, choice: DeviceChoice) -> None:
        """From now on nobody else gets the devices."""
        for claim, given in choice.allocated:
            known = self._reservations.get(claim.key)
            if known is not None and known.uid == claim.uid:
                assert known.allocation == given, f"{claim.key} is promised {known.allocation}, not {given}"
                self._reservations[claim.key] = replace(known, pods=known.pods | {pod})
            else:
                self._reservations[claim.key] = DeviceReservation(frozenset({pod}), claim.uid, given)
                if not claim.uid:
                    self._extended_claims.setdefault(pod, set()).add(claim.key)
            self.stamps.claim_changed(claim.key)
            self._recount(claim.key)

    def mark_written(
        self, pod: PodUid, choice: DeviceChoice, versions: Mapping[PrebindTarget, int]
    ) -> frozenset[ClusterEvent]:
        """These versions of the claims say what was promised: the promise ends when the watch has come to them."""
        freed = _NO_EVENTS
        for claim, _ in choice.allocated:
            version = versions.get(claim.key)
            if version is not None:
                freed |= self._write_answered(claim.key, pod, version)
        return freed

    def unreserve(self, pod: PodUid, choice: DeviceChoice) -> frozenset[ClusterEvent]:
        """The pod does not go there, and nothing of it is under way. What was written stays promised until the watch shows it, and
        a claim that may have been made until it is `mark_claim_deleted`."""
        freed = _NO_EVENTS
        for claim, _ in choice.allocated:
            freed |= self._write_answered(claim.key, pod, None)
        return freed

    def _write_answered(
        self, key: ResourceClaimKey, pod: PodUid, version: int | None
    ) -> frozenset[ClusterEvent]:
        promise = self._reservations.get(key)
        if promise is None or pod not in promise.pods:
            return _NO_EVENTS
        if promise.uid:
            promise = promise.with_write_answered(pod, version)
        elif version is None:
            return _NO_EVENTS
        else:
            promise = replace(promise, written_version=version)
        self._reservations[key] = promise
        claim = self.claims.get(key)
        if claim is not None and promise.is_superseded(claim):
            del self._reservations[key]
        self.stamps.claim_changed(key)
        return self._recount(key)

    def unwritten_reservations(self) -> list[tuple[ResourceClaimKey, PodUid]]:
        """What is promised to whom, without what is written already, or is to be taken back."""
        return [(key, pod) for key, reservation in self._reservations.items() if reservation.uid for pod in sorted(reservation.pods)]

    def allocation(self, key: ResourceClaimKey) -> DeviceAllocation | None:
        """What the claim has, or is promised."""
        claim, promise = self.claims.get(key), self._reservations.get(key)
        if claim is not None and claim.allocation is not None:
            return claim.allocation
        return None if promise is None else promise.allocation

    def check(self) -> list[str]:
        """Recount what is taken; one sentence a difference, none when all is well."""
        fresh, twice = DeviceUsage(), DeviceUsage()
        for key in self.claims.keys() | self._reservations.keys():
            given = self.allocation(key)
            if given is not None:
                fresh.add(given)
        for promise in self._reservations.values():
            twice.add(promise.allocation)
        differences = []
        if fresh != self.usage:
            differences.append(f"devices taken are counted as {self.usage}, a recount says {fresh}")
        differences += [
            f"device {device} is promised and taken {fresh.whole[device]} times"
            for device in twice.whole
            if fresh.whole[device] > 1
        ]
        extended = {(pod, key) for key, reservation in self._reservations.items() if not reservation.uid for pod in reservation.pods}
        extended |= {
            (claim.controller_uid, key)
            for key, claim in self.claims.items()
            if claim.for_extended_resources and claim.controller_uid is not None
        }
        kept = {(pod, key) for pod, keys in self._extended_claims.items() for key in keys}
        if kept != extended:
            differences.append(
                f"claims for extended resources are {sorted(kept)}, a recount says {sorted(extended)}"
            )
        return differences

    # ── who can use what ───────────────────────────────────────────────────────────────────────────────────────────

    def class_of_resource(self, resource: str) -> DeviceClass | None:
        """The class whose devices stand for the resource."""
        return self._class_by_resource.get(resource)

    @property
    def shared_stamp(self) -> Hashable:
        """Of what more nodes than one can use, and of what all go by."""
        return self.stamps.of_shared_devices(), self.unserved_kinds

    def exclusive_node_of(self, pool: PoolId) -> NodeName | None:
        """The node that alone can use the pool's devices; None: several, or nobody knows."""
        return self._slices.exclusive_node_of(pool)

    def _recount(self, key: ResourceClaimKey) -> frozenset[ClusterEvent]:
        """Count what the claim has now instead of what it had."""
        before, after = self._counted_allocations.get(key), self.allocation(key)
        if before == after:
            return _NO_EVENTS
        if before is not None:
            del self._counted_allocations[key]
            self.usage.remove(before)
        if after is not None:
            self._counted_allocations[key] = after
            self.usage.add(after)
        changed = {device.device for given in (before, after) if given is not None for device in given.devices}
        for pool in {PoolId(device.driver, device.pool) for device in changed}:
            self._pool_changed(pool)
        return _NO_EVENTS if before is None else frozenset({ClusterEvent.DEVICES_FREED})

    def _pool_changed(self, pool: PoolId) -> None:
        self.stamps.pool_changed(self.exclusive_node_of(pool))

"""The cache of ResourceClaims, ResourceSlices, DeviceClasses and DeviceTaintRules, and the
reservations of devices for assumed pods.

`usage` counts the allocations in claim statuses and the reserved ones together, so that no device
is allocated twice. Pods that share a claim share its reservation. It lasts until the writes for all
of them are answered, because a write without an answer may be repeated, even after the claim was
deallocated.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import replace

from policysched.cluster.devices.allocation_cache import AllocationCache
from policysched.cluster.devices.change_stamps import DeviceChangeStamps
from policysched.cluster.devices.device_taints import DeviceTaints, selects_some
from policysched.cluster.devices.device_usage import DeviceUsage
from policysched.cluster.devices.extended_resources import classes_by_resource
from policysched.cluster.devices.reservations import DeviceChoice, DeviceReservation, DeviceWrite
from policysched.cluster.devices.slices import ResourceSliceIndex
from policysched.model.cluster_events import ClusterEvent
from policysched.model.devices import (
    DeviceAllocation,
    DeviceClass,
    DeviceKind,
    DeviceObject,
    DeviceTaintRule,
    PoolId,
    ResourceClaim,
    ResourceSlice,
)
from policysched.model.identifiers import NodeName, PodUid, PrebindTarget, ResourceClaimKey

_NO_EVENTS: frozenset[ClusterEvent] = frozenset()
_DELETED_CLAIMS_MAX = 1024


class DeviceCache:
    """Every `put_` and `drop_` returns the cluster events that it causes: events of a claim requeue
    the pods that use it, `DEVICES_FREED` every pod that needs devices. `unserved_kinds`: kinds that
    the API server does not serve. `releasing`: pods whose claims may just be released, whatever the watch shows."""

    def __init__(self) -> None:
        self.claims: dict[ResourceClaimKey, ResourceClaim] = {}
        self.classes: dict[str, DeviceClass] = {}
        self.unserved_kinds: frozenset[DeviceKind] = frozenset()
        self.releasing: set[PodUid] = set()
        self.usage = DeviceUsage()
        self.stamps = DeviceChangeStamps()
        self._slices = ResourceSliceIndex()
        self._taints = DeviceTaints()
        self.allocation_cache = AllocationCache(
            self._slices, self.classes, self.usage, self.stamps, self._taints
        )
        self._reservations: dict[ResourceClaimKey, DeviceReservation] = {}
        self._counted_allocations: dict[
            ResourceClaimKey, DeviceAllocation
        ] = {}  # what `usage` counts for each claim
        # The claims for the extended resources of each pod, created or reserved.
        self._extended_claims: dict[PodUid, set[ResourceClaimKey]] = {}
        self._owners: dict[ResourceClaimKey, set[PodUid]] = {}  # the same by claim
        # The UIDs of deleted claims whose deletion the watch may not have shown yet.
        self._deleted_claims: OrderedDict[ResourceClaimKey, str] = OrderedDict()
        self._class_by_resource: dict[str, DeviceClass] = {}

    @property
    def slices(self) -> Mapping[str, ResourceSlice]:
        return self._slices.by_name

    # ── served kinds ───────────────────────────────────────────────────────────────────────────────────────────────

    def mark_kind_served(self, kind: DeviceKind) -> frozenset[ClusterEvent]:
        """The API server returned a complete list of the kind."""
        if kind not in self.unserved_kinds:
            return _NO_EVENTS
        self.unserved_kinds -= {kind}
        self.stamps.kinds_changed()
        return frozenset({ClusterEvent.DEVICES_FREED})

    def mark_kind_unserved(self, kind: DeviceKind) -> None:
        """The API server does not serve the kind. It can do without taint rules; rules that were known
        before stay."""
        if kind == "DeviceTaintRule":
            return
        self.unserved_kinds |= {kind}
        self.stamps.kinds_changed()

    # ── claims ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def objects(self) -> Iterator[DeviceObject]:
        """All objects as the API server has them."""
        yield from self.classes.values()
        yield from self.slices.values()
        yield from self._taints.rules.values()
        yield from self.claims.values()

    def put_claim(self, claim: ResourceClaim) -> frozenset[ClusterEvent]:
        cached = self.claims.get(claim.key)
        if cached == claim or self._deleted_claims.get(claim.key) == claim.uid:
            return _NO_EVENTS
        self.claims[claim.key] = claim
        reservation = self._reservations.get(claim.key)
        if reservation is not None and reservation.is_superseded(claim):
            del self._reservations[claim.key]
        self.stamps.claim_changed(claim.key)
        freed = self._recount(claim.key)
        claim_event = ClusterEvent.RESOURCE_CLAIM_UPDATE if cached else ClusterEvent.RESOURCE_CLAIM_ADD
        return freed | {claim_event}

    def drop_claim(self, key: ResourceClaimKey) -> frozenset[ClusterEvent]:
        self._deleted_claims.pop(key, None)
        cached = self.claims.pop(key, None)
        if cached is None:
            return _NO_EVENTS
        reservation = self._reservations.get(key)
        # Else a claim of this name is being created, and this was another one.
        if reservation is not None and (reservation.uid or reservation.written_version is not None):
            del self._reservations[key]
        self.stamps.claim_deleted(key)
        freed = self._recount(key)
        if cached.for_extended_resources and cached.controller_uid is not None:
            freed |= {ClusterEvent.DEVICES_FREED}  # its pod is parked until this event
        return freed

    def mark_claim_deleted(self, key: ResourceClaimKey, uid: str) -> frozenset[ClusterEvent]:
        """A claim for extended resources was deleted, or never created if `uid` is empty. Later watch events of it are
        stale and ignored. Another claim may have its name by now, and devices of its own."""
        if uid:
            self._deleted_claims[key] = uid
            if len(self._deleted_claims) > _DELETED_CLAIMS_MAX:
                self._deleted_claims.popitem(last=False)
        reservation, cached = self._reservations.pop(key, None), self.claims.get(key)
        is_another = cached is not None and cached.uid != uid
        if reservation is None and (cached is None or is_another):
            return _NO_EVENTS
        if is_another:
            self.stamps.claim_changed(key)
        else:
            self.claims.pop(key, None)
            self.stamps.claim_deleted(key)
        return self._recount(key) | {ClusterEvent.DEVICES_FREED}

    def extended_claims_of(self, pod: PodUid, namespace: str | None = None) -> frozenset[ResourceClaimKey]:
        """The claims for the pod's extended resources that exist, or may exist; with its `namespace`, those in it: in others
        anybody can write claims that name the pod as their owner."""
        keys = self._extended_claims.get(pod, ())
        return frozenset(key for key in keys if namespace in (None, key.namespace))

    # ── slices and classes ─────────────────────────────────────────────────────────────────────────────────────────

    def put_taint_rule(self, rule: DeviceTaintRule) -> frozenset[ClusterEvent]:
        return self._taints_changed(self._taints.put(rule))

    def drop_taint_rule(self, name: str) -> frozenset[ClusterEvent]:
        return self._taints_changed(self._taints.drop(name))

    def _taints_changed(self, rules: list[DeviceTaintRule]) -> frozenset[ClusterEvent]:
        """As if the slices had changed with the taints of these rules."""
        pools = {
            each.pool for each in self.slices.values() if any(selects_some(rule, each) for rule in rules)
        }
        for pool in pools:
            self._slices_changed(pool)
        return frozenset({ClusterEvent.RESOURCE_SLICE_UPDATE}) if pools else _NO_EVENTS

    def put_slice(self, resource_slice: ResourceSlice) -> frozenset[ClusterEvent]:
        cached = self.slices.get(resource_slice.name)
        if cached == resource_slice:
            return _NO_EVENTS
        if cached is not None:
            self._remove_slice(cached)
        # Mark the nodes that could use the pool before, and those that can now.
        self._slices_changed(resource_slice.pool)
        self._slices.add(resource_slice)
        self.allocation_cache.selector_results.slice_added(resource_slice.name)
        self._slices_changed(resource_slice.pool)
        return frozenset({ClusterEvent.RESOURCE_SLICE_UPDATE if cached else ClusterEvent.RESOURCE_SLICE_ADD})

    def drop_slice(self, name: str) -> frozenset[ClusterEvent]:
        """Causes an event, since the remaining slices may form a complete pool. kube-scheduler
        registers no event for this."""
        cached = self.slices.get(name)
        if cached is None:
            return _NO_EVENTS
        self._remove_slice(cached)
        return frozenset({ClusterEvent.RESOURCE_SLICE_UPDATE})

    def _remove_slice(self, resource_slice: ResourceSlice) -> None:
        self._slices_changed(resource_slice.pool)
        self._slices.remove(resource_slice)
        self.allocation_cache.selector_results.forget_slice(resource_slice.name)

    def put_class(self, device_class: DeviceClass) -> frozenset[ClusterEvent]:
        cached = self.classes.get(device_class.name)
        if cached == device_class:
            return _NO_EVENTS
        self.classes[device_class.name] = device_class
        self._class_by_resource = classes_by_resource(self.classes.values())
        self.stamps.classes_changed()
        return frozenset({ClusterEvent.DEVICE_CLASS_UPDATE if cached else ClusterEvent.DEVICE_CLASS_ADD})

    def drop_class(self, name: str) -> frozenset[ClusterEvent]:
        """No event: without its class a claim cannot be allocated."""
        if self.classes.pop(name, None) is not None:
            self._class_by_resource = classes_by_resource(self.classes.values())
            self.stamps.classes_changed()
        return _NO_EVENTS

    # ── reservations ─────────────────────────────────────────────────────────────────────────────────────────────────

    def reserve(self, pod: PodUid, choice: DeviceChoice, attempt: int) -> None:
        """Reserve the devices of the choice for an attempt of the pod."""
        write = pod, attempt
        for claim, allocation in choice.allocated:
            reservation = self._reservations.get(claim.key)
            if reservation is not None and reservation.uid == claim.uid:
                assert reservation.allocation == allocation, (
                    f"{claim.key} is reserved with {reservation.allocation}, not {allocation}"
                )
                self._reservations[claim.key] = replace(reservation, writes=reservation.writes | {write})
            else:
                self._reservations[claim.key] = DeviceReservation(frozenset({write}), claim.uid, allocation)
            self.stamps.claim_changed(claim.key)
            self._recount(claim.key)

    def mark_written(
        self, pod: PodUid, choice: DeviceChoice, versions: Mapping[PrebindTarget, int], attempt: int
    ) -> frozenset[ClusterEvent]:
        """These versions of the claims contain the choice. The reservation is dropped when the
        watch has reached them."""
        freed = _NO_EVENTS
        for claim, _ in choice.allocated:
            version = versions.get(claim.key)
            if version is not None:
                freed |= self._write_answered(claim.key, (pod, attempt), version)
        return freed

    def unreserve(self, pod: PodUid, choice: DeviceChoice, attempt: int) -> frozenset[ClusterEvent]:
        """Drop what is not written; no write of the attempt may be in flight. What was written stays reserved
        until the watch shows it, and a claim that may have been created until `mark_claim_deleted`.
        """
        freed = _NO_EVENTS
        for claim, _ in choice.allocated:
            freed |= self._write_answered(claim.key, (pod, attempt), None)
        return freed

    def _write_answered(
        self, key: ResourceClaimKey, write: DeviceWrite, version: int | None
    ) -> frozenset[ClusterEvent]:
        reservation = self._reservations.get(key)
        if reservation is None or write not in reservation.writes:
            return _NO_EVENTS
        if reservation.uid:
            reservation = reservation.with_write_answered(write, version)
        elif version is None:
            return _NO_EVENTS
        else:
            reservation = replace(reservation, written_version=version)
        self._reservations[key] = reservation
        claim = self.claims.get(key)
        if claim is not None and reservation.is_superseded(claim):
            del self._reservations[key]
        self.stamps.claim_changed(key)
        return self._recount(key)

    def unwritten_reservations(self) -> list[tuple[ResourceClaimKey, PodUid, int]]:
        """Reservations that are not written yet, with their pods and attempts; without those of claims to
        create."""
        return [
            (key, *write)
            for key, reservation in self._reservations.items()
            if reservation.uid
            for write in sorted(reservation.writes)
        ]

    def allocation(self, key: ResourceClaimKey) -> DeviceAllocation | None:
        """The allocation of the claim, written or reserved."""
        claim, reservation = self.claims.get(key), self._reservations.get(key)
        if claim is not None and claim.allocation is not None:
            return claim.allocation
        return None if reservation is None else reservation.allocation

    def check(self) -> list[str]:
        """Recount the usage from claims and reservations. Returns one message per difference."""
        fresh, twice = DeviceUsage(), DeviceUsage()
        for key in self.claims.keys() | self._reservations.keys():
            allocation = self.allocation(key)
            if allocation is not None:
                fresh.add(allocation)
        for reservation in self._reservations.values():
            twice.add(reservation.allocation)
        differences = []
        if fresh != self.usage:
            differences.append(f"device usage: kept {self.usage}, recounted {fresh}")
        differences += [
            f"device {device} is reserved and allocated {fresh.whole[device]} times"
            for device in twice.whole
            if fresh.whole[device] > 1
        ]
        extended = {
            (pod, key)
            for key, reservation in self._reservations.items()
            if not reservation.uid
            for pod, _ in reservation.writes
        }
        extended |= {
            (claim.controller_uid, key)
            for key, claim in self.claims.items()
            if claim.for_extended_resources and claim.controller_uid is not None
        }
        cached_claims = {(pod, key) for pod, keys in self._extended_claims.items() for key in keys}
        if cached_claims != extended:
            differences.append(
                f"claims for extended resources: kept {sorted(cached_claims)}, recounted {sorted(extended)}"
            )
        return differences

    # ── access to devices ──────────────────────────────────────────────────────────────────────────────────────────

    def class_of_resource(self, resource: str) -> DeviceClass | None:
        """The class whose devices provide the extended resource."""
        return self._class_by_resource.get(resource)

    @property
    def shared_stamp(self) -> Hashable:
        """Grows with devices that several nodes can use, with classes and with served kinds."""
        return self.stamps.of_shared_devices(), self.unserved_kinds

    def exclusive_node_of(self, pool: PoolId) -> NodeName | None:
        """The only node that can use the pool's devices; None: several can, or it is unknown."""
        return self._slices.exclusive_node_of(pool)

    def _recount(self, key: ResourceClaimKey) -> frozenset[ClusterEvent]:
        """Replace what is counted of the claim by its current state."""
        self._recount_owners(key)
        before, after = self._counted_allocations.get(key), self.allocation(key)
        if before == after:
            return _NO_EVENTS
        if before is not None:
            del self._counted_allocations[key]
            self.usage.remove(before)
        if after is not None:
            self._counted_allocations[key] = after
            self.usage.add(after)
        changed = {
            device.device
            for allocation in (before, after)
            if allocation is not None
            for device in allocation.devices
        }
        for pool in {PoolId(device.driver, device.pool) for device in changed}:
            self.stamps.pool_changed(self.exclusive_node_of(pool))
        return _NO_EVENTS if before is None else frozenset({ClusterEvent.DEVICES_FREED})

    def _recount_owners(self, key: ResourceClaimKey) -> None:
        """The pods for whose extended resources the claim exists, or may exist."""
        claim, reservation = self.claims.get(key), self._reservations.get(key)
        owners = set() if reservation is None or reservation.uid else {pod for pod, _ in reservation.writes}
        if claim is not None and claim.for_extended_resources and claim.controller_uid is not None:
            owners.add(claim.controller_uid)
        for pod in self._owners.pop(key, set()) - owners:
            self._extended_claims[pod].discard(key)
            if not self._extended_claims[pod]:
                del self._extended_claims[pod]
        for pod in owners:
            self._extended_claims.setdefault(pod, set()).add(key)
        if owners:
            self._owners[key] = owners

    def _slices_changed(self, pool: PoolId) -> None:
        self.stamps.slices_changed(self.exclusive_node_of(pool))

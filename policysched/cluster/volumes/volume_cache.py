"""The cache of claims, volumes, classes, drivers and capacities, and the reservations of assumed
pods."""

from bisect import bisect_left, insort
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import replace

from policysched.cluster.change_log import ChangeLog
from policysched.cluster.volumes.reservations import VolumeChoice, VolumeReservationKey, VolumeReservations
from policysched.model.cluster_events import ClusterEvent
from policysched.model.identifiers import NodeName, PodUid, PrebindTarget, VolumeClaimKey
from policysched.model.pods import PodVolumeClaim
from policysched.model.storage import (
    ClaimRef,
    CsiDriver,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageCapacity,
    StorageClass,
)

_NO_EVENTS: frozenset[ClusterEvent] = frozenset()
_NO_NAMES: frozenset[str] = frozenset()

CsiVolumeChange = VolumeClaimKey | PodVolumeClaim | str | None
"""What may have other volumes attached now: a claim, a claim as ephemeral volume of one pod, references to a volume by
name, or (None) everything."""


class VolumeCache:
    """Storage objects by key. Every `put_` and `drop_` returns the cluster events that it causes.

    Stamps grow with each change of an object: equal stamps mean that a cached result is still
    valid.
    """

    def __init__(self) -> None:
        self.claims: dict[VolumeClaimKey, PersistentVolumeClaim] = {}
        self.volumes: dict[str, PersistentVolume] = {}
        self.classes: dict[str, StorageClass] = {}
        self.drivers: dict[str, CsiDriver] = {}
        self.capacities: dict[tuple[str, str], StorageCapacity] = {}
        self._capacities_of: dict[str, dict[tuple[str, str], StorageCapacity]] = {}
        self._capacity_stamps: dict[str, int] = {}
        self.reservations = VolumeReservations()
        self._unclaimed: dict[str, list[PersistentVolume]] = {}
        self._names_by_claim: dict[ClaimRef, set[str]] = {}
        self._last_stamp = 0
        self._claim_stamps: dict[VolumeClaimKey, int] = {}
        self._volume_stamps: dict[str, int] = {}
        self._class_volumes_stamps: dict[str, int] = {}
        self.catalogue_stamp = 0
        """Grows when a class, a driver or a capacity changes."""
        self.volume_changes: ChangeLog[str] = ChangeLog()
        """Names of volumes that changed, or were reserved or unreserved."""
        self.csi_volume_changes: ChangeLog[CsiVolumeChange] = ChangeLog()

    # ── claims ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def put_claim(
        self, claim: PersistentVolumeClaim, *, owner_matters: bool = True
    ) -> frozenset[ClusterEvent]:
        """`owner_matters`: whether the claim is an ephemeral volume of its owner, before or now. No event if nothing changes
        that the pods of the claim read. The stamp grows with each version: writes name it."""
        cached = self.claims.get(claim.key)
        if cached == claim:
            return _NO_EVENTS
        self.claims[claim.key] = claim
        was_freed = self._drop_if_superseded(claim.key, claim.version)
        self._claim_stamps[claim.key] = self._next_stamp()
        if cached is None:
            self.csi_volume_changes.record(claim.key)
            return frozenset({ClusterEvent.CLAIM_ADD})
        owners = cached.controller_uid, claim.controller_uid
        if _attachment_key(cached) != _attachment_key(claim):
            self.csi_volume_changes.record(claim.key)
        elif owners[0] != owners[1]:
            for owner in filter(None, owners):
                self.csi_volume_changes.record(PodVolumeClaim(claim.key, owner))
        if not owner_matters:
            cached = replace(cached, controller_uid=claim.controller_uid)
        is_changed = was_freed or _as_read(cached) != _as_read(claim)
        return frozenset({ClusterEvent.CLAIM_UPDATE}) if is_changed else _NO_EVENTS

    def drop_claim(self, key: VolumeClaimKey) -> frozenset[ClusterEvent]:
        """No event: without its claim a pod fits no node."""
        if self.claims.pop(key, None) is not None:
            self.reservations.drop(key)
            self._claim_stamps.pop(key, None)
            self._next_stamp()
            self.csi_volume_changes.record(key)
        return _NO_EVENTS

    # ── volumes ────────────────────────────────────────────────────────────────────────────────────────────────────

    def put_volume(self, volume: PersistentVolume) -> frozenset[ClusterEvent]:
        cached = self.volumes.get(volume.name)
        if cached == volume:
            return _NO_EVENTS
        if cached is not None:
            self._unindex_volume(cached)
            self._mark_volume_changed(cached)
        self.volumes[volume.name] = volume
        if volume.claim_ref is None:
            insort(self._unclaimed.setdefault(volume.class_name, []), volume, key=by_size)
        else:
            self._names_by_claim.setdefault(volume.claim_ref, set()).add(volume.name)
        self._drop_if_superseded(volume.name, volume.version)
        self._mark_volume_changed(volume)
        if cached is None or (cached.csi_volume, cached.is_csi) != (volume.csi_volume, volume.is_csi):
            self.csi_volume_changes.record(volume.name)
        return frozenset({ClusterEvent.VOLUME_UPDATE if cached else ClusterEvent.VOLUME_ADD})

    def drop_volume(self, name: str) -> frozenset[ClusterEvent]:
        cached = self.volumes.pop(name, None)
        if cached is not None:
            self._unindex_volume(cached)
            self.reservations.drop(name)
            self._mark_volume_changed(cached)
            del self._volume_stamps[name]
            self.csi_volume_changes.record(name)
        return _NO_EVENTS

    def volume_names_for_claim(self, claim: PersistentVolumeClaim) -> Set[str]:
        """The names of the volumes whose `claimRef` is this claim. Not those of earlier claims of its name, of which a class
        that retains volumes leaves any number."""
        names = self._names_by_claim
        by_uid = names.get(ClaimRef(claim.key, claim.uid), _NO_NAMES)
        return by_uid | names.get(ClaimRef(claim.key, ""), _NO_NAMES)

    def unclaimed_volumes(self, class_name: str) -> Sequence[PersistentVolume]:
        """Volumes of the class without a `claimRef`, sorted by size and name."""
        return self._unclaimed.get(class_name, ())

    def _unindex_volume(self, volume: PersistentVolume) -> None:
        if volume.claim_ref is None:
            free = self._unclaimed[volume.class_name]
            index = bisect_left(free, by_size(volume), key=by_size)
            assert free[index] is volume, f"{volume.name} is not at the index of its size"
            del free[index]
            if not free:
                del self._unclaimed[volume.class_name]
        else:
            volume_names = self._names_by_claim[volume.claim_ref]
            volume_names.remove(volume.name)
            if not volume_names:
                del self._names_by_claim[volume.claim_ref]

    def _mark_volume_changed(self, volume: PersistentVolume) -> None:
        self.volume_changes.record(volume.name)
        self._volume_stamps[volume.name] = self._class_volumes_stamps[volume.class_name] = self._next_stamp()

    # ── classes, drivers, capacities ───────────────────────────────────────────────────────────────────────────────

    def put_class(self, storage_class: StorageClass) -> frozenset[ClusterEvent]:
        """Of an existing class, only the allowed topologies can change."""
        cached = self.classes.get(storage_class.name)
        if cached == storage_class:
            return _NO_EVENTS
        self.classes[storage_class.name] = storage_class
        self.catalogue_stamp = self._next_stamp()
        self.csi_volume_changes.record(None)
        if cached is None:
            return frozenset({ClusterEvent.STORAGE_CLASS_ADD})
        return (
            frozenset({ClusterEvent.STORAGE_CLASS_UPDATE})
            if cached.allowed_topologies != storage_class.allowed_topologies
            else _NO_EVENTS
        )

    def drop_class(self, name: str) -> frozenset[ClusterEvent]:
        if self.classes.pop(name, None) is not None:
            self.catalogue_stamp = self._next_stamp()
            self.csi_volume_changes.record(None)
        return _NO_EVENTS

    def put_driver(self, driver: CsiDriver) -> frozenset[ClusterEvent]:
        """Causes an event if the driver stops tracking capacity, or is no longer needed on the node."""
        cached = self.drivers.get(driver.name)
        if cached == driver:
            return _NO_EVENTS
        self.drivers[driver.name] = driver
        self.catalogue_stamp = self._next_stamp()
        left_off = cached is not None and (
            cached.tracks_capacity > driver.tracks_capacity or cached.needed_on_node > driver.needed_on_node
        )
        return frozenset({ClusterEvent.CSI_DRIVER_UPDATE}) if left_off else _NO_EVENTS

    def drop_driver(self, name: str) -> frozenset[ClusterEvent]:
        """Without its CSIDriver, neither capacity nor the driver's presence is checked any more.
        kube-scheduler registers no event for this."""
        cached = self.drivers.pop(name, None)
        if cached is None:
            return _NO_EVENTS
        self.catalogue_stamp = self._next_stamp()
        checked = cached.tracks_capacity or cached.needed_on_node
        return frozenset({ClusterEvent.CSI_DRIVER_UPDATE}) if checked else _NO_EVENTS

    def put_capacity(self, capacity: StorageCapacity) -> frozenset[ClusterEvent]:
        """Causes an event if the capacity grows."""
        key = capacity.namespace, capacity.name
        cached = self.capacities.get(key)
        if cached == capacity:
            return _NO_EVENTS
        if cached is not None:
            self._unindex_capacity(cached)
        self.capacities[key] = capacity
        self._capacities_of.setdefault(capacity.class_name, {})[key] = capacity
        self._mark_capacity_changed(capacity)
        if cached is None:
            return frozenset({ClusterEvent.STORAGE_CAPACITY_ADD})
        before, after = cached.limit_bytes, capacity.limit_bytes
        is_larger = after is not None and (before is None or after > before)
        return frozenset({ClusterEvent.STORAGE_CAPACITY_UPDATE}) if is_larger else _NO_EVENTS

    def drop_capacity(self, namespace: str, name: str) -> frozenset[ClusterEvent]:
        cached = self.capacities.pop((namespace, name), None)
        if cached is not None:
            self._unindex_capacity(cached)
            self._mark_capacity_changed(cached)
        return _NO_EVENTS

    def capacities_of(self, class_name: str) -> Collection[StorageCapacity]:
        return self._capacities_of.get(class_name, {}).values()

    def _unindex_capacity(self, capacity: StorageCapacity) -> None:
        of_class = self._capacities_of[capacity.class_name]
        del of_class[capacity.namespace, capacity.name]
        if not of_class:
            del self._capacities_of[capacity.class_name]

    def _mark_capacity_changed(self, capacity: StorageCapacity) -> None:
        self.catalogue_stamp = self._capacity_stamps[capacity.class_name] = self._next_stamp()

    # ── reservations ─────────────────────────────────────────────────────────────────────────────────────────────────

    def reserve(self, pod: PodUid, choice: VolumeChoice, node: NodeName) -> None:
        """Reserve the volumes for the pod, and the node for the claims to provision."""
        self.reservations.add(pod, choice, node)
        self._mark_choice_changed(choice)

    def mark_written(self, pod: PodUid, choice: VolumeChoice, versions: Mapping[PrebindTarget, int]) -> None:
        """These versions of the objects contain the choice. The reservation is dropped when the
        watch has reached them."""
        for key in choice.reservation_keys:
            reservation = self.reservations.by_key.get(key)
            if reservation is not None and pod in reservation.pods and key in versions:
                self.reservations.by_key[key] = replace(reservation, written_version=versions[key])
                self._drop_if_superseded(key, self._observed_version(key))
        self._mark_choice_changed(choice)

    def unreserve(self, pod: PodUid, choice: VolumeChoice) -> list[VolumeReservationKey]:
        """Drop what is not written yet, and return it. What was written stays reserved until the watch shows it."""
        freed: list[VolumeReservationKey] = []
        for key in choice.reservation_keys:
            reservation = self.reservations.by_key.get(key)
            if reservation is None or pod not in reservation.pods or reservation.written_version is not None:
                continue
            if reservation.pods == {pod}:
                self.reservations.drop(key)
                freed.append(key)
            else:
                self.reservations.by_key[key] = replace(reservation, pods=reservation.pods - {pod})
        self._mark_choice_changed(choice)
        return freed

    def unwritten_reservations(self) -> list[tuple[VolumeReservationKey, PodUid]]:
        """Reservations that are not written yet, with their pods."""
        return [
            (key, pod)
            for key, reservation in self.reservations.by_key.items()
            if reservation.written_version is None
            for pod in sorted(reservation.pods)
        ]

    def _drop_if_superseded(self, key: VolumeReservationKey, version: int) -> bool:
        reservation = self.reservations.by_key.get(key)
        is_superseded = reservation is not None and reservation.is_superseded(version)
        if is_superseded:
            self.reservations.drop(key)
        return is_superseded

    def _observed_version(self, key: VolumeReservationKey) -> int:
        cached = self.volumes.get(key) if isinstance(key, str) else self.claims.get(key)
        return 0 if cached is None else cached.version

    def _mark_choice_changed(self, choice: VolumeChoice) -> None:
        for _, volume in choice.static_bindings:
            if volume.name in self.volumes:
                self._mark_volume_changed(volume)
        for claim in choice.dynamic_provisions:
            if claim.key in self.claims:
                self._claim_stamps[claim.key] = self._next_stamp()

    def still_has(self, choice: VolumeChoice, node: NodeName) -> bool:
        """Whether the claims and volumes of a choice for the node are as they were, and reserved for nothing else."""
        reserved, claims = self.reservations.by_key, [claim for claim, _ in choice.static_bindings]
        wanted: dict[VolumeReservationKey, ClaimRef | NodeName] = {
            **{volume.name: ClaimRef(claim.key, claim.uid) for claim, volume in choice.static_bindings},
            **{claim.key: node for claim in choice.dynamic_provisions},
        }
        return (
            all(self.claims.get(claim.key) == claim for claim in (*claims, *choice.dynamic_provisions))
            and all(self.volumes.get(volume.name) == volume for _, volume in choice.static_bindings)
            and all(key not in reserved or reserved[key].target == target for key, target in wanted.items())
        )

    # ── stamps ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def claim_stamp(self, key: VolumeClaimKey) -> int:
        return self._claim_stamps.get(key, 0)

    def volume_stamp(self, name: str) -> int:
        return self._volume_stamps.get(name, 0)

    def capacity_stamp(self, class_name: str) -> int:
        """Grows when a capacity of the class changes."""
        return self._capacity_stamps.get(class_name, 0)

    def class_volumes_stamp(self, name: str) -> int:
        """Grows when a volume of the class changes."""
        return self._class_volumes_stamps.get(name, 0)

    @property
    def stamp(self) -> int:
        """Grows with each change."""
        return self._last_stamp

    def _next_stamp(self) -> int:
        self._last_stamp += 1
        return self._last_stamp


def _attachment_key(claim: PersistentVolumeClaim) -> tuple[object, ...]:
    """The fields that decide which volume is attached for the claim."""
    return claim.volume_name, claim.class_name


def _as_read(claim: PersistentVolumeClaim) -> PersistentVolumeClaim:
    """Equal if no pod is decided differently. What a volume is chosen by is not read once the claim is bound."""
    if claim.fully_bound:
        return replace(claim, version=0, selected_node=None, request_bytes=None, attributes_class="")
    return replace(claim, version=0)


def by_size(volume: PersistentVolume) -> tuple[int, str]:
    """The order in which volumes are chosen for a claim."""
    return volume.capacity_bytes, volume.name

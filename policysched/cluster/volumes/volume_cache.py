"""Claims, volumes, classes, drivers and capacities as last seen, and what of them is promised to pods that are on their way."""

from bisect import bisect_left, insort
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import replace

from policysched.cluster.volumes.change_log import ChangeLog
from policysched.cluster.volumes.reservations import Promised, Promises, VolumeChoice
from policysched.model.cluster_events import ClusterEvent
from policysched.model.objects import ClaimKey, NodeName, PodUid, Preparable
from policysched.model.storage import (
    CsiDriver,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageCapacity,
    StorageClass,
)

_NOTHING: frozenset[ClusterEvent] = frozenset()
_NO_NAMES: frozenset[str] = frozenset()

MountChange = ClaimKey | str | None
"""What may have other volumes attached for it now: a claim, what refers to a volume by its name, or (None) everything."""


class Volumes:
    """Claims, volumes, classes, drivers and capacities by their keys. Every `put_` and `drop_` answers whom it could help.

    Stamps are numbers that grow with each change: `stamp(claim)` and so on let those who keep results know when to ask
    again.
    """

    def __init__(self) -> None:
        self.claims: dict[ClaimKey, PersistentVolumeClaim] = {}
        self.volumes: dict[str, PersistentVolume] = {}
        self.classes: dict[str, StorageClass] = {}
        self.drivers: dict[str, CsiDriver] = {}
        self.capacities: dict[tuple[str, str], StorageCapacity] = {}
        self._capacities_of: dict[str, dict[tuple[str, str], StorageCapacity]] = {}
        self._capacity_stamps: dict[str, int] = {}
        self.promises = Promises()
        self._free: dict[str, list[PersistentVolume]] = {}
        self._held_for: dict[ClaimKey, set[str]] = {}
        self._now = 0
        self._claim_stamps: dict[ClaimKey, int] = {}
        self._volume_stamps: dict[str, int] = {}
        self._class_stamps: dict[str, int] = {}
        self.catalogue_stamp = 0
        """Moves when a class, a driver or a capacity changes."""
        self.volume_changes: ChangeLog[str] = ChangeLog()
        """Names of volumes that changed, or were promised or given back."""
        self.mount_changes: ChangeLog[MountChange] = ChangeLog()

    # ── claims ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def put_claim(self, claim: PersistentVolumeClaim) -> frozenset[ClusterEvent]:
        known = self.claims.get(claim.key)
        if known == claim:
            return _NOTHING
        self.claims[claim.key] = claim
        self._end_if_over(claim.key, claim.version)
        self._claim_stamps[claim.key] = self._tick()
        if known is None or _behind(known) != _behind(claim):
            self.mount_changes.append(claim.key)
        return frozenset({ClusterEvent.CLAIM_UPDATE if known else ClusterEvent.CLAIM_ADD})

    def drop_claim(self, key: ClaimKey) -> frozenset[ClusterEvent]:
        """Wakes nobody: without its claim a pod cannot go anywhere."""
        if self.claims.pop(key, None) is not None:
            self.promises.drop(key)
            self._claim_stamps.pop(key, None)
            self.mount_changes.append(key)
        return _NOTHING

    # ── volumes ────────────────────────────────────────────────────────────────────────────────────────────────────

    def put_volume(self, volume: PersistentVolume) -> frozenset[ClusterEvent]:
        known = self.volumes.get(volume.name)
        if known == volume:
            return _NOTHING
        if known is not None:
            self._unlist(known)
            self._touch_volume(known)
        self.volumes[volume.name] = volume
        if volume.claim is None:
            insort(self._free.setdefault(volume.class_name, []), volume, key=_by_size)
        else:
            self._held_for.setdefault(volume.claim.claim, set()).add(volume.name)
        self._end_if_over(volume.name, volume.version)
        self._touch_volume(volume)
        if known is None or (known.mount, known.is_csi) != (volume.mount, volume.is_csi):
            self.mount_changes.append(volume.name)
        return frozenset({ClusterEvent.VOLUME_UPDATE if known else ClusterEvent.VOLUME_ADD})

    def drop_volume(self, name: str) -> frozenset[ClusterEvent]:
        known = self.volumes.pop(name, None)
        if known is not None:
            self._unlist(known)
            self.promises.drop(name)
            self._touch_volume(known)
            del self._volume_stamps[name]
            self.mount_changes.append(name)
        return _NOTHING

    def held_for(self, claim: ClaimKey) -> Set[str]:
        """The names of the volumes whose `claimRef` names the claim."""
        return self._held_for.get(claim, _NO_NAMES)

    def free(self, class_name: str) -> Sequence[PersistentVolume]:
        """Volumes of the class without a `claimRef`, the smallest first, of equal ones by their names."""
        return self._free.get(class_name, ())

    def _unlist(self, volume: PersistentVolume) -> None:
        if volume.claim is None:
            free = self._free[volume.class_name]
            place = bisect_left(free, _by_size(volume), key=_by_size)
            assert free[place] is volume, f"{volume.name} is not where its size puts it"
            del free[place]
            if not free:
                del self._free[volume.class_name]
        else:
            held = self._held_for[volume.claim.claim]
            held.remove(volume.name)
            if not held:
                del self._held_for[volume.claim.claim]

    def _touch_volume(self, volume: PersistentVolume) -> None:
        self.volume_changes.append(volume.name)
        self._volume_stamps[volume.name] = self._class_stamps[volume.class_name] = self._tick()

    # ── classes, drivers, capacities ───────────────────────────────────────────────────────────────────────────────

    def put_class(self, one: StorageClass) -> frozenset[ClusterEvent]:
        """Of a class that is there already, only where its volumes can be made may change."""
        known = self.classes.get(one.name)
        if known == one:
            return _NOTHING
        self.classes[one.name] = one
        self.catalogue_stamp = self._tick()
        self.mount_changes.append(None)
        if known is None:
            return frozenset({ClusterEvent.STORAGE_CLASS_ADD})
        return frozenset({ClusterEvent.STORAGE_CLASS_UPDATE}) if known.allowed != one.allowed else _NOTHING

    def drop_class(self, name: str) -> frozenset[ClusterEvent]:
        if self.classes.pop(name, None) is not None:
            self.catalogue_stamp = self._tick()
            self.mount_changes.append(None)
        return _NOTHING

    def put_driver(self, one: CsiDriver) -> frozenset[ClusterEvent]:
        """Helps where the driver leaves off tracking what room it has."""
        known = self.drivers.get(one.name)
        if known == one:
            return _NOTHING
        self.drivers[one.name] = one
        self.catalogue_stamp = self._tick()
        left_off = known is not None and known.tracks_capacity and not one.tracks_capacity
        return frozenset({ClusterEvent.CSI_DRIVER_UPDATE}) if left_off else _NOTHING

    def drop_driver(self, name: str) -> frozenset[ClusterEvent]:
        """Without the driver nobody asks for room any more. kube-scheduler waits for the next other event."""
        known = self.drivers.pop(name, None)
        if known is None:
            return _NOTHING
        self.catalogue_stamp = self._tick()
        return frozenset({ClusterEvent.CSI_DRIVER_UPDATE}) if known.tracks_capacity else _NOTHING

    def put_capacity(self, one: StorageCapacity) -> frozenset[ClusterEvent]:
        """Helps where there is more room than before."""
        key = one.namespace, one.name
        known = self.capacities.get(key)
        if known == one:
            return _NOTHING
        if known is not None:
            self._unlist_capacity(known)
        self.capacities[key] = one
        self._capacities_of.setdefault(one.class_name, {})[key] = one
        self._touch_capacity(one)
        if known is None:
            return frozenset({ClusterEvent.STORAGE_CAPACITY_ADD})
        before, after = known.limit_bytes, one.limit_bytes
        more = after is not None and (before is None or after > before)
        return frozenset({ClusterEvent.STORAGE_CAPACITY_UPDATE}) if more else _NOTHING

    def drop_capacity(self, namespace: str, name: str) -> frozenset[ClusterEvent]:
        known = self.capacities.pop((namespace, name), None)
        if known is not None:
            self._unlist_capacity(known)
            self._touch_capacity(known)
        return _NOTHING

    def capacities_of(self, class_name: str) -> Collection[StorageCapacity]:
        return self._capacities_of.get(class_name, {}).values()

    def _unlist_capacity(self, one: StorageCapacity) -> None:
        there = self._capacities_of[one.class_name]
        del there[one.namespace, one.name]
        if not there:
            del self._capacities_of[one.class_name]

    def _touch_capacity(self, one: StorageCapacity) -> None:
        self.catalogue_stamp = self._capacity_stamps[one.class_name] = self._tick()

    # ── promises ───────────────────────────────────────────────────────────────────────────────────────────────────

    def promise(self, pod: PodUid, choice: VolumeChoice, node: NodeName) -> None:
        """From now on nobody else gets the volumes, and the claims go to this node."""
        self.promises.add(pod, choice, node)
        self._touch_choice(choice)

    def written(self, pod: PodUid, choice: VolumeChoice, versions: Mapping[Preparable, int]) -> None:
        """These versions of the objects say what was promised: the promise ends when the watch has come to them."""
        for key in choice.keys:
            promise = self.promises.given.get(key)
            if promise is not None and pod in promise.pods and key in versions:
                self.promises.given[key] = replace(promise, written=versions[key])
                self._end_if_over(key, self._version_seen(key))
        self._touch_choice(choice)

    def release(self, pod: PodUid, choice: VolumeChoice) -> frozenset[ClusterEvent]:
        """The pod does not go there. What was written stays promised until the watch shows it."""
        freed = False
        for key in choice.keys:
            promise = self.promises.given.get(key)
            if promise is None or pod not in promise.pods or promise.written is not None:
                continue
            if promise.pods == {pod}:
                self.promises.drop(key)
                freed = True
            else:
                self.promises.given[key] = replace(promise, pods=promise.pods - {pod})
        self._touch_choice(choice)
        return frozenset({ClusterEvent.VOLUME_UPDATE}) if freed else _NOTHING

    def unwritten_promises(self) -> list[tuple[Promised, PodUid]]:
        """What is promised to whom, without what is written already."""
        return [
            (key, pod)
            for key, one in self.promises.given.items()
            if one.written is None
            for pod in sorted(one.pods)
        ]

    def _end_if_over(self, key: Promised, version: int) -> None:
        promise = self.promises.given.get(key)
        if promise is not None and promise.is_over(version):
            self.promises.drop(key)

    def _version_seen(self, key: Promised) -> int:
        found = self.volumes.get(key) if isinstance(key, str) else self.claims.get(key)
        return 0 if found is None else found.version

    def _touch_choice(self, choice: VolumeChoice) -> None:
        for _, volume in choice.static:
            if volume.name in self.volumes:
                self._touch_volume(volume)
        for claim in choice.provisioned:
            if claim.key in self.claims:
                self._claim_stamps[claim.key] = self._tick()

    # ── stamps ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def claim_stamp(self, key: ClaimKey) -> int:
        return self._claim_stamps.get(key, 0)

    def volume_stamp(self, name: str) -> int:
        return self._volume_stamps.get(name, 0)

    def capacity_stamp(self, class_name: str) -> int:
        """Moves when a capacity of the class does."""
        return self._capacity_stamps.get(class_name, 0)

    def class_stamp(self, name: str) -> int:
        """Moves when any volume of the class does."""
        return self._class_stamps.get(name, 0)

    def _tick(self) -> int:
        self._now += 1
        return self._now


def _behind(claim: PersistentVolumeClaim) -> tuple[object, ...]:
    """What decides which volume is attached for the claim, and for whom."""
    return claim.volume, claim.class_name, claim.controller_uid


def _by_size(volume: PersistentVolume) -> tuple[int, str]:
    return volume.capacity_bytes, volume.name

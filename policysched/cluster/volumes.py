"""Volumes and claims as last seen, and what of them is promised to pods that are on their way.

    free ──promise (a pod is assumed)──► promised ──written──► the watch shows it: the object itself says so
      ▲                                     │ release, or a version that is not ours
      └─────────────────────────────────────┘

A promise stands between the decision and the moment at which the watch shows what was written, so that a volume is not
given out twice and a claim is not sent to two nodes. A version of the object that somebody else wrote ends it: what
the API server says is so. Source: the assume caches of kube-scheduler's VolumeBinding.
"""

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from policysched.cluster.change_log import ChangeLog
from policysched.cluster.objects import ClaimKey, Mount, NodeName, Pod, PodUid, Preparable
from policysched.cluster.storage import (
    ClaimRef,
    CsiDriver,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageCapacity,
    StorageClass,
)
from policysched.lang.events import ClusterEvent

_NOTHING: frozenset[ClusterEvent] = frozenset()
_NO_NAMES: frozenset[str] = frozenset()

CSI_DRIVER_OF: Mapping[str, str] = {
    "kubernetes.io/aws-ebs": "ebs.csi.aws.com",
    "kubernetes.io/azure-disk": "disk.csi.azure.com",
    "kubernetes.io/cinder": "cinder.csi.openstack.org",
    "kubernetes.io/gce-pd": "pd.csi.storage.gke.io",
    "kubernetes.io/portworx-volume": "pxd.portworx.com",
}
"""What attaches the volumes of plugins that were in-tree once. Source: k8s.io/csi-translation-lib."""
_NEVER_COUNTED = frozenset({"kubernetes.io/azure-file", "kubernetes.io/vsphere-volume"})


@dataclass(frozen=True, slots=True)
class VolumeChoice:
    """What has to happen to a pod's claims on its node: those that are bound to volumes that are there, and those whose
    volumes are to be made. Empty: nothing."""

    static: tuple[tuple[PersistentVolumeClaim, PersistentVolume], ...] = ()
    provisioned: tuple[PersistentVolumeClaim, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.static or self.provisioned)

    @property
    def keys(self) -> "tuple[Promised, ...]":
        """What it takes: the volumes, and the claims whose volumes are to be made."""
        return (*(volume.name for _, volume in self.static), *(claim.key for claim in self.provisioned))


@dataclass(frozen=True, slots=True)
class _Promise:
    """`value` is promised on top of version `base`, for pods that may share the claim. `written`: the version that says it,
    once it is written."""

    pods: frozenset[PodUid]
    value: ClaimRef | NodeName
    base: int
    written: int | None = None

    def is_over(self, version: int) -> bool:
        return version != self.base if self.written is None else version >= self.written


MountChange = ClaimKey | str | None
"""What may have other volumes attached for it now: a claim, what refers to a volume by its name, or (None) everything."""

Promised = str | ClaimKey
"""What can be promised: a volume, by its name, or where a claim's volume is to be made."""


@dataclass(slots=True)
class Promises:
    """`given` is to be read only. `additions` counts calls of `add`."""

    given: dict[Promised, _Promise] = field(default_factory=dict)
    additions: int = 0
    _volumes_of: dict[ClaimKey, set[str]] = field(default_factory=dict)

    def add(self, pod: PodUid, choice: VolumeChoice, node: NodeName) -> None:
        self.additions += 1
        for claim, volume in choice.static:
            self._add(volume.name, pod, ClaimRef(claim.key, claim.uid), volume.version)
        for claim in choice.provisioned:
            self._add(claim.key, pod, node, claim.version)

    def _add(self, key: Promised, pod: PodUid, value: ClaimRef | NodeName, base: int) -> None:
        known = self.given.get(key)
        if known is not None and known.value == value:
            self.given[key] = replace(known, pods=known.pods | {pod})
            return
        if known is not None:
            self.drop(key)
        self.given[key] = _Promise(frozenset({pod}), value, base)
        if isinstance(key, str) and isinstance(value, ClaimRef):
            self._volumes_of.setdefault(value.claim, set()).add(key)

    def drop(self, key: Promised) -> None:
        """Nothing happens where nothing is promised."""
        promise = self.given.pop(key, None)
        if promise is not None and isinstance(key, str) and isinstance(promise.value, ClaimRef):
            volumes = self._volumes_of[promise.value.claim]
            volumes.remove(key)
            if not volumes:
                del self._volumes_of[promise.value.claim]

    def volumes_of(self, claim: ClaimKey) -> Set[str]:
        """The names of the volumes that are promised to the claim."""
        return self._volumes_of.get(claim, _NO_NAMES)


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
        self._free: dict[str, list[PersistentVolume]] = {}  # by class, without a claimRef, by size and name
        self._held_for: dict[ClaimKey, set[str]] = {}  # volumes whose claimRef names the claim
        self._now = 0
        self._claim_stamps: dict[ClaimKey, int] = {}
        self._volume_stamps: dict[str, int] = {}
        self._class_stamps: dict[str, int] = {}
        self.catalogue_stamp = 0
        """Moves when a class, a driver or a capacity changes."""
        self.volume_changes: ChangeLog[str] = ChangeLog()
        """Names of volumes that changed, or were promised or given back."""
        self.mount_changes: ChangeLog[MountChange] = ChangeLog()

    @property
    def stock(self) -> "Stock":
        return Stock(self)

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


class Stock:
    """What there is to choose from: the volumes as seen, with everything that is promised, and with what else is promised
    on a cluster that is not (`laid`)."""

    __slots__ = ("_laid", "_volumes")

    def __init__(self, volumes: Volumes, laid: Promises | None = None) -> None:
        self._volumes = volumes
        self._laid = laid

    def laid(self, promises: Promises) -> "Stock":
        return Stock(self._volumes, promises)

    def claim(self, key: ClaimKey) -> PersistentVolumeClaim | None:
        return self._volumes.claims.get(key)

    def volume(self, name: str) -> PersistentVolume | None:
        return self._volumes.volumes.get(name)

    def storage_class(self, name: str) -> StorageClass | None:
        return self._volumes.classes.get(name)

    def tracks_capacity(self, provisioner: str) -> bool:
        driver = self._volumes.drivers.get(provisioner)
        return driver is not None and driver.tracks_capacity

    def capacities(self, class_name: str) -> Collection[StorageCapacity]:
        """Those of the class. As long as `capacity_stamp` says the same they are the same."""
        return self._volumes.capacities_of(class_name)

    def capacity_stamp(self, class_name: str) -> int:
        return self._volumes.capacity_stamp(class_name)

    def is_promised(self, volume: str) -> bool:
        return any(volume in promises.given for promises in self._promises())

    def selected_node(self, claim: PersistentVolumeClaim) -> NodeName | None:
        """Where the claim's volume is to be made."""
        for promises in self._promises():
            promise = promises.given.get(claim.key)
            if promise is not None:
                return NodeName(str(promise.value))
        return claim.selected_node

    def holder(self, volume: PersistentVolume) -> ClaimRef | None:
        """The claim that the volume is bound or promised to."""
        for promises in self._promises():
            promise = promises.given.get(volume.name)
            if promise is not None:
                assert isinstance(promise.value, ClaimRef), f"{volume.name} is promised to {promise.value!r}"
                return promise.value
        return volume.claim

    def held_for(self, claim: PersistentVolumeClaim) -> list[PersistentVolume]:
        """Volumes of the claim's class that are bound or promised to it, by their names."""
        names = set(self._volumes._held_for.get(claim.key, ()))
        for promises in self._promises():
            names |= promises.volumes_of(claim.key)
        found = [volume for name in sorted(names) if (volume := self._volumes.volumes.get(name)) is not None]
        return [
            volume
            for volume in found
            if volume.class_name == claim.class_name and volume.belongs_to(claim, self.holder(volume))
        ]

    def free(self, class_name: str) -> Iterable[PersistentVolume]:
        """Volumes of the class that nobody has, the smallest first, of equal ones by their names."""
        listed: Sequence[PersistentVolume] = self._volumes._free.get(class_name, ())
        layers = [promises.given for promises in self._promises() if promises.given]
        if not layers:
            return listed
        return (one for one in listed if not any(one.name in layer for layer in layers))

    def mount(self, claim: PersistentVolumeClaim) -> Mount | None:
        """What will be attached for the claim: its volume, or where it has none yet, one that its class will make. None where
        no CSI driver attaches it, or nobody knows which."""
        volume = self.volume(claim.volume) if claim.volume else None
        if volume is not None:
            return volume.mount
        found = self.storage_class(claim.class_name) if claim.class_name else None
        if found is None or found.provisioner in _NEVER_COUNTED:
            return None
        driver = CSI_DRIVER_OF.get(found.provisioner, found.provisioner)
        # No driver gives out such a handle.
        return Mount(driver, f"\0{claim.key.namespace}/{claim.key.name}") if driver else None

    def mounts_of(self, pod: Pod) -> frozenset[Mount]:
        """What is attached where the pod is. A claim that is not there, or was made for another pod, counts nothing."""
        found = set(pod.mounts)
        for use in pod.claims:
            claim = self.claim(use.claim)
            if claim is not None and use.made_for in (None, claim.controller_uid):
                mount = self.mount(claim)
                if mount is not None:
                    found.add(mount)
        return frozenset(found)

    def stamps_of(self, pod: Pod) -> tuple[object, ...]:
        """Equal stamps, equal answers about the pod's claims."""
        volumes, found = self._volumes, list[object]()
        for use in pod.claims:
            claim = volumes.claims.get(use.claim)
            found.append(volumes.claim_stamp(use.claim))
            if claim is not None:
                found.append(
                    volumes.volume_stamp(claim.volume)
                    if claim.volume
                    else volumes.class_stamp(claim.class_name)
                )
        found.append(volumes.catalogue_stamp)
        if self._laid is not None:
            found.append(self._laid.additions)
        return tuple(found)

    @property
    def mounts_stamp(self) -> int:
        """Moves when it may be another volume that stands behind some claim."""
        return self._volumes.mount_changes.end

    def _promises(self) -> tuple[Promises, ...]:
        real = self._volumes.promises
        return (real,) if self._laid is None else (self._laid, real)


def _behind(claim: PersistentVolumeClaim) -> tuple[object, ...]:
    """What decides which volume is attached for the claim, and for whom."""
    return claim.volume, claim.class_name, claim.controller_uid


def _by_size(volume: PersistentVolume) -> tuple[int, str]:
    return volume.capacity_bytes, volume.name

"""The volumes that there are to choose from, as kernels and the oracle see them."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from policysched.cluster.volumes.reservations import Promises
from policysched.cluster.volumes.volume_cache import Volumes
from policysched.model.objects import ClaimKey, Mount, NodeName, Pod
from policysched.model.storage import (
    ClaimRef,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageCapacity,
    StorageClass,
)

CSI_DRIVER_OF: Mapping[str, str] = {
    "kubernetes.io/aws-ebs": "ebs.csi.aws.com",
    "kubernetes.io/azure-disk": "disk.csi.azure.com",
    "kubernetes.io/cinder": "cinder.csi.openstack.org",
    "kubernetes.io/gce-pd": "pd.csi.storage.gke.io",
    "kubernetes.io/portworx-volume": "pxd.portworx.com",
}
"""What attaches the volumes of plugins that were in-tree once. Source: k8s.io/csi-translation-lib."""
_NEVER_COUNTED = frozenset({"kubernetes.io/azure-file", "kubernetes.io/vsphere-volume"})


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
        names = set(self._volumes.held_for(claim.key))
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
        listed: Sequence[PersistentVolume] = self._volumes.free(class_name)
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

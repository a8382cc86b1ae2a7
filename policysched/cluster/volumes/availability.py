"""The volumes that there are to choose from, as kernels and the oracle see them."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from policysched.cluster.volumes.reservations import VolumeReservations
from policysched.cluster.volumes.volume_cache import VolumeCache
from policysched.model.identifiers import NodeName, VolumeClaimKey
from policysched.model.pods import Pod
from policysched.model.storage import (
    ClaimRef,
    CsiVolume,
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


class AvailableVolumes:
    """What there is to choose from: the volumes as seen, with everything that is promised, and with what else is promised
    on a cluster that is not (`laid`)."""

    __slots__ = ("_overlay", "_volumes")

    def __init__(self, volumes: VolumeCache, overlay: VolumeReservations | None = None) -> None:
        self._volumes = volumes
        self._overlay = overlay

    def with_overlay(self, promises: VolumeReservations) -> "AvailableVolumes":
        return AvailableVolumes(self._volumes, promises)

    def claim(self, key: VolumeClaimKey) -> PersistentVolumeClaim | None:
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

    def is_reserved(self, volume: str) -> bool:
        return any(volume in promises.by_key for promises in self._reservation_layers())

    def selected_node(self, claim: PersistentVolumeClaim) -> NodeName | None:
        """Where the claim's volume is to be made."""
        for promises in self._reservation_layers():
            promise = promises.by_key.get(claim.key)
            if promise is not None:
                return NodeName(str(promise.target))
        return claim.selected_node

    def claim_ref_of(self, volume: PersistentVolume) -> ClaimRef | None:
        """The claim that the volume is bound or promised to."""
        for promises in self._reservation_layers():
            promise = promises.by_key.get(volume.name)
            if promise is not None:
                assert isinstance(promise.target, ClaimRef), (
                    f"{volume.name} is promised to {promise.target!r}"
                )
                return promise.target
        return volume.claim_ref

    def volumes_for_claim(self, claim: PersistentVolumeClaim) -> list[PersistentVolume]:
        """Volumes of the claim's class that are bound or promised to it, by their names."""
        names = set(self._volumes.volume_names_for_claim(claim.key))
        for promises in self._reservation_layers():
            names |= promises.volumes_reserved_for(claim.key)
        volumes = [volume for name in sorted(names) if (volume := self._volumes.volumes.get(name)) is not None]
        return [
            volume
            for volume in volumes
            if volume.class_name == claim.class_name and volume.belongs_to(claim, self.claim_ref_of(volume))
        ]

    def free_volumes(self, class_name: str) -> Iterable[PersistentVolume]:
        """Volumes of the class that nobody has, the smallest first, of equal ones by their names."""
        listed: Sequence[PersistentVolume] = self._volumes.unclaimed_volumes(class_name)
        layers = [promises.by_key for promises in self._reservation_layers() if promises.by_key]
        if not layers:
            return listed
        return (volume for volume in listed if not any(volume.name in layer for layer in layers))

    def csi_volume(self, claim: PersistentVolumeClaim) -> CsiVolume | None:
        """What will be attached for the claim: its volume, or where it has none yet, one that its class will make. None where
        no CSI driver attaches it, or nobody knows which."""
        volume = self.volume(claim.volume_name) if claim.volume_name else None
        if volume is not None:
            return volume.csi_volume
        storage_class = self.storage_class(claim.class_name) if claim.class_name else None
        if storage_class is None or storage_class.provisioner in _NEVER_COUNTED:
            return None
        driver = CSI_DRIVER_OF.get(storage_class.provisioner, storage_class.provisioner)
        # No driver gives out such a handle.
        return CsiVolume(driver, f"\0{claim.key.namespace}/{claim.key.name}") if driver else None

    def csi_volumes_of(self, pod: Pod) -> frozenset[CsiVolume]:
        """What is attached where the pod is. A claim that is not there, or was made for another pod, counts nothing."""
        csi_volumes = set(pod.mounts)
        for use in pod.claims:
            claim = self.claim(use.claim)
            if claim is not None and use.owner_pod in (None, claim.controller_uid):
                mount = self.csi_volume(claim)
                if mount is not None:
                    csi_volumes.add(mount)
        return frozenset(csi_volumes)

    def stamps_of(self, pod: Pod) -> tuple[object, ...]:
        """Equal stamps, equal answers about the pod's claims."""
        volumes, stamps = self._volumes, list[object]()
        for use in pod.claims:
            claim = volumes.claims.get(use.claim)
            stamps.append(volumes.claim_stamp(use.claim))
            if claim is not None:
                stamps.append(
                    volumes.volume_stamp(claim.volume_name)
                    if claim.volume_name
                    else volumes.class_volumes_stamp(claim.class_name)
                )
        stamps.append(volumes.catalogue_stamp)
        if self._overlay is not None:
            stamps.append(self._overlay.add_count)
        return tuple(stamps)

    @property
    def csi_volumes_stamp(self) -> int:
        """Moves when it may be another volume that stands behind some claim."""
        return self._volumes.csi_volume_changes.end

    def _reservation_layers(self) -> tuple[VolumeReservations, ...]:
        real = self._volumes.reservations
        return (real,) if self._overlay is None else (self._overlay, real)

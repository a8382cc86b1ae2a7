"""The volumes available to pods: as observed, minus reservations. Kernels and the reference
implementation read this view."""

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
"""CSI drivers that replace in-tree plugins. Source: k8s.io/csi-translation-lib."""
_NEVER_COUNTED = frozenset({"kubernetes.io/azure-file", "kubernetes.io/vsphere-volume"})


class AvailableVolumes:
    """Observed volumes with all reservations, and optionally with those of a hypothetical cluster
    (`overlay`)."""

    __slots__ = ("_overlay", "_volumes")

    def __init__(self, volumes: VolumeCache, overlay: VolumeReservations | None = None) -> None:
        self._volumes = volumes
        self._overlay = overlay

    def with_overlay(self, reservations: VolumeReservations) -> "AvailableVolumes":
        return AvailableVolumes(self._volumes, reservations)

    def claim(self, key: VolumeClaimKey) -> PersistentVolumeClaim | None:
        return self._volumes.claims.get(key)

    def volume(self, name: str) -> PersistentVolume | None:
        return self._volumes.volumes.get(name)

    def storage_class(self, name: str) -> StorageClass | None:
        return self._volumes.classes.get(name)

    def tracks_capacity(self, provisioner: str) -> bool:
        driver = self._volumes.drivers.get(provisioner)
        return driver is not None and driver.tracks_capacity

    def needed_drivers(self, pod: Pod) -> tuple[str, ...]:
        """The drivers of the pod's volumes without which a node cannot run it, sorted."""
        drivers = {mount.driver for mount in self.csi_volumes_of(pod)}
        csi_drivers = (self._volumes.drivers.get(name) for name in drivers)
        return tuple(
            sorted(driver.name for driver in csi_drivers if driver is not None and driver.needed_on_node)
        )

    def capacities(self, class_name: str) -> Collection[StorageCapacity]:
        """The capacities of the class; unchanged as long as `capacity_stamp` is equal."""
        return self._volumes.capacities_of(class_name)

    def capacity_stamp(self, class_name: str) -> int:
        return self._volumes.capacity_stamp(class_name)

    def is_reserved(self, volume: str) -> bool:
        return any(volume in reservations.by_key for reservations in self._reservation_layers())

    def selected_node(self, claim: PersistentVolumeClaim) -> NodeName | None:
        """The node for which the claim's volume is provisioned."""
        for reservations in self._reservation_layers():
            reservation = reservations.by_key.get(claim.key)
            if reservation is not None:
                return NodeName(str(reservation.target))
        return claim.selected_node

    def claim_ref_of(self, volume: PersistentVolume) -> ClaimRef | None:
        """The claim that the volume is bound to or reserved for."""
        for reservations in self._reservation_layers():
            reservation = reservations.by_key.get(volume.name)
            if reservation is not None:
                assert isinstance(reservation.target, ClaimRef), (
                    f"{volume.name} is reserved for {reservation.target!r}"
                )
                return reservation.target
        return volume.claim_ref

    def volumes_for_claim(self, claim: PersistentVolumeClaim) -> list[PersistentVolume]:
        """Volumes of the claim's class that are bound to it or reserved for it, sorted by name."""
        names = set(self._volumes.volume_names_for_claim(claim))
        for reservations in self._reservation_layers():
            names |= reservations.volumes_reserved_for(claim.key)
        volumes = [
            volume for name in sorted(names) if (volume := self._volumes.volumes.get(name)) is not None
        ]
        return [
            volume
            for volume in volumes
            if volume.class_name == claim.class_name and volume.belongs_to(claim, self.claim_ref_of(volume))
        ]

    def free_volumes(self, class_name: str) -> Iterable[PersistentVolume]:
        """Volumes of the class without claim or reservation, sorted by size and name."""
        listed: Sequence[PersistentVolume] = self._volumes.unclaimed_volumes(class_name)
        layers = [reservations.by_key for reservations in self._reservation_layers() if reservations.by_key]
        if not layers:
            return listed
        return (volume for volume in listed if not any(volume.name in layer for layer in layers))

    def csi_volume(self, claim: PersistentVolumeClaim) -> CsiVolume | None:
        """The volume to attach for the claim: the bound one, or a placeholder for one that its
        class provisions. None if no CSI driver attaches it, or the driver is unknown."""
        volume = self.volume(claim.volume_name) if claim.volume_name else None
        if volume is not None:
            return volume.csi_volume
        storage_class = self.storage_class(claim.class_name) if claim.class_name else None
        if storage_class is None or storage_class.provisioner in _NEVER_COUNTED:
            return None
        driver = CSI_DRIVER_OF.get(storage_class.provisioner, storage_class.provisioner)
        # Not a valid handle of any driver.
        return CsiVolume(driver, f"\0{claim.key.namespace}/{claim.key.name}") if driver else None

    def csi_volumes_of(self, pod: Pod) -> frozenset[CsiVolume]:
        """The volumes attached for the pod. Claims that are missing or belong to another pod do not
        count."""
        csi_volumes = set(pod.mounts)
        for use in pod.claims:
            claim = self.claim(use.claim)
            if claim is not None and use.owner_pod in (None, claim.controller_uid):
                mount = self.csi_volume(claim)
                if mount is not None:
                    csi_volumes.add(mount)
        return frozenset(csi_volumes)

    def stamps_of(self, pod: Pod) -> tuple[object, ...]:
        """Equal stamps mean that cached results about the pod's claims are still valid."""
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
        """Grows when the volume behind some claim may have changed."""
        return self._volumes.csi_volume_changes.version

    def _reservation_layers(self) -> tuple[VolumeReservations, ...]:
        real = self._volumes.reservations
        return (real,) if self._overlay is None else (self._overlay, real)

"""Storage and device events: into the cache, to the parked pods that they can help, and to the pods in PreBind."""

from policysched.model.cluster_events import ClusterEvent
from policysched.model.devices import DeviceKind, DeviceObject, ResourceClaim
from policysched.model.identifiers import ResourceClaimKey, VolumeClaimKey
from policysched.model.storage import (
    CsiNode,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageCapacity,
    StorageKind,
    StorageObject,
)
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.prebind import Prebinder

_GLOBAL_EVENTS = frozenset({ClusterEvent.DEVICES_FREED})


class StorageEvents:
    def __init__(self, core: SchedulerCore, prebinder: Prebinder) -> None:
        self._core = core
        self._prebinder = prebinder

    def storage_updated(self, storage_object: StorageObject | CsiNode, now_ns: int) -> None:
        events = self._core.cache.put_storage(storage_object)
        match storage_object:
            case PersistentVolume():
                self._core.queue.requeue(events, now_ns, cause=_namespace_of(storage_object))
                self._prebinder.recheck(now_ns, volume=storage_object)
            case PersistentVolumeClaim():
                self._core.queue.requeue(
                    events, now_ns, claim=storage_object.key, cause=storage_object.key.namespace
                )
                self._prebinder.recheck(now_ns, claim=storage_object.key)
            case StorageCapacity():
                self._core.queue.requeue(events, now_ns, cause=storage_object.namespace)
            case _:
                self._core.queue.requeue(events, now_ns)

    def device_updated(self, device_object: DeviceObject, now_ns: int) -> None:
        events = self._core.cache.put_device_object(device_object)
        claim = device_object.key if isinstance(device_object, ResourceClaim) else None
        self._requeue(events, claim, now_ns, None if claim is None else claim.namespace)
        if isinstance(device_object, ResourceClaim):
            self._prebinder.device_claim_changed(device_object.key, now_ns)

    def device_deleted(self, kind: DeviceKind, namespace: str, name: str, now_ns: int) -> None:
        events = self._core.cache.drop_device_object(kind, namespace, name)
        self._requeue(events, None, now_ns, namespace or None)
        if kind == "ResourceClaim":
            self._prebinder.device_claim_changed(ResourceClaimKey(namespace, name), now_ns)

    def device_kind_served(self, kind: DeviceKind, now_ns: int, *, served: bool) -> None:
        devices = self._core.cache.devices
        if served:
            self._requeue(devices.mark_kind_served(kind), None, now_ns)
        else:
            devices.mark_kind_unserved(kind)

    def extended_claim_deleted(self, claim: ResourceClaimKey, uid: str, now_ns: int) -> None:
        events = self._core.cache.devices.mark_claim_deleted(claim, uid)
        self._requeue(events, None, now_ns, claim.namespace)

    def _requeue(
        self,
        events: frozenset[ClusterEvent],
        claim: ResourceClaimKey | None,
        now_ns: int,
        cause: str | None = None,
    ) -> None:
        """A change of a claim can help the pods that use it, freed devices every pod."""
        queue = self._core.queue
        queue.requeue(events & _GLOBAL_EVENTS, now_ns, cause=cause)
        queue.requeue(events - _GLOBAL_EVENTS, now_ns, claim=claim, cause=cause)

    def storage_deleted(self, kind: StorageKind, namespace: str, name: str, now_ns: int) -> None:
        volume = self._core.cache.volumes.volumes.get(name) if kind == "PersistentVolume" else None
        cause = namespace or (self._namespace_of_attached(name) if kind == "VolumeAttachment" else None)
        events = self._core.cache.drop_storage(kind, namespace, name)
        self._core.queue.requeue(events, now_ns, cause=cause)
        if volume is not None:
            self._prebinder.recheck(now_ns, volume=volume)
        elif kind == "PersistentVolumeClaim":
            self._prebinder.recheck(now_ns, claim=VolumeClaimKey(namespace, name))

    def _namespace_of_attached(self, attachment: str) -> str | None:
        cache = self._core.cache
        volume = cache.volumes.volumes.get(cache.attached_volume(attachment) or "")
        return None if volume is None else _namespace_of(volume)


def _namespace_of(volume: PersistentVolume) -> str | None:
    """The namespace that causes changes of the volume: a tenant has volumes provisioned as fast as it creates claims. None:
    the volume is free, so it can help pods of any namespace."""
    return None if volume.claim_ref is None else volume.claim_ref.claim.namespace

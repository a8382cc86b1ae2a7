"""Volumes, devices, claims and their kin as events: into the cache, to the pods that they wake, to the pods that wait for them."""

from policysched.model.cluster_events import ClusterEvent
from policysched.model.devices import DeviceKind, DeviceObject, ResourceClaim
from policysched.model.identifiers import ResourceClaimKey, VolumeClaimKey
from policysched.model.storage import (
    CsiNode,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageKind,
    StorageObject,
)
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.prebind import Prebinder

_GLOBAL_EVENTS = frozenset({ClusterEvent.DEVICES_FREED})


class StorageEvents:
    def __init__(self, core: SchedulerCore, preparing: Prebinder) -> None:
        self._core = core
        self._prebinder = preparing

    def storage_updated(self, one: StorageObject | CsiNode, now_ns: int) -> None:
        events = self._core.cache.put_storage(one)
        match one:
            case PersistentVolume():
                self._core.queue.requeue(events, now_ns)
                self._prebinder.recheck(now_ns)
            case PersistentVolumeClaim():
                self._core.queue.requeue(events, now_ns, claim=one.key)
                self._prebinder.recheck(now_ns, claim=one.key)
            case _:
                self._core.queue.requeue(events, now_ns)

    def device_updated(self, one: DeviceObject, now_ns: int) -> None:
        events = self._core.cache.put_device_object(one)
        self._requeue(events, one.key if isinstance(one, ResourceClaim) else None, now_ns)
        if isinstance(one, ResourceClaim):
            self._prebinder.device_claim_changed(one.key, now_ns)

    def device_deleted(self, kind: DeviceKind, namespace: str, name: str, now_ns: int) -> None:
        self._requeue(self._core.cache.drop_device_object(kind, namespace, name), None, now_ns)
        if kind == "ResourceClaim":
            self._prebinder.device_claim_changed(ResourceClaimKey(namespace, name), now_ns)

    def device_kind_served(self, kind: DeviceKind, now_ns: int, *, served: bool) -> None:
        devices = self._core.cache.devices
        if served:
            self._requeue(devices.mark_kind_served(kind), None, now_ns)
        else:
            devices.mark_kind_unserved(kind)

    def extended_claim_deleted(self, claim: ResourceClaimKey, now_ns: int) -> None:
        self._requeue(self._core.cache.devices.mark_claim_deleted(claim), None, now_ns)

    def _requeue(self, events: frozenset[ClusterEvent], claim: ResourceClaimKey | None, now_ns: int) -> None:
        """What happens to a claim helps those who use it, devices that are free help all."""
        queue = self._core.queue
        queue.requeue(events & _GLOBAL_EVENTS, now_ns)
        queue.requeue(events - _GLOBAL_EVENTS, now_ns, claim=claim)

    def storage_deleted(self, kind: StorageKind, namespace: str, name: str, now_ns: int) -> None:
        events = self._core.cache.drop_storage(kind, namespace, name)
        self._core.queue.requeue(events, now_ns)
        match kind:
            case "PersistentVolume":
                self._prebinder.recheck(now_ns)
            case "PersistentVolumeClaim":
                self._prebinder.recheck(now_ns, claim=VolumeClaimKey(namespace, name))
            case _:
                pass

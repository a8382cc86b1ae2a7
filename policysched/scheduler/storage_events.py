"""Volumes, devices, claims and their kin as events: into the cache, to the pods that they wake, to the pods that wait for them."""

from policysched.model.cluster_events import ClusterEvent
from policysched.model.devices import DeviceKind, DeviceObject, ResourceClaim
from policysched.model.objects import ClaimKey, CsiNode, ResourceClaimKey
from policysched.model.storage import (
    PersistentVolume,
    PersistentVolumeClaim,
    StorageKind,
    StorageObject,
)
from policysched.scheduler.core import Core
from policysched.scheduler.prebind import Preparing

_FOR_ALL = frozenset({ClusterEvent.DEVICES_FREED})


class Storage:
    def __init__(self, core: Core, preparing: Preparing) -> None:
        self._core = core
        self._preparing = preparing

    def seen(self, one: StorageObject | CsiNode, now_ns: int) -> None:
        events = self._core.cache.put_storage(one)
        match one:
            case PersistentVolume():
                self._core.queue.wake(events, now_ns)
                self._preparing.look(now_ns)
            case PersistentVolumeClaim():
                self._core.queue.wake(events, now_ns, claim=one.key)
                self._preparing.look(now_ns, claim=one.key)
            case _:
                self._core.queue.wake(events, now_ns)

    def device_seen(self, one: DeviceObject, now_ns: int) -> None:
        events = self._core.cache.put_device_object(one)
        self._wake(events, one.key if isinstance(one, ResourceClaim) else None, now_ns)
        if isinstance(one, ResourceClaim):
            self._preparing.claim_moved(one.key, now_ns)

    def device_gone(self, kind: DeviceKind, namespace: str, name: str, now_ns: int) -> None:
        self._wake(self._core.cache.drop_device_object(kind, namespace, name), None, now_ns)
        if kind == "ResourceClaim":
            self._preparing.claim_moved(ResourceClaimKey(namespace, name), now_ns)

    def device_kind(self, kind: DeviceKind, now_ns: int, *, served: bool) -> None:
        devices = self._core.cache.devices
        if served:
            self._wake(devices.serve(kind), None, now_ns)
        else:
            devices.miss(kind)

    def claim_dropped(self, claim: ResourceClaimKey, now_ns: int) -> None:
        self._wake(self._core.cache.devices.gone(claim), None, now_ns)

    def _wake(self, events: frozenset[ClusterEvent], claim: ResourceClaimKey | None, now_ns: int) -> None:
        """What happens to a claim helps those who use it, devices that are free help all."""
        queue = self._core.queue
        queue.wake(events & _FOR_ALL, now_ns)
        queue.wake(events - _FOR_ALL, now_ns, claim=claim)

    def gone(self, kind: StorageKind, namespace: str, name: str, now_ns: int) -> None:
        events = self._core.cache.drop_storage(kind, namespace, name)
        self._core.queue.wake(events, now_ns)
        match kind:
            case "PersistentVolume":
                self._preparing.look(now_ns)
            case "PersistentVolumeClaim":
                self._preparing.look(now_ns, claim=ClaimKey(namespace, name))
            case _:
                pass

"""Volumes, claims and their kin as events: into the cache, to the pods that they wake, to the pods that wait for them."""

from policysched.cluster.objects import ClaimKey, CsiNode
from policysched.cluster.storage import (
    PersistentVolume,
    PersistentVolumeClaim,
    StorageKind,
    StorageObject,
)
from policysched.schedule.core import Core
from policysched.schedule.preparing import Preparing


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

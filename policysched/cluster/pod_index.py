"""Which pods there are: all that have not finished and are not terminating, on a node or on none, of whatever scheduler; and in a
census of their own those that have or are, as long as the API server shows them.

Each change has a number, and who keeps counts asks which pods moved since the number that it last saw.
"""

from collections.abc import Hashable, Iterable
from dataclasses import replace
from functools import lru_cache
from typing import TypeVar

from policysched.model.identifiers import PodUid
from policysched.model.pods import Pod

_CHANGES_KEPT_MIN = 64

Value = TypeVar("Value", bound=Hashable)


class PodIndex:
    """Kept by the cache. `pods` is to be read only."""

    def __init__(self) -> None:
        self.pods: dict[PodUid, Pod] = {}
        self.version = 0
        self._changed: dict[PodUid, int] = {}  # by pod the number of its last change, oldest first
        self._forgotten_version = 0

    def put(self, pod: Pod) -> None:
        """The pod is there, and is as it says."""
        if self.pods.get(pod.uid) != pod:
            self.pods[pod.uid] = pod
            self._record_change(pod.uid)

    def drop(self, uid: PodUid) -> None:
        """The pod has finished, is terminating or is gone."""
        if self.pods.pop(uid, None) is not None:
            self._record_change(uid)

    def changed_since(self, version: int) -> Iterable[PodUid] | None:
        """The pods that came, went or changed after that number; None: too long ago to tell."""
        if version < self._forgotten_version:
            return None
        found = []
        for uid in reversed(self._changed):
            if self._changed[uid] <= version:
                break
            found.append(uid)
        return found

    def _record_change(self, uid: PodUid) -> None:
        self.version += 1
        self._changed.pop(uid, None)
        self._changed[uid] = self.version
        if len(self._changed) > _CHANGES_KEPT_MIN + 2 * len(self.pods):
            # Mostly pods that are gone: who has not asked for so long counts anew.
            self._changed.clear()
            self._forgotten_version = self.version


@lru_cache(maxsize=1024)
def _interned(value: Value) -> Value:
    """The first of its equals."""
    return value


def compact_ended_pod(pod: Pod) -> Pod:
    """Of a pod that is done: without what only placing it reads, and sharing what is the same for many, for there may be many
    of them."""
    return replace(
        pod,
        images=_interned(pod.images),
        tolerations=_interned(pod.tolerations),
        node_selector={},
        affinity=None,
        host_ports=(),
        image_volumes=(),
        gates=(),
        pod_affinity=None,
        spread=(),
        required_features=frozenset(),
        uncovered=(),
        claims=(),
        disks=(),
        mounts=(),
        device_claims=(),
    )

"""Which pods there are: all that have not finished and are not terminating, on a node or on none, of whatever scheduler; and in a
census of their own those that have or are, as long as the API server shows them.

Each change has a number, and who keeps counts asks which pods moved since the number that it last saw.
"""

from collections.abc import Hashable, Iterable
from dataclasses import replace
from functools import lru_cache
from typing import TypeVar

from policysched.model.objects import Pod, PodUid

_REMEMBERED_MIN = 64

Same = TypeVar("Same", bound=Hashable)


class Census:
    """Kept by the cache. `pods` is to be read only."""

    def __init__(self) -> None:
        self.pods: dict[PodUid, Pod] = {}
        self.version = 0
        self._moved: dict[PodUid, int] = {}  # by pod the number of its last change, oldest first
        self._forgotten = 0

    def put(self, pod: Pod) -> None:
        """The pod is there, and is as it says."""
        if self.pods.get(pod.uid) != pod:
            self.pods[pod.uid] = pod
            self._note(pod.uid)

    def drop(self, uid: PodUid) -> None:
        """The pod has finished, is terminating or is gone."""
        if self.pods.pop(uid, None) is not None:
            self._note(uid)

    def moved_since(self, version: int) -> Iterable[PodUid] | None:
        """The pods that came, went or changed after that number; None: too long ago to tell."""
        if version < self._forgotten:
            return None
        found = []
        for uid in reversed(self._moved):
            if self._moved[uid] <= version:
                break
            found.append(uid)
        return found

    def _note(self, uid: PodUid) -> None:
        self.version += 1
        self._moved.pop(uid, None)
        self._moved[uid] = self.version
        if len(self._moved) > _REMEMBERED_MIN + 2 * len(self.pods):
            # Mostly pods that are gone: who has not asked for so long counts anew.
            self._moved.clear()
            self._forgotten = self.version


@lru_cache(maxsize=1024)
def _shared(value: Same) -> Same:
    """The first of its equals."""
    return value


def remembered(pod: Pod) -> Pod:
    """Of a pod that is done: without what only placing it reads, and sharing what is the same for many, for there may be many
    of them."""
    return replace(
        pod,
        images=_shared(pod.images),
        tolerations=_shared(pod.tolerations),
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

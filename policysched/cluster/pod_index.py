"""Pods by UID with a change log, so that pod counters catch up incrementally.

The cluster cache has two: the active pods (not finished, not terminating; bound or not, of any
scheduler), and the ended pods (finished or terminating, as long as the API server lists them).
"""

from collections.abc import Hashable, Iterable
from dataclasses import replace
from functools import lru_cache
from typing import TypeVar

from policysched.cluster.change_log import ChangeLog
from policysched.model.identifiers import PodUid
from policysched.model.pods import Pod

_CHANGES_KEPT_MIN = 64

Value = TypeVar("Value", bound=Hashable)
Item = TypeVar("Item")


class PodIndex:
    """`pods` is read only. `changes` has the pods that were added, changed or removed."""

    def __init__(self) -> None:
        self.pods: dict[PodUid, Pod] = {}
        self.changes: ChangeLog[PodUid] = ChangeLog()

    @property
    def version(self) -> int:
        return self.changes.version

    def put(self, pod: Pod) -> None:
        """Add the pod, or replace it by its new value."""
        if self.pods.get(pod.uid) != pod:
            self.pods[pod.uid] = pod
            self._record_change(pod.uid)

    def drop(self, uid: PodUid) -> None:
        """Remove the pod, if it is there."""
        if self.pods.pop(uid, None) is not None:
            self._record_change(uid)

    def changed_since(self, version: int) -> Iterable[PodUid] | None:
        """The pods that were added, changed or removed after the version. None: the change log does
        not reach back that far."""
        return self.changes.since(version)

    def _record_change(self, uid: PodUid) -> None:
        # Beyond this limit most entries are removed pods, and recounting all pods is cheaper.
        self.changes.record(uid, keys_max=_CHANGES_KEPT_MIN + 2 * len(self.pods))


_INTERNED_ITEMS_MAX, _INTERNED_CHARACTERS_MAX = 32, 4096


@lru_cache(maxsize=1024)
def _kept(value: Value) -> Value:
    return value


def _interned(value: tuple[Item, ...]) -> tuple[Item, ...]:
    """One object for all equal values. Large ones are not kept."""
    is_small = len(value) <= _INTERNED_ITEMS_MAX and len(repr(value)) <= _INTERNED_CHARACTERS_MAX
    return _kept(value) if is_small else value


def compact_ended_pod(pod: Pod) -> Pod:
    """An ended pod without the fields that only placement reads, and with shared equal values, to
    save memory."""
    return replace(
        pod,
        images=_interned(pod.images),
        tolerations=_interned(pod.tolerations),
        node_selector={},
        affinity=None,
        host_ports=(),
        host_port_numbers=(),
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

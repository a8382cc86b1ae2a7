"""Changes of a namespace: its pods are enqueued again, because policies read the namespace.

Those of many pods in slices, between which pods of others are decided. No pod that the change has not reached is attempted,
and no gang with such a member: when its turn comes, it is enqueued again first. Until then it has its old place in the queue,
and a pod that was rejected is still rejected.
"""

from collections import OrderedDict
from collections.abc import Iterable
from itertools import islice

from policysched.model.identifiers import PodUid
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.policy_membership import PolicyMembership
from policysched.scheduler.queue.entries import PendingPod, QueueEntry
from policysched.scheduler.queue.gang_registry import QueuedGang

PODS_PER_SLICE = 32
"""A few milliseconds. A change for so few is applied at once."""


class NamespaceEvents:
    """`_unreached`: by namespace, the pods that its last change has not reached."""

    def __init__(self, core: SchedulerCore, membership: PolicyMembership) -> None:
        self._core = core
        self._membership = membership
        self._unreached: OrderedDict[str, dict[PodUid, None]] = OrderedDict()
        self._changed_ns = 0

    def changed(self, namespace: str, now_ns: int) -> None:
        self._unreached[namespace] = dict.fromkeys(self._membership.reading_namespace(namespace))
        self._changed_ns = now_ns
        self._reach(namespace, self._unreached[namespace], now_ns)

    def next_time_ns(self) -> int | None:
        return self._changed_ns if self._unreached else None

    def advance(self, now_ns: int) -> None:
        """Apply a slice of the change of each namespace in turn."""
        if self._unreached:
            namespace = next(iter(self._unreached))
            self._unreached.move_to_end(namespace)
            self._reach(namespace, self._unreached[namespace], now_ns)

    def has_reached(self, entry: QueueEntry, now_ns: int) -> bool:
        """Whether a detached entry can be attempted. Otherwise a slice of its pods is enqueued again, and it is too, unless
        they make it wait."""
        unreached = self._unreached.get(entry.namespace)
        if unreached is None:
            return True
        gang = self._core.gangs.gang_of(entry.uid) if isinstance(entry, PendingPod) else entry
        members = (*gang.placed_members, *gang.pending_members) if isinstance(gang, QueuedGang) else ()
        alone = (entry.uid,) if isinstance(entry, PendingPod) else ()
        pods = [uid for uid in members or alone if uid in unreached]
        if pods:
            self._reach(entry.namespace, pods, now_ns)
        return not pods

    def _reach(self, namespace: str, pods: Iterable[PodUid], now_ns: int) -> None:
        """At most a slice of the pods. All of them where others say what is attempted next: they do not ask."""
        unreached = self._unreached[namespace]
        count_max = len(unreached) if self._core.queue.order_is_given else PODS_PER_SLICE
        for uid in list(islice(pods, count_max)):
            del unreached[uid]
            self._membership.namespace_changed(uid, now_ns)
        if not unreached:
            del self._unreached[namespace]

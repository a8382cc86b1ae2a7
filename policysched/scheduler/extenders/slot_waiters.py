"""Pods that wait until an extender takes one more call.

The highest priority comes first, as in the queue, then a namespace that is not overdrawn. Namespaces take turns by the time that
their calls took (start-time fair queueing): an answer takes up to seconds, so that the pods of one namespace would hold up all
others. Within a namespace, the pod that was queued first comes first.
"""

from collections.abc import Callable

from policysched.model.identifiers import PodUid
from policysched.scheduler.queue.decision_time import DecisionTime
from policysched.scheduler.queue.entries import PendingPod
from policysched.scheduler.queue.movable_heap import MovableHeap

Names = tuple[str, ...]
_Group = tuple[str, Names]
"""A namespace, and the extenders of which one had no free slot."""

_NAMESPACES_KEPT = 1_000


class SlotWaiters:
    def __init__(self) -> None:
        self._used_ns: dict[str, int] = {}  # a virtual time: who called nothing for long saves up nothing
        self._virtual_ns = 0
        self._groups: dict[_Group, MovableHeap[PodUid]] = {}  # whose turn was longest ago is first
        self._group_of: dict[PodUid, _Group] = {}

    def __len__(self) -> int:
        return len(self._group_of)

    def __contains__(self, uid: PodUid) -> bool:
        return uid in self._group_of

    def add(self, pod: PendingPod, names: Names) -> None:
        self.discard(pod.uid)
        group = self._group_of[pod.uid] = pod.namespace, names
        self._groups.setdefault(group, MovableHeap()).put(pod.uid, (-pod.priority, pod.queued_ns))

    def discard(self, uid: PodUid) -> None:
        group = self._group_of.pop(uid, None)
        if group is not None:
            self._groups[group].discard(uid)
            if not self._groups[group]:
                del self._groups[group]

    def charge(self, namespace: str, elapsed_ns: int) -> None:
        """A call of the namespace is answered. While nobody waits, nobody's calls are remembered."""
        if not self._groups:
            self._used_ns.clear()
            return
        self._used_ns[namespace] = self._used(namespace) + elapsed_ns
        if len(self._used_ns) > _NAMESPACES_KEPT:
            self._used_ns = {name: used for name, used in self._used_ns.items() if used > self._virtual_ns}

    def take(self, have_free_slot: Callable[[Names], bool], time: DecisionTime) -> PodUid | None:
        """Whose turn it is, of those with free slots. Pods are not visited, their namespaces are."""
        free = {names: have_free_slot(names) for names in {names for _, names in self._groups}}
        group = min(
            (group for group in self._groups if free[group[1]]),
            key=lambda group: (
                self._precedence(group),
                time.is_overdrawn(group[0]) + time.owes(group[0]),
                self._used(group[0]),
            ),
            default=None,
        )
        if group is None:
            return None
        uid = self._groups[group].first()
        assert uid is not None, f"{group} has no pod"
        self._virtual_ns = self._used(group[0])
        self._groups[group] = self._groups.pop(group)
        self.discard(uid)
        return uid

    def _precedence(self, group: _Group) -> int:
        """Of its first pod: a lower number is a higher priority."""
        key = self._groups[group].first_key()
        assert key is not None, f"{group} has no pod"
        return int(key[0])

    def _used(self, namespace: str) -> int:
        return max(self._used_ns.get(namespace, 0), self._virtual_ns)

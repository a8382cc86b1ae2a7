"""Changes of a namespace: its pods are enqueued again, because policies read the namespace.

Those of many pods in slices. No pod that the change has not reached is attempted, and no gang with such a member: when its
turn comes, it is enqueued again first. Until then it has its old place in the queue, and a pod that was rejected is still
rejected. `PolicyMembership.changes` has slow pods that changed themselves, too.
"""

from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.policy_membership import PolicyMembership
from policysched.scheduler.queue.entries import PendingPod, QueueEntry
from policysched.scheduler.queue.gang_registry import QueuedGang


class NamespaceEvents:
    """Where the changes of a namespace are in the `changes` and `charges` of its pods."""

    def __init__(self, core: SchedulerCore, membership: PolicyMembership) -> None:
        self._core = core
        self._membership = membership
        self._changes = membership.changes
        self._charges = membership.charges
        self.sliced = self._charges, self._changes

    def changed(self, namespace: str, now_ns: int, *, synced: bool) -> None:
        if namespace not in self._core.cache.namespaces:
            self._core.queue.decision_time.namespace_deleted(namespace)
        self._charges.begin(namespace, self._core.quotas.charged_in(namespace), now_ns)
        if synced:
            unreached = list(self._changes.left(namespace))
            pods = (*self._membership.reading_namespace(namespace), *unreached)
            self._changes.begin(namespace, pods, now_ns)

    def charge_placed(self, policy: str, now_ns: int) -> bool:
        """Whether a pod was charged that another component placed, or resized, in any namespace. Until all are, the quotas of the
        policy judge nothing: they would be exceeded."""
        pod = self._core.quotas.uncharged(policy)
        if pod is not None:
            self._charges.add(pod.namespace, pod.uid, now_ns)
            self._charges.reach(pod.namespace, (pod.uid,), now_ns)
        return pod is not None

    def has_reached(self, entry: QueueEntry, now_ns: int) -> bool:
        """Whether a detached entry can be attempted. Otherwise a slice of its pods is enqueued again, and it is too, unless
        they make it wait. So that quotas judge it by the whole namespace as it is now, all of that is charged before."""
        uncharged = self._charges.left(entry.namespace)
        if uncharged and entry.policy in self._core.quotas.accounts:
            self._charges.reach(entry.namespace, uncharged, now_ns)
            return False
        unreached = self._changes.left(entry.namespace)
        if not unreached:
            return True
        gang = self._core.gangs.gang_of(entry.uid) if isinstance(entry, PendingPod) else entry
        members = (*gang.placed_members, *gang.pending_members) if isinstance(gang, QueuedGang) else ()
        alone = (entry.uid,) if isinstance(entry, PendingPod) else ()
        pods = [uid for uid in members or alone if uid in unreached]
        if pods:
            self._changes.reach(entry.namespace, pods, now_ns)
        return not pods

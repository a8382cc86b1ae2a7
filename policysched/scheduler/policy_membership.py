"""Which pods belong to which policy, and what a change of a pod or its namespace means for them.

A pod belongs to the policy that its schedulerName names, while that policy runs. Other pods are not scheduled here. If
they are placed they use capacity, and a policy that starts later gets its pods from here.

A policy that is slow to evaluate reaches new and changed pods in slices, at the expense of their namespace. Until then a new
pod is not in the queue, and a changed one is as before; no pod is attempted meanwhile that has changed (`NamespaceEvents.has_reached`).
"""

from collections.abc import Iterator

from policysched.cluster.ledger import PlacementState
from policysched.evaluate import GangTerms, Plan
from policysched.model.identifiers import PodUid
from policysched.model.pod_status import ObservedPod
from policysched.model.pods import Pod, differ_in_readiness_alone
from policysched.scheduler.blame import ObjectId, change_id, raises_for
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.pod_enqueuer import PodEnqueuer
from policysched.scheduler.queue.entries import QueueState
from policysched.scheduler.sliced_changes import SlicedChanges
from policysched.scheduler.steps import POD_OPERATIONS_AT_ONCE_MAX


class PolicyMembership:
    """Every known pod by its schedulerName, whether or not such a policy runs. `changes`: by namespace, the pods that its last
    change has not reached, and those that changed and are slow to evaluate; `charges`: its placed pods that still count in
    the quotas as before, or not yet."""

    def __init__(self, core: SchedulerCore, enqueuer: PodEnqueuer) -> None:
        self._core = core
        self._enqueuer = enqueuer
        self._pods_by_scheduler: dict[str, dict[PodUid, None]] = {}
        self.changes: SlicedChanges[str, PodUid] = SlicedChanges(
            core.queue, change_id, self._apply_changes, cost_of=core.pre_enqueue_operations
        )
        self.charges: SlicedChanges[str, PodUid] = SlicedChanges(
            core.queue, change_id, self._recharge, cost_of=core.quotas.recharge_operations, rests=False
        )

    def add(self, pod: Pod, before: Pod | None) -> None:
        """The pod is known now; `before`: as it was known."""
        self._pods_by_scheduler.setdefault(pod.scheduler, {})[pod.uid] = None
        canaries = self._core.canaries
        if canaries.active and not (before is not None and _read_alike(before, pod)):
            canaries.put_pod(pod)

    def remove(self, pod: Pod) -> None:
        self._core.canaries.drop_pod(pod)
        uids = self._pods_by_scheduler.get(pod.scheduler, {})
        uids.pop(pod.uid, None)
        if not uids:
            self._pods_by_scheduler.pop(pod.scheduler, None)

    def pods_of(self, policy: str) -> Iterator[Pod]:
        """All known pods that name the policy, on a node or not."""
        return (self._core.cache.pods[uid].pod for uid in self._pods_by_scheduler.get(policy, ()))

    def uids_of(self, policy: str) -> list[PodUid]:
        return list(self._pods_by_scheduler.get(policy, ()))

    def update(
        self,
        pod: Pod,
        current: ObservedPod | None,
        now_ns: int,
        *,
        before: ObservedPod | None,
        in_slice: bool = False,
    ) -> None:
        """The pod is `current` now; None: it was deleted or has finished. `before`: as it was known; `in_slice`: of a change of
        many pods, so that it is evaluated at once."""
        core, uid = self._core, pod.uid
        pending = core.pods.get(uid)
        if current is None or not self.is_unplaced(current):
            if pending is not None:
                self._enqueuer.remove(pending, now_ns)
            if current is None:
                self._remove_from_gang(pod, now_ns)
            else:
                self._count_again(before, current, now_ns, in_slice=in_slice)
        elif uid in core.binds.in_flight:
            if pending is not None:
                pending.observed = current
            self._count_again(before, current, now_ns, in_slice=in_slice)
        elif current.deleting:
            if pending is not None:
                self._enqueuer.remove(pending, now_ns)
            self._remove_from_gang(pod, now_ns)
        elif current.pod.scheduler in core.policies.running:
            is_late = not in_slice and not current.pod.gates and self._is_slow(current.pod)
            if pending is None:
                self._enqueuer.enqueue(current, now_ns, awaits_policy=is_late)
            elif pending.state is not QueueState.BIND_LOST and pending.pod == current.pod:
                pending.observed = current
                return
            elif pending.state is QueueState.BIND_LOST or not is_late:
                self._enqueuer.enqueue_again(pending, current, now_ns, "UnschedulablePodUpdate")
            if is_late:
                self.changes.add(current.pod.namespace, uid, now_ns)

    def _is_slow(self, pod: Pod) -> bool:
        """Whether its policy takes more than half a millisecond to enqueue it or to count it in its gang."""
        queue, operations = self._core.queue, self._core.pre_enqueue_operations(pod.uid)
        return operations > POD_OPERATIONS_AT_ONCE_MAX and not queue.order_is_given

    def _count_again(
        self, before: ObservedPod | None, current: ObservedPod, now_ns: int, *, in_slice: bool
    ) -> None:
        """A pod that is bound or being bound may have changed. Its status says nothing that a gang clause can read, and it can
        change all the time."""
        running = self._core.policies.running.get(current.pod.scheduler)
        if running is None or running.program.gang is None or _is_counted_alike(before, current):
            return
        if in_slice or current.deleting or not self._is_slow(current.pod):
            self.count_in_gang(current, now_ns)
        else:
            self.changes.add(current.pod.namespace, current.pod.uid, now_ns)

    def leave_parked_group(self, uid: PodUid, now_ns: int) -> None:
        """Another component nominated the pod. Its node is reserved against its equivalence class, which would fail for ever."""
        pending, queue = self._core.pods.get(uid), self._core.queue
        if (
            pending is not None
            and pending.state is QueueState.UNSCHEDULABLE
            and not pending.admission_rejected
        ):
            queue.remove(pending, now_ns)
            queue.enqueue(pending, now_ns, "UnschedulablePodUpdate")

    def reading_namespace(self, name: str) -> Iterator[PodUid]:
        """The pods to which `namespace_changed` applies. Placed members first: gangs are complete before a pod is queued."""
        core = self._core
        for policy in core.canaries.active:
            core.canaries.sort_later(pod for pod in self.pods_of(policy) if pod.namespace == name)
        for gang in core.gangs:
            if gang.id[1] == name:
                yield from gang.placed_members
        for uid, pending in core.pods.items():
            if pending.pod.namespace == name:
                yield uid

    def recharge_outdated(self, now_ns: int) -> None:
        """Pods that were changed count in the quotas as they are now, in slices."""
        outdated = self._core.quotas.outdated
        while outdated:
            uid, namespace = outdated.popitem()
            self.charges.add(namespace, uid, now_ns)

    def _recharge(self, namespace: str, uids: list[PodUid], _now_ns: int) -> None:
        for uid in uids:
            with raises_for(ObjectId("Pod", namespace, uid)):
                self._core.quotas.recharge(uid, namespace)

    def _apply_changes(self, namespace: str, uids: list[PodUid], now_ns: int) -> None:
        for uid in uids:
            with raises_for(ObjectId("Pod", namespace, uid)):
                self.apply_change(uid, now_ns)

    def apply_change(self, uid: PodUid, now_ns: int) -> None:
        """The pod changed, or its namespace, which policies may read: count it, or enqueue it again. It may be gone."""
        core, observed = self._core, self._core.cache.pods.get(uid)
        if observed is None:
            return
        gang, pending = core.gangs.gang_of(uid), core.pods.get(uid)
        is_counted = gang is not None and uid in gang.placed_members
        if is_counted or uid in core.binds.in_flight or not self.is_unplaced(observed):
            self.count_in_gang(observed, now_ns)
        elif pending is not None and not (
            observed.pod.gates  # whatever the namespace says
            or pending.state in (QueueState.BINDING, QueueState.BIND_LOST)
        ):
            event = "NamespaceUpdate"
            if pending.state is QueueState.AWAITING_POLICY:
                event = "PodAdd"
            elif pending.pod != observed.pod:
                event = "UnschedulablePodUpdate"
            self._enqueuer.enqueue_again(pending, observed, now_ns, event)

    def is_unplaced(self, observed: ObservedPod) -> bool:
        """Whether the pod is on no node, neither as observed nor by a confirmed bind."""
        if observed.node is not None:
            return False
        return self._core.cache.ledger.state(observed.pod.uid) is not PlacementState.BOUND

    def count_in_gang(self, observed: ObservedPod, now_ns: int) -> None:
        """Count a pod that is bound or being bound in its gang, unless it is being deleted."""
        core, pod = self._core, observed.pod
        running = core.policies.running.get(pod.scheduler)
        if running is None or running.program.gang is None:
            return
        try:
            terms = None if observed.deleting else self._gang_terms(pod, running.plan)
        except Exception as error:  # noqa: BLE001  # any fault of the program
            self._enqueuer.errors.rejection(pod, error, now_ns)
            terms = None
        gang = core.gangs.gang_of(pod.uid)
        if terms is None:
            self._remove_from_gang(pod, now_ns)
        elif gang is None or pod.uid not in gang.placed_members or gang.terms[pod.uid] != terms:
            joined = core.gangs.add_placed(pod.uid, pod.scheduler, terms)
            if gang is not None and gang is not joined:
                self._enqueuer.refresh_gang(gang, now_ns, "AssignedPodUpdate")
            self._enqueuer.refresh_gang(joined, now_ns, "AssignedPodAdd")

    def _gang_terms(self, pod: Pod, plan: Plan) -> GangTerms | None:
        namespace, result = self._core.namespace_of(pod), self._enqueuer.precomputed.get(pod.uid)
        if (
            result is not None
            and result.rejection is None
            and result.is_current(pod, namespace, result.attempts)
        ):
            return result.gang_terms
        return plan.gang(pod, namespace)

    def _remove_from_gang(self, pod: Pod, now_ns: int) -> None:
        gang = self._core.gangs.remove(pod.uid)
        if gang is not None:
            self._enqueuer.refresh_gang(gang, now_ns, "PodDelete")


def _is_counted_alike(before: ObservedPod | None, current: ObservedPod) -> bool:
    """Whether gangs count a pod as they do already, or will once a slice reaches it."""
    return (
        before is not None
        and (before.node, before.deleting) == (current.node, current.deleting)
        and _read_alike(before.pod, current.pod)
    )


def _read_alike(before: Pod, current: Pod) -> bool:
    """Whether functions of the pod alone have the same values: they read nothing of a status."""
    return before is current or differ_in_readiness_alone(before, current)

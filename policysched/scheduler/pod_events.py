"""Pod events: into the cache, to every part that follows pods, and to the pods that they can help."""

from contextlib import nullcontext

from policysched.model.cluster_events import ClusterEvent
from policysched.model.identifiers import PodUid
from policysched.model.pod_status import ObservedPod
from policysched.model.pods import Placement
from policysched.scheduler.bind_tracker import BindTracker
from policysched.scheduler.blame import pod_id, raises_for
from policysched.scheduler.commands import AbandonBind
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.extenders.calls import ExtenderCalls
from policysched.scheduler.kubelet_rejections import KubeletRejections, overcommits_node
from policysched.scheduler.policy_membership import PolicyMembership
from policysched.scheduler.prebind import Prebinder
from policysched.scheduler.preemption.default_preemption import DefaultPreemption
from policysched.scheduler.queue.entries import QueueEntry, QueueState

_OWN_POD_EVENTS = frozenset({ClusterEvent.UNSCHEDULED_POD_ADD, ClusterEvent.UNSCHEDULED_POD_UPDATE})
"""Events that concern the pod itself and its gang. `PolicyMembership` handles them; no other pod is requeued."""


class PodEvents:
    """`synced` is passed in: before it, nothing is known of the pods' standing, and they are only stored."""

    def __init__(
        self,
        core: SchedulerCore,
        membership: PolicyMembership,
        bind_tracker: BindTracker,
        prebinder: Prebinder,
        preemption: DefaultPreemption,
        extender_calls: ExtenderCalls,
        kubelet_rejections: KubeletRejections,
    ) -> None:
        self._core = core
        self._membership = membership
        self._bind_tracker = bind_tracker
        self._prebinder = prebinder
        self._preemption = preemption
        self._extender_calls = extender_calls
        self._kubelet_rejections = kubelet_rejections

    def updated(
        self, observed: ObservedPod, now_ns: int, *, synced: bool, in_slice: bool = False
    ) -> list[ObservedPod]:
        """Returns the members of its groups that are to be applied again (`PodGroupEvents.members_changed`). `in_slice`: of such a
        change, so that the pod is evaluated at once."""
        core, uid = self._core, observed.pod.uid
        group_pods = core.cache.pod_groups.put_pod(observed)
        observed = core.cache.pod_groups.attach(observed)
        core.group_changed(uid, now_ns)
        if observed.finished:
            self._bind_tracker.on_pod_finished(uid, observed.node, now_ns)
        cached = core.cache.pods.get(uid)
        begins_to_end = observed.deleting and cached is not None and not cached.deleting
        leaves = begins_to_end or (observed.finished and cached is not None)
        is_awaited = leaves and self._is_victim(observed)
        nominated, before = core.cache.nominated.get(uid), core.cache.ledger.placement(uid)
        core.update_states(observed, now_ns)
        if observed.node is not None and (not synced or (cached is not None and cached.node is None)):
            core.queue.decision_time.note_placed(observed.pod.namespace)
        active, ended = core.cache.active_pods.version, core.cache.ended_pods.version
        events = set(core.cache.put_pod(observed) - _OWN_POD_EVENTS)
        if core.quotas.outdated:
            self._membership.recharge_outdated(now_ns)
        if is_awaited:
            core.quotas.victim_changed(observed.pod)
        self._add_count_events(events, active, ended)
        current = core.cache.pods.get(uid)
        if current is None:
            self._membership.remove(observed.pod)
        else:
            self._membership.add(current.pod, None if cached is None else cached.pod)
        if current is None or current.deleting:
            self._preemption.evictions.forget(uid)
            self._extender_calls.forget(uid)
        after = core.cache.nominated.get(uid)
        is_renominated = (after and after.nominated_node) != (nominated and nominated.nominated_node)
        if nominated is not None and is_renominated and (current is None or current.node is None):
            events.add(ClusterEvent.ASSIGNED_POD_DELETE)  # its reserved capacity is free
            core.quotas.reservation_released(nominated.pod)
        if synced:
            core.samples.update_assumed_load(uid, before, now_ns)
            self._membership.update(observed.pod, current, now_ns, before=cached, in_slice=in_slice)
            if after is not None and is_renominated:
                self._membership.leave_parked_group(uid, now_ns)
        if current is None or current.node is not None or current.deleting:
            self._prebinder.abort(uid, now_ns)
        core.queue.requeue(events, now_ns, cause=observed.pod.namespace)
        if is_awaited:
            self._wake_preemptors(observed, events, now_ns)
        self._track_kubelet_rejections(observed, before, now_ns, synced=synced)
        return group_pods

    def deleted(self, uid: PodUid, now_ns: int, *, synced: bool) -> list[ObservedPod]:
        """Returns the members of its groups that are to be applied again, as `updated` does."""
        cached = self._core.cache.pods.get(uid)
        # The event does not name the namespace, which is unknown once the cache has dropped the pod.
        with nullcontext() if cached is None else raises_for(pod_id(cached.pod)):
            return self._deleted(uid, cached, now_ns, synced=synced)

    def _deleted(
        self, uid: PodUid, cached: ObservedPod | None, now_ns: int, *, synced: bool
    ) -> list[ObservedPod]:
        core = self._core
        is_awaited = cached is not None and self._is_victim(cached)
        core.samples.policy_states.pod_deleted(uid)
        if uid in core.binds.in_flight and uid not in core.binds.prebinding:
            core.commands.append(AbandonBind(uid))
        core.group_changed(uid, now_ns)
        group_pods = core.cache.pod_groups.drop_pod(uid)
        was_nominated = uid in core.cache.nominated
        active, ended = core.cache.active_pods.version, core.cache.ended_pods.version
        events = set(core.cache.drop_pod(uid))
        self._add_count_events(events, active, ended)
        self._preemption.evictions.forget(uid)
        self._extender_calls.forget(uid)
        core.samples.assumed_load.pod_removed(uid)
        if cached is not None:
            self._membership.remove(cached.pod)
            if is_awaited:
                core.quotas.victim_changed(cached.pod)
            if was_nominated:
                events.add(ClusterEvent.ASSIGNED_POD_DELETE)
                core.quotas.reservation_released(cached.pod)
            if synced:
                self._membership.update(cached.pod, None, now_ns, before=cached)
        self._prebinder.abort(uid, now_ns)
        core.delete_unseen_claims(uid)
        core.reports.forget(uid)
        core.queue.requeue(events, now_ns, cause=None if cached is None else cached.pod.namespace)
        if cached is not None and is_awaited:
            self._wake_preemptors(cached, events, now_ns)
        return group_pods

    def _is_victim(self, observed: ObservedPod) -> bool:
        return observed.preempted or self._preemption.evictions.is_leaving(observed.pod.uid)

    def _wake_preemptors(self, victim: ObservedPod, events: set[ClusterEvent], now_ns: int) -> None:
        """The victim begins to end, or ends: who is nominated to its node waits for it, and is not woken late. A victim can change
        all the time, for ever if its deletion is denied or it has a finalizer, and a tenant can have its own pods evicted."""
        core = self._core
        for uid in list(core.cache.nominated_to(victim.node)):
            entry: QueueEntry | None = core.pods.get(uid)
            if entry is not None and entry.state is QueueState.GANG_MEMBER:
                entry = core.gangs.gang_of(uid)
            if entry is not None:
                core.queue.wake(entry, events, now_ns)

    def _track_kubelet_rejections(
        self, observed: ObservedPod, before: Placement | None, now_ns: int, *, synced: bool
    ) -> None:
        """A pod that its kubelet rejected, or that another scheduler placed, shows the actual free capacity of the node."""
        core = self._core
        after = core.cache.ledger.placement(observed.pod.uid)
        if observed.rejection is not None and before is not None and after is None:
            self._kubelet_rejections.pod_rejected(observed, observed.rejection, before, now_ns)
        elif synced and before is None and after is not None:
            self._kubelet_rejections.external_pod_placed(after.pod, after.node, now_ns)
            core.records.counters.overcommits += overcommits_node(core.cache, after)

    def _add_count_events(self, events: set[ClusterEvent], active: int, ended: int) -> None:
        """Add the events of pod counts that changed since these versions. The event of a changed readiness is already included."""
        cache = self._core.cache
        if ClusterEvent.POD_READY in events:
            return
        if cache.active_pods.version != active:
            events.add(ClusterEvent.POD_COUNT)
        if cache.ended_pods.version != ended:
            events.add(ClusterEvent.FINISHED_POD)

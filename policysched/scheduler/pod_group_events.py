"""Changes of PodGroups and Workloads: the pods that name the group are applied again, as if they had changed.

One write of a group costs as much as its pods, and so does its first pod of another scheduler. So that nobody can take the
time of others by writing again and again, a namespace may use a tenth of the time for that; what it writes beyond waits,
and only its newest version is applied. The pods of a large group are applied in slices. Until all have the change, their gangs
are held: none is attempted while one half has the old group.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from policysched.model.cluster_events import ClusterEvent
from policysched.model.identifiers import PodUid
from policysched.model.pod_groups import PodGroupKey
from policysched.model.pod_status import ObservedPod
from policysched.scheduler import events as e
from policysched.scheduler.blame import ObjectId, change_id, raises_for
from policysched.scheduler.core import GROUP_STATUS_DELAY_NS, SchedulerCore
from policysched.scheduler.limits import SECOND_NS
from policysched.scheduler.pod_enqueuer import PodEnqueuer
from policysched.scheduler.pod_events import PodEvents
from policysched.scheduler.queue.gang_registry import POD_GROUP_CHANGE, GangId, QueuedGang
from policysched.scheduler.queue.movable_heap import earlier_ns
from policysched.scheduler.slice_turns import Slice
from policysched.scheduler.sliced_changes import PODS_PER_SLICE, SlicedChanges

NS_PER_POD = 1_500_000
"""Ten times what applying a pod again takes. Counted, not measured: a replay does the same."""

_BURST_NS = SECOND_NS
"""So much may be used at once."""

_NAMESPACES_MAX = 1_000
"""With more, those that owe nothing are forgotten."""


@dataclass(frozen=True, slots=True)
class _MembersChanged:
    """The pods of the group have one scheduler, or several, and did not before. No event from outside: none is recorded."""

    key: PodGroupKey


_Change = e.PodGroupChange | _MembersChanged


_Silenced = dict[Hashable, tuple[QueuedGang, bool]]
"""Gangs, and whether a disagreement of each was reported: while the members take over a new minimum one after the other,
they differ."""


@dataclass(slots=True)
class _Application:
    """A change on its way to the pods that it affects. `held`: the gangs that wait for its end, if it is sliced."""

    silenced: _Silenced
    is_sliced: bool
    held: dict[GangId, None] = field(default_factory=dict)


class PodGroupEvents:
    """One change of each namespace is applied at a time; the others wait for its end."""

    def __init__(self, core: SchedulerCore, pod_events: PodEvents, enqueuer: PodEnqueuer) -> None:
        self._core = core
        self._pod_events = pod_events
        self._enqueuer = enqueuer
        self._slices: SlicedChanges[str, PodUid] = SlicedChanges(
            core.queue, change_id, self._apply_to, self._end, core.pre_enqueue_operations
        )
        self._applying: dict[str, _Application] = {}  # by namespace
        self._used_until_ns: dict[str, int] = {}  # by namespace: when the time is over that it has used
        self._waiting: dict[str, dict[Hashable, _Change]] = {}
        self._begins_next = False

    def apply(self, event: _Change, now_ns: int, *, synced: bool) -> None:
        """Apply one change of a group, a Workload, or of what the API server serves. The first may wait."""
        subject: Hashable
        match event:
            case e.PodGroupUpdated(group):
                namespace, subject = group.key.namespace, group.key
            case e.PodGroupDeleted(key):
                namespace, subject = key.namespace, key
            case _MembersChanged(key):
                namespace, subject = key.namespace, event
            case e.WorkloadUpdated(namespace, name) | e.WorkloadDeleted(namespace, name):
                subject = name
            case _:
                self._forget_waiting(event)
                self._apply_at_once(event, now_ns, synced=synced)
                return
        if not synced:
            self._apply_at_once(event, now_ns, synced=False)
        elif namespace in self._waiting or not self._may_apply(namespace, now_ns):
            self._waiting.setdefault(namespace, {})[subject] = event
        else:
            self._apply(namespace, event, now_ns)

    def members_changed(self, others: Sequence[ObservedPod], now_ns: int, *, synced: bool) -> None:
        """A pod changed what holds for these others, which name its groups."""
        keys_of = self._core.cache.pod_groups.keys_of
        for key in dict.fromkeys(key for other in others for key in keys_of(other.pod.uid)):
            self.apply(_MembersChanged(key), now_ns, synced=synced)

    def next_time_ns(self) -> int | None:
        begins_ns = [
            self._used_until_ns.get(namespace, 0) - _BURST_NS
            for namespace in self._waiting
            if namespace not in self._applying
        ]
        return earlier_ns(self._slices.next_time_ns(), *begins_ns)

    def take_slice(self, now_ns: int) -> Slice | None:
        """Apply a slice of a change that has begun, of each namespace in turn, and begin with the changes of a namespace that
        have waited long enough, in their order. Both take turns: large groups of a few namespaces always have another slice."""
        namespace = next((name for name in self._waiting if self._may_apply(name, now_ns)), None)
        if namespace is None or not self._begins_next:
            taken, self._begins_next = self._slices.take_slice(now_ns), True
            if taken is not None or namespace is None:
                return taken
        self._begins_next = False
        waiting = self._waiting[namespace] = self._waiting.pop(namespace)  # behind the others
        pod_count = cost = 0
        while waiting and cost < PODS_PER_SLICE and self._may_apply(namespace, now_ns):
            with raises_for(change_id(namespace)):
                reached = self._apply(namespace, waiting.pop(next(iter(waiting))), now_ns)
            pod_count += reached
            cost += max(1, reached)  # of a group without pods, too: there can be thousands
        if not waiting:
            del self._waiting[namespace]
        return Slice(namespace, pod_count)

    def _may_apply(self, namespace: str, now_ns: int) -> bool:
        has_used_its_time = self._used_until_ns.get(namespace, 0) - _BURST_NS > now_ns
        return namespace not in self._applying and not has_used_its_time

    def _charge(self, namespace: str, pod_count: int, now_ns: int) -> None:
        if pod_count:
            begins_ns = max(now_ns, self._used_until_ns.get(namespace, 0))
            self._used_until_ns[namespace] = begins_ns + pod_count * NS_PER_POD
        if len(self._used_until_ns) > _NAMESPACES_MAX:
            self._used_until_ns = {
                name: until_ns
                for name, until_ns in self._used_until_ns.items()
                if until_ns > now_ns or name in self._waiting
            }

    def _forget_waiting(self, event: _Change) -> None:
        """The API is not served any more, or its objects are listed anew."""
        for namespace, waiting in list(self._waiting.items()):
            for subject in list(waiting):
                api = subject.api if isinstance(subject, PodGroupKey) else None
                if api == (event.api if isinstance(event, e.PodGroupApiServed) else None):
                    del waiting[subject]
            if not waiting:
                del self._waiting[namespace]

    def _apply_at_once(self, event: _Change, now_ns: int, *, synced: bool) -> None:
        pods = self._affected_pods(event, now_ns)
        silenced = self._silence(pods)
        for uid in pods:
            self._apply_again(uid, now_ns, synced=synced)
        self._end_silence(silenced)

    def _apply(self, namespace: str, event: _Change, now_ns: int) -> int:
        """At once if the pods are few, otherwise the first slice. Returns how many pods that may be."""
        pods = self._affected_pods(event, now_ns)
        self._charge(namespace, len(pods), now_ns)
        application = _Application(self._silence(pods), len(pods) > PODS_PER_SLICE)
        self._applying[namespace] = application
        for gang, _ in list(application.silenced.values()):
            self._hold(application, gang, now_ns)
        self._slices.begin(namespace, pods, now_ns)
        return min(len(pods), PODS_PER_SLICE)

    def _apply_to(self, namespace: str, pods: list[PodUid], now_ns: int) -> None:
        for uid in pods:
            with raises_for(ObjectId("Pod", namespace, uid)):
                self._apply_again(uid, now_ns, synced=True)
                gang = self._core.gangs.gang_of(uid)
                if gang is not None:
                    self._hold(self._applying[namespace], gang, now_ns)

    def _apply_again(self, uid: PodUid, now_ns: int, *, synced: bool) -> None:
        """Unless the pod was deleted meanwhile, or has finished: it does not wait."""
        observed = self._core.cache.pod_groups.observed(uid)
        if observed is not None and uid in self._core.cache.pods:
            self._pod_events.updated(observed, now_ns, synced=synced, in_slice=True)

    def _silence(self, pods: Iterable[PodUid]) -> _Silenced:
        silenced: _Silenced = {}
        for gang in filter(None, map(self._core.gangs.gang_of, pods)):
            silenced.setdefault(gang.id, (gang, gang.disagreement_reported))
            gang.disagreement_reported = True
        return silenced

    def _end_silence(self, silenced: _Silenced) -> None:
        for gang, before in silenced.values():
            gang.disagreement_reported = before

    def _hold(self, application: _Application, gang: QueuedGang, now_ns: int) -> None:
        if application.is_sliced and POD_GROUP_CHANGE not in gang.holds:
            gang.holds.add(POD_GROUP_CHANGE)
            application.held[gang.id] = None
            self._enqueuer.refresh_gang(gang, now_ns, ClusterEvent.UNSCHEDULED_POD_UPDATE.value)

    def _end(self, namespace: str, now_ns: int) -> None:
        application = self._applying.pop(namespace)
        self._end_silence(application.silenced)
        for gang_id in application.held:
            gang = self._core.gangs.end_hold(gang_id, POD_GROUP_CHANGE)
            if gang is not None:
                self._enqueuer.refresh_gang(gang, now_ns, ClusterEvent.UNSCHEDULED_POD_UPDATE.value)

    def _affected_pods(self, event: _Change, now_ns: int) -> list[PodUid]:
        return [observed.pod.uid for observed in self._changed_by(event, now_ns)]

    def _changed_by(self, event: _Change, now_ns: int) -> list[ObservedPod]:
        groups = self._core.cache.pod_groups
        match event:
            case e.PodGroupUpdated(group):
                self._core.groups_due_ns.setdefault(group.key, now_ns + GROUP_STATUS_DELAY_NS)
                return groups.put(group)
            case e.PodGroupDeleted(key):
                self._core.groups_due_ns.setdefault(key, now_ns + GROUP_STATUS_DELAY_NS)
                return groups.drop(key)
            case _MembersChanged(key):
                return groups.members(key)
            case e.PodGroupApiServed(api, version):
                return groups.set_served(api, version)
            case e.WorkloadUpdated(namespace, name):
                return groups.put_workload(namespace, name)
            case e.WorkloadDeleted(namespace, name):
                return groups.drop_workload(namespace, name)
            case e.WorkloadsServed(served):
                return groups.set_workloads_served(served=served)
            case _:
                raise AssertionError(f"{event} is no change of a PodGroup")

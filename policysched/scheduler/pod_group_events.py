"""Changes of PodGroups and Workloads: the pods that name the group are applied again, as if they had changed.

One write of a group costs as much as its pods, and so does its first pod of another scheduler. So that nobody can take the
time of others by writing again and again, a namespace may use a tenth of the time for that; what it writes beyond waits,
and only its newest version is applied. The pods of a large group are applied in slices. Until all have the change, their gangs
are held: none is attempted while one half has the old group.
"""

from collections import OrderedDict, deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from policysched.model.cluster_events import ClusterEvent
from policysched.model.identifiers import PodUid
from policysched.model.pod_groups import PodGroupKey
from policysched.model.pod_status import ObservedPod
from policysched.scheduler import events as e
from policysched.scheduler.core import GROUP_STATUS_DELAY_NS, SchedulerCore
from policysched.scheduler.limits import SECOND_NS
from policysched.scheduler.pod_enqueuer import PodEnqueuer
from policysched.scheduler.pod_events import PodEvents
from policysched.scheduler.queue.gang_registry import QueuedGang

NS_PER_POD = 1_500_000
"""Ten times what applying a pod again takes. Counted, not measured: a replay does the same."""

PODS_PER_SLICE = 32
"""Five milliseconds. A change for so few is applied at once."""

_BURST_NS = SECOND_NS
"""So much may be used at once."""

_NAMESPACES_MAX = 1_000
"""With more, those that owe nothing are forgotten."""


@dataclass(frozen=True, slots=True)
class _MembersChanged:
    """The pods of the group have one scheduler, or several, and did not before. No event from outside: none is recorded."""

    key: PodGroupKey


_Change = e.PodGroupChange | _MembersChanged


@dataclass(slots=True)
class _Application:
    """A change on its way to the pods that it affects. `silenced`: their gangs, and whether a disagreement of each was reported:
    while the members take over a new minimum one after the other, they differ. `held`: those that wait for the end."""

    pods: deque[PodUid]
    began_ns: int
    is_sliced: bool = False
    silenced: dict[Hashable, tuple[QueuedGang, bool]] = field(default_factory=dict)
    held: dict[Hashable, QueuedGang] = field(default_factory=dict)


class PodGroupEvents:
    """One change of each namespace is applied at a time; the others wait for its end."""

    def __init__(self, core: SchedulerCore, pod_events: PodEvents, enqueuer: PodEnqueuer) -> None:
        self._core = core
        self._pod_events = pod_events
        self._enqueuer = enqueuer
        self._applying: OrderedDict[str, _Application] = OrderedDict()  # by namespace
        self._used_until_ns: dict[str, int] = {}  # by namespace: when the time is over that it has used
        self._waiting: dict[str, dict[Hashable, _Change]] = {}

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
                self._apply_slice(self._begin(event, now_ns), None, now_ns, synced=synced)
                return
        if not synced:
            self._apply_slice(self._begin(event, now_ns), None, now_ns, synced=False)
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
        if self._applying:
            return next(iter(self._applying.values())).began_ns
        if not self._waiting:
            return None
        return min(self._used_until_ns.get(namespace, 0) - _BURST_NS for namespace in self._waiting)

    def advance(self, now_ns: int) -> None:
        """Apply a slice of a change that has begun, of each namespace in turn, then the changes that have waited long enough,
        those of a namespace in their order."""
        if self._applying:
            namespace, application = self._applying.popitem(last=False)
            if self._apply_slice(application, PODS_PER_SLICE, now_ns, synced=True):
                self._applying[namespace] = application
        for namespace in list(self._waiting):
            waiting = self._waiting[namespace]
            while waiting and self._may_apply(namespace, now_ns):
                self._apply(namespace, waiting.pop(next(iter(waiting))), now_ns)
            if not waiting:
                del self._waiting[namespace]

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

    def _apply(self, namespace: str, event: _Change, now_ns: int) -> None:
        """At once if the pods are few, otherwise the first slice."""
        application = self._begin(event, now_ns)
        self._charge(namespace, len(application.pods), now_ns)
        if len(application.pods) > PODS_PER_SLICE:
            application.is_sliced = True
            for gang, _ in list(application.silenced.values()):
                self._hold(application, gang, now_ns)
        if self._apply_slice(application, PODS_PER_SLICE, now_ns, synced=True):
            self._applying[namespace] = application

    def _begin(self, event: _Change, now_ns: int) -> _Application:
        pods = [observed.pod.uid for observed in self._affected_pods(event, now_ns)]
        application = _Application(deque(pods), now_ns)
        for gang in filter(None, map(self._core.gangs.gang_of, pods)):
            application.silenced.setdefault(gang.id, (gang, gang.disagreement_reported))
            gang.disagreement_reported = True
        return application

    def _apply_slice(
        self, application: _Application, count_max: int | None, now_ns: int, *, synced: bool
    ) -> bool:
        """Apply the change to at most `count_max` pods (None: to all). Whether pods are left."""
        core, pods = self._core, application.pods
        for _ in range(len(pods) if count_max is None else min(count_max, len(pods))):
            observed = core.cache.pod_groups.observed(pods.popleft())
            if observed is None or observed.pod.uid not in core.cache.pods:
                continue  # deleted meanwhile, or finished: it does not wait
            self._pod_events.updated(observed, now_ns, synced=synced)
            gang = core.gangs.gang_of(observed.pod.uid)
            if gang is not None and application.is_sliced:
                self._hold(application, gang, now_ns)
        if not pods:
            self._end(application, now_ns)
        return bool(pods)

    def _hold(self, application: _Application, gang: QueuedGang, now_ns: int) -> None:
        if not gang.held:
            gang.held = True
            application.held[gang.id] = gang
            self._enqueuer.refresh_gang(gang, now_ns, ClusterEvent.UNSCHEDULED_POD_UPDATE.value)

    def _end(self, application: _Application, now_ns: int) -> None:
        for gang, before in application.silenced.values():
            gang.disagreement_reported = before
        for gang in application.held.values():
            gang.held = False
            if self._core.gangs.get(gang.id) is gang:
                self._enqueuer.refresh_gang(gang, now_ns, ClusterEvent.UNSCHEDULED_POD_UPDATE.value)

    def _affected_pods(self, event: _Change, now_ns: int) -> list[ObservedPod]:
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

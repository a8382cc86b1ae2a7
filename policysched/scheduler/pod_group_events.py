"""Changes of PodGroups and Workloads: the pods that name the group are applied again, as if they had changed.

One write of a group costs as much as its pods, and so does its first pod of another scheduler. So that nobody can take the
time of others by writing again and again, a namespace may use a tenth of the time for that; what it writes beyond waits,
and only its newest version is applied.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from policysched.model.pod_groups import PodGroupKey
from policysched.model.pod_status import ObservedPod
from policysched.scheduler import events as e
from policysched.scheduler.core import GROUP_STATUS_DELAY_NS, SchedulerCore
from policysched.scheduler.limits import SECOND_NS
from policysched.scheduler.pod_events import PodEvents

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


class PodGroupEvents:
    """Between two events all pods of a group agree on it: no attempt sees one half with the old group."""

    def __init__(self, core: SchedulerCore, pod_events: PodEvents) -> None:
        self._core = core
        self._pod_events = pod_events
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
                self._apply(event, now_ns, synced=synced)
                return
        if synced and (namespace in self._waiting or self._has_used_its_time(namespace, now_ns)):
            self._waiting.setdefault(namespace, {})[subject] = event
            return
        count = self._apply(event, now_ns, synced=synced)
        if synced:
            self._charge(namespace, count, now_ns)

    def members_changed(self, others: Sequence[ObservedPod], now_ns: int, *, synced: bool) -> None:
        """A pod changed what holds for these others, which name its groups."""
        keys_of = self._core.cache.pod_groups.keys_of
        for key in dict.fromkeys(key for other in others for key in keys_of(other.pod.uid)):
            self.apply(_MembersChanged(key), now_ns, synced=synced)

    def next_time_ns(self) -> int | None:
        if not self._waiting:
            return None
        return min(self._used_until_ns[namespace] - _BURST_NS for namespace in self._waiting)

    def advance(self, now_ns: int) -> None:
        """Apply the changes that have waited long enough, those of a namespace in their order."""
        for namespace in list(self._waiting):
            waiting = self._waiting[namespace]
            while waiting and not self._has_used_its_time(namespace, now_ns):
                event = waiting.pop(next(iter(waiting)))
                self._charge(namespace, self._apply(event, now_ns, synced=True), now_ns)
            if not waiting:
                del self._waiting[namespace]

    def _has_used_its_time(self, namespace: str, now_ns: int) -> bool:
        return self._used_until_ns.get(namespace, 0) - _BURST_NS > now_ns

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

    def _apply(self, event: _Change, now_ns: int, *, synced: bool) -> int:
        """Returns how many pods are affected."""
        pods = list(self._affected_pods(event, now_ns))
        with self._silent_disagreement(pods):
            for observed in pods:
                if observed.pod.uid in self._core.cache.pods:  # a finished pod does not wait
                    self._pod_events.updated(observed, now_ns, synced=synced)
        return len(pods)

    def _affected_pods(self, event: _Change, now_ns: int) -> list[ObservedPod]:
        groups = self._core.cache.pod_groups
        match event:
            case e.PodGroupUpdated(group):
                self._core.groups_due_ns.setdefault(group.key, now_ns + GROUP_STATUS_DELAY_NS)
                return groups.put(group)
            case e.PodGroupDeleted(key):
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

    @contextmanager
    def _silent_disagreement(self, pods: Iterable[ObservedPod]) -> Iterator[None]:
        """While the members take over a new minimum one after the other, they differ."""
        gangs = (self._core.gangs.gang_of(observed.pod.uid) for observed in pods)
        reported = {gang.id: (gang, gang.disagreement_reported) for gang in gangs if gang is not None}
        for gang, _ in reported.values():
            gang.disagreement_reported = True
        yield
        for gang, before in reported.values():
            gang.disagreement_reported = before

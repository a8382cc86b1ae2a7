"""Changes of PodGroups and Workloads: the pods that name the group are applied again, as if they had changed."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from policysched.model.pod_status import ObservedPod
from policysched.scheduler import events as e
from policysched.scheduler.core import GROUP_STATUS_DELAY_NS, SchedulerCore
from policysched.scheduler.pod_events import PodEvents


class PodGroupEvents:
    """Between two events all pods of a group agree on it: no attempt sees one half with the old group."""

    def __init__(self, core: SchedulerCore, pod_events: PodEvents) -> None:
        self._core = core
        self._pod_events = pod_events

    def apply(self, event: e.PodGroupChange, now_ns: int, *, synced: bool) -> None:
        """Apply one change of a group, a Workload, or of what the API server serves."""
        pods = list(self._affected_pods(event, now_ns))
        with self._silent_disagreement(pods):
            for observed in pods:
                if observed.pod.uid in self._core.cache.pods:  # a finished pod does not wait
                    self._pod_events.updated(observed, now_ns, synced=synced)

    def _affected_pods(self, event: e.PodGroupChange, now_ns: int) -> list[ObservedPod]:
        groups = self._core.cache.pod_groups
        match event:
            case e.PodGroupUpdated(group):
                self._core.groups_due_ns.setdefault(group.key, now_ns + GROUP_STATUS_DELAY_NS)
                return groups.put(group)
            case e.PodGroupDeleted(key):
                return groups.drop(key)
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

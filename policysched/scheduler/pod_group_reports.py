"""The status of PodGroups, as their APIs define it, computed from their members.

A group is looked at a moment after something changed (`core.GROUP_STATUS_DELAY_NS`). A status
is reported when it differs from the last one that was reported, or for a group that is seen for the first time, from
what the server has: what another controller writes is not fought over.
"""

from collections import Counter

from policysched.cluster.ledger import PlacementState
from policysched.model.pod_groups import PodGroup, PodGroupKey, PodGroupStatus
from policysched.model.pod_status import ObservedPod
from policysched.scheduler.commands import ReportPodGroup
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.queue.entries import QueueState

_REPORTED_MAX = 50_000
_MEMBERS_PER_SLICE = 400
"""Of the groups that are reported at once, about 1 ms."""

_SCHEDULED = "Scheduled"
_UNSCHEDULABLE = "Unschedulable"


class PodGroupReports:
    """Looks at changed groups when they are due."""

    def __init__(self, core: SchedulerCore) -> None:
        self._core = core
        self._reported: dict[PodGroupKey, tuple[str, PodGroupStatus]] = {}

    def next_time_ns(self) -> int | None:
        return next(iter(self._core.groups_due_ns.values()), None)

    def advance(self, now_ns: int) -> None:
        """Report groups that are due, the earliest first, until they have this many members."""
        due, pods = self._core.groups_due_ns, self._core.cache.pod_groups
        visited = 0
        while due and visited < _MEMBERS_PER_SLICE:
            key, due_ns = next(iter(due.items()))
            if due_ns > now_ns:
                return
            del due[key]
            members = pods.members(key)
            visited += 1 + len(members)
            self._report(key, members)

    def _report(self, key: PodGroupKey, members: list[ObservedPod]) -> None:
        group = self._core.cache.pod_groups.groups.get(key)
        if group is None:
            self._reported.pop(key, None)
            return
        if not self._is_ours(members):
            return
        uid, before = self._reported.get(key, ("", group.status))
        if uid != group.uid:
            before = group.status
        status = self._status(group, members, before)
        if status is None or status == before:
            return
        self._reported[key] = (group.uid, status)
        if len(self._reported) > _REPORTED_MAX:
            del self._reported[next(iter(self._reported))]
        self._core.commands.append(ReportPodGroup(key, group.uid, group.api_version, status))

    def _is_ours(self, members: list[ObservedPod]) -> bool:
        """Whether a running policy places one of the members by its group."""
        running = self._core.policies.running
        plans = [
            running[name].plan for name in {observed.pod.scheduler for observed in members} if name in running
        ]
        return any(plan.reads_pod_groups for plan in plans)

    def _status(
        self, group: PodGroup, members: list[ObservedPod], before: PodGroupStatus
    ) -> PodGroupStatus | None:
        """None: nothing to say."""
        scheduled = sum(map(self._is_scheduled, members))
        condition = self._condition(group, members, scheduled) or before.condition
        phases = Counter(observed.phase for observed in members)
        running, succeeded, failed = phases["Running"], phases["Succeeded"], phases["Failed"]
        disrupted = group.disruption == "all" and any(observed.preempted for observed in members)
        match group.api:
            case "scheduling.k8s.io":
                # "Initially" scheduled stays true in the versions that say so.
                is_final = group.api_version != "v1alpha2" and before.condition is not None
                if is_final and before.condition is not None and before.condition[0] == "True":
                    condition = before.condition
                status = PodGroupStatus(condition=condition, disrupted=disrupted or before.disrupted)
            case "scheduling.x-k8s.io":
                phase = _coscheduling_phase(group.minimum, scheduled, running, succeeded, failed)
                status = PodGroupStatus(phase=phase, running=running, succeeded=succeeded, failed=failed)
            case "scheduling.volcano.sh":
                ended = bool(members) and succeeded + failed == len(members)
                phase = _volcano_phase(group, scheduled, succeeded, ended=ended)
                status = PodGroupStatus(
                    condition,
                    phase,
                    running,
                    succeeded,
                    failed,
                    other_conditions=group.status.other_conditions,
                )
        return status

    def _is_scheduled(self, observed: ObservedPod) -> bool:
        if observed.node is not None:
            return True
        return self._core.cache.ledger.state(observed.pod.uid) is PlacementState.BOUND

    def _condition(
        self, group: PodGroup, members: list[ObservedPod], scheduled: int
    ) -> tuple[str, str, str] | None:
        """None: its members were not tried yet, or are being bound."""
        if scheduled >= group.minimum:
            return ("True", _SCHEDULED, f"at least {group.minimum} members are scheduled")
        pending_members = (self._core.pods.get(observed.pod.uid) for observed in members)
        pending = [pod for pod in pending_members if pod is not None]
        if any(pod.state is QueueState.BINDING for pod in pending):
            return None
        for pod in pending:
            if pod.pending_message:
                reason = "SchedulerError" if pod.in_error_backoff else _UNSCHEDULABLE
                return ("False", reason, pod.pending_message)
        return None


def _coscheduling_phase(minimum: int, scheduled: int, running: int, succeeded: int, failed: int) -> str:
    """The phase of a PodGroup of scheduler-plugins, as its API describes them."""
    if succeeded >= minimum:
        return "Finished"
    if failed and failed + running + succeeded >= minimum:
        return "Failed"
    if running + succeeded >= minimum:
        return "Running"
    return "Scheduling" if scheduled >= minimum else "Pending"


def _volcano_phase(group: PodGroup, scheduled: int, succeeded: int, *, ended: bool) -> str:
    """The phase of a PodGroup of Volcano. `Inqueue` lets its controllers create pods; it is left to Volcano."""
    if ended and succeeded >= group.minimum:
        return "Completed"
    if scheduled >= group.minimum:
        return "Running"
    return "Inqueue" if group.status.phase == "Inqueue" else "Pending"

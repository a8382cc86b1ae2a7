"""Reports of pods that wait because of their PodGroup, a moment later: a pod and its group are created together and
observed in any order."""

from policysched.scheduler.blame import raises_for
from policysched.scheduler.commands import Log
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.limits import REPORTS_PER_SLICE_MAX, SECOND_NS
from policysched.scheduler.queue.entries import PendingPod
from policysched.scheduler.queue.movable_heap import MovableHeap

_LOGGED_MAX = 10_000


class GroupProblems:
    """Advanced by the `PodEnqueuer`."""

    def __init__(self, core: SchedulerCore) -> None:
        self._core = core
        self._due: MovableHeap[PendingPod] = MovableHeap()
        self._logged: dict[str, str] = {}

    def put(self, pod: PendingPod, message: str, now_ns: int) -> None:
        """The pod was rejected with this message."""
        pod.pending_message = message
        self._due.put(pod, now_ns + round(self._core.limits.gang_report_delay_s * SECOND_NS))

    def discard(self, pod: PendingPod) -> None:
        """The pod waits for something else, or is gone."""
        self._due.discard(pod)

    def next_time_ns(self) -> int | None:
        return self._due.first_key()

    def advance(self, now_ns: int) -> None:
        """Report some of those that are due: after a start all of them are at once."""
        for _ in range(REPORTS_PER_SLICE_MAX):
            if (at_ns := self._due.first_key()) is None or at_ns > now_ns:
                return
            pod = self._due.pop()
            assert pod is not None
            with raises_for(pod.object_id):
                self._report(pod, now_ns)

    def _report(self, pod: PendingPod, now_ns: int) -> None:
        """On the pod, and in the log once for its group."""
        message, group = pod.pod.group_problem, pod.pod.group_references
        if message is None or pod.pending_message != message:
            return
        self._core.report_pending(pod, "PolicyPending", message, now_ns)
        name = f"{pod.pod.namespace}/{group[0].name}"
        if self._logged.get(name) != message:
            self._logged[name] = message
            if len(self._logged) > _LOGGED_MAX:
                del self._logged[next(iter(self._logged))]
            self._core.commands.append(
                Log("warning", "pods wait for their PodGroup", {"group": name, "reason": message})
            )

"""What was last said about each pending pod, so that nothing is said twice.

An event and a status patch a pod and attempt would cost more than the decisions. The words go out when they change,
and for one pod not more often than its backoff steps: 1 s, 2 s, 4 s, at most every 10 s. What comes too early is
withheld, and if it still holds when the time is up it is said then, so the last word is always the present one.
"""

from dataclasses import dataclass
from typing import Literal

from policysched.model.identifiers import PodUid
from policysched.model.pods import Pod
from policysched.scheduler.commands import ReportPending
from policysched.scheduler.limits import SchedulerLimits
from policysched.scheduler.queue.movable_heap import MovableHeap

PendingReason = Literal["Unschedulable", "PolicyPending", "SchedulerError"]


@dataclass(slots=True)
class _LastReport:
    pod: Pod
    reported: tuple[PendingReason, str]
    at_ns: int
    report_count: int = 1
    deferred: tuple[PendingReason, str] | None = None


class PendingReports:
    """At most one entry a pod, from its first report until `forget`."""

    def __init__(self, limits: SchedulerLimits) -> None:
        self._limits = limits
        self._last_reports: dict[PodUid, _LastReport] = {}
        self._deferred: MovableHeap[PodUid] = MovableHeap()

    def report(self, pod: Pod, reason: PendingReason, message: str, now_ns: int) -> list[ReportPending]:
        """The pod stays pending for this reason: what of it is to be said now, if anything."""
        said = self._last_reports.get(pod.uid)
        if said is None:
            self._last_reports[pod.uid] = _LastReport(pod, (reason, message), now_ns)
            return [_report(pod, reason, message)]
        said.pod = pod
        if said.reported == (reason, message):
            said.deferred = None
            self._deferred.discard(pod.uid)
            return []
        free_ns = said.at_ns + self._limits.backoff_ns(said.report_count)
        if now_ns < free_ns:
            said.deferred = (reason, message)
            self._deferred.put(pod.uid, free_ns)
            return []
        return [self._send(said, reason, message, now_ns)]

    def due_reports(self, now_ns: int) -> list[ReportPending]:
        """What was withheld and has waited long enough."""
        found = []
        while (at_ns := self._deferred.first_key()) is not None and at_ns <= now_ns:
            uid = self._deferred.pop()
            assert uid is not None
            said = self._last_reports[uid]
            assert said.deferred is not None, f"nothing is withheld about {said.pod.full_name}"
            found.append(self._send(said, *said.deferred, now_ns))
        return found

    def next_time_ns(self) -> int | None:
        return self._deferred.first_key()

    def cancel_deferred(self, uid: PodUid) -> None:
        """The pod does not wait any more: what was withheld about it is not said."""
        self._deferred.discard(uid)
        said = self._last_reports.get(uid)
        if said is not None:
            said.deferred = None

    def forget(self, uid: PodUid) -> None:
        self._last_reports.pop(uid, None)
        self._deferred.discard(uid)

    def last_report(self, uid: PodUid) -> tuple[PendingReason, str] | None:
        """What was last said, for people who ask."""
        said = self._last_reports.get(uid)
        return None if said is None else said.reported

    def _send(self, said: _LastReport, reason: PendingReason, message: str, now_ns: int) -> ReportPending:
        said.reported, said.at_ns, said.deferred = (reason, message), now_ns, None
        said.report_count += 1
        self._deferred.discard(said.pod.uid)
        return _report(said.pod, reason, message)


def _report(pod: Pod, reason: PendingReason, message: str) -> ReportPending:
    return ReportPending(pod.uid, pod.namespace, pod.name, pod.scheduler, reason, message)

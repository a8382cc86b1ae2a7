"""The last report of each pending pod, so that no report is repeated.

An event and a status patch for each pod and attempt would cost more than the attempts. A report is sent when its
message changes, and for one pod at most as often as its backoff steps: after 1 s, 2 s, 4 s, then every 10 s. If only
numbers change, it is sent after 10 s, 20 s and so on, at most every five minutes: each new member of a gang, and each
node that fills, changes the messages of many pods. An earlier report is deferred and sent when its time comes, if it
still holds; the last report is therefore always the current one. A report that the next leader must read is sent at once,
and later ones begin with it until it is released.
"""

from dataclasses import dataclass
from functools import lru_cache

from policysched.model.identifiers import PodUid
from policysched.model.pod_status import SINCE_REFUSED_BIND
from policysched.model.pods import Pod
from policysched.scheduler.commands import PendingReason, ReportPending
from policysched.scheduler.limits import SchedulerLimits
from policysched.scheduler.queue.movable_heap import MovableHeap
from policysched.scheduler.unschedulable_message import short_text

_MESSAGES_KEPT = 16


@dataclass(slots=True)
class _LastReport:
    pod: Pod
    reported: tuple[PendingReason, str]
    at_ns: int
    report_count: int = 1
    recount_count: int = 0  # the latest reports that differed from the one before in numbers alone
    deferred: tuple[PendingReason, str] | None = None


class PendingReports:
    """At most one entry a pod, from its first report until `forget`. `kept`: messages with which the reports of these pods
    begin."""

    def __init__(self, limits: SchedulerLimits) -> None:
        self._limits = limits
        self._last_reports: dict[PodUid, _LastReport] = {}
        self._deferred: MovableHeap[PodUid] = MovableHeap()
        self.kept: dict[PodUid, str] = {}

    def keep(self, pod: Pod, reason: PendingReason, message: str, now_ns: int) -> list[ReportPending]:
        """Report this at once, unless it was reported last. What is reported from now on begins with it until `release`."""
        last = self._last_reports.get(pod.uid)
        self.kept[pod.uid] = message
        if last is None:
            self._last_reports[pod.uid] = _LastReport(pod, (reason, message), now_ns)
            return [_report(pod, reason, message)]
        self._deferred.discard(pod.uid)
        last.deferred = None
        return [] if last.reported == (reason, message) else [self._send(last, reason, message, now_ns)]

    def release(self, uid: PodUid) -> None:
        """What came after the kept message is reported alone when its time comes."""
        kept, last = self.kept.pop(uid, None), self._last_reports.get(uid)
        if kept is None or last is None:
            return
        reason, message = last.deferred or last.reported
        if message.startswith(kept + SINCE_REFUSED_BIND):
            last.deferred = reason, message.removeprefix(kept + SINCE_REFUSED_BIND)
            self._deferred.put(uid, last.at_ns + self._delay_ns(last, last.deferred))

    def report(self, pod: Pod, reason: PendingReason, message: str, now_ns: int) -> list[ReportPending]:
        """The pod stays pending for this reason. Returns the report to send now, if any."""
        last, kept = self._last_reports.get(pod.uid), self.kept.get(pod.uid)
        if kept not in (None, message):
            message = short_text(f"{kept}{SINCE_REFUSED_BIND}{message}")
        if last is None:
            self._last_reports[pod.uid] = _LastReport(pod, (reason, message), now_ns)
            return [_report(pod, reason, message)]
        last.pod = pod
        if last.reported == (reason, message):
            last.deferred = None
            self._deferred.discard(pod.uid)
            return []
        free_ns = last.at_ns + self._delay_ns(last, (reason, message))
        if now_ns < free_ns:
            last.deferred = (reason, message)
            self._deferred.put(pod.uid, free_ns)
            return []
        return [self._send(last, reason, message, now_ns)]

    def due_reports(self, now_ns: int, reports_max: int) -> list[ReportPending]:
        """The deferred reports whose time has come, at most `reports_max`."""
        reports: list[ReportPending] = []
        while (
            (at_ns := self._deferred.first_key()) is not None
            and at_ns <= now_ns
            and len(reports) < reports_max
        ):
            uid = self._deferred.pop()
            assert uid is not None
            last = self._last_reports[uid]
            assert last.deferred is not None, f"no report of {last.pod.full_name} is deferred"
            reports.append(self._send(last, *last.deferred, now_ns))
        return reports

    def next_time_ns(self) -> int | None:
        return self._deferred.first_key()

    def cancel_deferred(self, uid: PodUid) -> None:
        """The pod is no longer pending: drop its deferred report, and what was kept."""
        self.kept.pop(uid, None)
        self._deferred.discard(uid)
        last = self._last_reports.get(uid)
        if last is not None:
            last.deferred = None

    def forget(self, uid: PodUid) -> None:
        self.kept.pop(uid, None)
        self._last_reports.pop(uid, None)
        self._deferred.discard(uid)

    def last_report(self, uid: PodUid) -> tuple[PendingReason, str] | None:
        """The reason and message that were sent last."""
        last = self._last_reports.get(uid)
        return None if last is None else last.reported

    def latest_report(self, uid: PodUid) -> tuple[PendingReason, str] | None:
        """The reason and message that were sent last, or are deferred."""
        last = self._last_reports.get(uid)
        return None if last is None else last.deferred or last.reported

    def _delay_ns(self, last: _LastReport, report: tuple[PendingReason, str]) -> int:
        if _is_recount(last.reported, report):
            return self._limits.recount_delay_ns(last.recount_count)
        return self._limits.backoff_ns(last.report_count)

    def _send(self, last: _LastReport, reason: PendingReason, message: str, now_ns: int) -> ReportPending:
        last.recount_count = last.recount_count + 1 if _is_recount(last.reported, (reason, message)) else 0
        last.reported, last.at_ns, last.deferred = (reason, message), now_ns, None
        last.report_count += 1
        self._deferred.discard(last.pod.uid)
        return _report(last.pod, reason, message)


def _is_recount(before: tuple[PendingReason, str], after: tuple[PendingReason, str]) -> bool:
    """Whether the two reports differ in numbers alone, or in the order of reasons, which depends on their numbers."""
    return before[0] == after[0] and _words(before[1]) == _words(after[1])


@lru_cache(_MESSAGES_KEPT)  # many pods have the same message at one time
def _words(message: str) -> list[str]:
    """Those that do not begin with a digit, sorted. Numbers in names (`default/web-1`, `"data-1"`) are part of a word."""
    return sorted(word for text in message.split() if not (word := text.strip(".,;:()"))[:1].isdigit())


def _report(pod: Pod, reason: PendingReason, message: str) -> ReportPending:
    return ReportPending(pod.uid, pod.namespace, pod.name, pod.scheduler, reason, message)

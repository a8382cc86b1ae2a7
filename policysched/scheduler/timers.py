"""What time makes due, in the order in which it is done.

Each part keeps its own deadlines in a heap, because it moves and cancels them by its own keys. `Timers` has the
parts in the order in which they advance, and finds the earliest deadline of all.

What a part does for one pod or gang runs under `blame.raises_for`. What only reports is a `ReportTimer`.
"""

from collections.abc import Iterable
from typing import Protocol

from policysched.evaluate import NotCounted
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.internal_errors import InternalErrors
from policysched.scheduler.limits import REPORTS_PER_SLICE_MAX, SECOND_NS
from policysched.scheduler.queue.entries import PendingPod

REPORT_PAUSE_MAX_NS = 64 * SECOND_NS


class DeadlineHandler(Protocol):
    def next_time_ns(self) -> int | None:
        """When `advance` has work next; None: not before something else happens."""

    def advance(self, now_ns: int) -> None:
        """Do everything that is due."""


class Timers:
    """`parts` advance in this order, whatever their deadlines are."""

    def __init__(self, parts: Iterable[DeadlineHandler]) -> None:
        self._parts = tuple(parts)
        self._next_times_ns = tuple(part.next_time_ns for part in self._parts)

    def next_time_ns(self) -> int | None:
        """Asked for each event."""
        earliest_ns = None
        for next_time_ns in self._next_times_ns:
            time_ns = next_time_ns()
            if time_ns is not None and (earliest_ns is None or time_ns < earliest_ns):
                earliest_ns = time_ns
        return earliest_ns

    def advance(self, now_ns: int) -> None:
        for part in self._parts:
            part.advance(now_ns)


class ReportTimer:
    """A part that decides nothing: what it raises is logged, and it goes on a second later, then two, four, up to 64."""

    def __init__(self, part: DeadlineHandler, errors: InternalErrors) -> None:
        self._part = part
        self._errors = errors
        self._resumes_ns, self._pause_ns = 0, SECOND_NS

    def next_time_ns(self) -> int | None:
        time_ns = self._part.next_time_ns()
        return None if time_ns is None else max(time_ns, self._resumes_ns)

    def advance(self, now_ns: int) -> None:
        if now_ns < self._resumes_ns:
            return
        try:
            self._part.advance(now_ns)
        except NotCounted:
            raise
        except Exception as error:  # noqa: BLE001  # any fault of the program
            self._resumes_ns = now_ns + self._pause_ns
            self._pause_ns = min(2 * self._pause_ns, REPORT_PAUSE_MAX_NS)
            self._errors.note_report(type(self._part).__name__, error, now_ns)
        else:
            self._pause_ns = SECOND_NS


class FirstSampleTimeouts:
    """Releases policies that have waited long enough for their first samples."""

    def __init__(self, core: SchedulerCore) -> None:
        self._core = core

    def next_time_ns(self) -> int | None:
        return self._core.samples.first_samples.next_time_ns()

    def advance(self, now_ns: int) -> None:
        self._core.commands += self._core.samples.first_samples.advance(now_ns)


class PolicyStateSaves:
    """Saves the values of policy states."""

    def __init__(self, core: SchedulerCore) -> None:
        self._core = core

    def next_time_ns(self) -> int | None:
        return self._core.samples.policy_states.next_time_ns()

    def advance(self, now_ns: int) -> None:
        self._core.save_states(now_ns)


class DeferredReports:
    """Reports changed messages of parked pods, then the reports that were deferred."""

    def __init__(self, core: SchedulerCore) -> None:
        self._core = core

    def next_time_ns(self) -> int | None:
        return self._core.reports.next_time_ns()  # the queue counts its own messages

    def advance(self, now_ns: int) -> None:
        core = self._core
        for entry, group in core.queue.due_messages(now_ns, REPORTS_PER_SLICE_MAX):
            if isinstance(entry, PendingPod):
                core.report_pending(entry, group.reason, group.message, now_ns)
        core.commands += core.reports.due_reports(now_ns, REPORTS_PER_SLICE_MAX)

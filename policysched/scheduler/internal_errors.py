"""An attempt that ends with an exception: a fault of the program, which a value of the pod brings to light.

The pod or gang waits with a message, and is tried again after a minute or once an event concerns it. If the exception ended the
process, it would do so again after each restart: one pod would stop all others.
"""

import traceback

from policysched.model.cluster_events import ClusterEvent
from policysched.model.pods import Pod
from policysched.scheduler.commands import Log
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.limits import SECOND_NS
from policysched.scheduler.queue.entries import PendingPod, QueueEntry
from policysched.scheduler.queue.gang_registry import QueuedGang
from policysched.text.sanitize import sanitize_line

RETRY_NS = 60 * SECOND_NS
LOG_INTERVAL_NS = SECOND_NS
_TRACEBACK_CHARACTERS_MAX = 4_000
_REQUEUE_EVENTS = frozenset({ClusterEvent.UNSCHEDULED_POD_UPDATE, ClusterEvent.NODE_ADD})


class InternalErrors:
    """Logs one in a second; those of attempts are counted. Keeps no exception: its traceback has all that the attempt had in memory."""

    def __init__(self, core: SchedulerCore) -> None:
        self._core = core
        self._logged_ns = -LOG_INTERVAL_NS
        self._latest = ""

    def park(self, entry: QueueEntry, error: Exception, now_ns: int) -> None:
        """Park a detached entry whose attempt raised. Nothing of the attempt is in effect."""
        core = self._core
        core.evaluator.forget(core.plan(entry.policy))
        message = self._note_pod(entry.representative_pod, error, now_ns)
        core.queue.apply_backoff(entry, now_ns)
        core.queue.park(
            entry,
            entry.id if isinstance(entry, QueuedGang) else ("internal error", entry.policy, entry),
            now_ns=now_ns,
            requeue_events=_REQUEUE_EVENTS,
            valid_until_ns=now_ns + RETRY_NS,
            reason="SchedulerError",
            message=message,
        )
        for pod in _pods(entry):
            core.records.counters.count_attempt("error", pod.policy)
            core.records.counters.count_internal_error(pod.policy)
            core.report_pending(pod, "SchedulerError", message, now_ns)

    def rejection(self, pod: Pod, error: Exception, now_ns: int) -> str:
        """What the policy reads of the pod alone raised: its message, until the pod, its namespace or the policy changes."""
        self._core.records.counters.count_internal_error(pod.scheduler)
        return self._note_pod(pod, error, now_ns)

    def note_report(self, part: str, error: Exception, now_ns: int) -> None:
        """A part of the timers that only reports raised. Nobody waits for it."""
        self._note("a report failed, please report this bug", {"part": part}, error, now_ns)

    def check(self) -> list[str]:
        """Each is a bug, which a simulation or a test must not pass over."""
        return [f"an attempt raised {self._latest}"] if self._latest else []

    def _note_pod(self, pod: Pod, error: Exception, now_ns: int) -> str:
        fields = {"pod": pod.full_name, "policy": pod.scheduler}
        self._note("an attempt failed, please report this bug; the pod waits", fields, error, now_ns)
        return f"internal error: {self._latest}"

    def _note(self, message: str, fields: dict[str, str], error: Exception, now_ns: int) -> None:
        self._latest = sanitize_line(f"{type(error).__name__}: {error}")
        if now_ns >= self._logged_ns + LOG_INTERVAL_NS:
            self._logged_ns = now_ns
            frames = "".join(traceback.format_tb(error.__traceback__))[-_TRACEBACK_CHARACTERS_MAX:]
            self._core.commands.append(Log("error", message, {**fields, "error": f"{frames}{self._latest}"}))


def _pods(entry: QueueEntry) -> list[PendingPod]:
    if isinstance(entry, QueuedGang):
        return list(entry.pending_members.values())
    return [entry] if isinstance(entry, PendingPod) else []

"""The causes of pending pods in a few words, and a log line with them while pods are pending.

A pod's cause is what keeps it from the nodes that fewest rules reject: with it gone the pod would have a node. A pod that
is being tried again keeps the cause of its last attempt.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from policysched.evaluate.verdict import RejectionCause
from policysched.scheduler.commands import Log
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.limits import SECOND_NS
from policysched.scheduler.queue.entries import PendingPod, QueueEntry, QueueState

_CAUSES_LOGGED = 3
_MESSAGE_CHARS_MAX = 120


@dataclass(frozen=True, slots=True)
class PendingCause:
    """`sole_rules`: each of these rules alone keeps the pod from having a node."""

    text: str
    sole_rules: tuple[str, ...] = field(default=())


def cause_of(core: SchedulerCore, pod: PendingPod) -> PendingCause:
    """Why the pod is pending."""
    gang = core.gangs.gang_of(pod.uid)
    entry: QueueEntry = gang if gang is not None and pod.uid in gang.unqueued_members else pod
    group = core.queue.group_of(entry)
    cause = entry.last_cause
    if cause is not None:
        return PendingCause(describe_cause(cause), tuple(cause.sole_rules))
    message = pod.pending_message if group is None else group.message
    return PendingCause(_cut(message) or _DESCRIPTIONS.get(entry.state, entry.state.value))


def describe_cause(cause: RejectionCause) -> str:
    """`node_resources_fit: Insufficient cpu`."""
    reasons = ", ".join(dict.fromkeys(cause.reasons))
    rules = " and ".join(cause.rules)
    return _cut(f"{rules}: {reasons}" if reasons and reasons != rules else rules)


_DESCRIPTIONS: Mapping[QueueState, str] = {
    QueueState.ACTIVE: "not decided yet",
    QueueState.BACKING_OFF: "backing off",
    QueueState.GATED: "gated: scheduling gates, or a gang with too few members",
}


def _cut(text: str) -> str:
    return text if len(text) <= _MESSAGE_CHARS_MAX else f"{text[:_MESSAGE_CHARS_MAX]}…"


class PendingSummary:
    """Logs a line per interval while any pod has been pending for at least an interval."""

    def __init__(self, core: SchedulerCore) -> None:
        self._core = core
        self._interval_ns = round(core.limits.pending_log_interval_s * SECOND_NS)
        self._checked_ns: int | None = None

    def next_time_ns(self) -> int | None:
        if not self._interval_ns or not self._core.pods:
            return None
        first = next(iter(self._core.pods.values()))  # seen before the others
        return max(first.queued_ns, self._checked_ns or 0) + self._interval_ns

    def advance(self, now_ns: int) -> None:
        due_ns = self.next_time_ns()
        if due_ns is None or due_ns > now_ns:
            return
        self._checked_ns = now_ns
        waiting = [pod for pod in self._core.pods.values() if pod.state is not QueueState.BINDING]
        oldest_ns = min((pod.queued_ns for pod in waiting), default=now_ns)
        if now_ns - oldest_ns < self._interval_ns:
            return
        counts = self._counts(len(waiting))
        causes = [f"{count}: {text}" for text, count in counts.most_common(_CAUSES_LOGGED)]
        other_count = len(waiting) - sum(count for _, count in counts.most_common(_CAUSES_LOGGED))
        if other_count > 0:
            causes.append(f"{other_count}: other causes")
        fields: dict[str, str | int | float] = {
            "pods": len(waiting),
            "oldest_s": round((now_ns - oldest_ns) / 1e9),
            "causes": "; ".join(causes),
        }
        self._core.commands.append(Log("info", "pods are pending", fields))

    def _counts(self, waiting_count: int) -> Counter[str]:
        """Pods by cause, counted by equivalence class: they may be many."""
        counts: Counter[str] = Counter()
        for group in self._core.queue.parked_groups():
            text = _cut(group.message) if group.cause is None else describe_cause(group.cause)
            counts[text] += sum(entry.pod_count for entry in group.members)
        by_state = self._core.queue.counts()
        for state, queue in ((QueueState.GATED, "gated"), (QueueState.BACKING_OFF, "backoff")):
            counts[_DESCRIPTIONS[state]] += by_state[queue]
        counts[_DESCRIPTIONS[QueueState.ACTIVE]] += max(0, waiting_count - sum(counts.values()))
        return +counts

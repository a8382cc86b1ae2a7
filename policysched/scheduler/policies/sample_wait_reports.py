"""Pods of a policy that waits for its first samples are told so, for nothing else would say anything of them.

Most waits are over before anybody looks, so the first words come after some seconds; and since the longest wait is ten seconds, only so
many pods a second are told, the rest of a great many never. Reports see to it that nobody is told the same twice.
"""

from collections.abc import Iterator

from policysched.model.messages import pod_refused_message
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.gangs.registry import QueuedGang
from policysched.scheduler.limits import SECOND_NS
from policysched.scheduler.queue.entries import PendingPod, QueueEntry

FIRST_REPORT_DELAY_NS = 3 * SECOND_NS
"""How long a policy has waited before its pods hear of it."""
REPORT_INTERVAL_NS = SECOND_NS
PODS_PER_REPORT_MAX = 500
"""In one such second, of one policy."""


class SampleWaitReports:
    """Follows `FirstSamples.held_policies`, as the queue does."""

    def __init__(self, core: SchedulerCore) -> None:
        self._core = core
        self._due_ns: dict[str, int] = {}

    def next_time_ns(self) -> int | None:
        return min(map(self._next_ns, self._core.first_samples.held_policies), default=None)

    def _next_ns(self, policy: str) -> int:
        return self._due_ns.get(policy, self._core.first_samples.since_ns(policy) + FIRST_REPORT_DELAY_NS)

    def advance(self, now_ns: int) -> None:
        held = self._core.first_samples.held_policies
        self._due_ns = {policy: due_ns for policy, due_ns in self._due_ns.items() if policy in held}
        for policy in sorted(held):
            if self._next_ns(policy) <= now_ns:
                self._report(policy, now_ns)
                self._due_ns[policy] = now_ns + REPORT_INTERVAL_NS

    def _report(self, policy: str, now_ns: int) -> None:
        core, left = self._core, PODS_PER_REPORT_MAX
        why = f"policy {policy} {core.first_samples.message(policy)}"
        words = pod_refused_message(len(core.cache.nodes), why)
        for unit in core.queue.active_entries(policy):
            for pod in _pods_of(unit):
                if left and core.reports.last_report(pod.uid) != ("PolicyPending", words):
                    core.report_pending(pod, "PolicyPending", words, now_ns)
                    left -= 1
            if not left:
                return


def _pods_of(unit: QueueEntry) -> Iterator[PendingPod]:
    match unit:
        case QueuedGang():
            yield from unit.pending_members.values()
        case PendingPod():
            yield unit

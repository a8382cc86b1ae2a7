"""Reports pods as pending while their policy waits for its first samples.

Such pods are not attempted, so no attempt reports them. Most waits are short, so reports start after
some seconds. They are rate limited: a wait lasts ten seconds at most, and with very many pods some
are never reported. The reason and message of a pod are reported once.
"""

from collections.abc import Iterator

from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.limits import SECOND_NS
from policysched.scheduler.queue.entries import PendingPod, QueueEntry
from policysched.scheduler.queue.gang_registry import QueuedGang
from policysched.scheduler.unschedulable_message import pod_rejected_message

FIRST_REPORT_DELAY_NS = 3 * SECOND_NS
"""How long a policy waits before its pods are reported."""
REPORT_INTERVAL_NS = SECOND_NS
PODS_PER_REPORT_MAX = 500
"""Pods of one policy reported in one interval."""


class SampleWaitReports:
    """Reports the pods of `FirstSamples.held_policies`."""

    def __init__(self, core: SchedulerCore) -> None:
        self._core = core
        self._due_ns: dict[str, int] = {}

    def next_time_ns(self) -> int | None:
        held_policies = self._core.samples.first_samples.held_policies
        return min(map(self._next_ns, held_policies)) if held_policies else None

    def _next_ns(self, policy: str) -> int:
        return self._due_ns.get(
            policy, self._core.samples.first_samples.since_ns(policy) + FIRST_REPORT_DELAY_NS
        )

    def advance(self, now_ns: int) -> None:
        held_policies = self._core.samples.first_samples.held_policies
        self._due_ns = {policy: due_ns for policy, due_ns in self._due_ns.items() if policy in held_policies}
        for policy in sorted(held_policies):
            if self._next_ns(policy) <= now_ns:
                self._report(policy, now_ns)
                self._due_ns[policy] = now_ns + REPORT_INTERVAL_NS

    def _report(self, policy: str, now_ns: int) -> None:
        core, remaining = self._core, PODS_PER_REPORT_MAX
        reason = f"policy {policy} {core.samples.first_samples.message(policy)}"
        message = pod_rejected_message(len(core.cache.nodes), reason)
        for entry in core.queue.active_entries(policy):
            for pod in _pods_of(entry):
                if remaining and core.reports.latest_report(pod.uid) != ("PolicyPending", message):
                    core.report_pending(pod, "PolicyPending", message, now_ns)
                    remaining -= 1
            if not remaining:
                return


def _pods_of(entry: QueueEntry) -> Iterator[PendingPod]:
    match entry:
        case QueuedGang():
            yield from entry.pending_members.values()
        case PendingPod():
            yield entry

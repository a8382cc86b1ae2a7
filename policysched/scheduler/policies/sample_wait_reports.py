"""Pods of a policy that waits for its first samples are told so, for nothing else would say anything of them.

Most waits are over before anybody looks, so the first words come after some seconds; and since the longest wait is ten seconds, only so
many pods a second are told, the rest of a great many never. Reports see to it that nobody is told the same twice.
"""

from collections.abc import Iterator

from policysched.model.messages import refused_message
from policysched.scheduler.core import Core
from policysched.scheduler.gangs.gangs import Gang
from policysched.scheduler.limits import SECOND_NS
from policysched.scheduler.queue.entries import PendingPod, Unit

SILENCE_NS = 3 * SECOND_NS
"""How long a policy has waited before its pods hear of it."""
AGAIN_NS = SECOND_NS
PODS_TOLD_MAX = 500
"""In one such second, of one policy."""


class ToldToWait:
    """Follows `FirstSamples.held`, as the queue does."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._due_ns: dict[str, int] = {}

    def next_time_ns(self) -> int | None:
        return min(map(self._next_ns, self._core.first_samples.held), default=None)

    def _next_ns(self, policy: str) -> int:
        return self._due_ns.get(policy, self._core.first_samples.since_ns(policy) + SILENCE_NS)

    def advance(self, now_ns: int) -> None:
        held = self._core.first_samples.held
        self._due_ns = {policy: due_ns for policy, due_ns in self._due_ns.items() if policy in held}
        for policy in sorted(held):
            if self._next_ns(policy) <= now_ns:
                self._tell(policy, now_ns)
                self._due_ns[policy] = now_ns + AGAIN_NS

    def _tell(self, policy: str, now_ns: int) -> None:
        core, left = self._core, PODS_TOLD_MAX
        why = f"policy {policy} {core.first_samples.words(policy)}"
        words = refused_message(len(core.cache.nodes), why)
        for unit in core.queue.active(policy):
            for pod in _pods(unit):
                if left and core.reports.last(pod.uid) != ("PolicyPending", words):
                    core.report(pod, "PolicyPending", words, now_ns)
                    left -= 1
            if not left:
                return


def _pods(unit: Unit) -> Iterator[PendingPod]:
    match unit:
        case Gang():
            yield from unit.due.values()
        case PendingPod():
            yield unit

"""No overtaking within a policy, checked at every placement.

When a pod or gang is placed, no other entry of its policy that stands ahead of it by `queue by` may be waiting although
it could be placed on the same cluster. The order and the verdict are those of the reference implementation. This
holds, except for entries that events that are not of their namespace wake late (`LateWakeUps`). Of other namespaces, it does not hold for those that took more than their share of the time in vain (`decision_costs`), unless the first of their entries ahead
has a higher priority. A gang that has yielded after a pause does not yield again: it holds where its next attempt begins, and not for those
that events requeue ahead of it in the pauses of that. Nor for an entry that waited for the attempt of a gang, by those in its pauses. It
does hold for those that no event has requeued.

Left out are entries that the order does not concern: gated or rejected without an attempt, in backoff after an error,
waiting for an answer about their own evictions or from an extender, and those whose verdict expires by time (it is
renewed when it expires).
"""

from collections.abc import Callable
from operator import itemgetter
from typing import Any

from policysched.lang.ir.program import GangMode
from policysched.scheduler.attempt_result import AttemptSuccess
from policysched.scheduler.preemption.nominations import competing_nominations
from policysched.scheduler.queue.entries import PendingPod, QueueEntry, QueueState
from policysched.scheduler.queue.gang_registry import QueuedGang
from policysched.scheduler.scheduler import Scheduler
from tests.inline import run_to_completion
from tests.reference import evaluate, order_key

_WAITING_STATES = (QueueState.ACTIVE, QueueState.BACKING_OFF, QueueState.UNSCHEDULABLE)


class OrderChecker:
    """Wraps one scheduler. `fail` gets a message for each entry that is overtaken. `is_overdrawn`: whether a namespace took
    more than its share of the time."""

    def __init__(
        self,
        scheduler: Scheduler,
        fail: Callable[[str], None],
        is_overdrawn: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._scheduler, self._core, self._fail = scheduler, scheduler._core, fail
        self._is_overdrawn = is_overdrawn
        self._placed: QueueEntry | None = None
        self._assume, self._pop = scheduler._pod_attempts.assume, self._core.queue.pop
        scheduler._pod_attempts.assume = self._check_assume  # type: ignore[method-assign]
        self._core.queue.pop = self._on_pop  # type: ignore[method-assign]
        self._yield = self._core.queue.yield_to_earlier
        self._core.queue.yield_to_earlier = self._check_yield  # type: ignore[method-assign]
        self.comparisons = 0

    def _on_pop(self) -> QueueEntry | None:
        self._placed = None
        return self._pop()

    def _check_yield(self, entry: QueueEntry, now_ns: int, *, was_paused: bool = False) -> bool:
        yields = self._yield(entry, now_ns, was_paused=was_paused)
        if isinstance(entry, QueuedGang) and entry.yields_first and not (yields or entry.yields_no_more):
            self._check_order(entry, now_ns)
        return yields

    def _check_assume(self, pod: PendingPod, success: AttemptSuccess, now_ns: int) -> None:
        gang = self._core.gangs.gang_of(pod.uid)
        entry = gang if gang is not None and gang.mode is GangMode.WHOLE else pod
        if entry is not self._placed:  # the first member of a gang, or a pod
            self._placed = entry
            self._check_order(entry, now_ns)
        self._assume(pod, success, now_ns)

    def _check_order(self, placed: QueueEntry, now_ns: int) -> None:
        placed_key: Any = self._order_key(placed, now_ns)
        verdicts: set[Any] = set()
        ahead = [
            (key, other)
            for other in self._waiting_entries(placed.policy)
            if not (other is placed or other.ordered_last or placed.ordered_last)
            and (key := self._order_key(other, now_ns)) < placed_key
        ]
        behind: set[str] = set()
        for _, other in sorted(ahead, key=itemgetter(0)):
            if (
                other.namespace != placed.namespace
                and self._is_overdrawn(other.namespace)
                and (other.namespace in behind or other.priority <= placed.priority)
            ):
                behind.add(other.namespace)
                continue
            if self._waits_for_own_reasons(other):
                continue
            group = self._core.queue.group_of(other)
            if placed.yields_no_more and (
                group is None or self._core.queue.blocked_group(group.equivalence_key) is not group
            ):
                continue
            if (
                group is not None
                and group in self._core.queue._groups.late
                and other.priority <= placed.priority
            ):
                continue
            if group is not None and group.equivalence_key in verdicts:
                continue
            self.comparisons += 1
            if self._fits(other, now_ns):
                self._fail(f"{placed} is placed, and {other} stands ahead of it and fits too")
            elif group is not None:
                verdicts.add(group.equivalence_key)

    def _waiting_entries(self, policy: str) -> list[QueueEntry]:
        core, entries = self._core, {}
        if core.policies.running[policy].program.extenders:
            return []
        for pod in core.pods.values():
            gang = core.gangs.gang_of(pod.uid)
            whole = gang is not None and gang.mode is GangMode.WHOLE
            if gang is not None and not whole:
                continue
            entry = gang if gang is not None else pod
            if (
                pod.policy == policy
                and entry.state in _WAITING_STATES
                and not (entry.state is QueueState.BACKING_OFF and entry.in_error_backoff)
                and not pod.admission_rejected
                and (entry.state is QueueState.ACTIVE or not self._waits_for_own_reasons(entry))
            ):
                entries[entry] = None
        return list(entries)

    def _waits_for_own_reasons(self, entry: QueueEntry) -> bool:
        preemption, queue = self._scheduler._preemption, self._core.queue
        pods = entry.pending_members if isinstance(entry, QueuedGang) else (entry.representative_pod.uid,)
        if any(uid in preemption.evictions._evicting or uid in self._core.cache.nominated for uid in pods):
            return True
        group = queue.group_of(entry)
        return group is not None and group.equivalence_key in queue._groups._expiries

    def _fits(self, entry: QueueEntry, now_ns: int) -> bool:
        core = self._core
        if isinstance(entry, QueuedGang):
            if not entry.needed_count or not entry.has_quorum:
                return False
            attempts = self._scheduler._attempts._gang_attempts
            attempts._pauses.now_ns, before_ns = now_ns, attempts._pauses.now_ns
            search = run_to_completion(attempts._search(entry))
            attempts._pauses.now_ns = before_ns
            return len(search.fits) >= entry.needed_count
        pod = core.pods[entry.representative_pod.uid]
        if core.quotas.refusal(pod.pod) is not None:
            return False
        explanation = evaluate(
            core.policies.running[pod.policy].program,
            pod.pod,
            core.cache,
            now_ns=now_ns,
            facts=pod.facts,
            samples=core.samples.of_policy(pod.policy),
            nominated_pods=competing_nominations(core, pod.pod),
        )
        return explanation.selected is not None

    def _order_key(self, entry: QueueEntry, now_ns: int) -> Any:
        core, pod = self._core, entry.representative_pod
        program = core.policies.running[entry.policy].program
        facts = core.pods[pod.uid].facts
        return order_key(program, pod, core.namespace_of(pod), facts, now_ns, core.cache)

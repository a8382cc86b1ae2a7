"""Parking a gang after a failed attempt, in steps: new places in the queue, records and reports of all its members.

The gang is parked last. Until then it is being attempted, so that nothing sees it half parked.
"""

from dataclasses import dataclass

from policysched.evaluate.plan.quotas import QuotaCharge
from policysched.scheduler.attempt import PodAttempts
from policysched.scheduler.attempt_result import EVICTIONS_UNANSWERED, AttemptFailure
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.gangs.counted_members import CountedMembers
from policysched.scheduler.gangs.gang_search_result import GangSearchResult, gang_message, requeue_conditions
from policysched.scheduler.pod_enqueuer import PodEnqueuer
from policysched.scheduler.preemption.preemption_result import NoPreemption, PreemptionStarted
from policysched.scheduler.queue.entries import PendingPod
from policysched.scheduler.queue.gang_registry import QueuedGang
from policysched.scheduler.steps import POD_OPERATIONS_PER_SLICE, VISITS_PER_PIECE, Steps, visit_in_pieces

_MEMBER_COST = 2
_REST_DIVISOR = 4
"""Of the first backoff: about as long as a piece of a search after which others are attempted."""


@dataclass(frozen=True, slots=True)
class GangParking:
    core: SchedulerCore
    pod_attempts: PodAttempts
    enqueuer: PodEnqueuer

    def park_until_evicted(self, gang: QueuedGang, now_ns: int) -> None:
        """Park without requeue events: the results of its evictions requeue the gang."""
        self.core.queue.park(
            gang,
            gang.id,
            now_ns=now_ns,
            requeue_events=frozenset(),
            valid_until_ns=None,
            reason="Unschedulable",
            message=next(iter(gang.pending_members.values())).pending_message or EVICTIONS_UNANSWERED,
        )

    def go_on_later(self, gang: QueuedGang, counted: CountedMembers, now_ns: int) -> None:
        """The search has ended for entries that wait, which are attempted first: also those behind the gang in its policy, as in
        pauses. The attempt does not count."""
        gang.search_progress.goes_on = False
        counted.undo(gang)
        gang.backoff_until_ns = now_ns + self.core.limits.backoff_ns(1) // _REST_DIVISOR
        gang.in_error_backoff = self.core.queue.has_active  # otherwise it goes on at once
        self.core.queue.enqueue(gang, now_ns, "ScheduleAttemptFailure")

    def park(
        self,
        gang: QueuedGang,
        search: GangSearchResult,
        is_started: bool,
        needed: int,
        preemption: PreemptionStarted | NoPreemption | None,
        now_ns: int,
    ) -> Steps[None]:
        """Park the rest of a gang as one entry, until an event can help any of its members. `is_started`: other members were
        placed in this attempt."""
        core, members = self.core, list(gang.pending_members.values())
        first = next(iter(search.failures.values()), None)
        requeue_events, valid_until_ns = requeue_conditions(core, gang, search, preemption, now_ns)
        without_eviction = preemption.message if isinstance(preemption, NoPreemption) else ""
        reason, message = gang_message(gang, search, needed, is_started, without_eviction)

        is_slow = core.plan(gang.policy).order_operations * VISITS_PER_PIECE > POD_OPERATIONS_PER_SLICE

        def order_again(pod: PendingPod) -> None:
            if is_slow:  # in slices, and in its share of the time
                self.enqueuer.order_key_expiries.expire(pod, now_ns)
                return
            self.enqueuer.rekey(pod, now_ns)
            gang.reorder_member(pod)

        yield from visit_in_pieces(members, order_again, _MEMBER_COST)
        failure = AttemptFailure(reason, message, 0, {}, frozenset(), None)
        if first is not None:
            failure = AttemptFailure(
                reason, message, first.node_count, first.counts, frozenset(), None, detail=first.detail
            )

        def report(pod: PendingPod) -> None:
            self.pod_attempts.record_failure(pod, failure, now_ns)
            core.report_pending(pod, reason, message, now_ns)

        yield from visit_in_pieces(members, report, _MEMBER_COST)
        charges = yield from self._charges_that_take_back(gang, search)
        gang.update_order_key()
        core.queue.apply_backoff(gang, now_ns)
        core.queue.park(
            gang,
            gang.id,
            now_ns=now_ns,
            requeue_events=requeue_events,
            valid_until_ns=valid_until_ns,
            reason=reason,
            message=message,
            cause=None if first is None else first.cause,
        )
        core.quotas.stop_waiting(gang.id, gang.policy)
        count = max(1, gang.needed_count)
        if search.refusal is not None:
            core.quotas.wait(gang.id, gang.policy, search.refused_at, search.charges, count)
        if charges:
            core.quotas.gang_admitted(gang.id, gang.policy, charges, count)
        missed = sorted(gang.missed_events.items(), key=lambda each: each[0].value)
        for event, cause in missed:
            core.queue.open_group(gang.id, now_ns, event, cause)

    def _charges_that_take_back(self, gang: QueuedGang, search: GangSearchResult) -> Steps[list[QuotaCharge]]:
        """Of all members, if the gang might take back quota once placements of others have it refused. It is not yet."""
        quotas, charges = self.core.quotas, list[QuotaCharge]()
        if search.is_of_nodes and gang.evicting_count and quotas.takes_back(gang.representative_pod):
            members = list(gang.pending_members.values())
            yield from visit_in_pieces(
                members, lambda pod: charges.append(quotas.charge_of(pod.pod)), _MEMBER_COST
            )
        return charges

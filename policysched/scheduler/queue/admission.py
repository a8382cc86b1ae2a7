"""How a pending pod comes to stand in the queue, alone or with its gang, and how it leaves.

Everything here runs again for a pod whenever something changed that its standing depends on: the pod itself, its
namespace, its policy. A pod that the policy refuses by itself (a required label is absent, a feature that no built-in
covers) is held with those words until one of the three changes.
"""

from collections.abc import Iterable

from policysched.lang.ir.program import GangMode, OnTimeout
from policysched.model.pod_status import ObservedPod
from policysched.scheduler.commands import ReportPodEvent
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.gangs.registry import QueuedGang
from policysched.scheduler.limits import SECOND_NS
from policysched.scheduler.policies.rejection_message import format_duration
from policysched.scheduler.queue.entries import PendingPod, QueueState
from policysched.scheduler.queue.movable_heap import MovableHeap
from policysched.scheduler.queue.pre_enqueue import PreEnqueueResult, evaluate_pre_enqueue


class QueueAdmission:
    """Owns the clocks of waiting: keys that change with time, gangs whose time is up, gangs that gather."""

    def __init__(self, core: SchedulerCore) -> None:
        self._core = core
        self._order_key_expiries: MovableHeap[PendingPod] = MovableHeap()
        self._gang_deadlines: MovableHeap[QueuedGang] = MovableHeap()
        self._incomplete_gangs: MovableHeap[QueuedGang] = MovableHeap()

    # ── one pod ────────────────────────────────────────────────────────────────────────────────────────────────────

    def admit(self, seen: ObservedPod, now_ns: int) -> None:
        """A pending pod that names a running policy is seen for the first time."""
        pod = self._core.pods[seen.pod.uid] = PendingPod(seen, queued_ns=now_ns)
        self._place_in_queue(pod, now_ns, "PodAdd")

    def readmit(self, pod: PendingPod, seen: ObservedPod, now_ns: int, event: str) -> None:
        """Something that its standing depends on is different now."""
        self._core.queue.remove(pod, now_ns)
        gang = self._core.gangs.remove(pod.uid)
        pod.observed, pod.priority = seen, seen.pod.priority
        self._place_in_queue(pod, now_ns, event)
        if gang is not None and gang is not self._core.gangs.gang_of(pod.uid):
            self.refresh_gang(gang, now_ns, event)

    def readmit_after_bind_failure(self, pod: PendingPod, now_ns: int) -> None:
        """Its bind was refused: it is tried again after its backoff."""
        assert pod.state is QueueState.DETACHED, f"{pod} is still {pod.state.value}"
        self._place_in_queue(pod, now_ns, "ScheduleAttemptFailure")

    def remove(self, pod: PendingPod, now_ns: int) -> None:
        """The pod is bound, gone, terminating or no longer ours."""
        self._core.queue.remove(pod, now_ns)
        self._order_key_expiries.discard(pod)
        self._core.reports.cancel_deferred(pod.uid)
        self._core.pods.pop(pod.uid, None)

    def stop_rekeying(self, pod: PendingPod) -> None:
        """Its key in the queue does not matter any more."""
        self._order_key_expiries.discard(pod)

    def remove_from_gang(self, pod: PendingPod, now_ns: int) -> None:
        """The pod counts in no gang any more."""
        gang = self._core.gangs.remove(pod.uid)
        if gang is not None:
            self.refresh_gang(gang, now_ns, "PodDelete")

    def rekey(self, pod: PendingPod, now_ns: int) -> None:
        """What the order reads of the queue itself (attempts, waiting time) has changed."""
        plan = self._core.plan(pod.policy)
        pod.order_key, flip_ns = plan.order_key(pod.pod, self._core.namespace_of(pod.pod), pod.facts, now_ns)
        self._set_order_key_expiry(pod, flip_ns)

    def _set_order_key_expiry(self, pod: PendingPod, flip_ns: int | None) -> None:
        if flip_ns is None:
            self._order_key_expiries.discard(pod)
        else:
            self._order_key_expiries.put(pod, flip_ns)

    def readmit_many(self, policy: str, pods: Iterable[PendingPod], now_ns: int) -> None:
        """Many pods of a policy whose text was replaced, none of which stands anywhere: those that could be tried at
        once go into the queue together, in linear time."""
        together = []
        for pod in pods:
            pod.state = QueueState.DETACHED
            if not pod.pod.gates and not pod.gang_failure and not pod.in_error_backoff:
                standing = self._pre_enqueue(pod, now_ns)
                if standing.refusal is None and standing.gang_terms is None:
                    self._apply_pre_enqueue(pod, standing)
                    pod.backoff_until_ns = 0
                    together.append(pod)
                    continue
            self._place_in_queue(pod, now_ns, "PolicyChange")
        self._core.queue.enqueue_many(policy, together, "PolicyChange")

    def _place_in_queue(self, pod: PendingPod, now_ns: int, event: str) -> None:
        core, value = self._core, pod.pod
        if value.gates:
            pod.pending_message = f"waits for its scheduling gates: {', '.join(value.gates)}"
            core.queue.gate(pod)
            return
        if pod.gang_failure:
            self._reject(pod, pod.gang_failure, now_ns)
            return
        standing = self._pre_enqueue(pod, now_ns)
        if standing.refusal is not None:
            self._reject(pod, standing.refusal, now_ns)
            return
        self._apply_pre_enqueue(pod, standing)
        if standing.gang_terms is None:
            core.queue.enqueue(pod, now_ns, event)
            return
        pod.state = QueueState.GANG_MEMBER
        self.refresh_gang(core.gangs.add_pending(pod, standing.gang_terms), now_ns, event)

    def _pre_enqueue(self, pod: PendingPod, now_ns: int) -> PreEnqueueResult:
        core = self._core
        space, ready = core.namespace_of(pod.pod), core.precomputed.get(pod.uid)
        if ready is not None and ready.is_current(pod.pod, space, pod.attempts):
            return ready
        running = core.policies.running[pod.policy]
        return evaluate_pre_enqueue(
            running.plan, pod.pod, space, pod.facts, now_ns, reads_queue=running.reads_queue
        )

    def _apply_pre_enqueue(self, pod: PendingPod, standing: PreEnqueueResult) -> None:
        self._warn(pod, standing.warnings)
        pod.order_key, pod.equivalence_key, pod.admission_rejected = (
            standing.order_key,
            standing.equivalence_key,
            False,
        )
        self._set_order_key_expiry(pod, standing.order_key_expires_ns)

    def _reject(self, pod: PendingPod, why: str, now_ns: int) -> None:
        """No node would help: no autoscaler is to buy one."""
        pod.admission_rejected = True
        self._order_key_expiries.discard(pod)
        self._core.clear_nomination(pod.uid, now_ns)
        self._core.queue.park(
            pod,
            ("held", pod.uid),
            now_ns=now_ns,
            requeue_events=frozenset(),
            valid_until_ns=None,
            reason="PolicyPending",
            message=why,
        )
        self._core.report_pending(pod, "PolicyPending", why, now_ns)

    def _warn(self, pod: PendingPod, words: tuple[str, ...]) -> None:
        new = [one for one in words if one not in pod.input_warnings]
        pod.input_warnings = words
        for one in new:
            self._core.commands.append(_warning_event(pod, "InvalidInput", one))

    # ── gangs ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def refresh_gang(self, gang: QueuedGang, now_ns: int, event: str) -> None:
        """Members came or went: let the gang stand where it now belongs. O(log members), except where a gang in mode
        `gate` opens or closes."""
        core = self._core
        if not gang.pending_members:
            core.queue.remove(gang, now_ns)
            self._gang_deadlines.discard(gang)
            self._incomplete_gangs.discard(gang)
            core.gangs.drop_if_empty(gang)
            return
        if not gang.has_quorum:
            gang.overdue = False  # the trial that it was to have does not take place
        self._set_gang_deadline(gang)
        self._report_disagreement(gang)
        if not gang.has_quorum:
            self._gate_incomplete_gang(gang, now_ns)
            return
        self._incomplete_gangs.discard(gang)
        if gang.mode is GangMode.GATE:
            core.queue.remove(gang, now_ns)
            for pod in gang.unqueued_members.values():
                pod.state = QueueState.DETACHED
                core.queue.enqueue(pod, now_ns, event)
            gang.unqueued_members.clear()
            return
        gang.update_order_key()
        if gang.state in (QueueState.ACTIVE, QueueState.BACKING_OFF):
            core.queue.reorder(gang)
        else:
            core.queue.remove(gang, now_ns)
            core.queue.enqueue(gang, now_ns, event)

    def _gate_incomplete_gang(self, gang: QueuedGang, now_ns: int) -> None:
        queue = self._core.queue
        if len(gang.unqueued_members) < len(gang.pending_members):
            for pod in gang.pending_members.values():
                if pod.uid not in gang.unqueued_members:
                    queue.remove(pod, now_ns)
                    pod.state = QueueState.GANG_MEMBER
                    gang.unqueued_members[pod.uid] = pod
        if gang.state is not QueueState.GATED:
            queue.remove(gang, now_ns)
            queue.gate(gang)
        for uid in [one for one in self._core.cache.nominated if one in gang.unqueued_members]:
            self._core.clear_nomination(uid, now_ns)
        if gang not in self._incomplete_gangs:
            self._incomplete_gangs.put(
                gang, now_ns + round(self._core.limits.gang_report_delay_s * SECOND_NS)
            )

    def _set_gang_deadline(self, gang: QueuedGang) -> None:
        deadline_ns = gang.deadline_ns()
        if deadline_ns is None or gang.overdue:
            self._gang_deadlines.discard(gang)
        elif gang not in self._gang_deadlines or self._gang_deadlines.key_of(gang) != deadline_ns:
            self._gang_deadlines.put(gang, deadline_ns)

    def _report_disagreement(self, gang: QueuedGang) -> None:
        minima = gang.differing_minima
        if minima and not gang.disagreement_reported:
            gang.disagreement_reported = True
            words = (
                f"members of gang {gang.name} disagree on its minimum: "
                f"{', '.join(str(one) for one in minima)}; the largest counts"
            )
            self._core.commands.append(
                _warning_event(next(iter(gang.pending_members.values())), "GangDisagrees", words)
            )

    def forget_gangs(self, gangs: Iterable[QueuedGang]) -> None:
        """These gangs are no more: their policy is being replaced."""
        for gang in gangs:
            self._gang_deadlines.discard(gang)
            self._incomplete_gangs.discard(gang)

    def gang_timed_out(self, gang: QueuedGang, now_ns: int) -> None:
        """Its timeout has passed without it being placed."""
        gang.overdue = False
        timeout_ns = gang.timeout_ns
        assert timeout_ns is not None and gang.pending_members, f"{gang} has no timeout or nobody due"
        words = f"gang {gang.name} was not placed within {format_duration(timeout_ns)}"
        match gang.on_timeout:
            case OnTimeout.REQUEUE:
                self._report_gang_timeout(gang, f"{words}; it starts anew behind others")
                self._restart_gang(gang, now_ns)
            case OnTimeout.FAIL:
                self._report_gang_timeout(
                    gang, f"{words}; its members are not tried again until they are recreated"
                )
                self._fail_gang(gang, f"{words} and has failed: recreate its pods to try again", now_ns)
            case OnTimeout.BEST_EFFORT:
                self._report_gang_timeout(gang, f"{words}; what fits of it is placed from now on")
                gang.best_effort = True
                self.refresh_gang(gang, now_ns, "GangTimeout")

    def _restart_gang(self, gang: QueuedGang, now_ns: int) -> None:
        gang.restarted_ns, gang.attempts, gang.backoff_until_ns = now_ns, 0, now_ns
        gang.ordered_last = True
        for pod in gang.pending_members.values():
            pod.queued_ns = now_ns
            self.rekey(pod, now_ns)
            gang.reorder_member(pod)
        self.refresh_gang(gang, now_ns, "GangTimeout")

    def _fail_gang(self, gang: QueuedGang, words: str, now_ns: int) -> None:
        core = self._core
        members = list(gang.pending_members.values())
        for pod in members:
            core.queue.remove(pod, now_ns)
            core.gangs.remove(pod.uid)
        self.refresh_gang(gang, now_ns, "GangTimeout")
        for pod in members:
            pod.gang_failure = words
            self._reject(pod, words, now_ns)

    def _report_gang_timeout(self, gang: QueuedGang, words: str) -> None:
        self._core.commands.append(
            _warning_event(next(iter(gang.pending_members.values())), "GangTimedOut", words)
        )

    # ── time ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def advance(self, now_ns: int) -> None:
        """Do what has become due."""
        while (at_ns := self._order_key_expiries.first_key()) is not None and at_ns <= now_ns:
            pod = self._order_key_expiries.pop()
            assert pod is not None
            self._rekey_expired(pod, now_ns)
        while (at_ns := self._gang_deadlines.first_key()) is not None and at_ns <= now_ns:
            gang = self._gang_deadlines.pop()
            assert gang is not None
            self._check_gang_deadline(gang, now_ns)
        while (at_ns := self._incomplete_gangs.first_key()) is not None and at_ns <= now_ns:
            gang = self._incomplete_gangs.pop()
            assert gang is not None
            words = f"gang {gang.name}: {gang.member_count} of {gang.minimum} members needed exist"
            for pod in gang.pending_members.values():
                self._core.report_pending(pod, "PolicyPending", words, now_ns)

    def next_time_ns(self) -> int | None:
        times = (
            self._order_key_expiries.first_key(),
            self._gang_deadlines.first_key(),
            self._incomplete_gangs.first_key(),
        )
        return min((time for time in times if time is not None), default=None)

    def _rekey_expired(self, pod: PendingPod, now_ns: int) -> None:
        """The moment is there at which the key may become another one. What has changed by time alone is looked at again after a second
        at the earliest; what has not, as soon as it may: at its very moment `waited > 8s` is not true yet."""
        before = pod.order_key
        self.rekey(pod, now_ns)
        if pod.order_key != before and pod in self._order_key_expiries:
            self._order_key_expiries.put(pod, max(self._order_key_expiries.key_of(pod), now_ns + SECOND_NS))
        gang = self._core.gangs.gang_of(pod.uid)
        if gang is not None and pod.uid in gang.unqueued_members:
            gang.reorder_member(pod)
            gang.update_order_key()
            self._core.queue.reorder(gang)
        else:
            self._core.queue.reorder(pod)

    def _check_gang_deadline(self, gang: QueuedGang, now_ns: int) -> None:
        deadline_ns = gang.deadline_ns()
        if deadline_ns is None or not gang.pending_members:
            return
        if deadline_ns > now_ns:
            self._gang_deadlines.put(gang, deadline_ns)
        elif gang.has_quorum and gang.mode is GangMode.GATE:
            return  # its members stand in the queue themselves: the gang has nothing left to wait for
        elif gang.state in (QueueState.ACTIVE, QueueState.BACKING_OFF):
            gang.overdue = True  # it is about to be tried: that trial decides
        else:
            self.gang_timed_out(gang, now_ns)


def _warning_event(pod: PendingPod, reason: str, words: str) -> ReportPodEvent:
    value = pod.pod
    return ReportPodEvent(value.uid, value.namespace, value.name, value.scheduler, "Warning", reason, words)

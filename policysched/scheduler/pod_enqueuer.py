"""How a pending pod gets into the queue, alone or with its gang, and how it leaves.

A pod is enqueued again whenever something changes that its pre-enqueue result depends on: the pod itself, its namespace
or its policy. A pod that its policy rejects without looking at nodes (a required label is missing, a feature that no built-in
covers, or a namespace that the policy does not serve) is parked with that message until one of them changes.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice

from policysched.lang.ir.program import GangMode, OnTimeout
from policysched.model.identifiers import PodUid
from policysched.model.pod_status import ObservedPod
from policysched.scheduler.blame import change_id, raises_for
from policysched.scheduler.commands import ReportPodEvent
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.gang_gates import GangGates
from policysched.scheduler.group_problems import GroupProblems
from policysched.scheduler.internal_errors import InternalErrors
from policysched.scheduler.limits import REPORTS_PER_SLICE_MAX, SECOND_NS
from policysched.scheduler.policies.rejection_message import format_duration
from policysched.scheduler.queue.entries import PendingPod, QueueState
from policysched.scheduler.queue.gang_registry import GANG_TIMEOUT, GangId, QueuedGang
from policysched.scheduler.queue.movable_heap import MovableHeap, earlier_ns
from policysched.scheduler.queue.order_key_expiries import OrderKeyExpiries
from policysched.scheduler.queue.pre_enqueue import NO_RESULTS, PreEnqueueResult, evaluate_pre_enqueue
from policysched.scheduler.sliced_changes import SlicedChanges
from policysched.scheduler.steps import POD_OPERATIONS_PER_SLICE
from policysched.scheduler.unschedulable_message import short_text

_TIMED_OUT_MEMBERS_MAX = 500
"""Of gangs that time out together, and operations for them: more than so many wait for the next call."""


class PodEnqueuer:
    """Owns the deadlines of the queue: order keys that change with time, gang timeouts, reports of incomplete gangs.
    `timeouts`: by gang, the members that its timeout has not reached."""

    def __init__(self, core: SchedulerCore, errors: InternalErrors) -> None:
        self._core = core
        self.errors = errors
        self.order_key_expiries = OrderKeyExpiries(core.limits.failed_attempts_share)
        self._gang_deadlines: MovableHeap[QueuedGang] = MovableHeap()
        self._incomplete_gangs: MovableHeap[QueuedGang] = MovableHeap()
        self._unreported_members: dict[PodUid, None] = {}  # of incomplete gangs that are due
        self._unreported_since_ns = 0
        self._group_problems = GroupProblems(core)
        self.gates = GangGates(core)
        self.timeouts: SlicedChanges[GangId, PodUid] = SlicedChanges(
            core.queue,
            lambda gang_id: change_id(gang_id[1]),
            self._apply_timeout_to,
            self._end_timeout,
            self._timeout_operations,
        )
        self.sliced = self.timeouts, self.gates.moves
        self.precomputed: Mapping[PodUid, PreEnqueueResult] = NO_RESULTS

    @contextmanager
    def using(self, precomputed: Mapping[PodUid, PreEnqueueResult]) -> Iterator[None]:
        """Take pre-enqueue results from here while they are current, instead of evaluating them."""
        self.precomputed = precomputed
        yield
        self.precomputed = NO_RESULTS

    # ── one pod ────────────────────────────────────────────────────────────────────────────────────────────────────

    def enqueue(self, observed: ObservedPod, now_ns: int, *, awaits_policy: bool = False) -> None:
        """A pending pod of a running policy is observed for the first time. `awaits_policy`: `enqueue_again` follows."""
        queued_ns = self._core.queued_ns_of(observed.pod, now_ns)
        pod = self._core.pods[observed.pod.uid] = PendingPod(observed, queued_ns=queued_ns)
        if awaits_policy:
            self._core.queue.await_policy(pod)
        else:
            self._place_in_queue(pod, now_ns, "PodAdd")

    def enqueue_again(self, pod: PendingPod, observed: ObservedPod, now_ns: int, event: str) -> None:
        """Something changed that the pod's position in the queue depends on."""
        self._core.queue.remove(pod, now_ns)
        gang = self._core.gangs.remove(pod.uid)
        pod.observed, pod.priority = observed, observed.pod.priority
        self._place_in_queue(pod, now_ns, event)
        if gang is not None and gang is not self._core.gangs.gang_of(pod.uid):
            self.refresh_gang(gang, now_ns, event)

    def enqueue_after_bind_failure(self, pod: PendingPod, now_ns: int) -> None:
        """The pod's bind failed: it is tried again after its backoff."""
        assert pod.state is QueueState.DETACHED, f"{pod} is still {pod.state.value}"
        self._place_in_queue(pod, now_ns, "ScheduleAttemptFailure")

    def back_off(self, pod: PendingPod, now_ns: int) -> None:
        """The detached pod has no node. It is attempted again after its backoff, and pods behind it before that."""
        self._core.queue.apply_backoff(pod, now_ns)
        self.rekey(pod, now_ns)
        pod.in_error_backoff = True
        self._core.queue.enqueue(pod, now_ns, "ScheduleAttemptFailure")

    def remove(self, pod: PendingPod, now_ns: int) -> None:
        """The pod is bound, deleted, terminating, or its policy does not run."""
        self._core.queue.remove(pod, now_ns)
        self.order_key_expiries.discard(pod)
        self._group_problems.discard(pod)
        self._core.reports.cancel_deferred(pod.uid)
        self._core.quotas.forget_charge(pod.pod)
        self._core.pods.pop(pod.uid, None)

    def stop_rekeying(self, pod: PendingPod) -> None:
        """The pod left the queue: its order key no longer matters."""
        self.order_key_expiries.discard(pod)

    def remove_from_gang(self, pod: PendingPod, now_ns: int) -> None:
        """The pod no longer counts in its gang."""
        gang = self._core.gangs.remove(pod.uid)
        if gang is not None:
            self.refresh_gang(gang, now_ns, "PodDelete")

    def rekey(self, pod: PendingPod, now_ns: int) -> None:
        """Update the order key after a change of what the order reads of the queue: attempts or waiting time."""
        plan = self._core.plan(pod.policy)
        try:
            pod.order_key, expires_ns = plan.order_key(
                pod.pod, self._core.namespace_of(pod.pod), pod.facts, now_ns
            )
        except Exception as error:  # noqa: BLE001  # any fault of the program; the pod keeps its place
            self.errors.rejection(pod.pod, error, now_ns)
            expires_ns = None
        self._set_order_key_expiry(pod, expires_ns)

    def _set_order_key_expiry(self, pod: PendingPod, expires_ns: int | None) -> None:
        if expires_ns is None:
            self.order_key_expiries.discard(pod)
        else:
            self.order_key_expiries.put(pod, expires_ns)

    def enqueue_many(self, policy: str, pods: Iterable[PendingPod], now_ns: int) -> None:
        """Enqueue pods that awaited the new text of their policy. Pods that can be tried at once enter the queue together, in
        linear time."""
        ready = []
        for pod in pods:
            self._core.queue.remove(pod, now_ns)
            result = None
            if not pod.pod.gates and not pod.gang_failure and not pod.in_error_backoff:
                result = self._pre_enqueue(pod, now_ns)
                if result.rejection is None and result.gang_terms is None:
                    self._apply_pre_enqueue(pod, result)
                    pod.backoff_until_ns = 0
                    ready.append(pod)
                    continue
            with raises_for(pod.object_id):
                self._place_in_queue(pod, now_ns, "PolicyChange", result)
        self._core.queue.enqueue_many(policy, ready, "PolicyChange")

    def _place_in_queue(
        self, pod: PendingPod, now_ns: int, event: str, result: PreEnqueueResult | None = None
    ) -> None:
        core, gates = self._core, pod.pod.gates
        self._group_problems.discard(pod)
        if gates:
            pod.pending_message = short_text(f"waits for its scheduling gates: {', '.join(gates)}")
            core.queue.gate(pod)
            return
        if pod.gang_failure:
            self._reject(pod, pod.gang_failure, now_ns)
            return
        result = result or self._pre_enqueue(pod, now_ns)
        if result.rejection is not None:
            self._reject(pod, result.rejection, now_ns)
            return
        self._apply_pre_enqueue(pod, result)
        if result.gang_terms is None:
            core.queue.enqueue(pod, now_ns, event)
            return
        pod.state = QueueState.GANG_MEMBER
        self.refresh_gang(core.gangs.add_pending(pod, result.gang_terms), now_ns, event)

    def _pre_enqueue(self, pod: PendingPod, now_ns: int) -> PreEnqueueResult:
        core = self._core
        namespace, result = core.namespace_of(pod.pod), self.precomputed.get(pod.uid)
        if result is not None and result.is_current(pod.pod, namespace, pod.attempts):
            return result
        running = core.policies.running[pod.policy]
        try:
            return evaluate_pre_enqueue(
                running.plan,
                pod.pod,
                namespace,
                pod.facts,
                now_ns,
                reads_queue=running.reads_queue,
                namespace_rejection=core.namespace_rejection(pod.policy, pod.pod),
            )
        except Exception as error:  # noqa: BLE001  # any fault of the program
            message = self.errors.rejection(pod.pod, error, now_ns)
            return PreEnqueueResult(pod.pod, namespace, pod.attempts, message, (), (), None, None, None)

    def _apply_pre_enqueue(self, pod: PendingPod, result: PreEnqueueResult) -> None:
        self._warn(pod, result.warnings)
        pod.order_key, pod.equivalence_key = result.order_key, result.equivalence_key
        pod.admission_rejected = False
        self._set_order_key_expiry(pod, result.order_key_expires_ns)

    def _reject(self, pod: PendingPod, message: str, now_ns: int) -> None:
        """Park the pod. The reason PolicyPending keeps autoscalers from adding nodes, which would not help."""
        pod.admission_rejected = True
        self.order_key_expiries.discard(pod)
        self._core.withdraw_nomination(pod.uid, now_ns)
        self._core.queue.park(
            pod,
            ("rejected", pod.uid),
            now_ns=now_ns,
            requeue_events=frozenset(),
            valid_until_ns=None,
            reason="PolicyPending",
            message=short_text(message),
        )
        if message == pod.pod.group_problem:
            self._group_problems.put(pod, message, now_ns)
        else:
            self._core.report_pending(pod, "PolicyPending", message, now_ns)

    def _warn(self, pod: PendingPod, warnings: tuple[str, ...]) -> None:
        new = [warning for warning in warnings if warning not in pod.input_warnings]
        pod.input_warnings = warnings
        for warning in new:
            self._core.commands.append(_warning_event(pod, "InvalidInput", warning))

    # ── gangs ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def refresh_gang(self, gang: QueuedGang, now_ns: int, event: str) -> None:
        """Put the gang where it belongs after a change of its members. O(log members), except when a gang in mode
        `gate` begins to open or close."""
        core = self._core
        if not gang.pending_members:
            self.gates.forget(gang)
            core.queue.remove(gang, now_ns)
            self._gang_deadlines.discard(gang)
            self._incomplete_gangs.discard(gang)
            core.gangs.drop_if_empty(gang)
            return
        if not gang.has_quorum and not gang.held:
            gang.overdue = False  # its last attempt does not take place
        self._set_gang_deadline(gang)
        self._report_disagreement(gang)
        if not gang.has_quorum:
            self._gate_incomplete_gang(gang, now_ns)
            return
        self._incomplete_gangs.discard(gang)
        if gang.mode is GangMode.GATE:
            self.gates.open(gang, now_ns, event)
            return
        gang.update_order_key()
        if gang.state is QueueState.ATTEMPTING:
            return  # its attempt is paused, and looks at the members itself
        if gang.state in (QueueState.ACTIVE, QueueState.BACKING_OFF):
            core.queue.reorder(gang, now_ns)
        else:
            core.queue.remove(gang, now_ns)
            core.queue.enqueue(gang, now_ns, event)

    def _gate_incomplete_gang(self, gang: QueuedGang, now_ns: int) -> None:
        queue = self._core.queue
        if gang.mode is GangMode.GATE:
            self.gates.close(gang, now_ns)
        if gang.state is not QueueState.GATED:
            queue.remove(gang, now_ns)
            queue.gate(gang)
        # One that is held may be complete in a moment.
        nominated = () if gang.held else self._core.cache.nominated
        for uid in [uid for uid in nominated if uid in gang.unqueued_members]:
            self._core.withdraw_nomination(uid, now_ns)
        if gang not in self._incomplete_gangs:
            delay_ns = round(self._core.limits.gang_report_delay_s * SECOND_NS)
            self._incomplete_gangs.put(gang, now_ns + delay_ns)

    def _set_gang_deadline(self, gang: QueuedGang) -> None:
        deadline_ns = gang.deadline_ns()
        if deadline_ns is None or gang.overdue or gang.held:
            self._gang_deadlines.discard(gang)
        elif gang not in self._gang_deadlines or self._gang_deadlines.key_of(gang) != deadline_ns:
            self._gang_deadlines.put(gang, deadline_ns)

    def _report_disagreement(self, gang: QueuedGang) -> None:
        minima, levels = gang.differing_minima, gang.differing_levels
        if gang.disagreement_reported or not (minima or levels):
            return
        gang.disagreement_reported = True
        subject, named, rule = "the minimum", [str(minimum) for minimum in minima], "the largest is used"
        if not minima:
            subject, rule = "the topology", "that of most members is used"
            named = ["+".join(level.key for level in named_levels) or "none" for named_levels in levels]
        message = f"members of gang {gang.name} disagree on {subject}: {', '.join(named)}; {rule}"
        self._core.commands.append(
            _warning_event(next(iter(gang.pending_members.values())), "GangDisagrees", message)
        )

    def forget_gangs(self, gangs: Iterable[QueuedGang]) -> None:
        """Cancel the deadlines of gangs whose policy is being replaced."""
        for gang in gangs:
            self.gates.forget(gang)
            self._gang_deadlines.discard(gang)
            self._incomplete_gangs.discard(gang)

    def gang_timed_out(self, gang: QueuedGang, now_ns: int) -> None:
        """The timeout passed and the gang is not placed."""
        gang.overdue = False
        timeout_ns = gang.timeout_ns
        assert timeout_ns is not None and gang.pending_members, f"{gang} has no timeout or no pending member"
        message = f"gang {gang.name} was not placed within {format_duration(timeout_ns)}"
        match gang.on_timeout:
            case OnTimeout.REQUEUE:
                self._report_gang_timeout(gang, f"{message}; it moves to the end of the queue")
                gang.restarted_ns, gang.attempts, gang.backoff_until_ns = now_ns, 0, now_ns
                gang.was_restarted = gang.ordered_last = True
                for pod in gang.pending_members.values():
                    pod.queued_ns = now_ns
            case OnTimeout.FAIL:
                self._report_gang_timeout(
                    gang, f"{message}; its members are not tried again until they are recreated"
                )
                failure = f"{message} and has failed; recreate its pods to retry"
                for pod in gang.pending_members.values():
                    pod.gang_failure = failure
            case OnTimeout.BEST_EFFORT:
                self._report_gang_timeout(gang, f"{message}; members are now placed individually")
                gang.best_effort = True
        if not gang.best_effort:  # in slices: no member is attempted before all are reached
            gang.holds.add(GANG_TIMEOUT)
        self.refresh_gang(gang, now_ns, "GangTimeout")
        if not gang.best_effort:
            self.timeouts.begin(gang.id, gang.pending_members, now_ns)

    def _apply_timeout_to(self, gang_id: GangId, uids: list[PodUid], now_ns: int) -> None:
        """Those that changed meanwhile are rejected already, of another gang, or gone."""
        if (gang := self._core.gangs.get(gang_id)) is None:
            return
        for pod in filter(None, map(gang.unqueued_members.get, uids)):
            with raises_for(pod.object_id):
                if pod.gang_failure:
                    self.enqueue_again(pod, pod.observed, now_ns, "GangTimeout")
                else:
                    self.rekey(pod, now_ns)
                    gang.reorder_member(pod)

    def _timeout_operations(self, uid: PodUid) -> int:
        pod = self._core.pods.get(uid)
        running = None if pod is None or pod.gang_failure else self._core.policies.running.get(pod.policy)
        return 0 if running is None else running.plan.order_operations

    def _end_timeout(self, gang_id: GangId, now_ns: int) -> None:
        if (gang := self._core.gangs.end_hold(gang_id, GANG_TIMEOUT)) is not None:
            self.refresh_gang(gang, now_ns, "GangTimeout")

    def _report_gang_timeout(self, gang: QueuedGang, message: str) -> None:
        self._core.commands.append(
            _warning_event(next(iter(gang.pending_members.values())), "GangTimedOut", message)
        )

    # ── time ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def advance(self, now_ns: int) -> None:
        """Do everything that is due, and of the order keys a slice."""
        operations = 0 if self.order_key_expiries.begin_slice() else POD_OPERATIONS_PER_SLICE
        while (
            operations < POD_OPERATIONS_PER_SLICE and (pod := self.order_key_expiries.pop(now_ns)) is not None
        ):
            cost = self._core.plan(pod.policy).order_operations
            operations += 1 + cost
            self.order_key_expiries.charge(pod, cost, now_ns)
            with raises_for(pod.object_id):
                self._rekey_expired(pod, now_ns)
        visited = 0
        while (at_ns := self._gang_deadlines.first_key()) is not None and at_ns <= now_ns:
            if visited >= _TIMED_OUT_MEMBERS_MAX:
                break  # the timer is still due
            gang = self._gang_deadlines.pop()
            assert gang is not None
            visited += len(gang.pending_members) * (1 + self._core.plan(gang.policy).order_operations)
            with raises_for(gang.object_id):
                self._check_gang_deadline(gang, now_ns)
        while len(self._unreported_members) < REPORTS_PER_SLICE_MAX:
            if (at_ns := self._incomplete_gangs.first_key()) is None or at_ns > now_ns:
                break
            gang = self._incomplete_gangs.pop()
            assert gang is not None
            self._unreported_members.update(dict.fromkeys(gang.pending_members))
            self._unreported_since_ns = at_ns
        self._report_incomplete_gangs(now_ns)
        self._group_problems.advance(now_ns)

    def next_time_ns(self) -> int | None:
        return earlier_ns(
            self._gang_deadlines.first_key(),
            self._incomplete_gangs.first_key(),
            self._unreported_since_ns if self._unreported_members else None,
            self._group_problems.next_time_ns(),
            self.order_key_expiries.next_time_ns(),
        )

    def _report_incomplete_gangs(self, now_ns: int) -> None:
        """Report a slice of the members."""
        messages: dict[GangId, str] = {}
        for uid in list(islice(self._unreported_members, REPORTS_PER_SLICE_MAX)):
            del self._unreported_members[uid]
            gang = self._core.gangs.gang_of(uid)
            pod = None if gang is None else gang.unqueued_members.get(uid)
            if gang is None or pod is None or gang.state is not QueueState.GATED or self.gates.opens(gang):
                continue  # deleted, or its gang is complete
            with raises_for(pod.object_id):
                message = messages.get(gang.id) or messages.setdefault(gang.id, gang.incomplete_message)
                self._core.report_pending(pod, "PolicyPending", message, now_ns)

    def _rekey_expired(self, pod: PendingPod, now_ns: int) -> None:
        """Update an order key whose expiry has passed.

        A key that changed by time alone is checked again after one second at the earliest. A key that did not
        change is checked again as soon as it can: at the expiry of `waited > 8s` that is not true yet.
        """
        before = pod.order_key
        self.rekey(pod, now_ns)
        expires_ns = self.order_key_expiries.expires_ns(pod)
        if pod.order_key != before and expires_ns is not None:
            self.order_key_expiries.put(pod, max(expires_ns, now_ns + SECOND_NS))
        gang = self._core.gangs.gang_of(pod.uid)
        if gang is not None and pod.uid in gang.unqueued_members:
            gang.reorder_member(pod)
            gang.update_order_key()
            self._core.queue.reorder(gang, now_ns)
        else:
            self._core.queue.reorder(pod, now_ns)

    def _check_gang_deadline(self, gang: QueuedGang, now_ns: int) -> None:
        deadline_ns = gang.deadline_ns()
        if deadline_ns is None or not gang.pending_members:
            return
        if deadline_ns > now_ns:
            self._gang_deadlines.put(gang, deadline_ns)
        elif gang.has_quorum and gang.mode is GangMode.GATE:
            return  # its members are in the queue themselves: the timeout no longer applies
        elif self.gates.moves.left(gang.id):
            self._gang_deadlines.put(gang, now_ns + SECOND_NS)  # not of members that are in the queue
        elif gang.state in (QueueState.ACTIVE, QueueState.BACKING_OFF, QueueState.ATTEMPTING):
            gang.overdue = True  # its next attempt decides
        else:
            self.gang_timed_out(gang, now_ns)


def _warning_event(pending: PendingPod, reason: str, message: str) -> ReportPodEvent:
    pod = pending.pod
    return ReportPodEvent(pod.uid, pod.namespace, pod.name, pod.scheduler, "Warning", reason, message)

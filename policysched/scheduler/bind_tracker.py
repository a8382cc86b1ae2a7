"""Binds without an answer, and the effect of each answer.

`kube/write/bind.py` repeats a bind unchanged until it is answered (`kube/write/bind_queue.py`: in which order). A bind that was
sent therefore ends in exactly one way: the pod is bound (confirm), it is not (withdraw and try again), or it is gone or elsewhere
(withdraw and leave it to the watch). The pod may be deleted, or shown as bound, before the answer arrives.
"""

from policysched.cluster.ledger import PlacementState
from policysched.model.identifiers import NodeName, PodUid
from policysched.scheduler.commands import DeleteExtendedClaim, Log, ReportScheduled, Unreserve
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.decision_records import ConfirmedBind, FailedBind
from policysched.scheduler.events import BindConfirmed, BindDelayed, BindLost, BindRefused
from policysched.scheduler.in_flight_binds import InFlightBind
from policysched.scheduler.pod_enqueuer import PodEnqueuer
from policysched.scheduler.queue.entries import QueueState
from policysched.scheduler.queue.refused_binds import note_refused_bind

BindAnswer = BindConfirmed | BindRefused | BindLost | BindDelayed


class BindTracker:
    """Applies the answers to `SchedulerCore.binds`."""

    def __init__(self, core: SchedulerCore, enqueuer: PodEnqueuer) -> None:
        self._core = core
        self._enqueuer = enqueuer

    def on_answer(self, answer: BindAnswer, now_ns: int) -> None:
        """Apply what became of a bind."""
        match answer:
            case BindConfirmed(uid, node):
                self.on_confirmed(uid, node, now_ns)
            case BindRefused():
                self.on_refused(answer, now_ns)
            case BindLost(uid, reason):
                self.on_lost(uid, reason, now_ns)
            case BindDelayed(uid, delay_reason):
                self.on_delayed(uid, delay_reason, now_ns)

    def on_confirmed(self, uid: PodUid, node: NodeName, now_ns: int) -> None:
        core = self._core
        bind, _ = core.binds.remove(uid, now_ns)
        observed = core.cache.pods.get(uid)
        if bind is None or observed is None:
            return  # answered before, or the pod was deleted since and holds nothing
        if observed.node is None:
            before = core.cache.ledger.placement(uid)
            core.queue.requeue(core.cache.confirm(observed.pod, node), now_ns, cause=observed.pod.namespace)
            core.samples.update_assumed_load(uid, before, now_ns)
        pending, pod = bind.pod, bind.pod.pod
        self._enqueuer.remove(pending, now_ns)
        core.reports.forget(uid)
        core.group_changed(uid, now_ns)
        core.records.counters.count_attempt("scheduled", pending.policy)
        core.records.counters.confirmed_binds.append(
            ConfirmedBind(
                pending.policy, pending.attempts, now_ns - pending.queued_ns, now_ns - bind.decided_ns
            )
        )
        core.commands.append(ReportScheduled(uid, pod.namespace, pod.name, node, pod.scheduler))

    def on_pod_finished(self, uid: PodUid, node: NodeName | None, now_ns: int) -> None:
        """The watch is about to show that the pod has finished on the node. That confirms a bind without an answer."""
        bind = self._core.binds.in_flight.get(uid)
        if bind is not None and bind.node == node:
            self.on_confirmed(uid, bind.node, now_ns)

    def on_delayed(self, uid: PodUid, reason: str | None, now_ns: int) -> None:
        """Requests of the bind keep failing. The pod stays assumed, since a request may still be carried out."""
        core = self._core
        bind = core.binds.in_flight.get(uid)
        if bind is None:
            return
        core.binds.prompt.discard(uid)
        observed = core.cache.pods.get(uid)
        if reason is not None and observed is not None and observed.node is None:
            message = f"binding to {bind.node} has no response yet; retrying: {reason}"
            core.report_pending(bind.pod, "SchedulerError", message, now_ns)

    def on_refused(self, answer: BindRefused, now_ns: int) -> None:
        """A stall is no reason to evict others more seldom, but its decision may have caused it: it is paid for, too."""
        bind = self._core.binds.in_flight.get(answer.uid)
        if bind is not None:
            message = f"binding to {bind.node} was refused: {answer.reason}"
            self.withdraw_and_retry(answer.uid, message, now_ns, refused=not answer.stalled)

    def withdraw_and_retry(self, uid: PodUid, message: str, now_ns: int, *, refused: bool = True) -> None:
        """The pod is not bound: try it again after its backoff. Its decision was in vain: a webhook of its namespace may refuse
        the binds of thousands all the time, which are ahead of new pods of others."""
        core = self._core
        reserved, decision_ns = core.binds.reserved_claims.get(uid), core.binds.decision_ns.get(uid, 0)
        bind = self._withdraw(uid, now_ns)
        if bind is None:
            return
        pod = bind.pod
        core.queue.decision_time.charge_failed_attempt(pod.namespace, decision_ns)
        if reserved:
            core.commands.append(Unreserve(uid, reserved))
            core.cache.devices.releasing.add(uid)
        core.records.counters.count_attempt("error", pod.policy)
        core.records.counters.failed_binds.append(FailedBind(pod.policy, now_ns - bind.decided_ns))
        core.withdraw_nomination(uid, now_ns)  # else its own node stays reserved for it
        pod.state, pod.node = QueueState.DETACHED, None
        pod.in_error_backoff = True
        if refused:
            note_refused_bind(pod, now_ns)
        core.queue.apply_backoff(pod, now_ns)
        gang = core.gangs.remove(uid)
        if gang is not None:
            gang.attempts, gang.in_error_backoff = max(gang.attempts, pod.attempts), True
            core.queue.apply_backoff(gang, now_ns)
            is_counted = not core.is_uncounted(gang.policy, gang.namespace)
            is_first = core.begin_gang_failure(gang, pod.pod, message, now_ns, is_counted=is_counted)
            if is_first and refused:
                note_refused_bind(gang, now_ns)
        self._enqueuer.enqueue_after_bind_failure(pod, now_ns)
        if gang is not None and core.gangs.gang_of(uid) is not gang:
            self._enqueuer.refresh_gang(gang, now_ns, "ScheduleAttemptFailure")
        if not pod.admission_rejected:  # else its pending message already has another reason
            core.report_pending(pod, "SchedulerError", message, now_ns)

    def on_lost(self, uid: PodUid, reason: str, now_ns: int) -> None:
        """The pod is gone or on another node: the watch will show which."""
        core = self._core
        bind = self._withdraw(uid, now_ns)
        if bind is None:
            return
        pod = bind.pod
        core.records.counters.count_attempt("error", pod.policy)
        core.records.counters.failed_binds.append(FailedBind(pod.policy, now_ns - bind.decided_ns))
        pod.state, pod.node = QueueState.BIND_LOST, None
        pod.pending_message = f"binding to {bind.node}: {reason}"
        self._enqueuer.remove_from_gang(pod, now_ns)
        core.commands.append(
            Log(
                "info",
                "bind abandoned: the pod was deleted or is on another node",
                {"pod": pod.pod.full_name, "error": reason},
            )
        )

    def _withdraw(self, uid: PodUid, now_ns: int) -> InFlightBind | None:
        """Undo the assumption. Returns the bind if its pod is still pending, else None."""
        core = self._core
        bind, created_claim = core.binds.remove(uid, now_ns)
        if created_claim is not None:
            core.commands.append(DeleteExtendedClaim(created_claim, uid))
        if bind is None:
            return None
        if core.cache.ledger.state(uid) in (PlacementState.ASSUMED, PlacementState.PREBOUND):
            core.queue.requeue(core.cache.withdraw(uid), now_ns, cause=bind.pod.namespace)
            core.samples.assumed_load.pod_removed(uid)
        observed = core.cache.pods.get(uid)
        if observed is not None and observed.node is None and not observed.deleting:
            bind.pod.observed = observed
            core.pods[uid] = bind.pod
            return bind
        self._enqueuer.remove(bind.pod, now_ns)
        if observed is None or observed.deleting:
            self._enqueuer.remove_from_gang(bind.pod, now_ns)
        return None

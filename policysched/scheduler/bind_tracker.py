"""Binds that wait for their answer, and what each answer means.

The binder repeats one bind unchanged until it is answered, so every bind that left ends in exactly one of these: the
pod is there (confirm), it is not (withdraw and try again), or there is nothing to try again (withdraw and leave it to
the watch). The pod may have been deleted, or shown as bound, before the answer comes.
"""

from policysched.cluster.ledger import PlacementState
from policysched.model.identifiers import NodeName, PodUid
from policysched.scheduler.commands import DeleteExtendedClaim, Log, ReportScheduled, Unreserve
from policysched.scheduler.core import InFlightBind, SchedulerCore
from policysched.scheduler.queue.admission import QueueAdmission
from policysched.scheduler.queue.entries import QueueState
from policysched.scheduler.records import ConfirmedBind, FailedBind


class BindTracker:
    def __init__(self, core: SchedulerCore, admission: QueueAdmission) -> None:
        self._core = core
        self._admission = admission

    def confirmed(self, uid: PodUid, node: NodeName, now_ns: int) -> None:
        core = self._core
        flight = core.in_flight_binds.pop(uid, None)
        core.reserved_claims.pop(uid, None)
        core.created_claims.pop(uid, None)
        seen = core.cache.pods.get(uid)
        if flight is None or seen is None:
            return  # answered before, or deleted since: it holds nothing
        if seen.node is None:
            before = core.cache.ledger.placement(uid)
            core.queue.requeue(core.cache.confirm(seen.pod, node), now_ns)
            core.update_assumed_load(uid, before, now_ns)
        pod, value = flight.pod, flight.pod.pod
        self._admission.remove(pod, now_ns)
        core.reports.forget(uid)
        core.counters.count_attempt("scheduled", pod.policy)
        core.counters.confirmed_binds.append(
            ConfirmedBind(pod.policy, pod.attempts, now_ns - pod.queued_ns, now_ns - flight.decided_ns)
        )
        core.commands.append(ReportScheduled(uid, value.namespace, value.name, node, value.scheduler))

    def finished(self, uid: PodUid, node: NodeName | None, now_ns: int) -> None:
        """The watch is about to show that the pod has run to its end there, before its bind was answered."""
        flight = self._core.in_flight_binds.get(uid)
        if flight is not None and flight.node == node:
            self.confirmed(uid, flight.node, now_ns)

    def refused(self, uid: PodUid, reason: str, now_ns: int) -> None:
        flight = self._core.in_flight_binds.get(uid)
        if flight is not None:
            self.failed(uid, f"binding to {flight.node} was refused: {reason}", now_ns)

    def failed(self, uid: PodUid, words: str, now_ns: int) -> None:
        """The pod does not get its node, and is tried again after a while."""
        core = self._core
        reserved = core.reserved_claims.get(uid)
        flight = self._withdraw(uid, now_ns)
        if flight is None:
            return
        pod = flight.pod
        if reserved:
            core.commands.append(Unreserve(uid, reserved))
        core.counters.count_attempt("error", pod.policy)
        core.counters.failed_binds.append(FailedBind(pod.policy, now_ns - flight.decided_ns))
        pod.state, pod.node = QueueState.DETACHED, None
        pod.in_error_backoff = True
        core.queue.apply_backoff(pod, now_ns)
        gang = core.gangs.remove(uid)
        if gang is not None:
            gang.attempts, gang.in_error_backoff = max(gang.attempts, pod.attempts), True
            core.queue.apply_backoff(gang, now_ns)
        self._admission.readmit_after_bind_failure(pod, now_ns)
        if gang is not None and core.gangs.gang_of(uid) is not gang:
            self._admission.refresh_gang(gang, now_ns, "ScheduleAttemptFailure")
        core.report_pending(pod, "SchedulerError", words, now_ns)

    def lost(self, uid: PodUid, reason: str, now_ns: int) -> None:
        core = self._core
        flight = self._withdraw(uid, now_ns)
        if flight is None:
            return
        pod = flight.pod
        core.counters.count_attempt("error", pod.policy)
        core.counters.failed_binds.append(FailedBind(pod.policy, now_ns - flight.decided_ns))
        pod.state, pod.node = QueueState.BIND_LOST, None
        pod.pending_message = f"binding to {flight.node}: {reason}"
        self._admission.remove_from_gang(pod, now_ns)
        core.commands.append(
            Log("info", "a bind found the pod gone or elsewhere", {"pod": pod.pod.full_name, "why": reason})
        )

    def _withdraw(self, uid: PodUid, now_ns: int) -> InFlightBind | None:
        """Take the promise back; the flight where the pod is still pending after it, else None."""
        core = self._core
        flight = core.in_flight_binds.pop(uid, None)
        core.reserved_claims.pop(uid, None)
        made = core.created_claims.pop(uid, None)
        if made is not None:
            core.commands.append(DeleteExtendedClaim(made, uid))
        if flight is None:
            return None
        if core.cache.ledger.state(uid) in (PlacementState.ASSUMED, PlacementState.PREBOUND):
            core.queue.requeue(core.cache.withdraw(uid), now_ns)
            core.assumed_load.pod_removed(uid)
        seen = core.cache.pods.get(uid)
        if seen is not None and seen.node is None and not seen.deleting:
            flight.pod.observed = seen
            core.pods[uid] = flight.pod
            return flight
        self._admission.remove(flight.pod, now_ns)
        if seen is None or seen.deleting:
            self._admission.remove_from_gang(flight.pod, now_ns)
        return None

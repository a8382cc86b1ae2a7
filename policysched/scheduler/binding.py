"""Binds that wait for their answer, and what each answer means.

The binder repeats one bind unchanged until it is answered, so every bind that left ends in exactly one of these: the
pod is there (confirm), it is not (withdraw and try again), or there is nothing to try again (withdraw and leave it to
the watch). The pod may have been deleted, or shown as bound, before the answer comes.
"""

from policysched.cluster.ledger import PlacementState
from policysched.model.objects import NodeName, PodUid
from policysched.scheduler.commands import DropClaim, Log, ReportScheduled, Unreserve
from policysched.scheduler.core import Core, Flight
from policysched.scheduler.queue.admission import Admission
from policysched.scheduler.queue.entries import Place
from policysched.scheduler.records import BindFailed, Bound


class Binding:
    def __init__(self, core: Core, admission: Admission) -> None:
        self._core = core
        self._admission = admission

    def confirmed(self, uid: PodUid, node: NodeName, now_ns: int) -> None:
        core = self._core
        flight = core.in_flight.pop(uid, None)
        core.reserved.pop(uid, None)
        core.made.pop(uid, None)
        seen = core.cache.pods.get(uid)
        if flight is None or seen is None:
            return  # answered before, or deleted since: it holds nothing
        if seen.node is None:
            before = core.cache.ledger.placement(uid)
            core.queue.wake(core.cache.confirm(seen.pod, node), now_ns)
            core.follow_placement(uid, before, now_ns)
        pod, value = flight.pod, flight.pod.pod
        self._admission.leave(pod, now_ns)
        core.reports.forget(uid)
        core.counters.count("scheduled", pod.policy)
        core.counters.bound.append(
            Bound(pod.policy, pod.attempts, now_ns - pod.queued_ns, now_ns - flight.decided_ns)
        )
        core.out.append(ReportScheduled(uid, value.namespace, value.name, node, value.scheduler))

    def ended(self, uid: PodUid, node: NodeName | None, now_ns: int) -> None:
        """The watch is about to show that the pod has run to its end there, before its bind was answered."""
        flight = self._core.in_flight.get(uid)
        if flight is not None and flight.node == node:
            self.confirmed(uid, flight.node, now_ns)

    def refused(self, uid: PodUid, reason: str, now_ns: int) -> None:
        flight = self._core.in_flight.get(uid)
        if flight is not None:
            self.failed(uid, f"binding to {flight.node} was refused: {reason}", now_ns)

    def failed(self, uid: PodUid, words: str, now_ns: int) -> None:
        """The pod does not get its node, and is tried again after a while."""
        core = self._core
        reserved = core.reserved.get(uid)
        flight = self._land(uid, now_ns)
        if flight is None:
            return
        pod = flight.pod
        if reserved:
            core.out.append(Unreserve(uid, reserved))
        core.counters.count("error", pod.policy)
        core.counters.binds_failed.append(BindFailed(pod.policy, now_ns - flight.decided_ns))
        pod.place, pod.node = Place.NOWHERE, None
        pod.failing = True
        core.queue.punish(pod, now_ns)
        gang = core.gangs.remove(uid)
        if gang is not None:
            gang.attempts, gang.failing = max(gang.attempts, pod.attempts), True
            core.queue.punish(gang, now_ns)
        self._admission.come_back(pod, now_ns)
        if gang is not None and core.gangs.of(uid) is not gang:
            self._admission.refresh(gang, now_ns, "ScheduleAttemptFailure")
        core.report(pod, "SchedulerError", words, now_ns)

    def lost(self, uid: PodUid, reason: str, now_ns: int) -> None:
        core = self._core
        flight = self._land(uid, now_ns)
        if flight is None:
            return
        pod = flight.pod
        core.counters.count("error", pod.policy)
        core.counters.binds_failed.append(BindFailed(pod.policy, now_ns - flight.decided_ns))
        pod.place, pod.node = Place.LOST, None
        pod.explanation = f"binding to {flight.node}: {reason}"
        self._admission.leave_gang(pod, now_ns)
        core.out.append(
            Log("info", "a bind found the pod gone or elsewhere", {"pod": pod.pod.full_name, "why": reason})
        )

    def _land(self, uid: PodUid, now_ns: int) -> Flight | None:
        """Take the promise back; the flight where the pod is still pending after it, else None."""
        core = self._core
        flight = core.in_flight.pop(uid, None)
        core.reserved.pop(uid, None)
        made = core.made.pop(uid, None)
        if made is not None:
            core.out.append(DropClaim(made, uid))
        if flight is None:
            return None
        if core.cache.ledger.state(uid) in (PlacementState.ASSUMED, PlacementState.PREPARED):
            core.queue.wake(core.cache.withdraw(uid), now_ns)
            core.assumed.left(uid)
        seen = core.cache.pods.get(uid)
        if seen is not None and seen.node is None and not seen.deleting:
            flight.pod.seen = seen
            core.pods[uid] = flight.pod
            return flight
        self._admission.leave(flight.pod, now_ns)
        if seen is None or seen.deleting:
            self._admission.leave_gang(flight.pod, now_ns)
        return None

"""One attempt for a pod: ask the plan, and either assume and bind or park with the words why not.

Where no node is found, room may be made by preemption; what could help then is what wakes the pod. An attempt is a generator of
steps: one that looks at much is carried out over several calls of `decide`, between which nothing happens to the cluster.
"""

from dataclasses import replace

from policysched.cluster.devices.availability import AvailableDevices
from policysched.cluster.devices.pod_claims import (
    NOT_AVAILABLE_ON_NODE,
    STALE_EXTENDED_CLAIM,
    claim_to_deallocate,
    pod_resource_claims,
    unbindable_claims,
)
from policysched.lang.ir.program import Extender
from policysched.model.messages import unavailable_message
from policysched.scheduler.commands import Deallocate
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.extenders.calls import ExtenderCalls
from policysched.scheduler.gangs.registry import QueuedGang
from policysched.scheduler.outcome import PLACED_POD_EVENTS, AttemptFailure, AttemptSuccess, reject_pod
from policysched.scheduler.preemption.default_preemption import (
    ClaimPostFilterMessage,
    DefaultPreemption,
    NoPreemption,
    PreemptionStarted,
    claim_message,
)
from policysched.scheduler.questions import AttemptEvaluator
from policysched.scheduler.queue.admission import QueueAdmission
from policysched.scheduler.queue.entries import PendingPod
from policysched.scheduler.settlement import AttemptCommit
from policysched.scheduler.steps import Steps


class PodAttempts:
    """`attempt_pod` is one attempt, from the queue to a bind under way or back into the queue."""

    def __init__(
        self,
        core: SchedulerCore,
        questions: AttemptEvaluator,
        settlement: AttemptCommit,
        admission: QueueAdmission,
        preemption: DefaultPreemption,
        consulting: ExtenderCalls,
    ) -> None:
        self._core = core
        self._evaluator = questions
        self._commit = settlement
        self._admission = admission
        self._preemption = preemption
        self._extender_calls = consulting

    def attempt_pod(self, pod: PendingPod, now_ns: int) -> Steps[None]:
        """The pod was just popped from the queue."""
        core = self._core
        if self._preemption.defer_attempt(pod.uid):
            self._park_until_evicted(pod, now_ns)
            return
        answered = self._extender_calls.take_answer(pod.uid)
        gang = core.gangs.gang_of(pod.uid)
        refused = _gang_full_reason(gang)
        kin = (
            self._evaluator.equivalence_key(pod)
            if refused is None
            else ("refused beforehand", pod.policy, refused)
        )
        room = core.queue.blocked_group(kin)
        if room is not None:
            core.queue.join_group(pod, room, now_ns)
            core.report_pending(pod, room.reason, room.message, now_ns)
            return
        if answered is None:  # else an attempt goes on that has asked
            pod.attempts += 1
        result = self._evaluator.evaluate(pod, None, now_ns) if refused is None else reject_pod(refused)
        extenders, by_extenders = self._extender_calls.applicable_extenders(pod), False
        if isinstance(result, AttemptSuccess) and extenders:
            asked = self._extender_calls.decide(pod, extenders, answered, now_ns)
            if asked is None:
                return
            result, by_extenders = asked, True
            kin = "refused by extenders", pod.policy, pod.uid
        if isinstance(result, AttemptSuccess):
            result = replace(
                result, prebind_work=self._evaluator.prebind_work(pod, result.node, None, now_ns)
            )
            self._commit.assume(pod, result, now_ns)
            if gang is not None:
                self._admission.refresh_gang(gang, now_ns, "GangScheduled")
            return
        claims = self._post_filter_claims(pod, result, now_ns, alone=gang is None)
        if result.node_count and not extenders:
            result = yield from self._preempt(pod, result, now_ns, claims)
        else:  # nobody will be evicted for it, whatever an earlier try has found
            core.clear_nomination(pod.uid, now_ns)
            if result.node_count and core.plan(pod.policy).allows_preemption:
                result = _with_preemption_skipped(result, extenders)
        self._commit.record_failure(pod, result, now_ns)
        core.queue.apply_backoff(pod, now_ns)
        self._admission.rekey(pod, now_ns)
        core.queue.park(
            pod,
            kin if refused is not None or by_extenders else self._evaluator.equivalence_key(pod),
            now_ns=now_ns,
            requeue_events=result.requeue_events,
            valid_until_ns=result.valid_until_ns,
            reason=result.reason,
            message=result.message,
        )
        core.report_pending(pod, result.reason, result.message, now_ns)

    def _post_filter_claims(
        self, pod: PendingPod, result: AttemptFailure, now_ns: int, *, alone: bool
    ) -> ClaimPostFilterMessage:
        """What is done about the claims of a pod without a node before preemption is thought of. An `alone` pod is no member of a gang."""
        if STALE_EXTENDED_CLAIM in result.counts:
            return ClaimPostFilterMessage.DELETED
        if alone and NOT_AVAILABLE_ON_NODE in result.counts and self._deallocate_unusable_claim(pod, now_ns):
            return ClaimPostFilterMessage.DEALLOCATED
        return claim_message(pod.pod, AvailableDevices(self._core.cache.devices))

    def _deallocate_unusable_claim(self, pod: PendingPod, now_ns: int) -> bool:
        """A claim that keeps the pod to nodes that do not take it gives its devices back, if nobody else uses them."""
        devices = pod_resource_claims(pod.pod, AvailableDevices(self._core.cache.devices))
        if isinstance(devices, str):
            return False
        lost = unbindable_claims(devices, now_ns, self._core.plan(pod.policy).devices_timeout_s)
        claim = claim_to_deallocate(pod.pod, replace(devices, unbindable=lost))
        if claim is None:
            return False
        self._core.commands.append(Deallocate(claim.key, claim.uid, claim.version))
        return True

    def _preempt(
        self, pod: PendingPod, failure: AttemptFailure, now_ns: int, claims: ClaimPostFilterMessage
    ) -> Steps[AttemptFailure]:
        """What is to be said and waited for once preemption was thought of."""
        room = yield from self._preemption.preempt_for_pod(pod, now_ns, claims)
        match room:
            case None:
                self._core.clear_nomination(pod.uid, now_ns)
                return failure
            case PreemptionStarted():
                return replace(failure, requeue_events=failure.requeue_events | PLACED_POD_EVENTS)
            case NoPreemption(words, valid_until_ns):
                message = unavailable_message(failure.node_count, failure.counts, words)
                times = [one for one in (failure.valid_until_ns, valid_until_ns) if one is not None]
                return replace(failure, message=message, valid_until_ns=min(times, default=None))

    def _park_until_evicted(self, pod: PendingPod, now_ns: int) -> None:
        """Its own eviction is under way: the answer to that brings it back, whatever happens meanwhile."""
        self._core.queue.park(
            pod,
            ("evicting", pod.policy, pod.uid),
            now_ns=now_ns,
            requeue_events=frozenset(),
            valid_until_ns=None,
            reason="Unschedulable",
            message=pod.pending_message,
        )


def _with_preemption_skipped(failure: AttemptFailure, extenders: tuple[Extender, ...]) -> AttemptFailure:
    """Nobody is evicted for a node that somebody may refuse who was not asked."""
    names = ", ".join(one.name for one in extenders)
    words = f"preemption: not tried, for extender {names} has a say about this pod."
    return replace(failure, message=unavailable_message(failure.node_count, failure.counts, words))


def _gang_full_reason(gang: QueuedGang | None) -> str | None:
    return gang.full_message if gang is not None and gang.vacancies == 0 else None

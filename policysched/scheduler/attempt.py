"""One attempt for a pod: ask the plan, and either assume and bind or park with the words why not.

Where no node is found, room may be made by preemption; what could help then is what wakes the pod. An attempt is a generator of
steps: one that looks at much is carried out over several calls of `decide`, between which nothing happens to the cluster.
"""

from dataclasses import replace

from policysched.cluster.devices.availability import DeviceStock
from policysched.cluster.devices.pod_claims import (
    LEFT_OVER,
    NOT_HERE,
    devices_of,
    lost_claims,
    unusable_claim,
)
from policysched.lang.ir.program import Extender
from policysched.model.messages import unavailable_message
from policysched.scheduler.commands import Deallocate
from policysched.scheduler.core import Core
from policysched.scheduler.extenders.consulting import Consulting
from policysched.scheduler.gangs.gangs import Gang
from policysched.scheduler.outcome import PLACED_PODS, Failure, Success, refusal
from policysched.scheduler.preemption.preemption import (
    ClaimWords,
    MadeRoom,
    NoRoom,
    Preemption,
    words_of_claims,
)
from policysched.scheduler.questions import Questions
from policysched.scheduler.queue.admission import Admission
from policysched.scheduler.queue.entries import PendingPod
from policysched.scheduler.settlement import Settlement
from policysched.scheduler.steps import Steps


class PodTrials:
    """`try_pod` is one attempt, from the queue to a bind under way or back into the queue."""

    def __init__(
        self,
        core: Core,
        questions: Questions,
        settlement: Settlement,
        admission: Admission,
        preemption: Preemption,
        consulting: Consulting,
    ) -> None:
        self._core = core
        self._questions = questions
        self._settlement = settlement
        self._admission = admission
        self._preemption = preemption
        self._consulting = consulting

    def try_pod(self, pod: PendingPod, now_ns: int) -> Steps[None]:
        """The pod was just popped from the queue."""
        core = self._core
        if self._preemption.holds_back(pod.uid):
            self._park_until_evicted(pod, now_ns)
            return
        answered = self._consulting.take_answer(pod.uid)
        gang = core.gangs.of(pod.uid)
        refused = _refused_beforehand(gang)
        kin = self._questions.kin(pod) if refused is None else ("refused beforehand", pod.policy, refused)
        room = core.queue.blocked(kin)
        if room is not None:
            core.queue.join(pod, room, now_ns)
            core.report(pod, room.reason, room.message, now_ns)
            return
        if answered is None:  # else an attempt goes on that has asked
            pod.attempts += 1
        result = self._questions.ask(pod, None, now_ns) if refused is None else refusal(refused)
        extenders, by_extenders = self._consulting.extenders_of(pod), False
        if isinstance(result, Success) and extenders:
            asked = self._consulting.decide(pod, extenders, answered, now_ns)
            if asked is None:
                return
            result, by_extenders = asked, True
            kin = "refused by extenders", pod.policy, pod.uid
        if isinstance(result, Success):
            result = replace(result, needs=self._questions.before_bind(pod, result.node, None, now_ns))
            self._settlement.assume(pod, result, now_ns)
            if gang is not None:
                self._admission.refresh(gang, now_ns, "GangScheduled")
            return
        claims = self._about_claims(pod, result, now_ns, alone=gang is None)
        if result.nodes and not extenders:
            result = yield from self._make_room(pod, result, now_ns, claims)
        else:  # nobody will be evicted for it, whatever an earlier try has found
            core.take_back_nomination(pod.uid, now_ns)
            if result.nodes and core.plan(pod.policy).preempts:
                result = _without_room(result, extenders)
        self._settlement.record_failure(pod, result, now_ns)
        core.queue.punish(pod, now_ns)
        self._admission.rekey(pod, now_ns)
        core.queue.park(
            pod,
            kin if refused is not None or by_extenders else self._questions.kin(pod),
            now_ns=now_ns,
            wakes=result.wakes,
            valid_until_ns=result.valid_until_ns,
            reason=result.reason,
            message=result.message,
        )
        core.report(pod, result.reason, result.message, now_ns)

    def _about_claims(self, pod: PendingPod, result: Failure, now_ns: int, *, alone: bool) -> ClaimWords:
        """What is done about the claims of a pod without a node before preemption is thought of. An `alone` pod is no member of a gang."""
        if LEFT_OVER in result.counts:
            return ClaimWords.DELETED
        if alone and NOT_HERE in result.counts and self._deallocate(pod, now_ns):
            return ClaimWords.DEALLOCATED
        return words_of_claims(pod.pod, DeviceStock(self._core.cache.devices))

    def _deallocate(self, pod: PendingPod, now_ns: int) -> bool:
        """A claim that keeps the pod to nodes that do not take it gives its devices back, if nobody else uses them."""
        devices = devices_of(pod.pod, DeviceStock(self._core.cache.devices))
        if isinstance(devices, str):
            return False
        lost = lost_claims(devices, now_ns, self._core.plan(pod.policy).devices_timeout_s)
        claim = unusable_claim(pod.pod, replace(devices, lost=lost))
        if claim is None:
            return False
        self._core.out.append(Deallocate(claim.key, claim.uid, claim.version))
        return True

    def _make_room(
        self, pod: PendingPod, failure: Failure, now_ns: int, claims: ClaimWords
    ) -> Steps[Failure]:
        """What is to be said and waited for once preemption was thought of."""
        room = yield from self._preemption.try_for(pod, now_ns, claims)
        match room:
            case None:
                self._core.take_back_nomination(pod.uid, now_ns)
                return failure
            case MadeRoom():
                return replace(failure, wakes=failure.wakes | PLACED_PODS)
            case NoRoom(words, valid_until_ns):
                message = unavailable_message(failure.nodes, failure.counts, words)
                times = [one for one in (failure.valid_until_ns, valid_until_ns) if one is not None]
                return replace(failure, message=message, valid_until_ns=min(times, default=None))

    def _park_until_evicted(self, pod: PendingPod, now_ns: int) -> None:
        """Its own eviction is under way: the answer to that brings it back, whatever happens meanwhile."""
        self._core.queue.park(
            pod,
            ("evicting", pod.policy, pod.uid),
            now_ns=now_ns,
            wakes=frozenset(),
            valid_until_ns=None,
            reason="Unschedulable",
            message=pod.explanation,
        )


def _without_room(failure: Failure, extenders: tuple[Extender, ...]) -> Failure:
    """Nobody is evicted for a node that somebody may refuse who was not asked."""
    names = ", ".join(one.name for one in extenders)
    words = f"preemption: not tried, for extender {names} has a say about this pod."
    return replace(failure, message=unavailable_message(failure.nodes, failure.counts, words))


def _refused_beforehand(gang: Gang | None) -> str | None:
    return gang.full_words if gang is not None and gang.vacancies == 0 else None

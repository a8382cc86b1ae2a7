"""Asking extenders about a pod, without waiting for them.

    popped, a node fits ──► Consult, parked ──Consulted──► queued again, popped, the node fits still ──► bound
                                 │                                   └── it does not, or the answer is old ──► Consult
                                 └── an extender failed ──► backing off

The decision is made when the answer is there, on the cluster as it is then, among the nodes that were asked about and
not refused. Nothing is held meanwhile. An extender is asked about so many pods at a time (its settings say how many, 1 as in
kube-scheduler); pods that wait for their turn stand in line.
"""

from collections import Counter
from dataclasses import dataclass

from policysched.evaluate import text_hash
from policysched.lang.ir.extender_answers import Answers, let_through, refusal, with_scores
from policysched.lang.ir.program import Extender
from policysched.lang.ir.verdict import Judgement
from policysched.model.cluster_events import ClusterEvent
from policysched.model.messages import refused_message, unavailable_message
from policysched.model.objects import NodeName, Pod, PodUid
from policysched.scheduler.commands import Consult, Log
from policysched.scheduler.core import Core
from policysched.scheduler.extenders.terms import asked_about
from policysched.scheduler.limits import SECOND_NS
from policysched.scheduler.outcome import Failure, Success
from policysched.scheduler.preemption.nominated import reserved_for_others
from policysched.scheduler.queue.entries import PendingPod, Place

_ANYTHING = frozenset(ClusterEvent)
"""Nobody knows what an extender looks at, so whatever happens may change its mind."""


@dataclass(frozen=True, slots=True)
class _Consultation:
    """`pod` is what the extenders are asked about: an answer is good for this version of it alone."""

    pod: Pod
    extenders: tuple[Extender, ...]
    nodes: tuple[NodeName, ...]


@dataclass(frozen=True, slots=True)
class Answered:
    about: _Consultation
    answers: Answers
    at_ns: int


class Consulting:
    def __init__(self, core: Core) -> None:
        self._core = core
        self._count = 0
        self._under_way: dict[int, _Consultation] = {}
        self._of_pod: dict[PodUid, int] = {}
        self._busy: Counter[str] = Counter()
        self._line: dict[PodUid, None] = {}
        self._answered: dict[PodUid, Answered] = {}

    def extenders_of(self, pod: PendingPod) -> tuple[Extender, ...]:
        """Who has a say about the pod."""
        program = self._core.policies.running[pod.policy].program
        return asked_about(program, pod.pod, self._core.extenders) if program.extenders else ()

    def take_answer(self, uid: PodUid) -> Answered | None:
        """What has come since the pod was set aside: it is for this attempt and no later one."""
        return self._answered.pop(uid, None)

    # ── deciding ───────────────────────────────────────────────────────────────────────────────────────────────────

    def decide(
        self,
        pod: PendingPod,
        extenders: tuple[Extender, ...],
        answered: Answered | None,
        now_ns: int,
    ) -> Success | Failure | None:
        """For a pod that the rules have a node for. None: the extenders are being asked, and the pod is parked."""
        if answered is None or not self._good(answered, pod, extenders, now_ns):
            self._ask(pod, extenders, now_ns)
            return None
        nodes = let_through(answered.about.nodes, answered.answers)
        found = self._judge(pod, [NodeName(node) for node in nodes], now_ns)
        if found.pod_refusal is not None:  # too many of those that were let through lack a metric
            return self._waits(found.pod_refusal, now_ns)
        totals = with_scores(found, extenders, answered.answers)
        if totals:
            pod_hash = text_hash(pod.uid)
            chosen = max(totals, key=lambda node: (totals[node], text_hash(node) ^ pod_hash))
            node_count = len(self._core.cache.nodes)
            return Success(NodeName(chosen), totals[chosen], node_count, len(totals))
        everywhere = self._judge(pod, list(self._core.cache.nodes), now_ns)
        if everywhere.totals.keys() - set(answered.about.nodes):
            # There is room now on nodes that nobody was asked about.
            self._ask(pod, extenders, now_ns)
            return None
        return self._refused(everywhere, extenders, answered.answers, now_ns)

    def _good(
        self, answered: Answered, pod: PendingPod, extenders: tuple[Extender, ...], now_ns: int
    ) -> bool:
        about = answered.about
        age_ns = now_ns - answered.at_ns
        fresh = age_ns <= self._core.limits.extender_answer_s * SECOND_NS
        return fresh and about.pod == pod.pod and about.extenders == extenders

    def _waits(self, why: str, now_ns: int) -> Failure:
        node_count = len(self._core.cache.nodes)
        until_ns = now_ns + round(self._core.limits.extender_retry_s * SECOND_NS)
        return Failure("PolicyPending", refused_message(node_count, why), 0, {}, _ANYTHING, until_ns)

    def _refused(
        self, everywhere: Judgement, extenders: tuple[Extender, ...], answers: Answers, now_ns: int
    ) -> Failure:
        counts: Counter[str] = Counter()
        for by_rule in everywhere.refusals.values():
            counts.update(by_rule.groups)
        for node in everywhere.totals:
            by_extender = refusal(node, extenders, answers)
            if by_extender is not None:  # else it was free for a moment, and the rules have it refused since
                counts.update(by_extender.groups)
        node_count = len(everywhere.refusals) + len(everywhere.totals)
        return Failure(
            "Unschedulable",
            unavailable_message(node_count, counts),
            node_count,
            dict(counts),
            _ANYTHING,
            now_ns + round(self._core.limits.extender_retry_s * SECOND_NS),
        )

    def _judge(self, pod: PendingPod, nodes: list[NodeName], now_ns: int) -> Judgement:
        core = self._core
        return core.evaluator.judge(
            core.plan(pod.policy),
            pod.pod,
            nodes,
            **core.known_of(pod, now_ns),
            reserved=reserved_for_others(core, pod.pod),
        )

    # ── asking ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _ask(self, pod: PendingPod, extenders: tuple[Extender, ...], now_ns: int) -> None:
        """Ask, stand in line, or wait for the answer that is on its way; parked in any case."""
        names = [one.name for one in extenders]
        if pod.uid not in self._of_pod:
            if self._free(names):
                self._send(pod, _Consultation(pod.pod, extenders, self._feasible(pod, now_ns)))
            else:
                self._line[pod.uid] = None
        self._core.queue.park(
            pod,
            _asking(pod),
            now_ns=now_ns,
            wakes=frozenset(),
            valid_until_ns=None,
            reason="Unschedulable",
            message=f"waiting for the answer of extender {', '.join(names)}",
        )

    def _feasible(self, pod: PendingPod, now_ns: int) -> tuple[NodeName, ...]:
        found = self._judge(pod, list(self._core.cache.nodes), now_ns)
        return tuple([NodeName(node) for node in found.totals])

    def _free(self, names: list[str]) -> bool:
        return all(self._busy[name] < self._core.extenders[name].at_once for name in names)

    def _send(self, pod: PendingPod, about: _Consultation) -> None:
        self._count += 1
        self._under_way[self._count] = about
        self._of_pod[pod.uid] = self._count
        for one in about.extenders:
            self._busy[one.name] += 1
        self._core.out.append(
            Consult(
                self._count,
                pod.uid,
                pod.pod.namespace,
                pod.pod.name,
                about.nodes,
                tuple((one.name, one.weight is not None) for one in about.extenders),
            )
        )

    # ── answers ────────────────────────────────────────────────────────────────────────────────────────────────────

    def consulted(self, number: int, answers: Answers, failure: str | None, now_ns: int) -> None:
        """`failure`: one of them that must not be left out gave no answer."""
        about = self._under_way.pop(number)
        for one in about.extenders:
            self._busy[one.name] -= 1
        uid = about.pod.uid
        if self._of_pod.get(uid) == number:
            del self._of_pod[uid]
            self._take(uid, about, answers, failure, now_ns)
        self._next_in_line(now_ns)

    def _take(
        self, uid: PodUid, about: _Consultation, answers: Answers, failure: str | None, now_ns: int
    ) -> None:
        core = self._core
        pod = core.pods.get(uid)
        if pod is None or pod.place is not Place.UNSCHEDULABLE:
            if pod is not None and failure is None:
                self._answered[uid] = Answered(about, answers, now_ns)
            return
        core.queue.take(pod, now_ns)
        if failure is None:
            self._answered[uid] = Answered(about, answers, now_ns)
            core.queue.enqueue(pod, now_ns, "ExtenderAnswered")
            return
        core.counters.count("error", pod.policy)
        pod.failing = True
        core.queue.punish(pod, now_ns)
        core.queue.enqueue(pod, now_ns, "ScheduleAttemptFailure")
        core.report(pod, "SchedulerError", failure, now_ns)
        core.out.append(
            Log("warning", "an extender gave no answer", {"pod": pod.pod.full_name, "why": failure})
        )

    def _next_in_line(self, now_ns: int) -> None:
        """Ask about those whose turn it is, on the cluster as it is now. Whom the rules have no node for any more goes
        back into the queue, to be told so."""
        core = self._core
        for uid in list(self._line):
            pod = core.pods.get(uid)
            if pod is None or not self._parked(pod):
                del self._line[uid]
                continue
            extenders = self.extenders_of(pod)
            if not self._free([one.name for one in extenders]):
                continue
            del self._line[uid]
            nodes = self._feasible(pod, now_ns) if extenders else ()
            if nodes:
                self._send(pod, _Consultation(pod.pod, extenders, nodes))
            else:
                core.queue.take(pod, now_ns)
                core.queue.enqueue(pod, now_ns, "ExtenderFree")

    def _parked(self, pod: PendingPod) -> bool:
        room = self._core.queue.room_of(pod)
        return room is not None and room.kin == _asking(pod)

    def forget(self, uid: PodUid) -> None:
        """The pod is gone or ending: an answer about it is for nobody."""
        self._of_pod.pop(uid, None)
        self._line.pop(uid, None)
        self._answered.pop(uid, None)

    def check(self) -> list[str]:
        """One sentence for each pod that waits for an answer that nobody will give."""
        found = []
        for uid, pod in self._core.pods.items():
            if self._parked(pod) and uid not in self._of_pod and uid not in self._line:
                found.append(f"{pod.pod.full_name} waits for extenders that nobody asks")
        if self._line and not self._under_way:
            found.append(f"{len(self._line)} pods stand in line for extenders that are free")
        return found


def _asking(pod: PendingPod) -> tuple[str, str, PodUid]:
    """The room that the pod waits in, by itself."""
    return "asking", pod.policy, pod.uid

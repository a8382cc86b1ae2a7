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
from policysched.lang.ir.extender_results import (
    ExtenderResults,
    add_extender_scores,
    extender_refusal,
    nodes_passing_extenders,
)
from policysched.lang.ir.program import Extender
from policysched.lang.ir.verdict import NodeSubsetVerdict
from policysched.model.cluster_events import ClusterEvent
from policysched.model.identifiers import NodeName, PodUid
from policysched.model.messages import pod_refused_message, unavailable_message
from policysched.model.pods import Pod
from policysched.scheduler.commands import CallExtenders, Log
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.extenders.capabilities import applicable_extenders
from policysched.scheduler.limits import SECOND_NS
from policysched.scheduler.outcome import AttemptFailure, AttemptSuccess
from policysched.scheduler.preemption.nominations import competing_nominations
from policysched.scheduler.queue.entries import PendingPod, QueueState

_ANY_EVENT = frozenset(ClusterEvent)
"""Nobody knows what an extender looks at, so whatever happens may change its mind."""


@dataclass(frozen=True, slots=True)
class _ExtenderCall:
    """`pod` is what the extenders are asked about: an answer is good for this version of it alone."""

    pod: Pod
    extenders: tuple[Extender, ...]
    nodes: tuple[NodeName, ...]


@dataclass(frozen=True, slots=True)
class AnsweredExtenderCall:
    call: _ExtenderCall
    answers: ExtenderResults
    at_ns: int


class ExtenderCalls:
    def __init__(self, core: SchedulerCore) -> None:
        self._core = core
        self._last_call_id = 0
        self._in_flight: dict[int, _ExtenderCall] = {}
        self._call_by_pod: dict[PodUid, int] = {}
        self._in_flight_count: Counter[str] = Counter()
        self._waiting: dict[PodUid, None] = {}
        self._answered: dict[PodUid, AnsweredExtenderCall] = {}

    def applicable_extenders(self, pod: PendingPod) -> tuple[Extender, ...]:
        """Who has a say about the pod."""
        program = self._core.policies.running[pod.policy].program
        return applicable_extenders(program, pod.pod, self._core.extenders) if program.extenders else ()

    def take_answer(self, uid: PodUid) -> AnsweredExtenderCall | None:
        """What has come since the pod was set aside: it is for this attempt and no later one."""
        return self._answered.pop(uid, None)

    # ── deciding ───────────────────────────────────────────────────────────────────────────────────────────────────

    def decide(
        self,
        pod: PendingPod,
        extenders: tuple[Extender, ...],
        answered: AnsweredExtenderCall | None,
        now_ns: int,
    ) -> AttemptSuccess | AttemptFailure | None:
        """For a pod that the rules have a node for. None: the extenders are being asked, and the pod is parked."""
        if answered is None or not self._is_usable(answered, pod, extenders, now_ns):
            self._request(pod, extenders, now_ns)
            return None
        nodes = nodes_passing_extenders(answered.call.nodes, answered.answers)
        found = self._judge(pod, [NodeName(node) for node in nodes], now_ns)
        if found.pod_refusal is not None:  # too many of those that were let through lack a metric
            return self._waiting_failure(found.pod_refusal, now_ns)
        totals = add_extender_scores(found, extenders, answered.answers)
        if totals:
            pod_hash = text_hash(pod.uid)
            chosen = max(totals, key=lambda node: (totals[node], text_hash(node) ^ pod_hash))
            node_count = len(self._core.cache.nodes)
            return AttemptSuccess(NodeName(chosen), totals[chosen], node_count, len(totals))
        everywhere = self._judge(pod, list(self._core.cache.nodes), now_ns)
        if everywhere.totals.keys() - set(answered.call.nodes):
            # There is room now on nodes that nobody was asked about.
            self._request(pod, extenders, now_ns)
            return None
        return self._rejected_failure(everywhere, extenders, answered.answers, now_ns)

    def _is_usable(
        self, answered: AnsweredExtenderCall, pod: PendingPod, extenders: tuple[Extender, ...], now_ns: int
    ) -> bool:
        about = answered.call
        age_ns = now_ns - answered.at_ns
        fresh = age_ns <= self._core.limits.extender_answer_age_max_s * SECOND_NS
        return fresh and about.pod == pod.pod and about.extenders == extenders

    def _waiting_failure(self, why: str, now_ns: int) -> AttemptFailure:
        node_count = len(self._core.cache.nodes)
        until_ns = now_ns + round(self._core.limits.extender_retry_s * SECOND_NS)
        return AttemptFailure(
            "PolicyPending", pod_refused_message(node_count, why), 0, {}, _ANY_EVENT, until_ns
        )

    def _rejected_failure(
        self,
        everywhere: NodeSubsetVerdict,
        extenders: tuple[Extender, ...],
        answers: ExtenderResults,
        now_ns: int,
    ) -> AttemptFailure:
        counts: Counter[str] = Counter()
        for by_rule in everywhere.refusals.values():
            counts.update(by_rule.event_reasons)
        for node in everywhere.totals:
            by_extender = extender_refusal(node, extenders, answers)
            if by_extender is not None:  # else it was free for a moment, and the rules have it refused since
                counts.update(by_extender.event_reasons)
        node_count = len(everywhere.refusals) + len(everywhere.totals)
        return AttemptFailure(
            "Unschedulable",
            unavailable_message(node_count, counts),
            node_count,
            dict(counts),
            _ANY_EVENT,
            now_ns + round(self._core.limits.extender_retry_s * SECOND_NS),
        )

    def _judge(self, pod: PendingPod, nodes: list[NodeName], now_ns: int) -> NodeSubsetVerdict:
        core = self._core
        return core.evaluator.evaluate_nodes(
            core.plan(pod.policy),
            pod.pod,
            nodes,
            **core.evaluation_inputs(pod, now_ns),
            nominated_pods=competing_nominations(core, pod.pod),
        )

    # ── asking ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _request(self, pod: PendingPod, extenders: tuple[Extender, ...], now_ns: int) -> None:
        """Ask, stand in line, or wait for the answer that is on its way; parked in any case."""
        names = [one.name for one in extenders]
        if pod.uid not in self._call_by_pod:
            if self._have_free_slot(names):
                self._send(pod, _ExtenderCall(pod.pod, extenders, self._feasible_nodes(pod, now_ns)))
            else:
                self._waiting[pod.uid] = None
        self._core.queue.park(
            pod,
            _parking_key(pod),
            now_ns=now_ns,
            requeue_events=frozenset(),
            valid_until_ns=None,
            reason="Unschedulable",
            message=f"waiting for the answer of extender {', '.join(names)}",
        )

    def _feasible_nodes(self, pod: PendingPod, now_ns: int) -> tuple[NodeName, ...]:
        found = self._judge(pod, list(self._core.cache.nodes), now_ns)
        return tuple([NodeName(node) for node in found.totals])

    def _have_free_slot(self, names: list[str]) -> bool:
        return all(
            self._in_flight_count[name] < self._core.extenders[name].concurrent_calls_max for name in names
        )

    def _send(self, pod: PendingPod, about: _ExtenderCall) -> None:
        self._last_call_id += 1
        self._in_flight[self._last_call_id] = about
        self._call_by_pod[pod.uid] = self._last_call_id
        for one in about.extenders:
            self._in_flight_count[one.name] += 1
        self._core.commands.append(
            CallExtenders(
                self._last_call_id,
                pod.uid,
                pod.pod.namespace,
                pod.pod.name,
                about.nodes,
                tuple((one.name, one.weight is not None) for one in about.extenders),
            )
        )

    # ── answers ────────────────────────────────────────────────────────────────────────────────────────────────────

    def answered(self, number: int, answers: ExtenderResults, failure: str | None, now_ns: int) -> None:
        """`failure`: one of them that must not be left out gave no answer."""
        about = self._in_flight.pop(number)
        for one in about.extenders:
            self._in_flight_count[one.name] -= 1
        uid = about.pod.uid
        if self._call_by_pod.get(uid) == number:
            del self._call_by_pod[uid]
            self._accept_answer(uid, about, answers, failure, now_ns)
        self._send_waiting(now_ns)

    def _accept_answer(
        self, uid: PodUid, about: _ExtenderCall, answers: ExtenderResults, failure: str | None, now_ns: int
    ) -> None:
        core = self._core
        pod = core.pods.get(uid)
        if pod is None or pod.state is not QueueState.UNSCHEDULABLE:
            if pod is not None and failure is None:
                self._answered[uid] = AnsweredExtenderCall(about, answers, now_ns)
            return
        core.queue.remove(pod, now_ns)
        if failure is None:
            self._answered[uid] = AnsweredExtenderCall(about, answers, now_ns)
            core.queue.enqueue(pod, now_ns, "ExtenderAnswered")
            return
        core.counters.count_attempt("error", pod.policy)
        pod.in_error_backoff = True
        core.queue.apply_backoff(pod, now_ns)
        core.queue.enqueue(pod, now_ns, "ScheduleAttemptFailure")
        core.report_pending(pod, "SchedulerError", failure, now_ns)
        core.commands.append(
            Log("warning", "an extender gave no answer", {"pod": pod.pod.full_name, "why": failure})
        )

    def _send_waiting(self, now_ns: int) -> None:
        """Ask about those whose turn it is, on the cluster as it is now. Whom the rules have no node for any more goes
        back into the queue, to be told so."""
        core = self._core
        for uid in list(self._waiting):
            pod = core.pods.get(uid)
            if pod is None or not self._is_parked(pod):
                del self._waiting[uid]
                continue
            extenders = self.applicable_extenders(pod)
            if not self._have_free_slot([one.name for one in extenders]):
                continue
            del self._waiting[uid]
            nodes = self._feasible_nodes(pod, now_ns) if extenders else ()
            if nodes:
                self._send(pod, _ExtenderCall(pod.pod, extenders, nodes))
            else:
                core.queue.remove(pod, now_ns)
                core.queue.enqueue(pod, now_ns, "ExtenderFree")

    def _is_parked(self, pod: PendingPod) -> bool:
        room = self._core.queue.group_of(pod)
        return room is not None and room.equivalence_key == _parking_key(pod)

    def forget(self, uid: PodUid) -> None:
        """The pod is gone or ending: an answer about it is for nobody."""
        self._call_by_pod.pop(uid, None)
        self._waiting.pop(uid, None)
        self._answered.pop(uid, None)

    def check(self) -> list[str]:
        """One sentence for each pod that waits for an answer that nobody will give."""
        found = []
        for uid, pod in self._core.pods.items():
            if self._is_parked(pod) and uid not in self._call_by_pod and uid not in self._waiting:
                found.append(f"{pod.pod.full_name} waits for extenders that nobody asks")
        if self._waiting and not self._in_flight:
            found.append(f"{len(self._waiting)} pods stand in line for extenders that are free")
        return found


def _parking_key(pod: PendingPod) -> tuple[str, str, PodUid]:
    """The room that the pod waits in, by itself."""
    return "asking", pod.policy, pod.uid

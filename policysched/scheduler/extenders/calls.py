"""Asynchronous calls to extenders.

    popped, a node fits ──► CallExtenders, parked ──ExtendersAnswered──► requeued, popped, still fits ──► bound
                                 │                                           └── no, or the answer is stale ──► CallExtenders
                                 └── an extender failed ──► backing off

The node is chosen once the answer arrives, on the cluster as it is then, among the nodes sent in the
call that no extender rejected. Nothing is reserved meanwhile. Concurrent calls per extender are
limited by its settings (1 as in kube-scheduler); further pods wait for a free slot (`SlotWaiters`). Then they are requeued one
after another until the slots are taken: thousands may fit no more, and each has an attempt of its own, which counts for its namespace.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from policysched.evaluate import text_hash
from policysched.lang.ir.extender_results import (
    ExtenderResults,
    add_extender_scores,
    extender_rejection,
    nodes_passing_extenders,
)
from policysched.lang.ir.program import Extender
from policysched.lang.ir.verdict import NodeSubsetVerdict
from policysched.model.cluster_events import ClusterEvent
from policysched.model.identifiers import NodeName, PodUid
from policysched.model.pods import Pod
from policysched.scheduler.attempt_result import (
    AttemptFailure,
    AttemptSuccess,
    continue_device_search,
    devices_go_on_at_once,
    has_devices,
)
from policysched.scheduler.blame import pod_id, raises_for
from policysched.scheduler.commands import CallExtenders, Log
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.extenders.slot_waiters import SlotWaiters
from policysched.scheduler.limits import SECOND_NS
from policysched.scheduler.policies.extender_capabilities import applicable_extenders
from policysched.scheduler.preemption.nominations import competing_nominations
from policysched.scheduler.queue.entries import PendingPod, QueueState
from policysched.scheduler.unschedulable_message import (
    most_frequent_reasons,
    pod_rejected_message,
    unavailable_message,
)

_OVERTAKE_DELAY_NS = SECOND_NS // 10
"""A requeued pod without an attempt for this long, since its namespace rests or others come first, leaves the slot to the next."""
_ANY_EVENT = frozenset(ClusterEvent)
"""The inputs of an extender are unknown, so any event may change its verdict."""


@dataclass(frozen=True, slots=True)
class _ExtenderCall:
    """The arguments of a call. An answer is valid for this version of `pod` only."""

    pod: Pod
    extenders: tuple[Extender, ...]
    nodes: tuple[NodeName, ...]
    sent_ns: int


@dataclass(frozen=True, slots=True)
class AnsweredExtenderCall:
    """A call with its answers, and when they arrived."""

    call: _ExtenderCall
    answers: ExtenderResults
    at_ns: int


class ExtenderCalls:
    """Tracks extender calls in flight, pods that wait for a free slot, and unused answers."""

    def __init__(self, core: SchedulerCore) -> None:
        self._core = core
        self._last_call_id = 0
        self._in_flight: dict[int, _ExtenderCall] = {}
        self._call_by_pod: dict[PodUid, int] = {}
        self._in_flight_count: Counter[str] = Counter()
        self._waiting = SlotWaiters()
        # The latest of them, and when. None: no slot is free, or no pod waits.
        self._requeued: tuple[PodUid, int] | None = None
        self._answered: dict[PodUid, AnsweredExtenderCall] = {}

    def applicable_extenders(self, pod: PendingPod) -> tuple[Extender, ...]:
        """The extenders that apply to the pod."""
        program = self._core.policies.running[pod.policy].program
        return (
            applicable_extenders(program, pod.pod, self._core.policies.extenders) if program.extenders else ()
        )

    def take_answer(self, uid: PodUid) -> AnsweredExtenderCall | None:
        """Pop the answer for the pod, if any: it is used in this attempt only, and where the search for devices goes on."""
        return self._answered.pop(uid, None)

    def devices_go_on_at_once(self, pod: PendingPod, answered: AnsweredExtenderCall | None) -> bool:
        """The same for a pod with the answer of its extenders, which is kept until the search ends: where devices change all
        the time, they have changed again by the next answer."""
        if answered is not None and self._core.cache.devices.allocation_cache.is_cut_off:
            self._answered[pod.uid] = answered
        return devices_go_on_at_once(self._core, pod, counted=answered is None)

    # ── decision ───────────────────────────────────────────────────────────────────────────────────────────────────

    def decide(
        self,
        pod: PendingPod,
        extenders: tuple[Extender, ...],
        answered: AnsweredExtenderCall | None,
        now_ns: int,
    ) -> AttemptSuccess | AttemptFailure | None:
        """Decide about a pod with feasible nodes. None: extenders are called, and the pod is parked."""
        if answered is None or not self._is_usable(answered, pod, extenders, now_ns):
            self._request(pod, extenders, now_ns)
            return None
        nodes = nodes_passing_extenders(answered.call.nodes, answered.answers)
        verdict = self._judge(pod, [NodeName(node) for node in nodes], now_ns)
        if verdict.pod_rejection is not None:  # too many of the remaining nodes lack a metric
            return self._waiting_failure(verdict.pod_rejection, now_ns)
        totals = add_extender_scores(verdict, extenders, answered.answers)
        if totals:
            pod_hash = text_hash(pod.uid)
            chosen = max(totals, key=lambda node: (totals[node], text_hash(node) ^ pod_hash))
            if not has_devices(self._core, pod, NodeName(chosen)):  # not the selected node
                return continue_device_search(self._core, now_ns)
            node_count = len(self._core.cache.nodes)
            return AttemptSuccess(NodeName(chosen), totals[chosen], node_count, len(totals))
        full_verdict = self._judge(pod, list(self._core.cache.nodes), now_ns)
        if full_verdict.totals.keys() - set(answered.call.nodes):
            # Nodes that were not part of the call are feasible now.
            self._request(pod, extenders, now_ns)
            return None
        return self._rejected_failure(full_verdict, extenders, answered.answers, now_ns)

    def _is_usable(
        self, answered: AnsweredExtenderCall, pod: PendingPod, extenders: tuple[Extender, ...], now_ns: int
    ) -> bool:
        call = answered.call
        age_ns = now_ns - answered.at_ns
        fresh = age_ns <= self._core.limits.extender_answer_age_max_s * SECOND_NS
        return fresh and call.pod == pod.pod and call.extenders == extenders

    def _waiting_failure(self, reason: str, now_ns: int) -> AttemptFailure:
        node_count = len(self._core.cache.nodes)
        until_ns = now_ns + round(self._core.limits.extender_retry_s * SECOND_NS)
        return AttemptFailure(
            "PolicyPending", pod_rejected_message(node_count, reason), 0, {}, _ANY_EVENT, until_ns
        )

    def _rejected_failure(
        self,
        full_verdict: NodeSubsetVerdict,
        extenders: tuple[Extender, ...],
        answers: ExtenderResults,
        now_ns: int,
    ) -> AttemptFailure:
        counts: Counter[str] = Counter()
        for by_rule in full_verdict.rejections.values():
            counts.update(by_rule.event_reasons)
        for node in full_verdict.totals:
            by_extender = extender_rejection(node, extenders, answers)
            if by_extender is not None:  # else it was feasible only briefly, between the call and now
                counts.update(by_extender.event_reasons)
        node_count = len(full_verdict.rejections) + len(full_verdict.totals)
        return AttemptFailure(
            "Unschedulable",
            unavailable_message(node_count, counts),
            node_count,
            most_frequent_reasons(counts),
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

    # ── calls ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _request(self, pod: PendingPod, extenders: tuple[Extender, ...], now_ns: int) -> None:
        """Send a call, or wait for a slot or the call in flight; the pod is parked in any case."""
        names = tuple([extender.name for extender in extenders])
        if pod.uid not in self._call_by_pod:
            if self._have_free_slot(names):
                self._send(pod, _ExtenderCall(pod.pod, extenders, self._feasible_nodes(pod, now_ns), now_ns))
            else:
                self._waiting.add(pod, names)
                pod.attempts -= 1  # it goes on when a slot is free
        self._core.queue.park(
            pod,
            _parking_key(pod),
            now_ns=now_ns,
            requeue_events=frozenset(),
            valid_until_ns=None,
            reason="Unschedulable",
            message=f"waiting for a response from extender {', '.join(names)}",
        )

    def _feasible_nodes(self, pod: PendingPod, now_ns: int) -> tuple[NodeName, ...]:
        verdict = self._judge(pod, list(self._core.cache.nodes), now_ns)
        return tuple([NodeName(node) for node in verdict.totals])

    def _have_free_slot(self, names: Collection[str]) -> bool:
        return all(
            self._in_flight_count[name] < self._core.policies.extenders[name].concurrent_calls_max
            for name in names
        )

    def _send(self, pod: PendingPod, call: _ExtenderCall) -> None:
        self._last_call_id += 1
        self._waiting.discard(pod.uid)
        self._in_flight[self._last_call_id] = call
        self._call_by_pod[pod.uid] = self._last_call_id
        for extender in call.extenders:
            self._in_flight_count[extender.name] += 1
        self._core.commands.append(
            CallExtenders(
                self._last_call_id,
                pod.uid,
                pod.pod.namespace,
                pod.pod.name,
                call.nodes,
                tuple((extender.name, extender.weight is not None) for extender in call.extenders),
            )
        )

    # ── answers ────────────────────────────────────────────────────────────────────────────────────────────────────

    def on_answered(self, call_id: int, answers: ExtenderResults, failure: str | None, now_ns: int) -> None:
        """Record the answers. `failure`: the error of a failed extender that is not ignorable."""
        call = self._in_flight.pop(call_id)
        for extender in call.extenders:
            self._in_flight_count[extender.name] -= 1
        self._waiting.charge(call.pod.namespace, now_ns - call.sent_ns)
        uid = call.pod.uid
        if self._call_by_pod.get(uid) == call_id:
            del self._call_by_pod[uid]
            with raises_for(pod_id(call.pod)):
                self._accept_answer(uid, call, answers, failure, now_ns)
        self._requeue_waiting(now_ns)

    def _accept_answer(
        self, uid: PodUid, call: _ExtenderCall, answers: ExtenderResults, failure: str | None, now_ns: int
    ) -> None:
        core = self._core
        pod = core.pods.get(uid)
        if pod is None or pod.state is not QueueState.UNSCHEDULABLE:
            if pod is not None and failure is None:
                self._answered[uid] = AnsweredExtenderCall(call, answers, now_ns)
            return
        core.queue.remove(pod, now_ns)
        if failure is None:
            self._answered[uid] = AnsweredExtenderCall(call, answers, now_ns)
            core.queue.enqueue(pod, now_ns, "ExtenderAnswered")
            return
        core.records.counters.count_attempt("error", pod.policy)
        pod.in_error_backoff = True
        core.queue.apply_backoff(pod, now_ns)
        core.queue.enqueue(pod, now_ns, "ScheduleAttemptFailure")
        core.report_pending(pod, "SchedulerError", failure, now_ns)
        core.commands.append(
            Log("warning", "extender call failed", {"pod": pod.pod.full_name, "error": failure})
        )

    # ── pods that wait for a slot ──────────────────────────────────────────────────────────────────────────────────

    def next_time_ns(self) -> int | None:
        """When the next pod is requeued, if a slot is still free: once the latest has had its attempt."""
        if self._requeued is None:
            return None
        uid, at_ns = self._requeued
        pod = self._core.pods.get(uid)
        return at_ns if pod is None or pod.state is not QueueState.ACTIVE else at_ns + _OVERTAKE_DELAY_NS

    def advance(self, now_ns: int) -> None:
        due_ns = self.next_time_ns()
        if due_ns is not None and due_ns <= now_ns:
            self._requeue_waiting(now_ns)

    def _requeue_waiting(self, now_ns: int) -> None:
        uid = self._waiting.take(self._have_free_slot, self._core.queue.decision_time)
        self._requeued = None if uid is None else (uid, now_ns)
        if uid is None:
            return
        pod = self._core.pods.get(uid)
        if pod is not None and self._is_parked(pod):
            with raises_for(pod_id(pod.pod)):
                self._core.queue.remove(pod, now_ns)
                self._core.queue.enqueue(pod, now_ns, "ExtenderFree")

    def _is_parked(self, pod: PendingPod) -> bool:
        group = self._core.queue.group_of(pod)
        return group is not None and group.equivalence_key == _parking_key(pod)

    def forget(self, uid: PodUid) -> None:
        """Forget a pod that is deleted or terminating; an answer about it is ignored."""
        self._call_by_pod.pop(uid, None)
        self._waiting.discard(uid)
        self._answered.pop(uid, None)

    def check(self) -> list[str]:
        """Pods that wait for extenders without a call, one message each."""
        problems = []
        for uid, pod in self._core.pods.items():
            if self._is_parked(pod) and uid not in self._call_by_pod and uid not in self._waiting:
                problems.append(f"{pod.pod.full_name} waits for extenders without a call")
        if self._waiting and not self._in_flight and self._requeued is None:
            problems.append(f"{len(self._waiting)} pods wait for a slot, but no call is in flight")
        return problems


def _parking_key(pod: PendingPod) -> tuple[str, str, PodUid]:
    """Key of a parked group that holds only this pod."""
    return "extender call", pod.policy, pod.uid

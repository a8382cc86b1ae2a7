"""One attempt of a pod, from the queue to its bind or back to the queue.

    popped ─► own eviction not answered? ──────────────────────────────► parked until it is
           ─► gang full, quota used up, or its class is parked? ───────► parked with its equivalence class
           ─► evaluated: a node?
                yes ─► earlier pods of the policy back off? ───────────► back to the queue, behind them
                    ─► extenders called? ──────────────────────────────► parked until they answer
                    ─► assumed ─► prebind work? ─► prebind, else bind
                no  ─► PostFilter: claims released, preemption ─► recorded ─► backoff ─► parked with its requeue events

An attempt is a generator of steps: a long one is run over several calls of `Scheduler.decide`, and the
cluster does not change between them. `gangs.gang_attempt` does the same for a gang with the methods of this module.
"""

from collections.abc import Hashable
from dataclasses import replace
from functools import partial

from policysched.cluster.devices.availability import AvailableDevices
from policysched.cluster.devices.pod_claims import (
    NOT_AVAILABLE_ON_NODE,
    STALE_EXTENDED_CLAIM,
    claim_to_deallocate,
    pod_resource_claims,
    unbindable_claims,
)
from policysched.evaluate import NodeSelection, Overlay, PrebindRequirements, TopologyDomain, Verdict
from policysched.lang.ir.program import Extender
from policysched.model.cluster_events import ClusterEvent
from policysched.model.identifiers import NodeName
from policysched.scheduler.attempt_result import (
    DOMAIN_CHANGE_EVENTS,
    EVICTIONS_UNANSWERED,
    PLACED_POD_EVENTS,
    AttemptFailure,
    AttemptSuccess,
    again_if_outdated,
    continue_device_search,
    has_devices,
    reject_over_budget,
    reject_pod,
    rejected_early,
    sample_sources_message,
    stop_attempt,
    with_preemption_skipped,
)
from policysched.scheduler.commands import Deallocate, DeleteExtendedClaim, Log
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.decision_records import Decision, decision_samples
from policysched.scheduler.device_steps import search_devices
from policysched.scheduler.extenders.calls import ExtenderCalls
from policysched.scheduler.in_flight_binds import InFlightBind
from policysched.scheduler.pod_enqueuer import PodEnqueuer
from policysched.scheduler.prebind import Prebinder, bind_command
from policysched.scheduler.preemption.default_preemption import DefaultPreemption
from policysched.scheduler.preemption.nominations import competing_nominations
from policysched.scheduler.preemption.post_filter_messages import (
    ClaimPostFilterMessage,
    claim_message,
    message_after_rejection,
)
from policysched.scheduler.preemption.preemption_result import PreemptionStarted
from policysched.scheduler.preemption.quota_preemption import QuotaPreemption
from policysched.scheduler.queue.entries import PendingPod, QueueState
from policysched.scheduler.queue.refused_binds import eviction_wait_s
from policysched.scheduler.quotas.quota_accounts import QuotaRefusal
from policysched.scheduler.steps import Steps
from policysched.scheduler.unschedulable_message import (
    most_frequent_reasons,
    outside_domain_reason,
    pod_rejected_message,
    unavailable_message,
)

_ALWAYS_REQUEUE_EVENTS = frozenset({ClusterEvent.NODE_ADD})  # no verdict covers a node that did not exist


class PodAttempts:
    """`attempt_pod` runs a whole attempt; the other public methods are its parts, which gangs use too."""

    def __init__(
        self,
        core: SchedulerCore,
        enqueuer: PodEnqueuer,
        preemption: DefaultPreemption,
        extender_calls: ExtenderCalls,
        prebinder: Prebinder,
    ) -> None:
        self._core = core
        self._enqueuer = enqueuer
        self._preemption = preemption
        self._quota_preemption = QuotaPreemption(core, preemption)
        self._extender_calls = extender_calls
        self._prebinder = prebinder

    # ── the attempt ────────────────────────────────────────────────────────────────────────────────────────────────

    def attempt_pod(self, pod: PendingPod, now_ns: int) -> Steps[None]:
        """The pod was just popped from the queue."""
        core = self._core
        if self._preemption.evictions.defer_attempt(pod.uid):
            self._park_until_evicted(pod, now_ns)
            return
        answered = self._extender_calls.take_answer(pod.uid)
        gang = core.gangs.gang_of(pod.uid)
        refusal = None if gang is not None and gang.vacancies == 0 else core.quotas.refusal(pod.pod)
        early = rejected_early(pod.policy, pod.namespace, gang, refusal, lambda: self.equivalence_key(pod))
        equivalence_key = self.equivalence_key(pod) if early is None else early.equivalence_key
        if early is not None and core.queue.blocked_group(equivalence_key) is not None:
            # Its evictions no longer help, as its quota is used up or its gang is full. That can open its group.
            core.withdraw_nomination(pod.uid, now_ns)
        group = core.queue.blocked_group(equivalence_key)
        if group is not None:
            core.queue.join_group(pod, group, now_ns)
            core.report_pending(pod, group.reason, group.message, now_ns)
            return
        if answered is None:  # otherwise this continues the attempt that called the extenders
            pod.attempts += 1
        if early is None:
            yield from self.warm_up(pod, now_ns)
        result = self.evaluate(pod, None, now_ns) if early is None else early.failure()
        if (
            isinstance(result, AttemptSuccess)
            and answered is None
            and core.queue.yield_to_earlier(pod, now_ns)
        ):
            pod.attempts -= 1
            return
        extenders, by_extenders = self._extender_calls.applicable_extenders(pod), False
        if isinstance(result, AttemptSuccess) and extenders:
            extended = self._extender_calls.decide(pod, extenders, answered, now_ns)
            if extended is None:
                return
            result, by_extenders = extended, True
            equivalence_key = "rejected by extenders", pod.policy, pod.uid
        if self._extender_calls.devices_go_on_at_once(pod, answered):
            return
        if isinstance(result, AttemptSuccess):
            placed = [(pod, result.node)]
            if core.kept_nodes is not None and (yield from core.kept_nodes.refuse(pod, placed, now_ns)):
                return
            result = replace(result, prebind_work=self.prebind_work(pod, result.node, None, now_ns))
            self.assume(pod, result, now_ns)
            if gang is not None:
                self._enqueuer.refresh_gang(gang, now_ns, "GangScheduled")
            return
        if core.kept_nodes is not None and core.kept_nodes.put_off_evictions(pod, now_ns):
            return
        failure = yield from self._post_filter(pod, result, refusal, extenders, now_ns)
        result = again_if_outdated(core, failure, now_ns)
        self.record_failure(pod, result, now_ns)
        core.queue.apply_backoff(pod, now_ns)
        self._enqueuer.rekey(pod, now_ns)
        equivalence_key = equivalence_key if early is not None or by_extenders else self.equivalence_key(pod)
        core.queue.park(
            pod,
            equivalence_key,
            now_ns=now_ns,
            requeue_events=result.requeue_events | core.quotas.requeue_events(pod.policy),
            valid_until_ns=result.valid_until_ns,
            reason=result.reason,
            message=result.message,
            cause=result.cause,
        )
        core.quotas.pod_parked(equivalence_key, pod.pod, refusal, by_nodes=early is None)
        core.report_pending(pod, result.reason, result.message, now_ns)

    def has_other_steps(self, pod: PendingPod) -> bool:
        """Whether more than an evaluation decides about the pod: an eviction for it, or an extender."""
        return self._preemption.is_evicting(pod.uid) or bool(self._extender_calls.applicable_extenders(pod))

    def _park_until_evicted(self, pod: PendingPod, now_ns: int) -> None:
        """Only the answer to the pod's own eviction requeues it, whatever happens meanwhile."""
        self._core.queue.park(
            pod,
            ("evicting", pod.policy, pod.uid),
            now_ns=now_ns,
            requeue_events=frozenset(),
            valid_until_ns=None,
            reason="Unschedulable",
            message=pod.pending_message or EVICTIONS_UNANSWERED,
        )

    # ── equivalence classes ────────────────────────────────────────────────────────────────────────────────────────

    def equivalence_key(self, pod: PendingPod) -> Hashable:
        """Pods with equal keys fail together now.

        The terms of placed pods distinguish pods by their labels. A nominated pod counts against pods of lower or equal priority,
        so while there is one the priority is part of the key. A pod that is nominated itself waits for its own node, and a pod
        with a stale claim for the deletion of that claim: each is a class of its own. A class has one namespace, so that no pod waits
        for the representative of another one, which may be overdrawn, and one charge, as one of others may not be entitled to take back.
        """
        over_budget = self._core.evaluator.over_budget_message(pod.pod)
        if over_budget is not None:  # before its thousands of items are hashed
            return "over budget", pod.policy, pod.pod.namespace, over_budget
        nominated = self._core.cache.nominated
        if pod.uid in nominated:
            return "nominated", pod.policy, pod.uid
        if self._core.cache.devices.extended_claims_of(pod.uid, pod.pod.namespace):
            return "stale claim", pod.policy, pod.uid
        reads, charge = self._core.cluster_read_key(pod), self._core.quotas.charge_that_takes_back(pod.pod)
        key = pod.pod.namespace, pod.equivalence_key, reads, charge, eviction_wait_s(pod)
        return (*key, pod.priority) if nominated else key

    # ── evaluation ─────────────────────────────────────────────────────────────────────────────────────────────────

    def warm_up(self, pod: PendingPod, now_ns: int, overlay: Overlay | None = None) -> Steps[None]:
        """What a long evaluation needs: devices node by node, and the rest rule by rule. A rule ends the time slice."""
        core, plan = self._core, self._core.plan(pod.policy)
        evaluator, is_plain = core.evaluator, not (plan.program.layers or plan.is_long(len(core.cache.nodes)))
        yield from search_devices(core, pod)
        if overlay is not None:
            yield from search_devices(core, pod, overlay)
        if is_plain and evaluator.is_short_decision(pod.pod) and evaluator.reads_few_pods(plan.pod_totals):
            return
        for _ in evaluator.warm_up(plan, pod.pod, **core.evaluation_inputs(pod, now_ns)):
            yield core.limits.attempt_step_cost_max

    def evaluate(
        self,
        pod: PendingPod,
        overlay: Overlay | None,
        now_ns: int,
        domain: NodeSelection | None = None,
        *,
        diagnosed: bool = True,
    ) -> AttemptSuccess | AttemptFailure:
        """Filter and score the nodes, on the cluster or on an overlay, which already has all nominated pods on it. Without
        one, each node is evaluated with and without those that are nominated to it. Read-only, except that stale claims
        of the pod are deleted. Not `diagnosed`: a failure does not tell what nodes lack, which may take longer than all else.
        """
        core, nominated = self._core, self._core.cache.nominated.get(pod.uid)
        if core.cache.devices.allocation_cache.is_cut_off:
            return continue_device_search(core, now_ns)
        verdict = core.evaluator.evaluate(
            core.plan(pod.policy),
            pod.pod,
            **core.evaluation_inputs(pod, now_ns),
            overlay=overlay,
            nominated_node=None if nominated is None else nominated.nominated_node,
            domain=domain,
            nominated_pods=() if overlay is not None else competing_nominations(core, pod.pod),
            diagnosed=diagnosed,
        )
        if not has_devices(core, pod, verdict.selected):
            return continue_device_search(core, now_ns)
        detail = verdict.detail() if core.records.recorded is not None else None
        if verdict.selected is not None:
            evaluated = verdict.node_count, verdict.feasible_count
            return AttemptSuccess(
                verdict.selected, verdict.score, *evaluated, detail=detail, shadows=verdict.shadows
            )
        if verdict.over_budget:
            assert verdict.pod_rejection is not None, f"{verdict} has no message"
            core.records.counters.count_over_budget(pod.policy)
            return reject_over_budget(verdict.pod_rejection)
        if not diagnosed and verdict.node_count and verdict.pod_rejection is None:
            return AttemptFailure("Unschedulable", "", verdict.node_count, {}, frozenset(), None)
        if STALE_EXTENDED_CLAIM in verdict.reason_counts():
            claims = sorted(core.cache.devices.extended_claims_of(pod.uid, pod.pod.namespace))
            core.commands += [DeleteExtendedClaim(claim, pod.uid) for claim in claims]
        if verdict.rejected_by is not None:
            return self._rejected_by_filter(pod, verdict)
        if verdict.pod_rejection is not None:
            return reject_pod(verdict.pod_rejection)
        counts = most_frequent_reasons(verdict.reason_counts())
        requeue_events = verdict.requeue_events() | _ALWAYS_REQUEUE_EVENTS
        waits_for_policy = (
            verdict.node_count and verdict.scaleup_would_not_help() and not verdict.feasible_outside_domain
        )
        if isinstance(domain, TopologyDomain):
            requeue_events |= DOMAIN_CHANGE_EVENTS
            if verdict.feasible_outside_domain:
                counts[outside_domain_reason(domain)] = verdict.feasible_outside_domain
        return AttemptFailure(
            "PolicyPending" if waits_for_policy else "Unschedulable",
            unavailable_message(verdict.node_count, counts),
            verdict.node_count,
            counts,
            requeue_events,
            verdict.valid_until_ns,
            verdict.cause(),
            detail,
        )

    def _rejected_by_filter(self, pod: PendingPod, verdict: Verdict) -> AttemptFailure:
        """A filter rejects the pod on every node. No preemption: what the filter reads has to change."""
        assert verdict.pod_rejection is not None, f"{verdict} has no message"
        requeue_events = verdict.requeue_events() | _ALWAYS_REQUEUE_EVENTS
        if verdict.is_error:
            return stop_attempt(verdict.pod_rejection, requeue_events, verdict.valid_until_ns)
        program = self._core.plan(pod.policy).program
        if verdict.scaleup_would_not_help():  # it waits for a metric
            message = pod_rejected_message(
                verdict.node_count, verdict.pod_rejection, sample_sources_message(self._core, program)
            )
            return AttemptFailure("PolicyPending", message, 0, {}, requeue_events, verdict.valid_until_ns)
        post_filter = message_after_rejection(program, pod.pod, verdict.node_count, verdict.rejected_by)
        message = pod_rejected_message(verdict.node_count, verdict.pod_rejection, post_filter)
        return AttemptFailure("Unschedulable", message, 0, {}, requeue_events, None)

    def prebind_work(
        self, pod: PendingPod, node: NodeName, overlay: Overlay | None, now_ns: int
    ) -> PrebindRequirements | None:
        """The volumes and devices that have to be bound before the pod is. None: nothing."""
        core = self._core
        return core.evaluator.prebind_requirements(
            core.plan(pod.policy), pod.pod, node, **core.evaluation_inputs(pod, now_ns), overlay=overlay
        )

    def add_to_overlay(
        self, pod: PendingPod, node: NodeName, overlay: Overlay, now_ns: int
    ) -> PrebindRequirements | None:
        """Place the pod on the overlay, and reserve its volumes and devices there. Returns its prebind work."""
        requirements = self.prebind_work(pod, node, overlay, now_ns)
        overlay.add_pod(pod.pod, node)
        if requirements is not None:
            overlay.reserve_devices(requirements.devices)
            if requirements.volumes is not None:
                overlay.reserve_volumes(pod.uid, requirements.volumes.choice, node)
        return requirements

    # ── a node was found ───────────────────────────────────────────────────────────────────────────────────────────

    def assume(self, pod: PendingPod, success: AttemptSuccess, now_ns: int) -> None:
        """Assume the pod on its node, and start its bind or the prebind work before it."""
        core = self._core
        program = core.policies.running[pod.policy].program
        bind = core.binds.add(InFlightBind(pod, success.node, program.sha256, now_ns))
        gang = core.gangs.gang_of(pod.uid)
        if gang is not None:
            core.gangs.add_placed(pod.uid, pod.policy, gang.terms[pod.uid])
        events = core.cache.assume(pod.pod, success.node)
        core.samples.update_assumed_load(pod.uid, None, now_ns)
        pod.state, pod.node, pod.pending_message = QueueState.BINDING, success.node, ""
        self._enqueuer.stop_rekeying(pod)
        core.reports.cancel_deferred(pod.uid)
        core.queue.mark_placed(pod, now_ns)
        core.queue.requeue(events, now_ns, cause=pod.namespace)
        if success.prebind_work is None:
            core.commands.append(bind_command(bind))
        else:
            self._prebinder.begin(bind, success.prebind_work, now_ns)
        failed = core.records.counters.shadows.count(pod.policy, success.node, success.shadows)
        core.commands += [Log("warning", message, {}) for message in failed]
        self._record_decision(pod, success, now_ns)

    # ── no node was found ──────────────────────────────────────────────────────────────────────────────────────────

    def _post_filter(
        self,
        pod: PendingPod,
        failure: AttemptFailure,
        refusal: QuotaRefusal | None,
        extenders: tuple[Extender, ...],
        now_ns: int,
    ) -> Steps[AttemptFailure]:
        """Release claims, then try preemption. Returns the failure with what this changed: the message and the requeue events."""
        core = self._core
        claims = self._post_filter_claims(pod, failure, now_ns)
        if refusal is not None and not extenders:
            evaluate = partial(self.evaluate, now_ns=now_ns)
            return (
                yield from self._quota_preemption.reclaim_for_pod(pod, refusal, failure, evaluate, now_ns)
            )
        if failure.node_count and not extenders:
            return (yield from self._preempt(pod, failure, now_ns, claims))
        core.withdraw_nomination(pod.uid, now_ns)  # no pod is evicted, so an earlier nomination ends
        if failure.node_count and core.plan(pod.policy).allows_preemption:
            return with_preemption_skipped(failure, extenders)
        return failure

    def _post_filter_claims(
        self, pod: PendingPod, failure: AttemptFailure, now_ns: int
    ) -> ClaimPostFilterMessage:
        """DynamicResources' PostFilter, which runs before preemption: release claims that keep the pod from a node."""
        if STALE_EXTENDED_CLAIM in failure.counts:
            return ClaimPostFilterMessage.DELETED
        if (
            self._core.gangs.gang_of(pod.uid) is None
            and NOT_AVAILABLE_ON_NODE in failure.counts
            and self._deallocate_unusable_claim(pod, now_ns)
        ):
            return ClaimPostFilterMessage.DEALLOCATED
        covers_extended = self._core.plan(pod.policy).covers_extended_resources
        return claim_message(pod.pod, AvailableDevices(self._core.cache.devices), covers_extended)

    def _deallocate_unusable_claim(self, pod: PendingPod, now_ns: int) -> bool:
        """Release the devices of a claim that binds the pod to nodes that reject it, if no other pod uses the claim."""
        claims = pod_resource_claims(pod.pod, AvailableDevices(self._core.cache.devices))
        if isinstance(claims, str):
            return False
        unbindable = unbindable_claims(claims, now_ns, self._core.plan(pod.policy).devices_timeout_s)
        claim = claim_to_deallocate(pod.pod, replace(claims, unbindable=unbindable))
        if claim is not None:
            self._core.commands.append(Deallocate(claim.key, claim.uid, claim.version))
        return claim is not None

    def _preempt(
        self, pod: PendingPod, failure: AttemptFailure, now_ns: int, claims: ClaimPostFilterMessage
    ) -> Steps[AttemptFailure]:
        """Try preemption. Returns the failure with its outcome: the message, and what requeues the pod."""
        preemption = yield from self._preemption.preempt_for_pod(pod, now_ns, claims)
        if preemption is None:
            self._core.withdraw_nomination(pod.uid, now_ns)
            return failure
        message = unavailable_message(failure.node_count, failure.counts, preemption.message)
        if isinstance(preemption, PreemptionStarted):
            events = failure.requeue_events | PLACED_POD_EVENTS
            return replace(failure, message=message, requeue_events=events)
        return failure.without_preemption(message, preemption.valid_until_ns, preemption.requeue_events)

    def record_failure(self, pod: PendingPod, failure: AttemptFailure, now_ns: int) -> None:
        self._core.records.counters.count_attempt("unschedulable", pod.policy)
        self._record_decision(pod, failure, now_ns)

    # ── the record ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _record_decision(self, pod: PendingPod, result: AttemptSuccess | AttemptFailure, now_ns: int) -> None:
        core = self._core
        program = core.policies.running[pod.policy].program
        gang = core.gangs.gang_of(pod.uid)
        success = result if isinstance(result, AttemptSuccess) else None
        failure = result if isinstance(result, AttemptFailure) else None
        node = None if success is None else success.node
        core.records.add(
            Decision(
                id=core.records.next_id,
                at_ns=now_ns,
                pod=pod.pod.full_name,
                uid=pod.uid,
                policy=program.name,
                sha256=program.sha256,
                version=program.version,
                node=node,
                score=None if success is None else success.score,
                node_count=result.node_count,
                feasible_count=0 if success is None else success.feasible_count,
                message="" if failure is None else failure.message,
                counts={} if failure is None else failure.counts,
                gang=None if gang is None else gang.name,
                attempt=pod.attempts,
                queued_ns=pod.queued_ns,
                samples=decision_samples(program.metrics, core.samples.of_policy(program.name), node, now_ns),
                order_key=() if core.records.recorded is None else pod.order_key,
                detail=result.detail,
            )
        )

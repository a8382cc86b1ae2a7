"""What is asked of the plan for a pod, on the cluster as it stands or on an overlay, and which pods would hear the same answer."""

from collections.abc import Hashable

from policysched.cluster.devices.pod_claims import STALE_EXTENDED_CLAIM
from policysched.evaluate import Overlay, PrebindRequirements, TopologyDomain, Verdict
from policysched.lang.ir.program import Program
from policysched.model.cluster_events import ClusterEvent
from policysched.model.identifiers import NodeName, PodUid
from policysched.model.messages import pod_refused_message, unavailable_message
from policysched.scheduler.commands import DeleteExtendedClaim
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.gangs.topology import DOMAIN_CHANGE_EVENTS, outside_domain_reason
from policysched.scheduler.outcome import AttemptFailure, AttemptSuccess, reject_pod
from policysched.scheduler.preemption.default_preemption import message_after_rejection
from policysched.scheduler.preemption.nominations import competing_nominations
from policysched.scheduler.queue.entries import PendingPod

_ALWAYS_REQUEUE_EVENTS = frozenset(
    {ClusterEvent.NODE_ADD}
)  # a node that was not there is one that refused nobody


class AttemptEvaluator:
    """Asking changes nothing, but that a claim which was left over is told to go."""

    def __init__(self, core: SchedulerCore) -> None:
        self._core = core

    def evaluate(
        self, pod: PendingPod, overlay: Overlay | None, now_ns: int, domain: TopologyDomain | None = None
    ) -> AttemptSuccess | AttemptFailure:
        """On an overlay, which has all nominated pods on it, or on the cluster, where each node is asked with and without
        its own."""
        core = self._core
        nominated = core.cache.nominated.get(pod.uid)
        verdict = core.evaluator.evaluate(
            core.plan(pod.policy),
            pod.pod,
            **core.evaluation_inputs(pod, now_ns),
            overlay=overlay,
            nominated_node=None if nominated is None else nominated.nominated_node,
            domain=domain,
            nominated_pods=() if overlay is not None else competing_nominations(core, pod.pod),
        )
        if verdict.selected is not None:
            return AttemptSuccess(verdict.selected, verdict.score, verdict.node_count, verdict.feasible_count)
        if STALE_EXTENDED_CLAIM in verdict.reason_counts():
            core.commands += [
                DeleteExtendedClaim(key, pod.uid)
                for key in sorted(core.cache.devices.extended_claims_of(pod.uid))
            ]
        if verdict.refused_by is not None:
            return self._refused_by_filter(pod, verdict)
        if verdict.pod_refusal is not None:
            return reject_pod(verdict.pod_refusal)
        counts, wakes = dict(verdict.reason_counts()), verdict.requeue_events() | _ALWAYS_REQUEUE_EVENTS
        waits_for_policy = (
            verdict.node_count and verdict.scaleup_would_not_help() and not verdict.feasible_outside_domain
        )
        if domain is not None:
            wakes |= DOMAIN_CHANGE_EVENTS
            if verdict.feasible_outside_domain:
                counts[outside_domain_reason(domain)] = verdict.feasible_outside_domain
        return AttemptFailure(
            "PolicyPending" if waits_for_policy else "Unschedulable",
            unavailable_message(verdict.node_count, counts),
            verdict.node_count,
            counts,
            wakes,
            verdict.valid_until_ns,
        )

    def _refused_by_filter(self, pod: PendingPod, verdict: Verdict) -> AttemptFailure:
        """No node was looked at, and nobody is evicted: what the filter reads has to change."""
        assert verdict.pod_refusal is not None, f"{verdict} has no words"
        wakes, program = (
            verdict.requeue_events() | _ALWAYS_REQUEUE_EVENTS,
            self._core.plan(pod.policy).program,
        )
        if verdict.scaleup_would_not_help():  # it waits for a metric
            message = pod_refused_message(
                verdict.node_count, verdict.pod_refusal, self._sample_sources_message(program)
            )
            return AttemptFailure("PolicyPending", message, 0, {}, wakes, verdict.valid_until_ns)
        post = message_after_rejection(program, verdict.node_count, verdict.refused_by)
        message = pod_refused_message(verdict.node_count, verdict.pod_refusal, post)
        return AttemptFailure("Unschedulable", message, 0, {}, wakes, None)

    def _sample_sources_message(self, program: Program) -> str:
        """Where whoever is to mend it looks."""
        sources = {self._core.source_name_of(metric) for metric in program.metrics.values()} - {None}
        named = ", ".join(sorted(str(one) for one in sources))
        return f"The policy's samples come from source {named}." if named else ""

    def prebind_work(
        self, pod: PendingPod, node: NodeName, overlay: Overlay | None, now_ns: int
    ) -> PrebindRequirements | None:
        core = self._core
        return core.evaluator.prebind_requirements(
            core.plan(pod.policy),
            pod.pod,
            node,
            **core.evaluation_inputs(pod, now_ns),
            overlay=overlay,
        )

    def add_to_overlay(
        self, pod: PendingPod, node: NodeName, overlay: Overlay, now_ns: int
    ) -> PrebindRequirements | None:
        """As if the pod were on the node and its volumes and devices its own; answers what has to be done about these."""
        needs = self.prebind_work(pod, node, overlay, now_ns)
        overlay.add_pod(pod.pod, node)
        if needs is not None:
            overlay.reserve_devices(needs.devices)
            if needs.volumes is not None:
                overlay.reserve_volumes(pod.uid, needs.volumes.choice, node)
        return needs

    def equivalence_key(self, pod: PendingPod) -> Hashable:
        """Pods that fail together now. Terms of placed pods tell kin apart by their labels; nominated pods are counted
        against those of lower or equal priority, so then kin agree on that as well. One that is nominated itself waits
        for a node of its own, one of which a claim was left for that to be gone."""
        nominated = self._core.cache.nominated
        if pod.uid in nominated:
            return "nominated", pod.policy, pod.uid
        if self._core.cache.devices.extended_claims_of(pod.uid):
            return "claim left over", pod.policy, pod.uid
        kin = pod.equivalence_key, self._key_read_by_other_pods(pod)
        return (*kin, pod.priority) if nominated else kin

    def gang_equivalence_keys(self, members: list[PendingPod]) -> dict[PodUid, Hashable]:
        """Terms of members that are placed in the trial may ask about any label."""
        made_for = self._core.cache.devices.extended_claims_of
        if any(pod.pod.pod_affinity or made_for(pod.uid) for pod in members):
            labels = {pod.uid: tuple(sorted(pod.pod.labels.items())) for pod in members}
            return {
                pod.uid: ("claim left over", pod.uid)
                if made_for(pod.uid)
                else (pod.equivalence_key, labels[pod.uid])
                for pod in members
            }
        return {pod.uid: (pod.equivalence_key, self._key_read_by_other_pods(pod)) for pod in members}

    def _key_read_by_other_pods(self, pod: PendingPod) -> Hashable:
        return self._core.evaluator.cluster_read_key(self._core.plan(pod.policy), pod.pod)

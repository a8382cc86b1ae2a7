"""What is asked of the plan for a pod, on the cluster as it stands or on an overlay, and which pods would hear the same answer."""

from collections.abc import Hashable

from policysched.cluster.devices.pod_claims import LEFT_OVER
from policysched.evaluate import BeforeBind, Overlay, Verdict, Within
from policysched.lang.ir.program import Program
from policysched.model.cluster_events import ClusterEvent
from policysched.model.messages import refused_message, unavailable_message
from policysched.model.objects import NodeName, PodUid
from policysched.scheduler.commands import DropClaim
from policysched.scheduler.core import Core
from policysched.scheduler.gangs.topology import DOMAINS_CHANGE, elsewhere_reason
from policysched.scheduler.outcome import Failure, Success, refusal
from policysched.scheduler.preemption.nominated import reserved_for_others
from policysched.scheduler.preemption.preemption import words_after_refusal
from policysched.scheduler.queue.entries import PendingPod

_ALWAYS = frozenset({ClusterEvent.NODE_ADD})  # a node that was not there is one that refused nobody


class Questions:
    """Asking changes nothing, but that a claim which was left over is told to go."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def ask(
        self, pod: PendingPod, overlay: Overlay | None, now_ns: int, within: Within | None = None
    ) -> Success | Failure:
        """On an overlay, which has all nominated pods on it, or on the cluster, where each node is asked with and without
        its own."""
        core = self._core
        nominated = core.cache.nominated.get(pod.uid)
        verdict = core.evaluator.evaluate(
            core.plan(pod.policy),
            pod.pod,
            **core.known_of(pod, now_ns),
            overlay=overlay,
            nominated=None if nominated is None else nominated.nominated_node,
            within=within,
            reserved=() if overlay is not None else reserved_for_others(core, pod.pod),
        )
        if verdict.selected is not None:
            return Success(verdict.selected, verdict.score, verdict.node_count, verdict.feasible_count)
        if LEFT_OVER in verdict.counts():
            core.out += [DropClaim(key, pod.uid) for key in sorted(core.cache.devices.made_for(pod.uid))]
        if verdict.refused_by is not None:
            return self._refused_by_filter(pod, verdict)
        if verdict.pod_refusal is not None:
            return refusal(verdict.pod_refusal)
        counts, wakes = dict(verdict.counts()), verdict.wakes() | _ALWAYS
        waits_for_policy = verdict.node_count and verdict.only_scaleup_no() and not verdict.elsewhere
        if within is not None:
            wakes |= DOMAINS_CHANGE
            if verdict.elsewhere:
                counts[elsewhere_reason(within)] = verdict.elsewhere
        return Failure(
            "PolicyPending" if waits_for_policy else "Unschedulable",
            unavailable_message(verdict.node_count, counts),
            verdict.node_count,
            counts,
            wakes,
            verdict.valid_until_ns,
        )

    def _refused_by_filter(self, pod: PendingPod, verdict: Verdict) -> Failure:
        """No node was looked at, and nobody is evicted: what the filter reads has to change."""
        assert verdict.pod_refusal is not None, f"{verdict} has no words"
        wakes, program = verdict.wakes() | _ALWAYS, self._core.plan(pod.policy).program
        if verdict.only_scaleup_no():  # it waits for a metric
            message = refused_message(
                verdict.node_count, verdict.pod_refusal, self._samples_come_from(program)
            )
            return Failure("PolicyPending", message, 0, {}, wakes, verdict.valid_until_ns)
        post = words_after_refusal(program, verdict.node_count, verdict.refused_by)
        message = refused_message(verdict.node_count, verdict.pod_refusal, post)
        return Failure("Unschedulable", message, 0, {}, wakes, None)

    def _samples_come_from(self, program: Program) -> str:
        """Where whoever is to mend it looks."""
        sources = {self._core.source_of(metric) for metric in program.metrics.values()} - {None}
        named = ", ".join(sorted(str(one) for one in sources))
        return f"The policy's samples come from source {named}." if named else ""

    def before_bind(
        self, pod: PendingPod, node: NodeName, overlay: Overlay | None, now_ns: int
    ) -> BeforeBind | None:
        core = self._core
        return core.evaluator.before_bind(
            core.plan(pod.policy),
            pod.pod,
            node,
            **core.known_of(pod, now_ns),
            overlay=overlay,
        )

    def lay(self, pod: PendingPod, node: NodeName, overlay: Overlay, now_ns: int) -> BeforeBind | None:
        """As if the pod were on the node and its volumes and devices its own; answers what has to be done about these."""
        needs = self.before_bind(pod, node, overlay, now_ns)
        overlay.place(pod.pod, node)
        if needs is not None:
            overlay.promise_devices(needs.devices)
            if needs.volumes is not None:
                overlay.promise(pod.uid, needs.volumes.choice, node)
        return needs

    def kin(self, pod: PendingPod) -> Hashable:
        """Pods that fail together now. Terms of placed pods tell kin apart by their labels; nominated pods are counted
        against those of lower or equal priority, so then kin agree on that as well. One that is nominated itself waits
        for a node of its own, one of which a claim was left for that to be gone."""
        nominated = self._core.cache.nominated
        if pod.uid in nominated:
            return "nominated", pod.policy, pod.uid
        if self._core.cache.devices.made_for(pod.uid):
            return "claim left over", pod.policy, pod.uid
        kin = pod.kin, self._seen_by_others(pod)
        return (*kin, pod.priority) if nominated else kin

    def kin_in_trial(self, members: list[PendingPod]) -> dict[PodUid, Hashable]:
        """Terms of members that are placed in the trial may ask about any label."""
        made_for = self._core.cache.devices.made_for
        if any(pod.pod.pod_affinity or made_for(pod.uid) for pod in members):
            labels = {pod.uid: tuple(sorted(pod.pod.labels.items())) for pod in members}
            return {
                pod.uid: ("claim left over", pod.uid) if made_for(pod.uid) else (pod.kin, labels[pod.uid])
                for pod in members
            }
        return {pod.uid: (pod.kin, self._seen_by_others(pod)) for pod in members}

    def _seen_by_others(self, pod: PendingPod) -> Hashable:
        return self._core.evaluator.seen_by_others(self._core.plan(pod.policy), pod.pod)

"""What becomes of an attempt: the pod is assumed on its node and its bind begun, or its failure goes on record."""

from collections.abc import Mapping

from policysched.model.identifiers import NodeName
from policysched.scheduler.core import InFlightBind, SchedulerCore
from policysched.scheduler.outcome import AttemptFailure, AttemptSuccess
from policysched.scheduler.prebind import Prebinder, bind_command
from policysched.scheduler.queue.admission import QueueAdmission
from policysched.scheduler.queue.entries import PendingPod, QueueState
from policysched.scheduler.records import Decision, decision_samples


class AttemptCommit:
    """Every attempt leaves a `Decision` behind."""

    def __init__(self, core: SchedulerCore, admission: QueueAdmission, preparing: Prebinder) -> None:
        self._core = core
        self._admission = admission
        self._prebinder = preparing

    def assume(self, pod: PendingPod, success: AttemptSuccess, now_ns: int) -> None:
        """Its room is taken from now on, and what it needs is begun."""
        core, value = self._core, pod.pod
        program = core.policies.running[pod.policy].program
        gang = core.gangs.gang_of(pod.uid)
        if gang is not None:
            core.gangs.add_placed(pod.uid, pod.policy, gang.terms[pod.uid])
        events = core.cache.assume(value, success.node)
        core.update_assumed_load(pod.uid, None, now_ns)
        pod.state, pod.node, pod.pending_message = QueueState.BINDING, success.node, ""
        flight = core.in_flight_binds[pod.uid] = InFlightBind(pod, success.node, program.sha256, now_ns)
        self._admission.stop_rekeying(pod)
        core.reports.cancel_deferred(pod.uid)
        core.queue.mark_placed(pod, now_ns)
        core.queue.requeue(events, now_ns)
        if success.prebind_work is None:
            core.commands.append(bind_command(flight))
        else:
            self._prebinder.begin(flight, success.prebind_work, now_ns)
        self._record_decision(
            pod, success.node, success.score, success.node_count, success.feasible_count, "", {}, now_ns
        )

    def record_failure(self, pod: PendingPod, failure: AttemptFailure, now_ns: int) -> None:
        self._core.counters.count_attempt("unschedulable", pod.policy)
        self._record_decision(pod, None, None, failure.node_count, 0, failure.message, failure.counts, now_ns)

    def _record_decision(
        self,
        pod: PendingPod,
        node: NodeName | None,
        score: int | None,
        nodes: int,
        feasible: int,
        message: str,
        counts: Mapping[str, int],
        now_ns: int,
    ) -> None:
        core = self._core
        core.decision_count += 1
        program = core.policies.running[pod.policy].program
        gang = core.gangs.gang_of(pod.uid)
        core.decisions.append(
            Decision(
                id=core.decision_count,
                at_ns=now_ns,
                pod=pod.pod.full_name,
                uid=pod.uid,
                policy=program.name,
                sha256=program.sha256,
                version=program.version,
                node=node,
                score=score,
                node_count=nodes,
                feasible_count=feasible,
                message=message,
                counts=counts,
                gang=None if gang is None else gang.name,
                attempt=pod.attempts,
                queued_ns=pod.queued_ns,
                samples=decision_samples(program.metrics, core.samples.get(program.name, {}), node, now_ns),
            )
        )

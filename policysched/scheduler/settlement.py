"""What becomes of an attempt: the pod is assumed on its node and its bind begun, or its failure goes on record."""

from collections.abc import Mapping

from policysched.model.objects import NodeName
from policysched.scheduler.core import Core, Flight
from policysched.scheduler.outcome import Failure, Success
from policysched.scheduler.prebind import Preparing, bind_command
from policysched.scheduler.queue.admission import Admission
from policysched.scheduler.queue.entries import PendingPod, Place
from policysched.scheduler.records import Decision, samples_seen


class Settlement:
    """Every attempt leaves a `Decision` behind."""

    def __init__(self, core: Core, admission: Admission, preparing: Preparing) -> None:
        self._core = core
        self._admission = admission
        self._preparing = preparing

    def assume(self, pod: PendingPod, success: Success, now_ns: int) -> None:
        """Its room is taken from now on, and what it needs is begun."""
        core, value = self._core, pod.pod
        program = core.policies.running[pod.policy].program
        gang = core.gangs.of(pod.uid)
        if gang is not None:
            core.gangs.add_placed(pod.uid, pod.policy, gang.terms[pod.uid])
        events = core.cache.assume(value, success.node)
        core.follow_placement(pod.uid, None, now_ns)
        pod.place, pod.node, pod.explanation = Place.BINDING, success.node, ""
        flight = core.in_flight[pod.uid] = Flight(pod, success.node, program.sha256, now_ns)
        self._admission.stop_clock(pod)
        core.reports.hush(pod.uid)
        core.queue.succeeded(pod, now_ns)
        core.queue.wake(events, now_ns)
        if success.needs is None:
            core.out.append(bind_command(flight))
        else:
            self._preparing.begin(flight, success.needs, now_ns)
        self._record(pod, success.node, success.score, success.nodes, success.feasible, "", {}, now_ns)

    def record_failure(self, pod: PendingPod, failure: Failure, now_ns: int) -> None:
        self._core.counters.count("unschedulable", pod.policy)
        self._record(pod, None, None, failure.nodes, 0, failure.message, failure.counts, now_ns)

    def _record(
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
        gang = core.gangs.of(pod.uid)
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
                nodes=nodes,
                feasible=feasible,
                message=message,
                counts=counts,
                gang=None if gang is None else gang.name,
                attempt=pod.attempts,
                queued_ns=pod.queued_ns,
                samples=samples_seen(program.metrics, core.samples.get(program.name, {}), node, now_ns),
            )
        )

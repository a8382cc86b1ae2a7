"""Which pods are ours, and what a change of one, of its namespace or of its policy means for it.

A pod is ours while its schedulerName is a running policy. Others are left alone, but where they are placed they hold
room, and a policy that starts later finds its pods here.
"""

from collections.abc import Iterator

from policysched.cluster.ledger import PlacementState
from policysched.evaluate import GangTerms, Plan
from policysched.lang.ir.program import Program
from policysched.model.identifiers import PodUid
from policysched.model.pod_status import ObservedPod
from policysched.model.pods import Pod, QueuedPodInfo
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.queue.admission import QueueAdmission
from policysched.scheduler.queue.entries import PendingPod, QueueState
from policysched.scheduler.queue.equivalence import program_reads_queue
from policysched.scheduler.queue.pre_enqueue import PreEnqueueResult, evaluate_pre_enqueue


class PolicyMembership:
    def __init__(self, core: SchedulerCore, admission: QueueAdmission) -> None:
        self._core = core
        self._admission = admission

    def add(self, pod: Pod) -> None:
        self._core.pods_by_scheduler.setdefault(pod.scheduler, {})[pod.uid] = None

    def remove(self, pod: Pod) -> None:
        uids = self._core.pods_by_scheduler.get(pod.scheduler, {})
        uids.pop(pod.uid, None)
        if not uids:
            self._core.pods_by_scheduler.pop(pod.scheduler, None)

    def readmit_pods(self, policy: str, now_ns: int) -> None:
        """The policy begins, or another text of it: every pod that names it stands anew, and those that it could not
        place are tried again at once."""
        core = self._core
        core.queue.drop_policy(policy)
        with core.gangs.replacing_policy(policy) as before:
            self._admission.forget_gangs(before)
            known = [core.cache.pods[uid] for uid in core.pods_by_scheduler.get(policy, ())]
            pending = []
            for seen in known:  # placed members first, so that gangs are whole before anybody is queued
                if seen.pod.uid in core.in_flight_binds or not self._is_unplaced(seen):
                    self._count_in_gang(seen, now_ns)
                elif not seen.deleting:
                    pod = core.pods.get(seen.pod.uid)
                    if pod is None:
                        pod = core.pods[seen.pod.uid] = PendingPod(seen, queued_ns=now_ns)
                    if pod.state is not QueueState.BIND_LOST:
                        pending.append(pod)
            self._admission.readmit_many(policy, pending, now_ns)

    def precompute_pre_enqueue(
        self, program: Program, plan: Plan, now_ns: int
    ) -> Iterator[dict[PodUid, PreEnqueueResult]]:
        """What another text of a policy says of its pods, in slices: the last dict given has all that were there when
        it began. Whoever comes or changes later is looked at when the text takes over."""
        core = self._core
        reads_queue, found = program_reads_queue(program), dict[PodUid, PreEnqueueResult]()
        for uid in list(core.pods_by_scheduler.get(program.name, ())):
            seen = core.cache.pods.get(uid)
            if seen is None or (program.gang is None and uid not in core.pods):
                continue
            pod = core.pods.get(uid)
            facts = QueuedPodInfo(now_ns, 0) if pod is None else pod.facts
            space = core.namespace_of(seen.pod)
            found[uid] = evaluate_pre_enqueue(plan, seen.pod, space, facts, now_ns, reads_queue=reads_queue)
            if len(found) % core.limits.rekey_pods_max == 0:
                yield found
        yield found

    def update(self, pod: Pod, current: ObservedPod | None, now_ns: int) -> None:
        """The pod is `current` now; None: gone or finished."""
        core, uid = self._core, pod.uid
        known = core.pods.get(uid)
        if current is None or not self._is_unplaced(current):
            if known is not None:
                self._admission.remove(known, now_ns)
            if current is None:
                self._remove_from_gang(pod, now_ns)
            else:
                self._count_in_gang(current, now_ns)
        elif uid in core.in_flight_binds:
            if known is not None:
                known.observed = current
            self._count_in_gang(current, now_ns)
        elif current.deleting:
            if known is not None:
                self._admission.remove(known, now_ns)
            self._remove_from_gang(pod, now_ns)
        elif current.pod.scheduler in core.policies.running:
            if known is None:
                self._admission.admit(current, now_ns)
            elif known.state is QueueState.BIND_LOST or known.pod != current.pod:
                self._admission.readmit(known, current, now_ns, "UnschedulablePodUpdate")
            else:
                known.observed = current

    def namespace_changed(self, name: str, now_ns: int) -> None:
        """Labels that policies may read of the namespace: all its pods stand anew."""
        core = self._core
        for gang in [one for one in core.gangs if one.id[1] == name]:
            for uid in list(gang.placed_members):
                self._count_in_gang(core.cache.pods[uid], now_ns)
        for pod in [one for one in core.pods.values() if one.pod.namespace == name]:
            if pod.state not in (QueueState.BINDING, QueueState.BIND_LOST):
                self._admission.readmit(pod, pod.observed, now_ns, "NamespaceUpdate")

    def _is_unplaced(self, seen: ObservedPod) -> bool:
        """Whether the pod is on no node: neither by what the API server showed nor by a bind that it confirmed."""
        if seen.node is not None:
            return False
        return self._core.cache.ledger.state(seen.pod.uid) is not PlacementState.BOUND

    def _count_in_gang(self, seen: ObservedPod, now_ns: int) -> None:
        """Count a bound pod, or one that is being bound, in its gang while it is alive."""
        core, pod = self._core, seen.pod
        running = core.policies.running.get(pod.scheduler)
        if running is None or running.program.gang is None:
            return
        terms = None if seen.deleting else self._gang_terms(pod, running.plan)
        gang = core.gangs.gang_of(pod.uid)
        if terms is None:
            self._remove_from_gang(pod, now_ns)
        elif gang is None or pod.uid not in gang.placed_members or gang.terms[pod.uid] != terms:
            after = core.gangs.add_placed(pod.uid, pod.scheduler, terms)
            if gang is not None and gang is not after:
                self._admission.refresh_gang(gang, now_ns, "AssignedPodUpdate")
            self._admission.refresh_gang(after, now_ns, "AssignedPodAdd")

    def _gang_terms(self, pod: Pod, plan: Plan) -> GangTerms | None:
        space, ready = self._core.namespace_of(pod), self._core.precomputed.get(pod.uid)
        if ready is not None and ready.refusal is None and ready.is_current(pod, space, ready.attempts):
            return ready.gang_terms
        return plan.gang(pod, space)

    def _remove_from_gang(self, pod: Pod, now_ns: int) -> None:
        gang = self._core.gangs.remove(pod.uid)
        if gang is not None:
            self._admission.refresh_gang(gang, now_ns, "PodDelete")

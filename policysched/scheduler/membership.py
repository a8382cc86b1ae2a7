"""Which pods are ours, and what a change of one, of its namespace or of its policy means for it.

A pod is ours while its schedulerName is a running policy. Others are left alone, but where they are placed they hold
room, and a policy that starts later finds its pods here.
"""

from collections.abc import Iterator

from policysched.cluster.ledger import PlacementState
from policysched.evaluate import GangTerms, Plan
from policysched.lang.ir.program import Program
from policysched.model.objects import ObservedPod, Pod, PodFacts, PodUid
from policysched.scheduler.core import Core
from policysched.scheduler.queue.admission import Admission
from policysched.scheduler.queue.entries import PendingPod, Place
from policysched.scheduler.queue.equivalence import reads_the_queue
from policysched.scheduler.queue.standing import Standing, standing_of


class Membership:
    def __init__(self, core: Core, admission: Admission) -> None:
        self._core = core
        self._admission = admission

    def know(self, pod: Pod) -> None:
        self._core.by_scheduler.setdefault(pod.scheduler, {})[pod.uid] = None

    def forget(self, pod: Pod) -> None:
        uids = self._core.by_scheduler.get(pod.scheduler, {})
        uids.pop(pod.uid, None)
        if not uids:
            self._core.by_scheduler.pop(pod.scheduler, None)

    def gather(self, policy: str, now_ns: int) -> None:
        """The policy begins, or another text of it: every pod that names it stands anew, and those that it could not
        place are tried again at once."""
        core = self._core
        core.queue.drop_policy(policy)
        with core.gangs.policy_replaced(policy) as before:
            self._admission.forget_gangs(before)
            known = [core.cache.pods[uid] for uid in core.by_scheduler.get(policy, ())]
            pending = []
            for seen in known:  # placed members first, so that gangs are whole before anybody is queued
                if seen.pod.uid in core.in_flight or not self._pending(seen):
                    self._count_placed(seen, now_ns)
                elif not seen.deleting:
                    pod = core.pods.get(seen.pod.uid)
                    if pod is None:
                        pod = core.pods[seen.pod.uid] = PendingPod(seen, queued_ns=now_ns)
                    if pod.place is not Place.LOST:
                        pending.append(pod)
            self._admission.stand_anew(policy, pending, now_ns)

    def prepare(self, program: Program, plan: Plan, now_ns: int) -> Iterator[dict[PodUid, Standing]]:
        """What another text of a policy says of its pods, in slices: the last dict given has all that were there when
        it began. Whoever comes or changes later is looked at when the text takes over."""
        core = self._core
        reads_queue, found = reads_the_queue(program), dict[PodUid, Standing]()
        for uid in list(core.by_scheduler.get(program.name, ())):
            seen = core.cache.pods.get(uid)
            if seen is None or (program.gang is None and uid not in core.pods):
                continue
            pod = core.pods.get(uid)
            facts = PodFacts(now_ns, 0) if pod is None else pod.facts
            space = core.namespace_of(seen.pod)
            found[uid] = standing_of(plan, seen.pod, space, facts, now_ns, reads_queue=reads_queue)
            if len(found) % core.limits.rekey_pods == 0:
                yield found
        yield found

    def follow(self, pod: Pod, current: ObservedPod | None, now_ns: int) -> None:
        """The pod is `current` now; None: gone or finished."""
        core, uid = self._core, pod.uid
        known = core.pods.get(uid)
        if current is None or not self._pending(current):
            if known is not None:
                self._admission.leave(known, now_ns)
            if current is None:
                self._uncount(pod, now_ns)
            else:
                self._count_placed(current, now_ns)
        elif uid in core.in_flight:
            if known is not None:
                known.seen = current
            self._count_placed(current, now_ns)
        elif current.deleting:
            if known is not None:
                self._admission.leave(known, now_ns)
            self._uncount(pod, now_ns)
        elif current.pod.scheduler in core.policies.running:
            if known is None:
                self._admission.enter(current, now_ns)
            elif known.place is Place.LOST or known.pod != current.pod:
                self._admission.change(known, current, now_ns, "UnschedulablePodUpdate")
            else:
                known.seen = current

    def namespace_changed(self, name: str, now_ns: int) -> None:
        """Labels that policies may read of the namespace: all its pods stand anew."""
        core = self._core
        for gang in [one for one in core.gangs if one.id[1] == name]:
            for uid in list(gang.placed):
                self._count_placed(core.cache.pods[uid], now_ns)
        for pod in [one for one in core.pods.values() if one.pod.namespace == name]:
            if pod.place not in (Place.BINDING, Place.LOST):
                self._admission.change(pod, pod.seen, now_ns, "NamespaceUpdate")

    def _pending(self, seen: ObservedPod) -> bool:
        """Whether the pod is on no node: neither by what the API server showed nor by a bind that it confirmed."""
        if seen.node is not None:
            return False
        return self._core.cache.ledger.state(seen.pod.uid) is not PlacementState.BOUND

    def _count_placed(self, seen: ObservedPod, now_ns: int) -> None:
        """Count a bound pod, or one that is being bound, in its gang while it is alive."""
        core, pod = self._core, seen.pod
        running = core.policies.running.get(pod.scheduler)
        if running is None or running.program.gang is None:
            return
        terms = None if seen.deleting else self._gang_terms(pod, running.plan)
        gang = core.gangs.of(pod.uid)
        if terms is None:
            self._uncount(pod, now_ns)
        elif gang is None or pod.uid not in gang.placed or gang.terms[pod.uid] != terms:
            after = core.gangs.add_placed(pod.uid, pod.scheduler, terms)
            if gang is not None and gang is not after:
                self._admission.refresh(gang, now_ns, "AssignedPodUpdate")
            self._admission.refresh(after, now_ns, "AssignedPodAdd")

    def _gang_terms(self, pod: Pod, plan: Plan) -> GangTerms | None:
        space, ready = self._core.namespace_of(pod), self._core.prepared.get(pod.uid)
        if ready is not None and ready.refusal is None and ready.still_right(pod, space, ready.attempts):
            return ready.gang
        return plan.gang(pod, space)

    def _uncount(self, pod: Pod, now_ns: int) -> None:
        gang = self._core.gangs.remove(pod.uid)
        if gang is not None:
            self._admission.refresh(gang, now_ns, "PodDelete")

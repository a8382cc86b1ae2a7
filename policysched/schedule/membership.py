"""Which pods are ours, and what a change of one, of its namespace or of its policy means for it.

A pod is ours while its schedulerName is a running policy. Others are left alone, but where they are placed they hold
room, and a policy that starts later finds its pods here.
"""

from policysched.cluster.ledger import PlacementState
from policysched.cluster.objects import ObservedPod, Pod
from policysched.schedule.admission import Admission
from policysched.schedule.core import Core
from policysched.schedule.units import Place


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
            pending = {
                seen.pod.uid: seen
                for seen in known
                if seen.pod.uid not in core.in_flight and self._pending(seen)
            }
            for seen in known:  # placed members first, so that gangs are whole before anybody is queued
                if seen.pod.uid not in pending:
                    self._count_placed(seen, now_ns)
            for seen in pending.values():
                self._stand_anew(seen, now_ns)

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

    def _stand_anew(self, seen: ObservedPod, now_ns: int) -> None:
        known = self._core.pods.get(seen.pod.uid)
        if seen.deleting:
            return
        if known is None:
            self._admission.enter(seen, now_ns)
        elif known.place is not Place.LOST:
            known.backoff_until_ns = known.backoff_until_ns if known.failing else 0
            self._admission.change(known, seen, now_ns, "PolicyChange")

    def _count_placed(self, seen: ObservedPod, now_ns: int) -> None:
        """Count a bound pod, or one that is being bound, in its gang while it is alive."""
        core, pod = self._core, seen.pod
        running = core.policies.running.get(pod.scheduler)
        if running is None or running.program.gang is None:
            return
        terms = None if seen.deleting else running.plan.gang(pod, core.namespace_of(pod))
        gang = core.gangs.of(pod.uid)
        if terms is None:
            self._uncount(pod, now_ns)
        elif gang is None or pod.uid not in gang.placed or gang.terms[pod.uid] != terms:
            after = core.gangs.add_placed(pod.uid, pod.scheduler, terms)
            if gang is not None and gang is not after:
                self._admission.refresh(gang, now_ns, "AssignedPodUpdate")
            self._admission.refresh(after, now_ns, "AssignedPodAdd")

    def _uncount(self, pod: Pod, now_ns: int) -> None:
        gang = self._core.gangs.remove(pod.uid)
        if gang is not None:
            self._admission.refresh(gang, now_ns, "PodDelete")

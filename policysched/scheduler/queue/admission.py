"""How a pending pod comes to stand in the queue, alone or with its gang, and how it leaves.

Everything here runs again for a pod whenever something changed that its standing depends on: the pod itself, its
namespace, its policy. A pod that the policy refuses by itself (a required label is absent, a feature that no built-in
covers) is held with those words until one of the three changes.
"""

from collections.abc import Iterable

from policysched.lang.ir.program import GangMode, OnTimeout
from policysched.model.objects import ObservedPod
from policysched.scheduler.commands import ReportPod
from policysched.scheduler.core import Core
from policysched.scheduler.gangs.gangs import Gang
from policysched.scheduler.limits import SECOND_NS
from policysched.scheduler.policies.rejection import span_of_time
from policysched.scheduler.queue.entries import PendingPod, Place
from policysched.scheduler.queue.heap import MovableHeap
from policysched.scheduler.queue.standing import Standing, standing_of


class Admission:
    """Owns the clocks of waiting: keys that change with time, gangs whose time is up, gangs that gather."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._flips: MovableHeap[PendingPod] = MovableHeap()
        self._deadlines: MovableHeap[Gang] = MovableHeap()
        self._gathering: MovableHeap[Gang] = MovableHeap()

    # ── one pod ────────────────────────────────────────────────────────────────────────────────────────────────────

    def enter(self, seen: ObservedPod, now_ns: int) -> None:
        """A pending pod that names a running policy is seen for the first time."""
        pod = self._core.pods[seen.pod.uid] = PendingPod(seen, queued_ns=now_ns)
        self._stand(pod, now_ns, "PodAdd")

    def change(self, pod: PendingPod, seen: ObservedPod, now_ns: int, event: str) -> None:
        """Something that its standing depends on is different now."""
        self._core.queue.take(pod, now_ns)
        gang = self._core.gangs.remove(pod.uid)
        pod.seen, pod.priority = seen, seen.pod.priority
        self._stand(pod, now_ns, event)
        if gang is not None and gang is not self._core.gangs.of(pod.uid):
            self.refresh(gang, now_ns, event)

    def come_back(self, pod: PendingPod, now_ns: int) -> None:
        """Its bind was refused: it is tried again after its backoff."""
        assert pod.place is Place.NOWHERE, f"{pod} is still {pod.place.value}"
        self._stand(pod, now_ns, "ScheduleAttemptFailure")

    def leave(self, pod: PendingPod, now_ns: int) -> None:
        """The pod is bound, gone, terminating or no longer ours."""
        self._core.queue.take(pod, now_ns)
        self._flips.discard(pod)
        self._core.reports.hush(pod.uid)
        self._core.pods.pop(pod.uid, None)

    def stop_clock(self, pod: PendingPod) -> None:
        """Its key in the queue does not matter any more."""
        self._flips.discard(pod)

    def leave_gang(self, pod: PendingPod, now_ns: int) -> None:
        """The pod counts in no gang any more."""
        gang = self._core.gangs.remove(pod.uid)
        if gang is not None:
            self.refresh(gang, now_ns, "PodDelete")

    def rekey(self, pod: PendingPod, now_ns: int) -> None:
        """What the order reads of the queue itself (attempts, waiting time) has changed."""
        plan = self._core.plan(pod.policy)
        pod.key, flip_ns = plan.order_key(pod.pod, self._core.namespace_of(pod.pod), pod.facts, now_ns)
        self._set_flip(pod, flip_ns)

    def _set_flip(self, pod: PendingPod, flip_ns: int | None) -> None:
        if flip_ns is None:
            self._flips.discard(pod)
        else:
            self._flips.put(pod, flip_ns)

    def stand_anew(self, policy: str, pods: Iterable[PendingPod], now_ns: int) -> None:
        """Many pods of a policy whose text was replaced, none of which stands anywhere: those that could be tried at
        once go into the queue together, in linear time."""
        together = []
        for pod in pods:
            pod.place = Place.NOWHERE
            if not pod.pod.gates and not pod.failed and not pod.failing:
                standing = self._standing(pod, now_ns)
                if standing.refusal is None and standing.gang is None:
                    self._take_up(pod, standing)
                    pod.backoff_until_ns = 0
                    together.append(pod)
                    continue
            self._stand(pod, now_ns, "PolicyChange")
        self._core.queue.fill(policy, together, "PolicyChange")

    def _stand(self, pod: PendingPod, now_ns: int, event: str) -> None:
        core, value = self._core, pod.pod
        if value.gates:
            pod.explanation = f"waits for its scheduling gates: {', '.join(value.gates)}"
            core.queue.gate(pod)
            return
        if pod.failed:
            self._hold(pod, pod.failed, now_ns)
            return
        standing = self._standing(pod, now_ns)
        if standing.refusal is not None:
            self._hold(pod, standing.refusal, now_ns)
            return
        self._take_up(pod, standing)
        if standing.gang is None:
            core.queue.enqueue(pod, now_ns, event)
            return
        pod.place = Place.MEMBER
        self.refresh(core.gangs.add_due(pod, standing.gang), now_ns, event)

    def _standing(self, pod: PendingPod, now_ns: int) -> Standing:
        core = self._core
        space, ready = core.namespace_of(pod.pod), core.prepared.get(pod.uid)
        if ready is not None and ready.still_right(pod.pod, space, pod.attempts):
            return ready
        running = core.policies.running[pod.policy]
        return standing_of(running.plan, pod.pod, space, pod.facts, now_ns, reads_queue=running.reads_queue)

    def _take_up(self, pod: PendingPod, standing: Standing) -> None:
        self._warn(pod, standing.warnings)
        pod.key, pod.kin, pod.held = standing.key, standing.kin, False
        self._set_flip(pod, standing.flip_ns)

    def _hold(self, pod: PendingPod, why: str, now_ns: int) -> None:
        """No node would help: no autoscaler is to buy one."""
        pod.held = True
        self._flips.discard(pod)
        self._core.take_back_nomination(pod.uid, now_ns)
        self._core.queue.park(
            pod,
            ("held", pod.uid),
            now_ns=now_ns,
            wakes=frozenset(),
            valid_until_ns=None,
            reason="PolicyPending",
            message=why,
        )
        self._core.report(pod, "PolicyPending", why, now_ns)

    def _warn(self, pod: PendingPod, words: tuple[str, ...]) -> None:
        new = [one for one in words if one not in pod.warned]
        pod.warned = words
        for one in new:
            self._core.out.append(_about(pod, "InvalidInput", one))

    # ── gangs ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def refresh(self, gang: Gang, now_ns: int, event: str) -> None:
        """Members came or went: let the gang stand where it now belongs. O(log members), except where a gang in mode
        `gate` opens or closes."""
        core = self._core
        if not gang.due:
            core.queue.take(gang, now_ns)
            self._deadlines.discard(gang)
            self._gathering.discard(gang)
            core.gangs.drop_if_empty(gang)
            return
        if not gang.enough:
            gang.overdue = False  # the trial that it was to have does not take place
        self._arm(gang)
        self._say_disagreement(gang)
        if not gang.enough:
            self._gather(gang, now_ns)
            return
        self._gathering.discard(gang)
        if gang.mode is GangMode.GATE:
            core.queue.take(gang, now_ns)
            for pod in gang.idle.values():
                pod.place = Place.NOWHERE
                core.queue.enqueue(pod, now_ns, event)
            gang.idle.clear()
            return
        gang.stand()
        if gang.place in (Place.ACTIVE, Place.BACKING_OFF):
            core.queue.reorder(gang)
        else:
            core.queue.take(gang, now_ns)
            core.queue.enqueue(gang, now_ns, event)

    def _gather(self, gang: Gang, now_ns: int) -> None:
        queue = self._core.queue
        if len(gang.idle) < len(gang.due):
            for pod in gang.due.values():
                if pod.uid not in gang.idle:
                    queue.take(pod, now_ns)
                    pod.place = Place.MEMBER
                    gang.idle[pod.uid] = pod
        if gang.place is not Place.GATED:
            queue.take(gang, now_ns)
            queue.gate(gang)
        for uid in [one for one in self._core.cache.nominated if one in gang.idle]:
            self._core.take_back_nomination(uid, now_ns)
        if gang not in self._gathering:
            self._gathering.put(gang, now_ns + round(self._core.limits.gang_report_delay_s * SECOND_NS))

    def _arm(self, gang: Gang) -> None:
        deadline_ns = gang.deadline_ns()
        if deadline_ns is None or gang.overdue:
            self._deadlines.discard(gang)
        elif gang not in self._deadlines or self._deadlines.key(gang) != deadline_ns:
            self._deadlines.put(gang, deadline_ns)

    def _say_disagreement(self, gang: Gang) -> None:
        minima = gang.disagreement
        if minima and not gang.said_disagreement:
            gang.said_disagreement = True
            words = (
                f"members of gang {gang.name} disagree on its minimum: "
                f"{', '.join(str(one) for one in minima)}; the largest counts"
            )
            self._core.out.append(_about(next(iter(gang.due.values())), "GangDisagrees", words))

    def forget_gangs(self, gangs: Iterable[Gang]) -> None:
        """These gangs are no more: their policy is being replaced."""
        for gang in gangs:
            self._deadlines.discard(gang)
            self._gathering.discard(gang)

    def time_up(self, gang: Gang, now_ns: int) -> None:
        """Its timeout has passed without it being placed."""
        gang.overdue = False
        timeout_ns = gang.timeout_ns
        assert timeout_ns is not None and gang.due, f"{gang} has no timeout or nobody due"
        words = f"gang {gang.name} was not placed within {span_of_time(timeout_ns)}"
        match gang.on_timeout:
            case OnTimeout.REQUEUE:
                self._tell(gang, f"{words}; it starts anew behind others")
                self._start_anew(gang, now_ns)
            case OnTimeout.FAIL:
                self._tell(gang, f"{words}; its members are not tried again until they are recreated")
                self._fail(gang, f"{words} and has failed: recreate its pods to try again", now_ns)
            case OnTimeout.BEST_EFFORT:
                self._tell(gang, f"{words}; what fits of it is placed from now on")
                gang.best_effort = True
                self.refresh(gang, now_ns, "GangTimeout")

    def _start_anew(self, gang: Gang, now_ns: int) -> None:
        gang.restarted_ns, gang.attempts, gang.backoff_until_ns = now_ns, 0, now_ns
        gang.last_in_line = True
        for pod in gang.due.values():
            pod.queued_ns = now_ns
            self.rekey(pod, now_ns)
            gang.reorder(pod)
        self.refresh(gang, now_ns, "GangTimeout")

    def _fail(self, gang: Gang, words: str, now_ns: int) -> None:
        core = self._core
        members = list(gang.due.values())
        for pod in members:
            core.queue.take(pod, now_ns)
            core.gangs.remove(pod.uid)
        self.refresh(gang, now_ns, "GangTimeout")
        for pod in members:
            pod.failed = words
            self._hold(pod, words, now_ns)

    def _tell(self, gang: Gang, words: str) -> None:
        self._core.out.append(_about(next(iter(gang.due.values())), "GangTimedOut", words))

    # ── time ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def advance(self, now_ns: int) -> None:
        """Do what has become due."""
        while (at_ns := self._flips.first_key()) is not None and at_ns <= now_ns:
            pod = self._flips.pop()
            assert pod is not None
            self._flip(pod, now_ns)
        while (at_ns := self._deadlines.first_key()) is not None and at_ns <= now_ns:
            gang = self._deadlines.pop()
            assert gang is not None
            self._check_deadline(gang, now_ns)
        while (at_ns := self._gathering.first_key()) is not None and at_ns <= now_ns:
            gang = self._gathering.pop()
            assert gang is not None
            words = f"gang {gang.name}: {gang.existing} of {gang.minimum} members needed exist"
            for pod in gang.due.values():
                self._core.report(pod, "PolicyPending", words, now_ns)

    def next_time_ns(self) -> int | None:
        times = (self._flips.first_key(), self._deadlines.first_key(), self._gathering.first_key())
        return min((time for time in times if time is not None), default=None)

    def _flip(self, pod: PendingPod, now_ns: int) -> None:
        """The moment is there at which the key may become another one. What has changed by time alone is looked at again after a second
        at the earliest; what has not, as soon as it may: at its very moment `waited > 8s` is not true yet."""
        before = pod.key
        self.rekey(pod, now_ns)
        if pod.key != before and pod in self._flips:
            self._flips.put(pod, max(self._flips.key(pod), now_ns + SECOND_NS))
        gang = self._core.gangs.of(pod.uid)
        if gang is not None and pod.uid in gang.idle:
            gang.reorder(pod)
            gang.stand()
            self._core.queue.reorder(gang)
        else:
            self._core.queue.reorder(pod)

    def _check_deadline(self, gang: Gang, now_ns: int) -> None:
        deadline_ns = gang.deadline_ns()
        if deadline_ns is None or not gang.due:
            return
        if deadline_ns > now_ns:
            self._deadlines.put(gang, deadline_ns)
        elif gang.enough and gang.mode is GangMode.GATE:
            return  # its members stand in the queue themselves: the gang has nothing left to wait for
        elif gang.place in (Place.ACTIVE, Place.BACKING_OFF):
            gang.overdue = True  # it is about to be tried: that trial decides
        else:
            self.time_up(gang, now_ns)


def _about(pod: PendingPod, reason: str, words: str) -> ReportPod:
    value = pod.pod
    return ReportPod(value.uid, value.namespace, value.name, value.scheduler, "Warning", reason, words)

"""Runs the attempts of pods and gangs in steps, one attempt at a time.

popped ─► pods that a change of their namespace has not reached? ──a slice of them──► back to the queue
       ─► its gang in mode `gate` opens or closes? ──a slice of its members──► back to the queue, or gated
       ─► many pods changed that totals count? ──a slice of them──► back to the head of the queue
       ─► charges of its members that take long? ──a slice of them──► back to the head of the queue
       ─► selectors of devices that are not evaluated? ──a slice of them──► back to the head of the queue
       ─► a set of layers whose rules are not lowered? ──a few of them───────► back to the head of the queue
       ─► runs ──a slice is over──► in progress: no event is applied ──► runs
           │└──a piece of a gang's search is over──► paused: events, and other pods ──► runs, or is given up
           │                                          │         └──in slices: is it still of use? no event is applied
           │                                          └──a gang, or a pod that is not decided beside it──► interrupted by its attempt,
           │                                                                             which may pause and be interrupted, too
           ├─► ends
           └─► raises: its pod or gang waits (`internal_errors`), and nothing of it is in effect. Once a pod is assumed:
               all is made anew without that pod (`blame`)
"""

from collections.abc import Iterator
from contextlib import contextmanager

from policysched.cluster.devices.search_limits import (
    ATTEMPT_STEPS_MAX,
    CHARGED_STEPS,
    GANG_SLICE_STEPS_MAX,
    KEY_STEPS,
    MEMBER_STEPS_MAX,
    SLICE_STEPS_MAX,
    SearchAllowance,
)
from policysched.evaluate import NotCounted
from policysched.scheduler.attempt import PodAttempts
from policysched.scheduler.attempt_preparation import AttemptPreparation
from policysched.scheduler.blame import RaisedFor
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.gangs.gang_attempt import GangAttempts
from policysched.scheduler.gangs.kept_nodes import KeptNodes
from policysched.scheduler.gangs.lost_nodes import depend_on_each_other
from policysched.scheduler.gangs.pause import Pause
from policysched.scheduler.internal_errors import InternalErrors
from policysched.scheduler.namespace_events import NamespaceEvents
from policysched.scheduler.pod_enqueuer import PodEnqueuer
from policysched.scheduler.queue.entries import PendingPod, QueueEntry, QueueState
from policysched.scheduler.queue.gang_registry import QueuedGang
from policysched.scheduler.running_attempt import Attempt, FailedBeside, InterruptedAttempt
from policysched.scheduler.steps import Steps

_SEARCHING_MAX = 64
"""Entries whose search for devices goes on, of which is known what their earlier slices left. They take turns."""
_OVERDRAWN_PIECES = 5
"""A piece of the search for a gang of an overdrawn namespace is so much shorter: pods of others wait for one."""
_INTERRUPTED_MAX = 8
"""Gangs whose attempts are interrupted at once. Each keeps an overlay."""
_GANGS_SHARE = 4
"""Gangs that interrupt an attempt take at most so many times its cost: one after the other would keep it from its end."""


class AttemptRunner:
    """At most one attempt runs, and interrupts at most one other. It is `in_progress` while the cluster must not change, or `paused`."""

    def __init__(
        self,
        core: SchedulerCore,
        enqueuer: PodEnqueuer,
        namespace_events: NamespaceEvents,
        pod_attempts: PodAttempts,
        gang_attempts: GangAttempts,
        errors: InternalErrors,
    ) -> None:
        self._core = core
        self._errors = errors
        self._enqueuer = enqueuer
        self._preparation = AttemptPreparation(core, enqueuer, namespace_events, pod_attempts)
        self._pod_attempts = pod_attempts
        self._gang_attempts = gang_attempts
        self._attempt: Attempt | None = None
        self._pause: Pause | None = None
        # The last one by `_attempt`, and each other by the next one.
        self._interrupted: list[InterruptedAttempt] = []
        self._failed_beside: FailedBeside = []
        self._searching: dict[QueueEntry, Attempt] = {}
        self._last_run: Attempt | None = None
        self._running: tuple[QueueEntry, int] | None = None  # and its attempts before
        self.has_attempted = False

    @property
    def in_progress(self) -> bool:
        """Whether an attempt has steps left, or waits for those of earlier entries of its policy."""
        return not self.paused and (self._attempt is not None or self._core.queue.yielded is not None)

    @property
    def paused(self) -> bool:
        return self._pause is not None and not self._pause.is_asking

    def advance(self, cost_max: int | None, now_ns: int) -> None:
        """Continue the attempt in progress, or begin with the next entry of the queue; no longer than a slice of
        `cost_max` (None: to its end, without a pause)."""
        with self._stays_with_its_pod(now_ns):
            self._advance(cost_max, now_ns)
            self._end_interruption()

    def _advance(self, cost_max: int | None, now_ns: int) -> None:
        if self._pause is not None:
            self._advance_pause(cost_max, now_ns)
            return
        if self._attempt is not None:
            self._run(self._attempt, cost_max)
            return
        self._last_run = None
        may_change = cost_max is not None and self._core.queue.yielded is None
        entry = self._core.queue.pop()
        if entry is not None:
            self._begin(entry, cost_max, now_ns, may_change=may_change)

    def _begin(self, entry: QueueEntry, cost_max: int | None, now_ns: int, *, may_change: bool) -> None:
        """Begin the attempt of an entry that was just popped, or run a slice of what that needs."""
        self._running = entry, entry.attempts
        if self._awaits_slice(entry, now_ns):
            return
        payer = self._preparation.payer_of_slice(entry, cost_max, now_ns, may_change=may_change)
        if payer is None:
            self.attempt(entry, cost_max, now_ns)
            return
        self._last_run = self._slice_for(entry)
        self._last_run.charges_policy_alone = payer == "policy"

    def _awaits_slice(self, entry: QueueEntry, now_ns: int) -> bool:
        slice_ = self._slice_for(entry)  # it may have no pod afterwards
        payer = self._preparation.awaits_slice(entry, now_ns)
        if payer is not None:
            slice_.charges_policy_alone = payer == "policy"
            self._last_run = slice_
        return payer is not None

    def _slice_for(self, entry: QueueEntry) -> Attempt:
        return Attempt(entry, self._nothing(), entry.attempts, entry.representative_pod, prepares=True)

    def attempt(self, entry: QueueEntry, cost_max: int | None, now_ns: int) -> None:
        """Begin the attempt of a detached entry."""
        self.has_attempted = True
        match entry:
            case PendingPod():
                steps = self._pod_attempts.attempt_pod(entry, now_ns)
            case QueuedGang():
                self._gang_attempts.begin(now_ns, is_limited=cost_max is not None)
                steps = self._gang_attempts.attempt_gang(entry, now_ns)
            case _:
                raise AssertionError(f"{entry} is neither a pod nor a gang")
        earlier = self._searching.get(entry)
        self._run(
            Attempt(
                entry,
                steps,
                entry.attempts,
                entry.representative_pod,
                elapsed_ns=earlier.elapsed_ns if earlier is not None and earlier.charges_policy_alone else 0,
                devices=self._search_allowance(entry, cost_max),
            ),
            cost_max,
        )

    def _search_allowance(self, entry: QueueEntry, cost_max: int | None) -> SearchAllowance:
        """For a slice of the search for devices. An entry that was put back has what its earlier slices left."""
        steps_max, more, of_members = SLICE_STEPS_MAX, 0, 0
        if isinstance(entry, QueuedGang):
            count = len(entry.pending_members)
            more = MEMBER_STEPS_MAX * count
            steps_max, of_members = SLICE_STEPS_MAX + KEY_STEPS * count, GANG_SLICE_STEPS_MAX + more
        earlier = self._searching.get(entry)
        left = ATTEMPT_STEPS_MAX + more if earlier is None else earlier.devices.attempt_steps_left
        steps = left if cost_max is None else min(left, steps_max)
        allowance = SearchAllowance(steps, left, accepts_outdated=True, steps_of_members=of_members)
        # Without it, a gang could search for only one text of claims while devices change.
        if earlier is not None and isinstance(entry, QueuedGang):
            allowance.accepted = earlier.devices.accepted
        return allowance

    def advance_pause(self, cost_max: int, now_ns: int) -> None:
        """Decide about one pod beside the paused attempt, or begin an attempt that interrupts it, or continue it."""
        with self._stays_with_its_pod(now_ns):
            self._advance_pause(cost_max, now_ns)
            self._end_interruption()

    def _advance_pause(self, cost_max: int | None, now_ns: int) -> None:
        pause, attempt = self._pause, self._attempt
        assert pause is not None and attempt is not None, "no attempt is paused"
        self._running = attempt.entry, attempt.attempts_before
        ends_attempt = pause.ask_whether_to_end(cost_max, now_ns)
        if ends_attempt is None:
            self._last_run = attempt
            return
        if ends_attempt:
            pause.gang.keeps_nodes |= attempt.was_interrupted
            pause.gang.lost_nodes = pause.lost_count > 0
            self._give_up(attempt, now_ns)
            return
        if cost_max is None:
            return  # an event is to be applied
        entry = pause.next_entry(others=[each.pause for each in self._interrupted])
        if entry is not None and self._awaits_slice(entry, now_ns):
            return
        if entry is not None:
            self._last_run = Attempt(entry, self._nothing(), entry.attempts, entry.representative_pod)
            self._running = entry, entry.attempts
            self._last_run.has_failed = pause.decide(entry, now_ns)
            if pause.interrupts:
                pause.interrupts, attempt.was_interrupted = False, True
                self._interrupt(attempt, pause)
                self._begin(entry, cost_max, now_ns, may_change=True)
            return
        attempt.lost_count = pause.lost_count
        self._end_pause()
        others_wait = self._core.queue.has_active or any(each[2] for each in self._failed_beside)
        self._gang_attempts.resume(now_ns, cluster_changed=pause.cluster_changed, others_wait=others_wait)
        attempt.piece_cost = 0
        self._run(attempt, cost_max)

    def _interrupt(self, attempt: Attempt, pause: Pause) -> None:
        state, failed = self._gang_attempts.state, self._failed_beside
        self._interrupted.append(InterruptedAttempt(attempt, pause, state, failed))
        self._attempt, self._pause, self._failed_beside = None, None, []
        self._core.kept_nodes = self._kept_nodes()

    def _end_interruption(self) -> None:
        """If the attempt is over that another one was interrupted for, that is paused again."""
        if self._attempt is None and self._interrupted:
            self._attempt, self._pause, self._gang_attempts.state, self._failed_beside = (
                self._interrupted.pop()
            )
            if (ended := self._last_run) is not None:
                self._pause.cost_left -= ended.cost
                is_gang = isinstance(ended.entry, QueuedGang)
                self._attempt.gangs_cost += ended.cost + ended.gangs_cost if is_gang else 0
            self._core.queue.pause_beside(self._pause.gang)
            self._core.kept_nodes = self._kept_nodes()

    def _kept_nodes(self) -> KeptNodes | None:
        pauses = [each.pause for each in self._interrupted if each.pause.gang.keeps_nodes]
        return KeptNodes(self._core, pauses, self._interrupted[-1].pause) if pauses else None

    def account_time(self, elapsed_ns: int) -> int | None:
        """Charge the time of the last call of `advance` or `advance_pause` to the policy. Charge it to the namespace, too, if the
        attempt failed or took long because of the pod's own terms; otherwise the namespace pays if the bind is refused later.
        Returns the time of the attempt that ended in the call."""
        attempt, time = self._last_run, self._core.queue.decision_time
        if attempt is None:
            return None
        entry = attempt.entry
        time.charge(entry.policy, elapsed_ns)
        attempt.elapsed_ns += elapsed_ns
        if attempt is self._attempt:
            return None
        self._last_run = None
        time.record_attempt(entry.namespace)
        is_parked = entry.state is QueueState.UNSCHEDULABLE and entry.attempts > attempt.attempts_before
        is_failed = attempt.has_failed or is_parked
        is_long = attempt.prepares or not self._core.evaluator.is_short_decision(attempt.pod)
        if (is_failed or is_long) and not attempt.charges_policy_alone:
            time.charge_failed_attempt(entry.namespace, attempt.elapsed_ns)
        elif not attempt.prepares:
            uids = entry.placed_members if isinstance(entry, QueuedGang) else (attempt.pod.uid,)
            self._core.binds.note_decision(uids, attempt.elapsed_ns)
        return None if attempt.prepares or entry is self._core.queue.yielded else attempt.elapsed_ns

    def requeue(self, now_ns: int) -> None:
        """Give up each attempt that is begun and requeue its pod or gang, as if there had been none."""
        if self._attempt is not None and self._gang_attempts.has_begun_evictions(self._attempt.entry):
            self.advance(None, now_ns)  # pods are evicted for all members or for none
        attempt = self._attempt
        is_queued = self._pause is not None and self._pause.gang.state is not QueueState.ATTEMPTING
        self._end_pause()
        self._attempt = None
        self._return_failed()
        if attempt is not None and not is_queued:
            entry = attempt.entry
            entry.state = QueueState.DETACHED
            if isinstance(entry, QueuedGang):
                self._gang_attempts.state.counted.undo(entry)
            else:
                entry.attempts -= 1
            self._core.queue.enqueue(entry, now_ns, "ScheduleAttemptFailure")
        self._core.queue.yielded = None
        if self._interrupted:
            self._end_interruption()
            self.requeue(now_ns)

    def _run(self, attempt: Attempt, cost_max: int | None) -> None:
        """Run the attempt until it ends, pauses, or has cost this much (None: until it ends)."""
        self._attempt, attempt.entry.state = None, QueueState.DETACHED
        self._last_run, self._running = attempt, (attempt.entry, attempt.attempts_before)
        cost = 0
        with self._core.cache.devices.allocation_cache.limited(attempt.devices):
            for step_cost in attempt.steps:
                cost += step_cost
                attempt.cost += step_cost
                attempt.piece_cost += step_cost
                if cost_max is None:
                    continue
                if self._pauses(attempt) or cost >= cost_max:
                    self._attempt, attempt.entry.state = attempt, QueueState.ATTEMPTING
                    return
            goes_on = self._core.cache.devices.allocation_cache.goes_on_at_once
        self._return_failed()
        attempt.has_failed = attempt.entry.in_error_backoff  # beside members that keep their nodes
        if isinstance(attempt.entry, QueuedGang):
            gang, attempt.has_failed = attempt.entry, self._gang_attempts.state.has_failed
            yields = gang.state is QueueState.ACTIVE and not attempt.has_failed
            gang.lost_nodes = attempt.lost_count > 0 if attempt.has_failed else yields and gang.lost_nodes
            gang.keeps_nodes = gang.lost_nodes or (yields and gang.keeps_nodes)
        self._searching.pop(attempt.entry, None)
        if goes_on and attempt.entry.state is QueueState.ACTIVE:
            self._searching[attempt.entry], attempt.prepares = attempt, True
            if len(self._searching) > _SEARCHING_MAX:
                del self._searching[next(iter(self._searching))]
            spent = ATTEMPT_STEPS_MAX - attempt.devices.attempt_steps_left
            is_short_repetition = attempt.devices.searches_again and spent < CHARGED_STEPS
            attempt.charges_policy_alone = is_short_repetition and isinstance(attempt.entry, PendingPod)
            self._core.queue.yielded = None

    @contextmanager
    def _stays_with_its_pod(self, now_ns: int) -> Iterator[None]:
        """What the decision about a pod raises is a fault of it alone, if nothing is in effect yet."""
        self._running = None
        in_flight = len(self._core.binds.in_flight)
        try:
            yield
        except (NotCounted, RaisedFor):
            raise  # a fault of another pod, and no decision is right any more
        except Exception as error:
            binds = self._core.binds.in_flight
            if len(binds) != in_flight:
                raise RaisedFor(next(reversed(binds.values())).pod.object_id) from error
            running = self._can_be_parked
            if running is None:
                raise
            entry, attempts_before = running
            if self._attempt is None or entry is self._attempt.entry:
                self._end_pause()
                self._attempt = self._core.queue.yielded = None
                self._return_failed()
                self._end_interruption()
            entry.state, entry.attempts = QueueState.DETACHED, attempts_before + 1
            if self._last_run is None or self._last_run.entry is not entry:
                self._last_run = Attempt(entry, self._nothing(), attempts_before, entry.representative_pod)
            self._errors.park(entry, error, now_ns)

    @property
    def _can_be_parked(self) -> tuple[QueueEntry, int] | None:
        running, states = self._running, (QueueState.DETACHED, QueueState.ATTEMPTING)
        return running if running is not None and running[0].state in states else None

    def _pauses(self, attempt: Attempt) -> bool:
        """Whether a piece of a gang's search is over, so that the attempt pauses."""
        limits, search, gang = self._core.limits, self._gang_attempts.pausable_search, attempt.entry
        if search is None or not isinstance(gang, QueuedGang):
            return False
        piece_cost_max = max(limits.gang_piece_cost_max, limits.gang_piece_cost_by_member * len(search.fits))
        if self._core.queue.decision_time.is_overdrawn(gang.namespace):
            piece_cost_max //= _OVERDRAWN_PIECES
        if attempt.piece_cost < piece_cost_max:
            return False
        overtaking = attempt.cost >= limits.gang_head_start_cost
        may_nest = len(self._interrupted) < _INTERRUPTED_MAX
        may_nest &= attempt.gangs_cost <= _GANGS_SHARE * attempt.cost
        is_late = attempt.cost >= limits.gang_head_start_cost // 2 and not gang.lost_nodes
        if is_late and not attempt.is_late and not depend_on_each_other(self._core, gang):
            attempt.is_late = True
            attempt.refused.clear()
            self._return_preemptors()
        self._core.queue.pause_beside(gang)
        self._pause = Pause(
            self._core,
            self._pod_attempts,
            self._enqueuer,
            gang,
            search,
            limits.gang_piece_cost_max,
            overtaking,
            attempt.devices,
            may_nest,
            attempt.is_late,
            attempt.lost_count,
            attempt.refused,
        )
        return True

    def _end_pause(self) -> None:
        if self._pause is not None:
            self._failed_beside += self._pause.failed
            self._core.queue.attempting.remove(self._pause.gang)
        self._pause = None

    def _return_preemptors(self) -> None:
        """They waited for the members to keep their nodes."""
        failed = self._failed_beside
        self._failed_beside = [each for each in failed if each[2]]
        self._return_failed()
        self._failed_beside = [each for each in failed if not each[2]]

    def _return_failed(self) -> None:
        """The attempt is over: nothing passes the pods that failed beside it any more, if it was not for an error since."""
        for pod, backoff_until_ns, may_preempt in self._failed_beside:
            if pod.backoff_until_ns == backoff_until_ns:
                pod.backoff_until_ns = 0 if may_preempt else backoff_until_ns
                self._core.queue.end_error_backoff(pod)
        self._failed_beside.clear()

    @staticmethod
    def _nothing() -> Steps[None]:
        yield from ()

    def _give_up(self, attempt: Attempt, now_ns: int) -> None:
        """The search is of no use any more. The gang is attempted again after its backoff, unless it was requeued."""
        self._end_pause()
        self._attempt, self._last_run, attempt.has_failed = None, attempt, True
        self._return_failed()
        attempt.steps.close()
        entry = attempt.entry
        if entry.state is QueueState.ATTEMPTING:
            entry.state = QueueState.DETACHED
            self._core.queue.apply_backoff(entry, now_ns)
            self._core.queue.enqueue(entry, now_ns, "ScheduleAttemptFailure")

"""Evictions for pods and gangs, from the decision to their answers.

    decided ──all deletions accepted──► the preemptor is requeued once its victims are gone
       └──refused──► its nomination is cleared, and the victim is passed over for a while

`DefaultPreemption` decides. Here is what it must know of evictions that are decided.
"""

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial

from policysched.model.cluster_events import ClusterEvent
from policysched.model.identifiers import PodUid
from policysched.model.pods import Pod
from policysched.scheduler.commands import Evict, Log, ReportPolicyEvent, ReportPreempted, Victim
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.events import EvictionRefused
from policysched.scheduler.limits import SECOND_NS
from policysched.scheduler.preemption.eviction_breaker import EvictionBreaker
from policysched.scheduler.preemption.evictions import Eviction, LeavingPods, abandoned
from policysched.scheduler.preemption.nominations import withdraw_gang_nominations
from policysched.scheduler.preemption.refused_evictions import RefusedEvictions
from policysched.scheduler.preemption.running_gangs import RunningGangs
from policysched.scheduler.preemption.victim_selection import Candidate
from policysched.scheduler.queue.entries import QueueEntry, QueueState
from policysched.scheduler.queue.gang_registry import QueuedGang
from policysched.scheduler.steps import Steps, visit_in_pieces

Uids = Collection[PodUid]
_NAMES_MAX = 100
"""Victims that a line of the log names."""
REFUSED_LOG_INTERVAL_NS = 60 * SECOND_NS
"""Between two lines of the log about refused evictions."""


class EvictionTracker:
    """Keeps the evictions in flight by preemptor, and what was refused, forbidden or done too often."""

    def __init__(self, core: SchedulerCore) -> None:
        self._core = core
        self.breaker = EvictionBreaker(core.limits)
        self.refused = RefusedEvictions(lambda uid: self.is_terminating(uid, self.is_leaving))
        self.leaving = LeavingPods()
        self._evicting: dict[PodUid, Eviction] = {}
        self.forbidden_until_ns = 0
        self.forbidden_message = ""
        self._refused_logged_ns, self._refused_count = -REFUSED_LOG_INTERVAL_NS, 0

    def is_evicting(self, uid: PodUid) -> bool:
        return uid in self._evicting

    def defer_attempt(self, uid: PodUid) -> bool:
        """Whether an eviction for the pod is in flight. The attempt is made once that is answered."""
        if self.is_evicting(uid):
            self._evicting[uid].requeue_wanted = True
        return self.is_evicting(uid)

    def defer_gang_attempt(self, gang: QueuedGang) -> bool:
        """Whether an eviction for one of its members is in flight."""
        members = self._evicting.keys() & gang.pending_members.keys()
        return any([self.defer_attempt(uid) for uid in members])  # noqa: C419 - sets requeue_wanted

    def is_terminating(self, uid: PodUid, is_leaving: Callable[[PodUid], bool]) -> bool:
        observed = self._core.cache.pods[uid]
        return is_leaving(uid) or (observed.deleting and observed.preempted)

    def is_leaving(self, uid: PodUid) -> bool:
        """Whether its deletion was requested, or is about to be, and the watch has not shown it yet."""
        return uid in self.leaving

    def running_gangs(self, namespace: str) -> RunningGangs:
        """As seen by preemptors of this namespace."""
        return RunningGangs(self._core, self.leaving.as_seen_by(namespace), self.is_leaving)

    def is_forbidden(self, now_ns: int) -> bool:
        """Whether the API server refused an eviction for lack of permission not long ago."""
        return now_ns < self.forbidden_until_ns

    def resumes_ns(self, namespace: str, now_ns: int) -> int | None:
        """When evictions by pods of the namespace that are forbidden or blocked now are tried again."""
        if self.is_forbidden(now_ns):
            return self.forbidden_until_ns
        return self.breaker.next_time_ns(namespace, now_ns)

    # ── the beginning ───────────────────────────────────────────────────────────────────────────────────────────────────

    def prepare(self, pod: Pod, chosen: Candidate, now_ns: int) -> Steps[Eviction]:
        """In pieces, as a victim may bring a gang of thousands with it. Nothing is in effect before it begins."""
        eviction = Eviction(pod, chosen.node, now_ns)
        yield from visit_in_pieces(chosen.victims, partial(self.add_victim, eviction), 1)
        return eviction

    def add_victim(self, eviction: Eviction, victim: Pod) -> None:
        observed, leaving = self._core.cache.pods[victim.uid], self.leaving
        if observed.deleting or leaving.is_leaving_for(victim.uid, eviction.pod.namespace):
            eviction.terminating.add(victim.uid)
        else:
            eviction.victims[victim.uid] = Victim(
                victim.uid, victim.namespace, victim.name, observed.generation
            )
            if victim.uid not in leaving and victim.uid not in eviction.counted:
                eviction.counted.add(victim.uid)
                warning = self.breaker.record(victim, eviction.pod, eviction.decided_ns)
                eviction.warnings += [] if warning is None else [warning]
        if len(eviction.first_names) < _NAMES_MAX:
            eviction.first_names.append(victim.full_name)

    def begin(self, eviction: Eviction, message: str | None = None) -> None:
        core, pod, node = self._core, eviction.pod, eviction.node
        victim_count = len(eviction.victims) + len(eviction.terminating)
        if victim_count:
            core.records.counters.victim_counts.append(victim_count)
        core.commands += [
            ReportPolicyEvent("Warning", "PreemptionStopped", text) for text in eviction.warnings
        ]
        self._end_eviction(pod.uid)
        self._evicting[pod.uid] = eviction
        self.leaving.begin(eviction)
        evict = Evict(pod.uid, pod.namespace, pod.name, pod.scheduler, node, tuple(eviction.victims.values()))
        core.commands.append(evict if message is None else replace(evict, message=message))

    def _end_eviction(self, preemptor: PodUid) -> Eviction | None:
        eviction = self._evicting.pop(preemptor, None)
        self.leaving.end(eviction)
        return eviction

    # ── the answers ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def on_evicted(self, preemptor: PodUid, victims: tuple[PodUid, ...], now_ns: int) -> None:
        """All victims are terminating or gone."""
        eviction = self._end_eviction(preemptor)
        if eviction is None:
            return
        if eviction.rest_of is not None:
            self._core.end_gang_failure(eviction.rest_of, preemptor)
        self._log_evicted(eviction)
        self._record_deletions(eviction, victims, leaving=eviction.victims)
        self.refused.record_success(eviction.victims[uid] for uid in victims if uid in eviction.victims)
        awaited = {*eviction.victims, *eviction.terminating, *eviction.gang_victims}
        other_eviction = self._other_gang_eviction(preemptor)
        if other_eviction is not None:
            other_eviction.requeue_wanted |= eviction.requeue_wanted
            other_eviction.gang_victims |= awaited
        elif eviction.requeue_wanted or not any(uid in self._core.cache.pods for uid in awaited):
            self._requeue(preemptor, now_ns, failing=False)

    def _other_gang_eviction(self, preemptor: PodUid) -> Eviction | None:
        """Another eviction in flight for the same gang: the last one to be answered requeues the gang."""
        gang = self._core.gangs.gang_of(preemptor)
        if gang is None or preemptor not in gang.unqueued_members:
            return None
        return next(
            (eviction for uid, eviction in self._evicting.items() if uid in gang.unqueued_members), None
        )

    def on_eviction_refused(self, event: EvictionRefused, now_ns: int) -> None:
        """The eviction was refused: the pod stays pending and loses its nomination. The rest of a gang is evicted later."""
        core, preemptor = self._core, event.preemptor
        eviction = self._end_eviction(preemptor)
        if eviction is None:
            return
        self._record_deletions(eviction, event.victims, leaving=(*event.victims, *event.gone))
        if event.forbidden:
            self._forbid(event.reason, now_ns)
        if event.refused is not None and event.refused in core.cache.pods:
            self.refused.record(eviction.victims[event.refused], now_ns, eviction.decided_ns)
        if eviction.rest_of is not None:
            core.defer_gang_eviction(
                eviction.rest_of, preemptor, event.reason, self.forbidden_until_ns, now_ns
            )
        # First: the next event requeues the preemptor, too, without error backoff.
        self._requeue(preemptor, now_ns, failing=not event.forbidden)
        # Others wait for these victims, too. If they are of higher priority, they cleared the nomination.
        core.queue.requeue({ClusterEvent.ASSIGNED_POD_DELETE}, now_ns, cause=eviction.pod.namespace)
        if preemptor in core.cache.pods and core.cache.pods[preemptor].node is None:
            gang = core.gangs.gang_of(preemptor)
            if gang is not None and preemptor in gang.unqueued_members:
                withdraw_gang_nominations(core, gang, now_ns)
            else:
                core.withdraw_nomination(preemptor, now_ns)
        self._log_refused(eviction, event.reason, now_ns)

    def _log_evicted(self, eviction: Eviction) -> None:
        names, victims = ", ".join(eviction.first_names), len(eviction.victims) + len(eviction.terminating)
        if victims > _NAMES_MAX:
            names += f" and {victims - _NAMES_MAX} more"
        fields = {"pod": eviction.pod.full_name, "node": eviction.node or "", "victims": names}
        self._core.commands.append(Log("info", "evicted victims for a pod", fields))

    def _log_refused(self, eviction: Eviction, reason: str, now_ns: int) -> None:
        """Once a minute: a webhook can refuse the victims of hundreds of preemptors again and again."""
        self._refused_count += 1
        if now_ns >= self._refused_logged_ns + REFUSED_LOG_INTERVAL_NS:
            fields = {
                "preemptor": eviction.pod.full_name,
                "node": eviction.node or "",
                "error": reason,
                "count": self._refused_count,
            }
            self._core.commands.append(Log("warning", "cannot evict the victims of a preemptor", fields))
            self._refused_logged_ns, self._refused_count = now_ns, 0

    def _record_deletions(self, eviction: Eviction, deleted: Uids, *, leaving: Uids) -> None:
        """`leaving`: also victims that no longer existed, which the watch may not have shown yet."""
        core, pod, deleted = self._core, eviction.pod, frozenset(deleted)
        for uid in leaving:
            observed = core.cache.pods.get(uid)
            if observed is not None and not observed.deleting:
                self.leaving.requested.add(uid)
            if uid in deleted and eviction.node is not None:
                core.commands.append(
                    ReportPreempted(
                        eviction.victims[uid], pod.uid, pod.namespace, pod.name, pod.scheduler, eviction.node
                    )
                )

    def _forbid(self, reason: str, now_ns: int) -> None:
        """Suspend preemption after a 403, with one event: retries fail until the permissions change."""
        message = f"forbidden by the API server: {reason}"
        limits = self._core.limits
        self.forbidden_until_ns = now_ns + round(limits.eviction_forbidden_retry_s * SECOND_NS)
        if message != self.forbidden_message:
            self.forbidden_message = message
            effect = f"evictions are retried every {limits.eviction_forbidden_retry_s:g} s"
            self._core.commands.append(
                ReportPolicyEvent("Warning", "PreemptionForbidden", f"preemption is {message}; {effect}")
            )

    def _requeue(self, uid: PodUid, now_ns: int, *, failing: bool) -> None:
        """Requeue the pod, or its gang, if parked; in any other state it is on its way already, but a failing one that others
        woke would not wait for its backoff. A pod that PreEnqueue rejected (as its gang failed meanwhile) is not touched."""
        pod = self._core.pods.get(uid)
        if pod is not None and pod.admission_rejected:
            return
        entry: QueueEntry | None = pod
        if entry is not None and entry.state is QueueState.GANG_MEMBER:
            entry = self._core.gangs.gang_of(uid)
        is_woken = failing and entry is not None and entry.state is QueueState.BACKING_OFF
        if entry is not None and (is_woken or entry.state is QueueState.UNSCHEDULABLE):
            self._core.queue.remove(entry, now_ns)
            entry.in_error_backoff = failing
            self._core.queue.enqueue(entry, now_ns, "Preemption")

    def forget(self, uid: PodUid) -> None:
        """Forget a pod that is deleted or terminating."""
        self._core.commands += abandoned(self._evicting.get(uid))
        self.leaving.requested.discard(uid)
        self.refused.forget(uid)

    def check(self) -> list[str]:
        """Inconsistencies with the cache, one message each."""
        return [
            f"{uid}: deletion requested, but the pod is not in the cache"
            for uid in self.leaving.requested - self._core.cache.pods.keys()
        ]

"""Preemption: picks victims for a pod or gang without a node, and follows the evictions.

    unschedulable ──candidate──► evicting ──all deletions accepted──► nominated ──victims gone──► requeued
         │                          └──refused──► pending, nomination cleared, the victim passed over for a while
         └── no candidate: pending, with the reasons

The pod is nominated to the node from the decision on: the node's capacity is reserved against pods of lower or equal priority.
The pod is not attempted while its eviction is in flight, and it evicts no further pods while victims are terminating on its
node. For a gang the same is done for all members that are needed, or for none (`gangs.gang_preemption`); members keep or lose
their nominations together. Source: DefaultPreemption of kube-scheduler 1.37.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import replace

from policysched.evaluate import DryRun
from policysched.model.identifiers import NodeName, PodUid
from policysched.model.pod_status import ObservedPod
from policysched.model.pods import Pod
from policysched.scheduler.commands import Evict, Log, ReportPolicyEvent, ReportPreempted, Victim
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.events import EvictionRefused
from policysched.scheduler.limits import SECOND_NS
from policysched.scheduler.preemption.best_candidate_search import find_best_candidate, rejection_reasons
from policysched.scheduler.preemption.candidate_search import NOT_SEARCHED, find_candidates, no_evictable_pods
from policysched.scheduler.preemption.eviction_breaker import EvictionBreaker
from policysched.scheduler.preemption.eviction_rights import EvictionRights, eviction_rights, rights_key
from policysched.scheduler.preemption.evictions import Eviction, LeavingPods, abandoned
from policysched.scheduler.preemption.gang_placement import (
    PREEMPTION_NEVER,
    PREEMPTION_TOO_EXPENSIVE,
    VICTIMS_TERMINATING,
    WAITS_FOR_HELD_CAPACITY,
    AddToOverlay,
    EvaluateMember,
    FindGangPlacement,
    GangPlacement,
    GangSearchContext,
    NoGangPlacement,
)
from policysched.scheduler.preemption.nominations import competing_nominations, fits_after_first_holds
from policysched.scheduler.preemption.post_filter_messages import (
    ClaimPostFilterMessage,
    placement_message,
    preemption_message,
)
from policysched.scheduler.preemption.preemption_result import NoPreemption, PreemptionStarted
from policysched.scheduler.preemption.refused_evictions import RefusedEvictions
from policysched.scheduler.preemption.running_gangs import EvictablePods, RunningGangs
from policysched.scheduler.preemption.victim_selection import Candidate, PreemptionInputs
from policysched.scheduler.queue.entries import PendingPod, QueueEntry, QueueState
from policysched.scheduler.queue.gang_registry import QueuedGang
from policysched.scheduler.queue.movable_heap import earlier_ns
from policysched.scheduler.queue.refused_binds import BINDS_REFUSED, gang_evicts_after_ns
from policysched.scheduler.steps import Steps
from policysched.scheduler.unschedulable_message import unavailable_message

_GOES_ON_NS = 10 * SECOND_NS  # after a search that did not try all nodes
Uids = Collection[PodUid]


class DefaultPreemption:
    """Runs preemption; keeps the evictions in flight by preemptor."""

    def __init__(self, core: SchedulerCore) -> None:
        self._core = core
        self._breaker = EvictionBreaker(core.limits)
        self.refused = RefusedEvictions(lambda uid: self._is_terminating(uid, self.is_leaving))
        self._evicting: dict[PodUid, Eviction] = {}
        self._leaving = LeavingPods()
        self._forbidden_until_ns = 0
        self._forbidden_message = ""

    # ── decision ───────────────────────────────────────────────────────────────────────────────────────────────────

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

    def preempt_for_pod(
        self, pod: PendingPod, now_ns: int, claims: ClaimPostFilterMessage = ClaimPostFilterMessage.NONE
    ) -> Steps[PreemptionStarted | NoPreemption | None]:
        """Preempt for a pod that no node fits. None: the policy does not allow preemption. `claims`: the message about its
        device claims."""
        core, value = self._core, pod.pod
        plan = core.plan(pod.policy)
        if not plan.allows_preemption:
            return None
        core.records.counters.preemption_attempts += 1
        if value.preemption_policy == "Never":
            return self._no_preemption(pod.policy, PREEMPTION_NEVER, claims=claims)
        if now_ns < pod.evicts_after_ns:
            return self._no_preemption(pod.policy, BINDS_REFUSED, pod.evicts_after_ns, claims)
        if core.evaluator.long_decision_cost(value):
            return self._no_preemption(pod.policy, PREEMPTION_TOO_EXPENSIVE, claims=claims)
        if now_ns < self._forbidden_until_ns:
            return self._no_preemption(pod.policy, self._forbidden_message, self._forbidden_until_ns, claims)
        if fits_after_first_holds(core, pod, now_ns):
            return self._no_preemption(pod.policy, WAITS_FOR_HELD_CAPACITY, claims=claims)
        yield core.limits.attempt_step_cost_max  # the next slice looks at all nodes again
        nominated = core.cache.nominated.get(pod.uid)
        dry_run = core.evaluator.dry_run(
            plan,
            value,
            **core.evaluation_inputs(pod, now_ns),
            nominated_pods=competing_nominations(core, value),
            nominated_node=None if nominated is None else nominated.nominated_node,
        )
        allowed = eviction_rights(core, pod, now_ns, self.refused)
        if self._victims_terminating(value, dry_run, allowed):
            return self._no_preemption(pod.policy, VICTIMS_TERMINATING, claims=claims)
        blocked_until_ns = self._breaker.next_time_ns(now_ns)
        lowest = core.cache.ledger.lowest_priority
        if lowest is None or lowest >= value.priority:
            chosen, reasons = None, no_evictable_pods(dry_run, len(core.cache.nodes)).reasons
        else:
            cluster = PreemptionInputs(
                self._pods_on,
                self._started_ns,
                core.cache.budgets,
                len(core.cache.nodes),
                RunningGangs(core, self.is_leaving),
                allowed.order,
                pod.attempts,
            )
            chosen, reasons = yield from self.choose(
                dry_run, lambda victim: allowed(victim) and not self._breaker.blocks(victim, now_ns), cluster
            )
        if chosen is None:
            self._core.withdraw_nomination(pod.uid, now_ns)
            message = allowed.explain(unavailable_message(len(core.cache.nodes), reasons))
            goes_on_ns = now_ns + _GOES_ON_NS if NOT_SEARCHED in reasons else None
            expiry_ns = earlier_ns(blocked_until_ns, allowed.next_change_ns, goes_on_ns)
            return self._no_preemption(pod.policy, message, expiry_ns, claims)
        self.evict(pod, chosen, now_ns)
        return PreemptionStarted(placement_message(plan.program, chosen.node, len(chosen.victims)))

    def choose(
        self, dry_run: DryRun, may_evict: Callable[[Pod], bool], cluster: PreemptionInputs
    ) -> Steps[tuple[Candidate | None, Mapping[str, int]]]:
        """The least disruptive candidate, or the reasons why there is none."""
        if dry_run.node_local:
            candidates, best = yield from find_best_candidate(dry_run, EvictablePods(may_evict), cluster)
            return best, rejection_reasons(candidates, dry_run, cluster)
        result = yield from find_candidates(dry_run, EvictablePods(may_evict), cluster)
        return result.best, result.reasons

    def preempt_for_gang(
        self,
        gang: QueuedGang,
        equivalence_keys: Mapping[PodUid, Hashable],
        evaluate: EvaluateMember,
        add_to_overlay: AddToOverlay,
        find_placement: FindGangPlacement,
        clock: Callable[[], int],
    ) -> Steps[PreemptionStarted | NoPreemption | None]:
        """Preempt for a whole gang that does not fit. None: the policy does not allow preemption. The search may pause."""
        core, now_ns = self._core, clock()
        if not core.plan(gang.policy).allows_preemption:
            self.clear_gang_nominations(gang, now_ns)
            return None
        core.records.counters.preemption_attempts += 1
        if now_ns < self._forbidden_until_ns:
            return self._no_gang_preemption(gang, self._forbidden_message, self._forbidden_until_ns, now_ns)
        if now_ns < (after_ns := gang_evicts_after_ns(gang)):
            return self._no_gang_preemption(gang, BINDS_REFUSED, after_ns, now_ns)
        rights, is_leaving = dict[Hashable, EvictionRights](), self._leaving.as_seen_by(gang.namespace)

        def rights_of(pod: PendingPod) -> EvictionRights:
            if (key := rights_key(core, pod)) not in rights:
                rights[key] = eviction_rights(core, pod, clock(), self.refused)
            return rights[key]

        context = GangSearchContext(
            equivalence_keys=equivalence_keys,
            eviction_rights=rights_of,
            forget_rights=rights.clear,
            eviction_blocked=lambda victim: self._breaker.blocks(victim, clock()),
            is_terminating=lambda uid: self._is_terminating(uid, is_leaving),
            started_ns=self._started_ns,
            evaluate=evaluate,
            add_to_overlay=add_to_overlay,
        )
        outcome = yield from find_placement(core, gang, context, now_ns)
        match outcome:
            case NoGangPlacement(message, victims_terminating=True):
                return self._no_preemption(gang.policy, message)
            case NoGangPlacement(message, retry_ns=retry_ns):
                times = [each.next_change_ns for each in rights.values()]
                until_ns = earlier_ns(self._breaker.next_time_ns(now_ns), retry_ns, *times)
                return self._no_gang_preemption(gang, message, until_ns, clock())
            case GangPlacement() as placement:
                yield from self.evict_for_gang(gang, placement, clock())
                return PreemptionStarted()

    def _no_gang_preemption(
        self, gang: QueuedGang, message: str, valid_until_ns: int | None, now_ns: int
    ) -> NoPreemption:
        self.clear_gang_nominations(gang, now_ns)
        return self._no_preemption(gang.policy, message, valid_until_ns)

    def clear_gang_nominations(self, gang: QueuedGang, now_ns: int) -> None:
        """Clear the nominations of all pending members together."""
        for uid in [uid for uid in self._core.cache.nominated if uid in gang.pending_members]:
            self._core.withdraw_nomination(uid, now_ns)

    def evict_for_gang(self, gang: QueuedGang, placement: GangPlacement, now_ns: int) -> Steps[None]:
        """The same for all members of the placement, whose victims can be thousands."""
        nominated = self._core.cache.nominated
        placed_uids = {member.pod.uid for member in placement.members}
        for uid in [uid for uid in nominated if uid in gang.pending_members and uid not in placed_uids]:
            self._core.withdraw_nomination(uid, now_ns)
        on_node = defaultdict[NodeName | None, list[ObservedPod]](
            list
        )  # once, as the members will be nominated, too
        for observed in nominated.values():
            on_node[observed.nominated_node].append(observed)
        for member in placement.members:
            current = nominated.get(member.pod.uid)
            self._clear_lower_nominations(member.pod, on_node[member.node], now_ns)
            if member.candidate.victims or current is None or current.nominated_node != member.node:
                self._evict(member.pod, member.candidate, now_ns)
            yield 1 + len(member.candidate.victims) // 4  # beginning is cheaper than removing

    def _victims_terminating(self, pod: Pod, dry_run: DryRun, allowed: EvictionRights) -> bool:
        """Whether victims of an earlier attempt are still on the pod's nominated node, which may yet fit it."""
        nominated = self._core.cache.nominated.get(pod.uid)
        node = None if nominated is None else nominated.nominated_node
        if node is None or node not in dry_run.potential_nodes:
            return False
        leaving = self._leaving.as_seen_by(pod.namespace)
        return any(
            allowed(victim) and self._is_terminating(victim.uid, leaving) for victim in self._pods_on(node)
        )

    def _is_terminating(self, uid: PodUid, is_leaving: Callable[[PodUid], bool]) -> bool:
        observed = self._core.cache.pods[uid]
        return is_leaving(uid) or (observed.deleting and observed.preempted)

    def is_leaving(self, uid: PodUid) -> bool:
        """Whether its deletion was requested, or is about to be, and the watch has not shown it yet."""
        return uid in self._leaving

    def evict(self, pod: PendingPod, chosen: Candidate, now_ns: int) -> None:
        """Start the evictions, and nominate the pod to its node. Victims may be on other nodes too."""
        on_node = [each for each in self._core.cache.nominated.values() if each.nominated_node == chosen.node]
        self._clear_lower_nominations(pod, on_node, now_ns)
        self._evict(pod, chosen, now_ns)

    def _evict(self, pod: PendingPod, chosen: Candidate, now_ns: int) -> None:
        self._core.queue.requeue(self._core.cache.nominate(pod.uid, chosen.node), now_ns, cause=pod.namespace)
        self._start_eviction(pod.pod, chosen.node, chosen.victims, now_ns)

    def evict_rest_of_gang(self, failed: Pod, members: tuple[Pod, ...], message: str, now_ns: int) -> None:
        """Evict the bound members of a gang that cannot run, because `failed` could not be bound."""
        self._start_eviction(failed, None, members, now_ns, message)

    def _start_eviction(
        self,
        pod: Pod,
        node: NodeName | None,
        chosen: tuple[Pod, ...],
        now_ns: int,
        message: str | None = None,
    ) -> None:
        core = self._core
        uids, is_leaving = [victim.uid for victim in chosen], self._leaving.as_seen_by(pod.namespace)
        terminating = frozenset(uid for uid in uids if core.cache.pods[uid].deleting or is_leaving(uid))
        victims = [
            Victim(victim.uid, victim.namespace, victim.name, core.cache.pods[victim.uid].generation)
            for victim in chosen
            if victim.uid not in terminating
        ]
        if chosen:
            core.records.counters.victim_counts.append(len(chosen))
        for victim in chosen:
            is_counted = victim.uid in terminating or self.is_leaving(victim.uid)
            warning = None if is_counted else self._breaker.record(victim, now_ns)
            if warning is not None:
                core.commands.append(ReportPolicyEvent("Warning", "PreemptionStopped", warning))
        self._end_eviction(pod.uid)
        eviction = Eviction(pod, node, {victim.uid: victim for victim in victims}, terminating, now_ns)
        self._evicting[pod.uid] = eviction
        self._leaving.begin(eviction)
        evict = Evict(pod.uid, pod.namespace, pod.name, pod.scheduler, node, tuple(victims))
        core.commands.append(evict if message is None else replace(evict, message=message))
        fields = {"pod": pod.full_name, "node": node or "", "victims": ", ".join(v.full_name for v in chosen)}
        core.commands.append(Log("info", "evicting victims for a pod", fields))

    def _end_eviction(self, preemptor: PodUid) -> Eviction | None:
        eviction = self._evicting.pop(preemptor, None)
        self._leaving.end(eviction)
        return eviction

    def _clear_lower_nominations(self, pod: PendingPod, on_node: Iterable[ObservedPod], now_ns: int) -> None:
        """Clear nominations of lower priority to its node, of any scheduler; for a gang, those of all its members."""
        gangs = self._core.gangs
        pod_gang = gangs.gang_of(pod.uid)
        for observed in on_node:
            is_lower = observed.pod.priority < pod.priority
            placed = self._core.cache.ledger.placement(observed.pod.uid) is not None
            if is_lower and not placed and observed.pod.uid != pod.uid:
                gang = gangs.gang_of(observed.pod.uid)
                if gang is None or observed.pod.uid not in gang.unqueued_members:
                    self._core.clear_nomination(observed.pod.uid, now_ns)
                elif gang is not pod_gang:
                    self.clear_gang_nominations(gang, now_ns)
                    self._core.clear_nomination(observed.pod.uid, now_ns)

    def _no_preemption(
        self,
        policy: str,
        message: str,
        valid_until_ns: int | None = None,
        claims: ClaimPostFilterMessage = ClaimPostFilterMessage.NONE,
    ) -> NoPreemption:
        program, events = self._core.policies.running[policy].program, self._core.plan(policy).victim_events
        return NoPreemption(preemption_message(program, message, claims), valid_until_ns, events)

    def _pods_on(self, node: NodeName) -> Collection[Pod]:
        return self._core.cache.ledger.usage(node).pods.values()

    def _started_ns(self, uid: PodUid) -> int | None:
        return self._core.cache.pods[uid].started_ns

    def is_forbidden(self, now_ns: int) -> bool:
        """Whether the API server refused an eviction for lack of permission not long ago."""
        return now_ns < self._forbidden_until_ns

    def resumes_ns(self, now_ns: int) -> int | None:
        """When evictions that are forbidden or blocked now are tried again."""
        return self._forbidden_until_ns if self.is_forbidden(now_ns) else self._breaker.next_time_ns(now_ns)

    def is_eviction_blocked(self, victim: Pod, now_ns: int) -> bool:
        """Whether pods like the victim were evicted too often."""
        return self._breaker.blocks(victim, now_ns)

    # ── results of evictions ──────────────────────────────────────────────────────────────────────────────────────────

    def on_evicted(self, preemptor: PodUid, victims: tuple[PodUid, ...], now_ns: int) -> None:
        """All victims are terminating or gone."""
        eviction = self._end_eviction(preemptor)
        if eviction is None:
            return
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
        """The eviction was refused: the pod stays pending and loses its nomination."""
        core, preemptor = self._core, event.preemptor
        eviction = self._end_eviction(preemptor)
        if eviction is None:
            return
        self._record_deletions(eviction, event.victims, leaving=(*event.victims, *event.gone))
        if event.forbidden:
            self._forbid(event.reason, now_ns)
        if event.refused is not None and event.refused in core.cache.pods:
            self.refused.record(eviction.victims[event.refused], now_ns, eviction.decided_ns)
        # First: a cleared nomination requeues the pods that wait for capacity, and the preemptor too, without error backoff.
        self._requeue(preemptor, now_ns, failing=not event.forbidden)
        if preemptor in core.cache.pods and core.cache.pods[preemptor].node is None:
            gang = core.gangs.gang_of(preemptor)
            if gang is not None and preemptor in gang.unqueued_members:
                self.clear_gang_nominations(gang, now_ns)
            else:
                core.withdraw_nomination(preemptor, now_ns)
        fields = {"preemptor": eviction.pod.full_name, "node": eviction.node or "", "error": event.reason}
        core.commands.append(Log("warning", "cannot evict the victims of a preemptor", fields))

    def _record_deletions(self, eviction: Eviction, deleted: Uids, *, leaving: Uids) -> None:
        """`leaving`: also victims that no longer existed, which the watch may not have shown yet."""
        core, pod, deleted = self._core, eviction.pod, frozenset(deleted)
        for uid in leaving:
            observed = core.cache.pods.get(uid)
            if observed is not None and not observed.deleting:
                self._leaving.requested.add(uid)
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
        self._forbidden_until_ns = now_ns + round(limits.eviction_forbidden_retry_s * SECOND_NS)
        if message != self._forbidden_message:
            self._forbidden_message = message
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
        self._leaving.requested.discard(uid)
        self.refused.forget(uid)

    def check(self) -> list[str]:
        """Inconsistencies with the cache, one message each."""
        return [
            f"{uid}: deletion requested, but the pod is not in the cache"
            for uid in self._leaving.requested - self._core.cache.pods.keys()
        ]

"""Preemption: picks victims for a pod or gang without a node, and follows the evictions.

    unschedulable ──candidate──► evicting ──all deletions accepted──► nominated ──victims gone──► requeued
         │                          └──refused──► pending, nomination cleared, the victim passed over for a while
         └── no candidate: pending, with the reasons

The pod is nominated to the node from the decision on: the node's capacity is reserved against pods of lower or equal priority,
and what its quotas entitle it to against all that would borrow.
The pod is not attempted while its eviction is in flight, and it evicts no further pods while victims are terminating on its
node. For a gang the same is done for all members that are needed, or for none (`gangs.gang_preemption`); members keep or lose
their nominations together. Source: DefaultPreemption of kube-scheduler 1.37.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping

from policysched.evaluate import DryRun
from policysched.model.identifiers import NodeName, PodUid
from policysched.model.pod_status import ObservedPod
from policysched.model.pods import Pod
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.in_flight_binds import GangBindFailure
from policysched.scheduler.limits import SECOND_NS
from policysched.scheduler.preemption.best_candidate_search import find_best_candidate, rejection_reasons
from policysched.scheduler.preemption.candidate_search import NOT_SEARCHED, find_candidates, no_evictable_pods
from policysched.scheduler.preemption.eviction_rights import EvictionRights, eviction_rights, rights_key
from policysched.scheduler.preemption.eviction_tracker import EvictionTracker
from policysched.scheduler.preemption.evictions import Eviction
from policysched.scheduler.preemption.gang_placement import (
    PREEMPTION_NEVER,
    PREEMPTION_TOO_EXPENSIVE,
    VICTIMS_CHANGED,
    VICTIMS_TERMINATING,
    WAITS_FOR_HELD_CAPACITY,
    AddToOverlay,
    EvaluateMember,
    FindGangPlacement,
    GangPlacement,
    GangSearchContext,
    NoGangPlacement,
)
from policysched.scheduler.preemption.nominations import (
    claims_against,
    competing_nominations,
    fits_after_first_holds,
    pods_judged_together,
    withdraw_gang_nominations,
)
from policysched.scheduler.preemption.post_filter_messages import (
    ClaimPostFilterMessage,
    placement_message,
    preemption_message,
)
from policysched.scheduler.preemption.preemption_result import NoPreemption, PreemptionStarted
from policysched.scheduler.preemption.running_gangs import EvictablePods
from policysched.scheduler.preemption.victim_selection import Candidate, PreemptionInputs
from policysched.scheduler.queue.entries import PendingPod
from policysched.scheduler.queue.gang_registry import GangId, QueuedGang
from policysched.scheduler.queue.movable_heap import earlier_ns
from policysched.scheduler.queue.refused_binds import BINDS_REFUSED, gang_evicts_after_ns
from policysched.scheduler.steps import Steps
from policysched.scheduler.unschedulable_message import unavailable_message

CHOICES_MAX = 4
"""Searches of one attempt, each without the victims that were too many before. Nothing else is decided meanwhile."""

GOES_ON_NS = 10 * SECOND_NS  # after a search that did not try all nodes
Uids = Collection[PodUid]


class DefaultPreemption:
    """Runs preemption; `evictions` are those that it decided."""

    def __init__(self, core: SchedulerCore) -> None:
        self._core = core
        self.evictions = EvictionTracker(core)
        self.is_evicting, self.check = self.evictions.is_evicting, self.evictions.check

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
        if now_ns < self.evictions.forbidden_until_ns:
            return self._no_preemption(
                pod.policy, self.evictions.forbidden_message, self.evictions.forbidden_until_ns, claims
            )
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
        owners = core.quotas.owners_against(pod.policy, lambda: pods_judged_together(core, value))
        allowed = eviction_rights(core, pod, now_ns, self.evictions.refused, owners)
        if self._victims_terminating(value, dry_run, allowed):
            return self._no_preemption(pod.policy, VICTIMS_TERMINATING, claims=claims)
        blocked_until_ns = self.evictions.breaker.next_time_ns(value.namespace, now_ns)
        lowest = core.cache.ledger.lowest_priority
        if lowest is None or lowest >= value.priority:
            chosen, reasons = None, no_evictable_pods(dry_run, len(core.cache.nodes)).reasons
        else:
            cluster = PreemptionInputs(
                self._pods_on,
                self._started_ns,
                core.cache.budgets,
                len(core.cache.nodes),
                self.evictions.running_gangs(pod.pod.namespace),
                allowed.order,
                pod.attempts,
            )
            chosen, reasons = yield from self.choose(
                dry_run,
                lambda victim: (
                    allowed(victim)
                    and not self.evictions.breaker.blocks(victim, value.namespace, now_ns)
                    and not (owners is not None and owners.keep(victim))
                ),
                cluster,
                (lambda _: ()) if owners is None else owners.beyond,
                allowed,
            )
        if chosen is None:
            self._core.withdraw_nomination(pod.uid, now_ns)
            message = allowed.explain(unavailable_message(len(core.cache.nodes), reasons))
            goes_on_ns = now_ns + GOES_ON_NS if NOT_SEARCHED in reasons else None
            expiry_ns = earlier_ns(
                blocked_until_ns,
                allowed.next_change_ns,
                goes_on_ns,
                None if owners is None else owners.retry_ns(now_ns),
            )
            return self._no_preemption(pod.policy, message, expiry_ns, claims)
        yield from self.evict(pod, chosen, now_ns)
        return PreemptionStarted(placement_message(plan.program, chosen.node, len(chosen.victims)))

    def choose(
        self,
        dry_run: DryRun,
        may_evict: Callable[[Pod], bool],
        cluster: PreemptionInputs,
        beyond: Callable[[Collection[Pod]], Collection[Pod]],
        rights: EvictionRights,
    ) -> Steps[tuple[Candidate | None, Mapping[str, int]]]:
        """The least disruptive candidate, or the reasons why there is none. `beyond`: of these victims, those that may not be
        evicted beside the others, so that it is searched again without them. `rights`: what `may_evict` asks first."""
        spared = set[PodUid]()
        reasons: Mapping[str, int] = {}
        for _ in range(CHOICES_MAX):
            evictable = EvictablePods(
                lambda victim: victim.uid not in spared and may_evict(victim),
                rights.ask if rights.is_slow else None,
            )
            if dry_run.node_local:
                candidates, best = yield from find_best_candidate(dry_run, evictable, cluster)
                reasons = rejection_reasons(candidates, dry_run, cluster)
            else:
                result = yield from find_candidates(dry_run, evictable, cluster)
                best, reasons = (yield from result.best()), result.reasons
            if rights.left_out:
                placements = map(self._core.cache.ledger.placement, rights.left_out)
                nodes = {placement.node for placement in placements if placement is not None}
                reasons = {**reasons, NOT_SEARCHED: reasons.get(NOT_SEARCHED, 0) + len(nodes)}
            excess = () if best is None else beyond(best.victims)
            if not excess:
                return best, reasons
            spared.update(victim.uid for victim in excess)
        return None, {**reasons, NOT_SEARCHED: 1}

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
            withdraw_gang_nominations(self._core, gang, now_ns)
            return None
        core.records.counters.preemption_attempts += 1
        if now_ns < self.evictions.forbidden_until_ns:
            return self._no_gang_preemption(
                gang, self.evictions.forbidden_message, self.evictions.forbidden_until_ns, now_ns
            )
        if now_ns < (after_ns := gang_evicts_after_ns(gang)):
            return self._no_gang_preemption(gang, BINDS_REFUSED, after_ns, now_ns)
        rights = dict[Hashable, EvictionRights]()

        def members() -> list[Pod]:
            return [member.pod for member in gang.pending_members.values()]

        owners = core.quotas.owners_against(gang.policy, members)
        yield from core.quotas.charge_together(gang.policy, members())

        def rights_of(pod: PendingPod) -> EvictionRights:
            if (key := rights_key(core, pod)) not in rights:
                rights[key] = eviction_rights(
                    core, pod, clock(), self.evictions.refused, owners, is_limited=False
                )
            return rights[key]

        context = self.gang_context(
            gang,
            equivalence_keys,
            evaluate,
            add_to_overlay,
            rights_of,
            lambda victim: (
                self.evictions.breaker.blocks(victim, gang.namespace, clock())
                or (owners is not None and owners.keep(victim))
            ),
            rights.clear,
        )
        outcome = yield from find_placement(core, gang, context, now_ns)
        match outcome:
            case NoGangPlacement(message, victims_terminating=True):
                return self._no_preemption(gang.policy, message)
            case NoGangPlacement(message, retry_ns=retry_ns):
                times = [each.next_change_ns for each in rights.values()]
                times += [retry_ns, None if owners is None else owners.retry_ns(now_ns)]
                until_ns = earlier_ns(self.evictions.breaker.next_time_ns(gang.namespace, now_ns), *times)
                return self._no_gang_preemption(gang, message, until_ns, clock())
            case GangPlacement() as placement:
                excess = () if owners is None else owners.beyond(placement.victims)
                if excess:  # the next attempts spare them
                    gang.search_progress.spared_victims.update(victim.uid for victim in excess)
                    retry_ns = clock() + core.limits.backoff_ns(gang.attempts)
                    return self._no_gang_preemption(gang, VICTIMS_CHANGED, retry_ns, clock())
                yield from self.evict_for_gang(gang, placement, clock())
                return PreemptionStarted()

    def gang_context(
        self,
        gang: QueuedGang,
        equivalence_keys: Mapping[PodUid, Hashable],
        evaluate: EvaluateMember,
        add_to_overlay: AddToOverlay,
        rights_of: Callable[[PendingPod], EvictionRights],
        eviction_blocked: Callable[[Pod], bool],
        forget_rights: Callable[[], None] = lambda: None,
    ) -> GangSearchContext:
        """What a search for the gang asks of the evictions that are under way."""
        is_leaving = self.evictions.leaving.as_seen_by(gang.namespace)
        return GangSearchContext(
            equivalence_keys=equivalence_keys,
            eviction_rights=rights_of,
            forget_rights=forget_rights,
            eviction_blocked=eviction_blocked,
            may_leave=self.evictions.is_leaving,
            is_terminating=lambda uid: self.evictions.is_terminating(uid, is_leaving),
            started_ns=self._started_ns,
            evaluate=evaluate,
            add_to_overlay=add_to_overlay,
        )

    def _no_gang_preemption(
        self, gang: QueuedGang, message: str, valid_until_ns: int | None, now_ns: int
    ) -> NoPreemption:
        withdraw_gang_nominations(self._core, gang, now_ns)
        return self._no_preemption(gang.policy, message, valid_until_ns)

    def evict_for_gang(self, gang: QueuedGang, placement: GangPlacement, now_ns: int) -> Steps[None]:
        """The same for all members of the placement, whose victims can be thousands."""
        evictions = list[Eviction]()
        for member in placement.members:
            evictions.append((yield from self.evictions.prepare(member.pod.pod, member.candidate, now_ns)))
            yield 1
        nominated = self._core.cache.nominated
        placed_uids = {member.pod.uid for member in placement.members}
        for uid in [uid for uid in nominated if uid in gang.pending_members and uid not in placed_uids]:
            self._core.withdraw_nomination(uid, now_ns)
        on_node = defaultdict[NodeName | None, list[ObservedPod]](
            list
        )  # once, as the members will be nominated, too
        for observed in nominated.values():
            on_node[observed.nominated_node].append(observed)
        for member, eviction in zip(placement.members, evictions, strict=True):
            current = nominated.get(member.pod.uid)
            self._clear_lower_nominations(member.pod, on_node[member.node], now_ns)
            if member.candidate.victims or current is None or current.nominated_node != member.node:
                self._begin(member.pod, eviction, now_ns)
            yield 1 + len(member.candidate.victims) // 8  # beginning is cheaper than preparing

    def _victims_terminating(self, pod: Pod, dry_run: DryRun, allowed: EvictionRights) -> bool:
        """Whether victims of an earlier attempt are still on the pod's nominated node, which may yet fit it."""
        nominated = self._core.cache.nominated.get(pod.uid)
        node = None if nominated is None else nominated.nominated_node
        if node is None or node not in dry_run.potential_nodes:
            return False
        leaving = self.evictions.leaving.as_seen_by(pod.namespace)
        return any(
            self.evictions.is_terminating(victim.uid, leaving) and allowed(victim)
            for victim in self._pods_on(node)
        )

    def evict(self, pod: PendingPod, chosen: Candidate, now_ns: int) -> Steps[None]:
        """Start the evictions, and nominate the pod to its node. Victims may be on other nodes too, and thousands: nothing is in
        effect before the last step."""
        eviction = yield from self.evictions.prepare(pod.pod, chosen, now_ns)
        on_node = [each for each in self._core.cache.nominated.values() if each.nominated_node == chosen.node]
        self._clear_lower_nominations(pod, on_node, now_ns)
        self._begin(pod, eviction, now_ns)

    def _begin(self, pod: PendingPod, eviction: Eviction, now_ns: int) -> None:
        assert eviction.node is not None, f"{pod} is nominated to no node"
        self._core.queue.requeue(
            self._core.cache.nominate(pod.uid, eviction.node), now_ns, cause=pod.namespace
        )
        self.evictions.begin(eviction)

    def evict_rest_of_gang(
        self, gang_id: GangId, failure: GangBindFailure, members: tuple[Pod, ...], message: str, now_ns: int
    ) -> None:
        """Evict the bound members of a gang that cannot run, because a pod of it could not be bound."""
        eviction = Eviction(failure.pod, None, now_ns, rest_of=gang_id, counted=failure.counted_victims)
        for member in members:
            self.evictions.add_victim(eviction, member)
        self.evictions.begin(eviction, message)

    def _clear_lower_nominations(self, pod: PendingPod, on_node: Iterable[ObservedPod], now_ns: int) -> None:
        """Clear nominations of lower priority to its node, of any scheduler; for a gang, those of all its members. Those with a
        claim stay: the pod was placed beside them."""
        gangs = self._core.gangs
        pod_gang = gangs.gang_of(pod.uid)
        lower = [observed for observed in on_node if observed.pod.priority < pod.priority]
        claims = claims_against(self._core, pod.pod) if lower else ()
        for observed in lower:
            placed = self._core.cache.ledger.placement(observed.pod.uid) is not None
            if not placed and observed.pod.uid != pod.uid and observed.pod.uid not in claims:
                gang = gangs.gang_of(observed.pod.uid)
                if gang is None or observed.pod.uid not in gang.unqueued_members:
                    self._core.clear_nomination(observed.pod.uid, now_ns)
                elif gang is not pod_gang:
                    withdraw_gang_nominations(self._core, gang, now_ns)
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

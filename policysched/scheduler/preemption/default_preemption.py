"""Making room for a pod that finds none: who is evicted, and what becomes of it.

    no node ──candidates?──► evicting ──all told to end──► nominated ──they are gone──► tried again, and bound
                │               └──refused──► pending, the nomination taken back
                └── none: pending, with the words why

From the decision on the pod is nominated to its node: its room is kept from pods of lower or equal priority. While the
eviction is not answered the pod is not tried; while victims are still ending on its node it evicts nobody else. For a gang
that is placed whole the same is done for as many members as it needs, or for none: `gang_room` finds where, and all of them keep
their nominations until they are placed, or lose them together. Source: DefaultPreemption of kube-scheduler 1.36.
"""

from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from policysched.builtins.registry import BUILTINS, KUBE_SCHEDULER_RELEASES
from policysched.cluster.devices.availability import AvailableDevices
from policysched.evaluate import DryRun, Overlay, TopologyDomain, VictimPredicate
from policysched.lang.ir.program import Program
from policysched.lang.ir.rules import BuiltinFilter
from policysched.model.identifiers import NodeName, PodUid
from policysched.model.messages import unavailable_message
from policysched.model.pods import Pod
from policysched.scheduler.commands import Evict, Log, ReportPolicyEvent, ReportPreempted, Victim
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.gangs.placement import (
    PREEMPTION_NEVER,
    VICTIMS_TERMINATING,
    GangPlacement,
    GangSearchContext,
    NoGangPlacement,
    find_gang_placement,
)
from policysched.scheduler.gangs.registry import QueuedGang
from policysched.scheduler.limits import SECOND_NS
from policysched.scheduler.outcome import AttemptFailure, AttemptSuccess
from policysched.scheduler.preemption.candidates import (
    NOT_HELPFUL,
    Candidate,
    PreemptionInputs,
    find_candidates,
    least_disruptive,
    no_evictable_pods,
)
from policysched.scheduler.preemption.eviction_breaker import EvictionBreaker
from policysched.scheduler.preemption.lazy_candidates import find_best_candidate, rejection_reasons
from policysched.scheduler.preemption.nominations import competing_nominations
from policysched.scheduler.queue.entries import PendingPod, QueueEntry, QueueState
from policysched.scheduler.steps import Steps

EvaluateMember = Callable[[PendingPod, Overlay, TopologyDomain | None], AttemptSuccess | AttemptFailure]
AddToOverlay = Callable[[PendingPod, NodeName, Overlay], object]


class ClaimPostFilterMessage(StrEnum):
    """What kube-scheduler's DynamicResources says before preemption is thought of: of pods without claims for devices, of those with
    some, where a claim has to give its devices back, and where one that was left over is taken away."""

    NONE = "no new claims to deallocate"
    STILL_UNSCHEDULABLE = "still not schedulable"
    DEALLOCATED = "deallocation of ResourceClaim completed"
    DELETED = "deletion of ResourceClaim completed"


NO_CLAIM_STATE = "not found"
"""What kube-scheduler's DynamicResources says after a pod was refused before it had a look at it."""


@dataclass(frozen=True, slots=True)
class PreemptionStarted:
    """Victims are on their way, and the pod, or as much of the gang as is needed, is nominated."""


@dataclass(frozen=True, slots=True)
class NoPreemption:
    """Nobody is evicted: what to say of it, and when another try could go otherwise for that reason alone (ns)."""

    message: str
    valid_until_ns: int | None = None


@dataclass(slots=True)
class _Eviction:
    """An `Evict` without an answer. `terminating`: whose room it waits for as well, and who was ending already. `requeue_wanted`: something happened
    meanwhile that may help the pod. `gang_victims`: whom members of its gang wait for whose evictions are answered."""

    pod: Pod
    node: NodeName
    victims: dict[PodUid, Victim]
    terminating: frozenset[PodUid]
    requeue_wanted: bool = False
    gang_victims: set[PodUid] = field(default_factory=set)


class DefaultPreemption:
    """`evicting` are the evictions without an answer, by the pod that is to have the room."""

    def __init__(self, core: SchedulerCore) -> None:
        self._core = core
        self._breaker = EvictionBreaker(core.limits)
        self._evicting: dict[PodUid, _Eviction] = {}
        self._deletion_requested: set[PodUid] = set()  # told to end, and the watch has not shown it yet
        self._forbidden_until_ns = 0
        self._forbidden_message = ""

    # ── deciding ───────────────────────────────────────────────────────────────────────────────────────────────────

    def defer_attempt(self, uid: PodUid) -> bool:
        """Whether an eviction for this pod is not answered yet: it is not tried now, but as soon as that is."""
        eviction = self._evicting.get(uid)
        if eviction is not None:
            eviction.requeue_wanted = True
        return eviction is not None

    def defer_gang_attempt(self, gang: QueuedGang) -> bool:
        """Whether an eviction for one of its members is not answered yet."""
        held = [self.defer_attempt(uid) for uid in gang.pending_members]  # each of them is to know
        return any(held)

    def preempt_for_pod(
        self, pod: PendingPod, now_ns: int, claims: ClaimPostFilterMessage = ClaimPostFilterMessage.NONE
    ) -> Steps[PreemptionStarted | NoPreemption | None]:
        """The pod found no node, for reasons of nodes. None: the policy evicts nobody. `claims`: what is to be said of its claims
        for devices."""
        core, value = self._core, pod.pod
        plan = core.plan(pod.policy)
        if not plan.allows_preemption:
            return None
        core.counters.preemption_attempts += 1
        if value.preemption_policy == "Never":
            return self._no_preemption(pod.policy, PREEMPTION_NEVER, claims=claims)
        if now_ns < self._forbidden_until_ns:
            return self._no_preemption(pod.policy, self._forbidden_message, self._forbidden_until_ns, claims)
        dry_run = core.evaluator.dry_run(
            plan,
            value,
            **core.evaluation_inputs(pod, now_ns),
            nominated_pods=competing_nominations(core, value),
        )
        allowed = plan.may_evict(value, core.namespace_of(value), pod.facts, now_ns)
        if self._victims_terminating(pod.uid, dry_run, allowed):
            return self._no_preemption(pod.policy, VICTIMS_TERMINATING, claims=claims)
        spared_until_ns = self._breaker.next_time_ns()
        lowest = core.cache.ledger.lowest_priority
        if lowest is None or lowest >= value.priority:
            chosen, reasons = None, no_evictable_pods(dry_run, len(core.cache.nodes)).reasons
        else:
            cluster = PreemptionInputs(
                self._pods_on, self._started_ns, core.cache.budgets.values(), len(core.cache.nodes)
            )
            chosen, reasons = yield from self._choose(
                dry_run, lambda victim: allowed(victim) and not self._breaker.blocks(victim, now_ns), cluster
            )
        if chosen is None:
            self._core.clear_nomination(pod.uid, now_ns)
            words = unavailable_message(len(core.cache.nodes), reasons)
            return self._no_preemption(pod.policy, words, spared_until_ns, claims)
        self._evict(pod, chosen, now_ns)
        return PreemptionStarted()

    def _choose(
        self, dry_run: DryRun, may_evict: Callable[[Pod], bool], cluster: PreemptionInputs
    ) -> Steps[tuple[Candidate | None, Mapping[str, int]]]:
        """The candidate of least harm, or why there is none."""
        if dry_run.node_local:
            prospects, best = yield from find_best_candidate(dry_run, may_evict, cluster)
            return best, rejection_reasons(prospects, dry_run, cluster)
        found = yield from find_candidates(dry_run, may_evict, cluster)
        return least_disruptive(found.candidates) if found.candidates else None, found.reasons

    def preempt_for_gang(
        self,
        gang: QueuedGang,
        equivalence_keys: Mapping[PodUid, Hashable],
        evaluate: EvaluateMember,
        add_to_overlay: AddToOverlay,
        now_ns: int,
    ) -> Steps[PreemptionStarted | NoPreemption | None]:
        """It is to be placed whole and does not fit. None: the policy evicts nobody."""
        core = self._core
        plan = core.plan(gang.policy)
        if not plan.allows_preemption:
            self.clear_gang_nominations(gang, now_ns)
            return None
        core.counters.preemption_attempts += 1
        if now_ns < self._forbidden_until_ns:
            return self._no_gang_preemption(gang, self._forbidden_message, self._forbidden_until_ns, now_ns)
        rules = GangSearchContext(
            equivalence_keys=equivalence_keys,
            may_evict_for=lambda pod: plan.may_evict(pod.pod, core.namespace_of(pod.pod), pod.facts, now_ns),
            eviction_blocked=lambda victim: self._breaker.blocks(victim, now_ns),
            is_terminating=self._is_terminating,
            started_ns=self._started_ns,
            evaluate=evaluate,
            add_to_overlay=add_to_overlay,
        )
        spared_until_ns = self._breaker.next_time_ns()
        found = yield from find_gang_placement(core, gang, rules, now_ns)
        match found:
            case NoGangPlacement(words, victims_terminating=True):
                return self._no_preemption(gang.policy, words)
            case NoGangPlacement(words):
                return self._no_gang_preemption(gang, words, spared_until_ns, now_ns)
            case GangPlacement() as seats:
                self._evict_for_gang(gang, seats, now_ns)
                return PreemptionStarted()

    def _no_gang_preemption(
        self, gang: QueuedGang, words: str, valid_until_ns: int | None, now_ns: int
    ) -> NoPreemption:
        self.clear_gang_nominations(gang, now_ns)
        return self._no_preemption(gang.policy, words, valid_until_ns)

    def clear_gang_nominations(self, gang: QueuedGang, now_ns: int) -> None:
        """Nobody who waits in the gang goes to the node that it is nominated to: they lose that together."""
        for uid in [one for one in self._core.cache.nominated if one in gang.pending_members]:
            self._core.clear_nomination(uid, now_ns)

    def _evict_for_gang(self, gang: QueuedGang, found: GangPlacement, now_ns: int) -> None:
        nominated = self._core.cache.nominated
        seated = {seat.pod.uid for seat in found.members}
        for uid in [one for one in nominated if one in gang.pending_members and one not in seated]:
            self._core.clear_nomination(uid, now_ns)
        for seat in found.members:
            known = nominated.get(seat.pod.uid)
            if seat.candidate.victims or known is None or known.nominated_node != seat.node:
                self._evict(seat.pod, seat.candidate, now_ns)
            else:
                self._clear_lower_nominations(seat.pod, seat.node, now_ns)

    def _victims_terminating(self, uid: PodUid, dry_run: DryRun, allowed: VictimPredicate) -> bool:
        """Whether victims of an earlier try are still on the pod's nominated node, which could yet take it."""
        cache = self._core.cache
        nominated = cache.nominated.get(uid)
        node = None if nominated is None else nominated.nominated_node
        if node is None or node not in dry_run.potential_nodes:
            return False
        return any(allowed(one) and self._is_terminating(one.uid) for one in self._pods_on(node))

    def _is_terminating(self, uid: PodUid) -> bool:
        seen = self._core.cache.pods[uid]
        return self._is_deletion_requested(uid) or (seen.deleting and seen.preempted)

    def _is_deletion_requested(self, uid: PodUid) -> bool:
        """Whether it is told to end, or about to be, and the watch has not shown it yet."""
        return uid in self._deletion_requested or any(uid in one.victims for one in self._evicting.values())

    def _evict(self, pod: PendingPod, chosen: Candidate, now_ns: int) -> None:
        core, value = self._core, pod.pod
        ending = [
            one
            for one in chosen.victims
            if core.cache.pods[one.uid].deleting or self._is_deletion_requested(one.uid)
        ]
        victims = [
            Victim(one.uid, one.namespace, one.name, core.cache.pods[one.uid].generation)
            for one in chosen.victims
            if one not in ending
        ]
        if chosen.victims:
            core.counters.victim_counts.append(len(chosen.victims))
        for one in chosen.victims:
            words = None if one in ending else self._breaker.record(one, now_ns)
            if words is not None:
                core.commands.append(ReportPolicyEvent("Warning", "PreemptionStopped", words))
        self._clear_lower_nominations(pod, chosen.node, now_ns)
        core.queue.requeue(core.cache.nominate(pod.uid, chosen.node), now_ns)
        self._evicting[pod.uid] = _Eviction(
            value, chosen.node, {one.uid: one for one in victims}, frozenset(one.uid for one in ending)
        )
        core.commands.append(
            Evict(value.uid, value.namespace, value.name, value.scheduler, chosen.node, tuple(victims))
        )
        core.commands.append(
            Log(
                "info",
                "evicting for a pod",
                {"pod": value.full_name, "node": chosen.node, "victims": _names(chosen.victims)},
            )
        )

    def _clear_lower_nominations(self, pod: PendingPod, node: NodeName, now_ns: int) -> None:
        """Pods of lower priority that wait for the same node look for another, a gang all of its members."""
        gangs = self._core.gangs
        own = gangs.gang_of(pod.uid)
        for seen in list(self._core.cache.nominated.values()):
            lesser = seen.nominated_node == node and seen.pod.priority < pod.priority
            if lesser and seen.pod.uid != pod.uid:
                gang = gangs.gang_of(seen.pod.uid)
                if gang is None or seen.pod.uid not in gang.unqueued_members:
                    self._core.clear_nomination(seen.pod.uid, now_ns)
                elif gang is not own:
                    self.clear_gang_nominations(gang, now_ns)

    def _no_preemption(
        self,
        policy: str,
        words: str,
        valid_until_ns: int | None = None,
        claims: ClaimPostFilterMessage = ClaimPostFilterMessage.NONE,
    ) -> NoPreemption:
        program = self._core.policies.running[policy].program
        return NoPreemption(preemption_message(program, words, claims), valid_until_ns)

    def _pods_on(self, node: NodeName) -> Collection[Pod]:
        return self._core.cache.ledger.usage(node).pods.values()

    def _started_ns(self, uid: PodUid) -> int | None:
        return self._core.cache.pods[uid].started_ns

    # ── what became of it ──────────────────────────────────────────────────────────────────────────────────────────

    def evicted(self, preemptor: PodUid, victims: tuple[PodUid, ...], now_ns: int) -> None:
        """Every victim was told to end, or had gone."""
        eviction = self._evicting.pop(preemptor, None)
        if eviction is None:
            return
        self._record_deletions(eviction, victims)
        awaited = {*eviction.victims, *eviction.terminating, *eviction.gang_victims}
        companion = self._other_gang_eviction(preemptor)
        if companion is not None:
            companion.requeue_wanted |= eviction.requeue_wanted
            companion.gang_victims |= awaited
        elif eviction.requeue_wanted or not any(uid in self._core.cache.pods for uid in awaited):
            self._requeue(preemptor, now_ns, failing=False)

    def _other_gang_eviction(self, preemptor: PodUid) -> _Eviction | None:
        """Another eviction for the same gang that has no answer yet: the last answer counts."""
        gang = self._core.gangs.gang_of(preemptor)
        if gang is None or preemptor not in gang.unqueued_members:
            return None
        return next((one for uid, one in self._evicting.items() if uid in gang.unqueued_members), None)

    def refused(
        self, preemptor: PodUid, reason: str, victims: tuple[PodUid, ...], now_ns: int, *, forbidden: bool
    ) -> None:
        """It ended early: the pod waits on, and others may have the room of those who were told to end."""
        core = self._core
        eviction = self._evicting.pop(preemptor, None)
        if eviction is None:
            return
        self._record_deletions(eviction, victims)
        if forbidden:
            self._forbid(reason, now_ns)
        if preemptor in core.cache.pods and core.cache.pods[preemptor].node is None:
            gang = core.gangs.gang_of(preemptor)
            if gang is not None and preemptor in gang.unqueued_members:
                self.clear_gang_nominations(gang, now_ns)
            else:
                core.clear_nomination(preemptor, now_ns)
        fields = {"pod": eviction.pod.full_name, "node": eviction.node, "why": reason}
        core.commands.append(Log("warning", "an eviction was not carried out", fields))
        self._requeue(preemptor, now_ns, failing=not forbidden)

    def _record_deletions(self, eviction: _Eviction, victims: tuple[PodUid, ...]) -> None:
        core, pod = self._core, eviction.pod
        for uid in victims:
            seen = core.cache.pods.get(uid)
            if seen is not None and not seen.deleting:
                self._deletion_requested.add(uid)
            core.commands.append(
                ReportPreempted(
                    eviction.victims[uid], pod.uid, pod.namespace, pod.name, pod.scheduler, eviction.node
                )
            )

    def _forbid(self, reason: str, now_ns: int) -> None:
        """Said once; another try would end in the same way until somebody changes the permissions."""
        words = f"not carried out, for the API server does not let us evict: {reason}"
        limits = self._core.limits
        self._forbidden_until_ns = now_ns + round(limits.eviction_forbidden_retry_s * SECOND_NS)
        if words != self._forbidden_message:
            self._forbidden_message = words
            again = f"it is tried again every {limits.eviction_forbidden_retry_s:g} s"
            self._core.commands.append(
                ReportPolicyEvent("Warning", "PreemptionForbidden", f"preemption is {words}; {again}")
            )

    def _requeue(self, uid: PodUid, now_ns: int, *, failing: bool) -> None:
        """Where the pod, or the gang that it waits in, is parked, that goes into the queue; anywhere else it is on its way
        already. A pod that is held (its gang has failed meanwhile, say) is not to be tried."""
        pod = self._core.pods.get(uid)
        if pod is not None and pod.admission_rejected:
            return
        unit: QueueEntry | None = pod
        if unit is not None and unit.state is QueueState.GANG_MEMBER:
            unit = self._core.gangs.gang_of(uid)
        if unit is not None and unit.state is QueueState.UNSCHEDULABLE:
            self._core.queue.remove(unit, now_ns)
            unit.in_error_backoff = failing
            self._core.queue.enqueue(unit, now_ns, "Preemption")

    def forget(self, uid: PodUid) -> None:
        """The pod is gone, or the watch shows that it ends."""
        self._deletion_requested.discard(uid)

    def check(self) -> list[str]:
        """One sentence for each thing that does not agree with the cache."""
        pods = self._core.cache.pods
        return [
            f"{uid} is told to end and not known any more"
            for uid in self._deletion_requested
            if uid not in pods
        ]


def _names(pods: tuple[Pod, ...]) -> str:
    return ", ".join(one.full_name for one in pods)


def preemption_message(
    program: Program, words: str, claims: ClaimPostFilterMessage = ClaimPostFilterMessage.NONE
) -> str:
    """What stands behind the filters' reasons, as kube-scheduler puts it."""
    return f"{f'{claims}, ' if _has_default_filters(program) else ''}preemption: {words}"


def claim_message(pod: Pod, stock: AvailableDevices) -> ClaimPostFilterMessage:
    """Where nothing is done about its claims for devices, or about those that classes give it."""
    given = any(stock.class_of_resource(one.resource) is not None for one in pod.extended)
    return (
        ClaimPostFilterMessage.STILL_UNSCHEDULABLE
        if pod.device_claims or given
        else ClaimPostFilterMessage.NONE
    )


def message_after_rejection(program: Program, node_count: int, refused_by: str | None = None) -> str:
    """What stands behind the reason for which a filter refuses a pod whatever the node. With the default profile
    preemption is not thought of then, unless it is for claims for devices; with fewer filters it is, to no avail."""
    if _has_default_filters(program) and refused_by != "dynamic_resources":
        return NO_CLAIM_STATE
    if program.preemption.mode == "never":
        return ""
    return preemption_message(program, unavailable_message(node_count, {NOT_HELPFUL: node_count}))


def _has_default_filters(program: Program) -> bool:
    """Whether the policy has all filters of kube-scheduler's default profile, in one of its releases. Then it also says what that profile's
    DynamicResources says before preemption: that there is no claim whose devices could be taken back."""
    there = {one.builtin for one in program.rules.filters if isinstance(one, BuiltinFilter)}
    filters = {name for name, one in BUILTINS.items() if one.filters}
    return any(filters - release.missing_builtins <= there for release in KUBE_SCHEDULER_RELEASES.values())

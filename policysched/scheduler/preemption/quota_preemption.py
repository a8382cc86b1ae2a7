"""Preemption for a pod or gang that its quotas refuse although its entity stays within its amount.

`quota_reclaim` finds the victims; here they are evicted if the pod then fits on a node; otherwise no pod is evicted.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from policysched.evaluate import Overlay
from policysched.evaluate.plan.quotas import QuotaCharge
from policysched.model.identifiers import NodeName
from policysched.model.pods import Pod
from policysched.scheduler.attempt_result import PLACED_POD_EVENTS, AttemptFailure, AttemptSuccess
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.preemption.default_preemption import GOES_ON_NS, DefaultPreemption
from policysched.scheduler.preemption.eviction_rights import EvictionRights
from policysched.scheduler.preemption.gang_placement import (
    GangPlacement,
    MemberPlacement,
    NoGangPlacement,
)
from policysched.scheduler.preemption.nominations import (
    competing_nominations,
    nominated_overlay,
    pods_judged_together,
)
from policysched.scheduler.preemption.preemption_result import NoPreemption, PreemptionStarted
from policysched.scheduler.preemption.quota_reclaim import Blocked, ReclaimSearch
from policysched.scheduler.preemption.victim_selection import NOT_STARTED_NS, Candidate, PreemptionInputs
from policysched.scheduler.queue.entries import PendingPod
from policysched.scheduler.queue.gang_registry import QueuedGang
from policysched.scheduler.queue.refused_binds import gang_evicts_after_ns
from policysched.scheduler.quotas.quota_accounts import QuotaRefusal
from policysched.scheduler.quotas.quota_usage import QuotaUsage, summed
from policysched.scheduler.steps import Steps

Fits = Sequence[tuple[PendingPod, AttemptSuccess]]


class FoundNodes(NamedTuple):
    """The nodes of the members that fit, and why others do not. `was_paused`: what holds for victims may have changed meanwhile."""

    fits: Fits
    failures: Collection[AttemptFailure]
    was_paused: bool


class FoundVictims(NamedTuple):
    """The victims where the members fit, or why there are none. `was_paused`: as of `FoundNodes`."""

    outcome: GangPlacement | NoGangPlacement | None
    was_paused: bool


FindNodes = Callable[[Sequence[Pod], QuotaUsage], Steps[FoundNodes]]
NodesLackingRoom = Callable[[Fits, Sequence[Pod], Collection[Pod], int], Steps[set[NodeName]]]
"""Where members that fit without the victims do not fit if some of these stay."""
ReclaimByNode = Callable[
    [EvictionRights, Callable[[Pod], bool], Callable[[Collection[Pod]], Collection[Pod]]],
    Steps[FoundVictims],
]
"""Nodes for the members without pods that may be evicted there: by themselves, and without those that are too many together."""
EvaluateOnOverlay = Callable[[PendingPod, Overlay], AttemptSuccess | AttemptFailure]


class QuotaPreemption:
    """Evicts pods that borrow quota, for pods whose entity owns it."""

    def __init__(self, core: SchedulerCore, preemption: DefaultPreemption) -> None:
        self._core = core
        self._preemption = preemption

    def reclaim_for_pod(
        self,
        pod: PendingPod,
        refusal: QuotaRefusal,
        failure: AttemptFailure,
        evaluate: EvaluateOnOverlay,
        now_ns: int,
    ) -> Steps[AttemptFailure]:
        """Returns the failure with its outcome: the message, and what requeues the pod."""
        core = self._core
        search, result = None, None
        for search in self._searches(pod, refusal, refusal.usage, now_ns):
            victims = yield from self._victims(search, (refusal.charge,), now_ns)
            if victims is None and not search.rights.have_left_out:
                continue
            core.records.counters.preemption_attempts += result is None
            if victims is not None and not victims:
                message = f"{failure.message}; pods that used the quota are terminating"
                return replace(failure, message=message)
            if victims is not None:
                overlay = nominated_overlay(core, pod.pod) or core.evaluator.overlay()
                for victim in victims:
                    overlay.remove_pod(victim.uid)
                result = evaluate(pod, overlay)
            candidate = None
            if victims is not None and isinstance(result, AttemptSuccess):
                candidate = Candidate(result.node, victims, 0, NOT_STARTED_NS)
            elif victims is None or (isinstance(result, AttemptFailure) and result.node_count):
                candidate = yield from self._candidate_on_one_node(pod, refusal, search, now_ns)
            if candidate is not None:
                return (yield from self._evict(pod, candidate, failure, now_ns))
        core.withdraw_nomination(pod.uid, now_ns)
        if search is None:
            return failure
        if isinstance(result, AttemptFailure):
            message = f"{failure.message}; no quota is reclaimed, because the pod would fit no node anyway: {result.message}"
            failure = failure.without_preemption(message, result.valid_until_ns, result.requeue_events)
        return self._without_reclaim(pod, failure, search, now_ns)

    def reclaim_for_gang(
        self,
        gang: QueuedGang,
        refusal: QuotaRefusal,
        members: Sequence[PendingPod],
        find_nodes: FindNodes,
        nodes_lacking_room: NodesLackingRoom,
        reclaim_by_node: ReclaimByNode,
        clock: Callable[[], int],
    ) -> Steps[PreemptionStarted | NoPreemption]:
        """Reclaim for the members that are needed. `find_nodes` finds their nodes on a cluster without the victims; if there are
        none, `reclaim_by_node` finds victims where they fit. Started as well if the victims terminate already. Both may
        pause: then the quotas are asked again, and the gang is attempted again if the members have too little room by now."""
        core, search, failures, now_ns = self._core, None, None, clock()
        for borrowed_inside in _rounds(refusal):
            search = self._search(members[0], refusal, self._usage(gang), now_ns, borrowed_inside, gang)
            if search is None:
                break
            charges = [core.quotas.charge_of(pod.pod) for pod in members]
            victims = yield from self._victims(search, charges, now_ns)
            if victims is None:
                continue
            core.records.counters.preemption_attempts += failures is None
            if not victims:
                return PreemptionStarted()
            found = yield from find_nodes(victims, search.usage)
            failures, now_ns = found.failures, clock()
            placement: GangPlacement | NoPreemption | None = None
            if len(found.fits) >= gang.evicting_count:
                fits = found.fits[: gang.evicting_count]
                if found.was_paused:
                    chosen = yield from self._victims_after_pauses(
                        gang, refusal, fits, victims, borrowed_inside, nodes_lacking_room, now_ns
                    )
                    if chosen is None:
                        return self._again_soon(gang, search, now_ns)
                    victims = chosen
                placement = _with_victims(
                    [
                        MemberPlacement(pod, Candidate(success.node, (), 0, NOT_STARTED_NS))
                        for pod, success in fits
                    ],
                    victims,
                )
            elif any(gang.pending_members.get(pod.uid) is not pod for pod in members):
                return self._again_soon(gang, search, now_ns)
            elif any(failure.node_count for failure in failures) and not (
                borrowed_inside and gang.search_progress.inside_ended
            ):
                placement = yield from self._placement_by_node(
                    gang, refusal, members, search, reclaim_by_node, clock
                )
                now_ns = clock()
            if isinstance(placement, NoPreemption):
                return placement
            if placement is not None:
                yield from self._preemption.evict_for_gang(gang, placement, now_ns)
                return PreemptionStarted()
        return NoPreemption("") if search is None else self._not_now(gang, search, now_ns, failures or ())

    def _again_soon(self, gang: QueuedGang, search: ReclaimSearch, now_ns: int) -> NoPreemption:
        later = self._not_now(gang, search, now_ns)
        return replace(later, valid_until_ns=now_ns + self._core.limits.backoff_ns(gang.attempts))

    def _victims_after_pauses(
        self,
        gang: QueuedGang,
        refusal: QuotaRefusal,
        fits: Fits,
        victims: Sequence[Pod],
        borrowed_inside: bool,
        nodes_lacking_room: NodesLackingRoom,
        now_ns: int,
    ) -> Steps[tuple[Pod, ...] | None]:
        """The victims by what holds now, those of before the pauses first. Where these are not needed for the quotas any more, but for
        the members' nodes, they are victims as long as they borrow. None: the search starts again."""
        core = self._core
        for pod, success in fits:
            if gang.pending_members.get(pod.uid) is not pod or success.node not in core.cache.nodes:
                return None
        charges = [core.quotas.charge_of(pod.pod) for pod, _ in fits]
        usage = self._usage(gang)
        blocked = [(charge, block) for charge in summed(charges) for block in usage.blocks(charge)]
        kept: tuple[Pod, ...] = ()
        for _ in range(2):
            search = self._search(fits[0][0], refusal, usage, now_ns, borrowed_inside, gang)
            if search is None:
                return None
            search.preferred = {victim.uid for victim in victims}
            taken = yield from search.take_whole(blocked, kept)
            if taken is None or not (chosen := (yield from self._victims(search, charges, now_ns, taken))):
                return None
            if taken and search.beyond(blocked, chosen):
                return None
            uids = {victim.uid for victim in chosen}
            spared = [victim for victim in victims if victim.uid not in uids]
            nodes = yield from nodes_lacking_room(fits, victims, spared, now_ns)
            if not nodes:
                return chosen
            placements = [core.cache.ledger.placement(victim.uid) for victim in spared]
            kept = tuple(on.pod for on in placements if on is not None and on.node in nodes)
        return None

    def _placement_by_node(
        self,
        gang: QueuedGang,
        refusal: QuotaRefusal,
        members: Sequence[PendingPod],
        earlier: ReclaimSearch,
        reclaim_by_node: ReclaimByNode,
        clock: Callable[[], int],
    ) -> Steps[GangPlacement | NoPreemption | None]:
        """As `_candidate_on_one_node`, for members that may be on many nodes. What held before a pause is asked again at the end."""
        core, usage = self._core, self._usage(gang)
        search = self._search(members[0], refusal, usage, clock(), earlier.borrowed_inside, gang)
        assert search is not None, f"{gang} may evict no pod"
        together = summed(core.quotas.charge_of(pod.pod) for pod in members)
        blocked = [(charge, block) for charge in together for block in usage.blocks(charge)]
        found = yield from reclaim_by_node(
            search.rights, partial(_may_go, search, blocked), partial(search.beyond, blocked)
        )
        placement = found.outcome
        if not isinstance(placement, GangPlacement):
            is_last, is_over = earlier.borrowed_inside == _rounds(refusal)[-1], not gang.search_progress.scope
            if placement is None or placement.retry_ns is None or (is_over and not is_last):
                return None  # after several attempts, too: the next round asks about all again
            gang.search_progress.inside_ended = not earlier.borrowed_inside
            return replace(self._not_now(gang, search, clock()), valid_until_ns=placement.retry_ns)
        kept = placement.victims
        charges = [core.quotas.charge_of(member.pod.pod) for member in placement.members]
        failed: NoPreemption | None = None
        if found.was_paused:
            failed, usage = self._again_soon(gang, search, clock()), self._usage(gang)
            last = self._search(members[0], refusal, usage, clock(), earlier.borrowed_inside, gang)
            blocked = [(charge, block) for charge in summed(charges) for block in usage.blocks(charge)]
            if last is None or not (yield from self._may_still_go(last, blocked, kept)):
                return failed
            search = last
        search.take(kept)
        victims = yield from self._victims(search, charges, clock(), kept)
        if not victims or search.beyond(blocked, victims):
            return failed
        taken = {victim.uid for victim in kept}
        return _with_victims(placement.members, [victim for victim in victims if victim.uid not in taken])

    def _may_still_go(self, search: ReclaimSearch, blocked: Blocked, victims: Collection[Pod]) -> Steps[bool]:
        for victim in victims:
            yield from search.rights.ask((victim,))
            if not _may_go(search, blocked, victim):
                return False
            yield 1
        return not search.beyond(blocked, victims)

    def _usage(self, gang: QueuedGang) -> QuotaUsage:
        usage = self._core.quotas.trial(gang.representative_pod, excluding=gang.pending_members)
        assert usage is not None, f"{gang} is of a policy without quotas"
        return usage

    def _victims(
        self,
        search: ReclaimSearch,
        charges: Collection[QuotaCharge],
        now_ns: int,
        kept: Collection[Pod] = (),
    ) -> Steps[tuple[Pod, ...] | None]:
        if self._preemption.evictions.is_forbidden(now_ns) or now_ns < search.evicts_after_ns:
            return None
        return (yield from search.find(charges, kept))

    def _without_reclaim(
        self, pod: PendingPod, failure: AttemptFailure, search: ReclaimSearch, now_ns: int
    ) -> AttemptFailure:
        later, kept = self._not_now(pod, search, now_ns), search.owners.explain()
        message = f"{failure.message}; {kept}" if kept else failure.message
        return failure.without_preemption(message, later.valid_until_ns, later.requeue_events)

    def _not_now(
        self,
        entry: PendingPod | QueuedGang,
        search: ReclaimSearch,
        now_ns: int,
        failures: Collection[AttemptFailure] = (),
    ) -> NoPreemption:
        """No pod is evicted: others may be evicted later, or the members fit without the victims (`failures`)."""
        times = [search.rights.next_change_ns, self._preemption.evictions.resumes_ns(entry.namespace, now_ns)]
        times.append(search.evicts_after_ns if now_ns < search.evicts_after_ns else None)
        times.append(search.owners.retry_ns(now_ns))
        times.append(now_ns + GOES_ON_NS if search.rights.have_left_out else None)
        times += [failure.valid_until_ns for failure in failures]
        return NoPreemption(
            "",
            min((time for time in times if time is not None), default=None),
            self._core.plan(entry.policy).victim_events.union(
                *(failure.requeue_events for failure in failures)
            ),
        )

    def _searches(
        self,
        pod: PendingPod,
        refusal: QuotaRefusal,
        usage: QuotaUsage,
        now_ns: int,
    ) -> Iterator[ReclaimSearch]:
        search: ReclaimSearch | None = None
        for borrowed_inside in _rounds(refusal):
            rights = None if search is None else search.rights
            search = self._search(pod, refusal, usage, now_ns, borrowed_inside, rights=rights)
            if search is None:
                return
            yield search

    def _search(
        self,
        pod: PendingPod,
        refusal: QuotaRefusal,
        usage: QuotaUsage,
        now_ns: int,
        borrowed_inside: bool,
        gang: QueuedGang | None = None,
        rights: EvictionRights | None = None,
    ) -> ReclaimSearch | None:
        """None: no pod may be evicted for this pod. `rights`: of an earlier search of the attempt."""
        core, value = self._core, pod.pod
        plan = core.plan(pod.policy)
        if not refusal.block.claims or not plan.allows_preemption or value.preemption_policy == "Never":
            return None
        arguments = value, core.namespace_of(value), pod.facts, now_ns
        rights = rights or EvictionRights(
            core,
            pod.policy,
            plan.may_reclaim(*arguments, core.cache.shares),
            plan.next_reclaim_change(*arguments),
            plan.victim_order(*arguments, core.cache.shares),
            self._preemption.evictions.refused,
            now_ns,
        )
        own_gang = () if gang is None else gang.terms.keys()
        owners = core.quotas.owners_against(pod.policy, lambda: pods_judged_together(core, value))
        assert owners is not None, f"{pod.policy} has no quotas"
        return ReclaimSearch(
            core,
            core.quotas.accounts[pod.policy],
            rights,
            owners,
            lambda victim: (
                victim.uid not in own_gang
                and rights(victim)
                and not owners.keep(victim)
                and not self._preemption.evictions.breaker.blocks(victim, value.namespace, now_ns)
            ),
            self._preemption.evictions.leaving.as_seen_by(value.namespace),
            self._preemption.evictions.is_leaving,
            usage.trial(),
            pod.evicts_after_ns if gang is None else gang_evicts_after_ns(gang),
            borrowed_inside,
            (gang or pod).attempts,
        )

    def _candidate_on_one_node(
        self, pod: PendingPod, refusal: QuotaRefusal, earlier: ReclaimSearch, now_ns: int
    ) -> Steps[Candidate | None]:
        """The least disruptive node where the pod fits without pods of borrowers, in any quota that refuses it, with more
        victims elsewhere if those are too few for the quotas."""
        core = self._core
        search = self._search(
            pod, refusal, refusal.usage, now_ns, earlier.borrowed_inside, rights=earlier.rights
        )
        assert search is not None, f"{pod} may evict no pod"
        search.rights.ask_more()
        charge = refusal.charge
        blocked = [(charge, block) for block in refusal.usage.blocks(charge)]
        cluster = PreemptionInputs(
            lambda node: core.cache.ledger.usage(node).pods.values(),
            lambda uid: core.cache.pods[uid].started_ns,
            core.cache.budgets,
            len(core.cache.nodes),
            self._preemption.evictions.running_gangs(pod.pod.namespace),
            search.rights.order,
            pod.attempts,
        )
        dry_run = core.evaluator.dry_run(
            core.plan(pod.policy),
            pod.pod,
            **core.evaluation_inputs(pod, now_ns),
            nominated_pods=competing_nominations(core, pod.pod),
        )
        chosen, _ = yield from self._preemption.choose(
            dry_run,
            partial(_may_go, search, blocked),
            cluster,
            partial(search.beyond, blocked),
            search.rights,
        )
        if chosen is None:
            return None
        search.take(chosen.victims)
        victims = yield from search.find((charge,), kept=chosen.victims)
        if victims is None or search.beyond(blocked, victims):
            return None
        return replace(chosen, victims=victims)

    def _evict(
        self, pod: PendingPod, candidate: Candidate, failure: AttemptFailure, now_ns: int
    ) -> Steps[AttemptFailure]:
        yield from self._preemption.evict(pod, candidate, now_ns)
        count = len(candidate.victims)
        pods = "1 pod that borrows" if count == 1 else f"{count} pods that borrow"
        message = f"{failure.message}; evicting {pods} from the quota"
        return replace(failure, message=message, requeue_events=failure.requeue_events | PLACED_POD_EVENTS)


def _rounds(refusal: QuotaRefusal) -> tuple[bool, ...]:
    """Whether to search `borrowed_inside`. The next round is for when one finds nothing: what is borrowed inside of an entity may be
    protected, or on other nodes."""
    return (True, False) if refusal.account.limits.are_nested else (True,)


def _may_go(search: ReclaimSearch, blocked: Blocked, victim: Pod) -> bool:
    return search.may_evict(victim) and search.borrows(blocked, victim)


def _with_victims(members: Sequence[MemberPlacement], victims: Sequence[Pod]) -> GangPlacement:
    """The members, and victims that may be on any node beside theirs."""
    first, *others = members
    candidate = replace(first.candidate, victims=(*first.candidate.victims, *victims))
    return GangPlacement((replace(first, candidate=candidate), *others))

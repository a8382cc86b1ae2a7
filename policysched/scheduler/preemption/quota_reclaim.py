"""Giving borrowed quota back: which pods are evicted so that the quotas admit a pod, or a whole gang, within its amount.

    blocked by entities that borrow from it ──► victims among their pods, least important first ──► a node fits?
         │                                                                                   yes ──► evicted, nominated
         └── nobody borrows: it waits                                                        no  ──► nobody is evicted

Only pods of entities that borrow at that moment are victims, whatever their priority: what they borrowed was lent, not
given. Victims that are needed for the quota may be on any node; the pod is nominated to the node where it fits without
them, and keeps its amount of the quota until it is placed (`QuotaAccounts.trial`).
"""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

from policysched.cluster.disruption_budgets import BudgetsAfterEvictions, split_by_budget
from policysched.evaluate.plan.quotas import QuotaCharge
from policysched.lang.ir.program import DisruptionMode
from policysched.model.identifiers import PodUid
from policysched.model.pods import Pod
from policysched.model.workloads import DisruptionBudget
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.preemption.candidate_search import begun_elsewhere
from policysched.scheduler.preemption.eviction_rights import EvictionRights
from policysched.scheduler.preemption.running_gangs import keeps_minimum
from policysched.scheduler.queue.gang_registry import GangId, QueuedGang
from policysched.scheduler.quotas.quota_account import ChargedPod, QuotaAccount
from policysched.scheduler.quotas.quota_owners import QuotaOwners
from policysched.scheduler.quotas.quota_usage import QuotaBlock, QuotaUsage, summed
from policysched.scheduler.steps import Steps

PODS_PER_ATTEMPT = 97
"""By how many borrowers the next attempt begins later, if it is slow to ask about them: about as many as an attempt asks about."""
_CHARGE_COST = 3


Blocked = Collection[tuple[QuotaCharge, QuotaBlock]]
"""What may not be used, and the limits that it would exceed."""


@dataclass(slots=True)
class ReclaimSearch:
    """One search. `rights`: by the policy's clause, without the rule about priorities, and its order. `owners`: who is kept where
    the pod would borrow in another quota. `may_evict`: what else holds. `is_leaving`: the pod is terminating or about to be, and
    whoever reclaims can count on it; `may_leave`: anybody evicts it. `borrowed_inside`: entities give back first what is borrowed
    inside of them, and nothing else. `usage` judges the pod; `lent` is without reservations: who borrows there has pods that
    borrow. `evicts_after_ns`: its binds were refused. `attempts`: of the pod or gang so far. `preferred`: victims of an earlier
    search, without which there are nodes."""

    core: SchedulerCore
    account: QuotaAccount
    rights: EvictionRights
    owners: QuotaOwners
    may_evict: Callable[[Pod], bool]
    is_leaving: Callable[[PodUid], bool]
    may_leave: Callable[[PodUid], bool]
    usage: QuotaUsage
    evicts_after_ns: int
    borrowed_inside: bool
    attempts: int
    preferred: Collection[PodUid] = ()
    victims: dict[PodUid, ChargedPod] = field(default_factory=dict)
    lent: QuotaUsage = field(init=False)
    _candidates: dict[Hashable, Iterator[ChargedPod]] = field(default_factory=dict)
    """By what they free: those before are victims, or cannot become such in this search any more."""
    _taken: Counter[GangId] = field(default_factory=Counter)  # victims that would stay
    _staying: dict[GangId, int] = field(default_factory=dict)  # members
    _may_go: dict[GangId, bool] = field(default_factory=dict)  # whole

    def __post_init__(self) -> None:
        self.lent = self.account.usage.trial()
        self._discount_leaving_pods()

    def find(
        self, charges: Collection[QuotaCharge], kept: Collection[Pod] = ()
    ) -> Steps[tuple[Pod, ...] | None]:
        """The victims that let all these pods in together, the least important first. Those that are `kept` are victims
        in any case. Empty: pods that terminate already are enough. None: others do not borrow enough. Afterwards `usage`
        is without the victims."""
        together = summed(charges)  # who takes back for some members alone would lend to the others
        for charge in together:
            yield _CHARGE_COST
            while blocks := list(self.usage.blocks(charge)):
                # Pods that are not victims for one limit may be for another, and free both.
                for block in blocks:
                    if (yield from self._take_victims(block, charge)):
                        break
                else:
                    return None
            self.usage.add(charge)
        for charge in together:
            self.usage.add(charge, -1)
        yield from self._reprieve(together, {pod.uid for pod in kept})
        return tuple(charged.pod for charged in self._ordered(self.victims.values()))

    def borrows(self, blocked: Blocked, victim: Pod) -> bool:
        """Whether the victim's entity still borrows, without the victims so far, what one of the blocks lacks."""
        charged = self.account.charged(victim.uid)
        return (
            charged is not None
            and victim.uid not in self.victims
            and self._may_reclaim(self.lent, blocked, charged.charge)
        )

    def beyond(self, blocked: Blocked, victims: Iterable[Pod]) -> list[Pod]:
        """Those of the victims that are more than their entities borrow."""
        lent = self.lent.trial()
        for taken in self.victims.values():
            lent.add(taken.charge)
        return self.account.beyond(victims, lent, partial(self._may_reclaim, lent, blocked))

    def take(self, victims: Iterable[Pod]) -> None:
        """These are victims as well."""
        for victim in victims:
            charged = self.account.charged(victim.uid)
            assert charged is not None, f"{victim.full_name} is not charged"
            self._add_victim(charged)

    def take_whole(self, blocked: Blocked, victims: Iterable[Pod]) -> Steps[tuple[Pod, ...] | None]:
        """These are victims as well, each with the rest of its gang where that cannot stay. None: one may not be evicted."""
        before = set(self.victims)
        for victim in victims:
            charged = self.account.charged(victim.uid)
            if charged is None or charged.pod.uid in self.victims:
                continue
            if not self.borrows(blocked, charged.pod) or not (yield from self._may_be_victim(charged)):
                return None
            for member in self._whole(charged):
                self._add_victim(member)
        return tuple(charged.pod for uid, charged in self.victims.items() if uid not in before)

    def _add_victim(self, charged: ChargedPod) -> None:
        gang = self.core.gangs.gang_of(charged.pod.uid)
        if gang is not None:
            self._taken[gang.id] += not self.may_leave(charged.pod.uid)
        self.victims[charged.pod.uid] = charged
        self._count(charged, -1)

    def _may_reclaim(self, lent: QuotaUsage, blocked: Blocked, victim: QuotaCharge) -> bool:
        return not self.owners.owns(victim, lent) and any(
            lent.may_reclaim(block, charge, victim, borrowed_inside=self.borrowed_inside)
            for charge, block in blocked
        )

    def _count(self, charged: ChargedPod, sign: int = 1) -> None:
        self.usage.add(charged.charge, sign)
        self.lent.add(charged.charge, sign)

    def _discount_leaving_pods(self) -> None:
        for uid, charged in self.account.charged_pods.items():
            observed = self.core.cache.pods.get(uid)
            if observed is not None and (observed.deleting or self.is_leaving(uid)):
                self._count(charged, -1)

    def _take_victims(self, block: QuotaBlock, charge: QuotaCharge) -> Steps[bool]:
        """Take victims until the block is gone, or another limit blocks. False: no victim is left for it."""
        key, taken = (block.claims, block.resource, charge.entities), False
        if key not in self._candidates:
            budgets = BudgetsAfterEvictions(self.core.cache.budgets)
            budgets.evict(victim.pod for victim in self.victims.values())
            borrowers = yield from self._borrowers(block, charge)
            self._candidates[key] = iter(self._ordered(borrowers, budgets))
        for charged in self._candidates[key]:
            if charged.pod.uid in self.victims or not self._may_reclaim(
                self.lent, [(charge, block)], charged.charge
            ):
                continue
            if not (yield from self._may_be_victim(charged)):
                continue  # with victims of its gang, all of it would have to go
            for member in self._whole(charged):
                self._add_victim(member)
            taken = True
            now = self.usage.blocked(charge)
            if now is None or (now.node, now.resource) != (block.node, block.resource):
                return True
        return taken and self.usage.blocked(charge) is None

    def _borrowers(self, block: QuotaBlock, charge: QuotaCharge) -> Steps[list[ChargedPod]]:
        """The pods that may be evicted of entities that borrow what the block lacks."""
        borrowing: dict[PodUid, ChargedPod] = {}
        for quota in block.claims:
            own_entity = charge.entities[quota]
            for entity in list(self.account.usage.nodes):
                if entity[:-1] != own_entity[:-1] or entity == own_entity:
                    continue
                if not self.lent.borrowed(quota, entity, block.resource):
                    continue
                borrowing |= {charged.pod.uid: charged for charged in self.account.pods_of(entity)}
        asked, borrowers = list(borrowing.values()), list[ChargedPod]()
        if self.rights.is_slow:  # perhaps not all can be asked about
            asked = begun_elsewhere(asked, self.attempts, PODS_PER_ATTEMPT)
        for charged in asked:
            if (yield from self._may_be_victim(charged)):
                borrowers.append(charged)
        return borrowers

    def _may_be_victim(self, charged: ChargedPod) -> Steps[bool]:
        uid = charged.pod.uid
        observed = self.core.cache.pods.get(uid)
        if observed is None or observed.deleting or self.is_leaving(uid):
            return False
        gang = self._gang_below_minimum(uid)
        if gang is None:
            return (yield from self._ask((charged,)))
        if gang.id not in self._may_go:
            self._may_go[gang.id] = yield from self._ask(self._whole(charged))
        return self._may_go[gang.id]

    def _ask(self, pods: Iterable[ChargedPod]) -> Steps[bool]:
        """Whether all may be evicted."""
        for charged in pods:
            yield from self.rights.ask((charged.pod,))
            if not self.may_evict(charged.pod):
                return False
        return True

    def _whole(self, charged: ChargedPod) -> list[ChargedPod]:
        """The pod, with the rest of its gang where that would be left below its minimum."""
        gang = self._gang_below_minimum(charged.pod.uid)
        if gang is None:
            return [charged]
        own = charged.pod.uid
        others = [uid for uid in gang.placed_members if uid not in self.victims and uid != own]
        remaining = [uid for uid in others if not self.is_leaving(uid)]
        members = [self.account.charged(uid) for uid in remaining]
        return [charged, *(member for member in members if member is not None)]

    def _gang_below_minimum(self, uid: PodUid) -> QueuedGang | None:
        """The gang of the pod, if what is left of it without the pod, and without those that others evict, cannot stay."""
        gang = self.core.gangs.gang_of(uid)
        if gang is None or not keeps_minimum(gang):
            return None
        if gang.id not in self._staying:
            self._staying[gang.id] = sum(not self.may_leave(member) for member in gang.placed_members)
        stays = uid not in self.victims and not self.may_leave(uid)
        left = self._staying[gang.id] - self._taken[gang.id] - stays
        return gang if left < gang.minimum or gang.disruption is DisruptionMode.ALL else None

    def _ordered(
        self, pods: Iterable[ChargedPod], budgets: Collection[DisruptionBudget] | None = None
    ) -> list[ChargedPod]:
        """The order in which pods become victims: those that others evict, by the policy's order, by priority, then those inside which every
        entity borrows, then large ones (fewer victims), then the youngest. Pods that a budget protects come last."""
        by_uid = {
            charged.pod.uid: charged
            for charged in sorted(
                pods,
                key=lambda charged: (
                    charged.pod.uid not in self.preferred,
                    not self.may_leave(charged.pod.uid),
                    () if self.rights.order is None else self.rights.order(charged.pod),
                    charged.pod.priority,
                    self._levels_within_amount(charged),
                    tuple(-amount for amount in charged.charge.amounts),
                    -(self.core.cache.pods[charged.pod.uid].started_ns or charged.pod.created_ns),
                    charged.pod.uid,
                ),
            )
        }
        protected, others = split_by_budget(
            [charged.pod for charged in by_uid.values()],
            self.core.cache.budgets if budgets is None else budgets,
        )
        return [by_uid[pod.uid] for pod in (*others, *protected)]

    def _levels_within_amount(self, charged: ChargedPod) -> int:
        return sum(
            not any(
                self.account.usage.borrowed(quota, entity, index)
                for index in range(len(self.account.limits.resources))
            )
            for quota, entity in enumerate(charged.charge.entities)
        )

    def _reprieve(self, admitted: Collection[QuotaCharge], kept: Collection[PodUid]) -> Steps[None]:
        """Spare victims that turn out not to be needed, the most important first; gangs whole."""
        gangs: set[GangId] = set()  # that cannot be spared
        for charged in reversed(self._ordered(self.victims.values())):
            if charged.pod.uid not in self.victims or charged.pod.uid in kept:
                continue
            gang = self.core.gangs.gang_of(charged.pod.uid)
            group = [charged]
            if gang is not None:
                if gang.id in gangs:
                    continue
                gangs.add(gang.id)
                group = [self.victims[uid] for uid in gang.placed_members if uid in self.victims]
            yield _CHARGE_COST * len(group)
            if any(charged_pod.pod.uid in kept for charged_pod in group):
                continue
            for charged_pod in group:
                self._count(charged_pod)
            if self._admits(admitted):
                for charged_pod in group:
                    del self.victims[charged_pod.pod.uid]
            else:
                for charged_pod in group:
                    self._count(charged_pod, -1)

    def _admits(self, charges: Collection[QuotaCharge]) -> bool:
        trial = self.usage.trial()
        for charge in charges:
            if trial.blocked(charge) is not None:
                return False
            trial.add(charge)
        return True

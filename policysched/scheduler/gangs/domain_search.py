"""The first search of nodes for a gang, in one topology domain or among all nodes: its members in queue order."""

from collections import Counter, deque
from collections.abc import Hashable
from dataclasses import dataclass, field, replace

from policysched.evaluate import Overlay
from policysched.scheduler.attempt import PodAttempts
from policysched.scheduler.attempt_result import AttemptFailure, AttemptSuccess, again_if_outdated
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.gangs.gang_domains import neighbour_domains
from policysched.scheduler.gangs.gang_overlay import gang_overlay, present_overlay, present_quotas
from policysched.scheduler.gangs.gang_search_result import GangSearchResult, SearchPauses
from policysched.scheduler.gangs.member_classes import EvaluatedClasses, MemberKeys
from policysched.scheduler.gangs.member_order import members_in_attempt_order
from policysched.scheduler.gangs.neighbours import Neighbours
from policysched.scheduler.layer_rules import lower_rules
from policysched.scheduler.queue.entries import PendingPod
from policysched.scheduler.queue.gang_registry import QueuedGang
from policysched.scheduler.quotas.quota_usage import QuotaUsage
from policysched.scheduler.steps import Steps, evaluation_cost


@dataclass(slots=True, eq=False)
class DomainSearch:
    """`result`: without members yet. `usage`: of the quotas without the victims of the result (None: as it is). `possible_count`:
    members that have a node or may get one; `pending_by_class`: those without one."""

    core: SchedulerCore
    attempts: PodAttempts
    gang: QueuedGang
    equivalence_keys: MemberKeys
    result: GangSearchResult
    usage: QuotaUsage | None
    pauses: SearchPauses
    neighbours: Neighbours = field(init=False)
    remaining: deque[PendingPod] = field(init=False)
    pending_by_class: Counter[Hashable] = field(init=False)
    possible_count: int = field(init=False)
    quotas: QuotaUsage | None = field(init=False)

    def __post_init__(self) -> None:
        core, gang, search = self.core, self.gang, self.result
        self.remaining = deque(members_in_attempt_order(core, gang))
        self.pending_by_class = Counter(self.equivalence_keys.values())
        self.possible_count, self.neighbours = len(self.remaining), Neighbours(core, gang)
        search.overlay = gang_overlay(core, gang)
        for uid in search.victims:
            search.overlay.remove_pod(uid)
        self.quotas = core.quotas.trial(gang.representative_pod, excluding=gang.pending_members)
        if self.usage is not None:
            self.quotas = self.usage.trial()

    def run(self) -> Steps[GangSearchResult]:
        """Place members until enough have a node, or too few are left."""
        core, gang, search, pauses = self.core, self.gang, self.result, self.pauses
        vacancies, needed, evaluated = gang.vacancies, gang.needed_count, EvaluatedClasses()
        has_preferred = any(not level.required for level in gang.levels)
        while self.remaining:
            pod = self.remaining.popleft()
            key = self.equivalence_keys[pod.uid]
            if vacancies is not None and len(search.fits) >= vacancies:
                break  # the maximum is reached
            if search.reclaims and len(search.fits) >= gang.evicting_count:
                break
            if self.possible_count < needed or core.cache.devices.allocation_cache.is_cut_off:
                break
            if key in search.failures or self._is_refused(pod):
                continue
            operations = core.evaluator.decision_cost(pod.pod)
            nearest = self.neighbours.nearest_node(pod.pod) if has_preferred else None
            around = () if nearest is None else neighbour_domains(gang.levels, nearest, search.domain)
            pauses.search, pauses_before = search, pauses.count
            class_cost = evaluated.cost(key, len(search.fits))
            yield class_cost + evaluation_cost(len(core.cache.nodes), operations)
            yield from lower_rules(core, pod, pauses.now_ns)
            pauses.search, now_ns = None, pauses.now_ns
            overlay = yield from self._present_overlay()
            if gang.pending_members.get(pod.uid) is not pod:  # it left in a pause
                self.pending_by_class[key] -= 1
                self.possible_count -= 1
                continue
            if pauses.count > pauses_before and self._is_refused(pod):
                continue
            yield from self.attempts.warm_up(pod, now_ns, overlay)
            for nodes in (*around, search.domain):
                search.operations += operations
                search.evaluations += 1
                if nodes is not search.domain:
                    yield evaluation_cost(len(core.cache.nodes), operations)
                result = self.attempts.evaluate(pod, overlay, now_ns, nodes)
                if isinstance(result, AttemptSuccess):
                    break
            if isinstance(result, AttemptSuccess):
                self._place(pod, result, overlay)
            else:
                self._fail(key, again_if_outdated(core, result, now_ns))
        return search

    def _is_refused(self, pod: PendingPod) -> bool:
        """Whether the quotas do not admit the member beside those that have a node. Its class fails then."""
        refusal = None if self.quotas is None else self.core.quotas.refusal(pod.pod, self.quotas)
        if refusal is None:
            return False
        key = self.equivalence_keys[pod.uid]
        self.result.add_refusal(key, refusal)
        self.possible_count -= self.pending_by_class[key]
        return True

    def _present_overlay(self) -> Steps[Overlay]:
        """With the quotas, where a pause has changed the cluster."""
        search = self.result
        self._place_again()
        if self.pauses.cluster_changed:
            self.pauses.cluster_changed = False
            search.overlay = yield from present_overlay(self.core, self.gang, search)
            self.quotas = self.quotas if search.reclaims else present_quotas(self.core, self.gang, search)
        assert search.overlay is not None, "it is made again where the cluster changed"
        return search.overlay

    def _place_again(self) -> None:
        """Members that lost their nodes in a pause follow the others."""
        lost = self.result.take_lost()
        for pod, _ in lost:
            key = self.equivalence_keys[pod.uid]
            self.pending_by_class[key] += 1
            self.possible_count -= key in self.result.failures
            self.remaining.append(pod)
            if self.result.reclaims and self.quotas is not None:
                self.quotas.add(self.core.quotas.charge_of(pod.pod), -1)
        if lost:
            self.neighbours = Neighbours(self.core, self.gang)
            for pod, success in self.result.fits:
                self.neighbours.add(pod.pod, success.node)

    def _place(self, pod: PendingPod, success: AttemptSuccess, overlay: Overlay) -> None:
        self.neighbours.add(pod.pod, success.node)
        if self.quotas is not None:
            self.quotas.add(self.core.quotas.charge_of(pod.pod))
        prebind_work = self.attempts.add_to_overlay(pod, success.node, overlay, self.pauses.now_ns)
        if prebind_work is not None:
            success = replace(success, prebind_work=prebind_work)
        self.result.fits.append((pod, success))
        self.pending_by_class[self.equivalence_keys[pod.uid]] -= 1

    def _fail(self, key: Hashable, failure: AttemptFailure) -> None:
        self.result.failures[key] = failure
        self.possible_count -= self.pending_by_class[key]

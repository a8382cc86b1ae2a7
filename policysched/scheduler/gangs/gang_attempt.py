"""One scheduling attempt for a whole gang: all members are placed on one state of the cluster.

Members are evaluated one after the other on an overlay that holds the earlier ones. Pods are
assumed only if enough members fit, and then all in the same step. Otherwise preemption is tried for
the members that are needed. Members of one equivalence class fail together: once one of them fits
nowhere the others are skipped, and the attempt ends as soon as too few members remain. Unequal
members that do not fit in queue order are tried again, the most demanding first (`backtracking`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from policysched.evaluate import TopologyDomain
from policysched.model.pods import Pod
from policysched.scheduler.attempt import PodAttempts
from policysched.scheduler.attempt_result import (
    continue_device_search,
    devices_go_on_at_once,
    reject_over_budget,
)
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.gangs.attempt_state import GangAttemptState
from policysched.scheduler.gangs.backtracking import BacktrackingSearch, BacktrackLimit
from policysched.scheduler.gangs.domain_search import DomainSearch
from policysched.scheduler.gangs.gang_domains import candidate_domains, closest_domain
from policysched.scheduler.gangs.gang_limits import (
    DomainBudget,
    over_budget_message,
    refused_by_interrupted,
    refused_by_quotas,
    too_expensive,
    unless_cut_off,
    unless_refused,
)
from policysched.scheduler.gangs.gang_overlay import nodes_of
from policysched.scheduler.gangs.gang_parking import GangParking
from policysched.scheduler.gangs.gang_preemption import preempt_for_gang
from policysched.scheduler.gangs.gang_reclaim import GangReclaim
from policysched.scheduler.gangs.gang_search_result import (
    GangSearchResult,
    SearchPauses,
    domains_to_skip,
    remember_domains,
    wanted,
)
from policysched.scheduler.gangs.member_classes import MemberKeys, member_equivalence_keys
from policysched.scheduler.gangs.member_devices import search_devices_of_members
from policysched.scheduler.gangs.member_order import most_demanding_first
from policysched.scheduler.gangs.member_trial import MemberTrial
from policysched.scheduler.layer_rules import lower_rules
from policysched.scheduler.pod_enqueuer import PodEnqueuer
from policysched.scheduler.preemption.default_preemption import DefaultPreemption
from policysched.scheduler.preemption.nominations import withdraw_gang_nominations
from policysched.scheduler.preemption.preemption_result import NoPreemption, PreemptionStarted
from policysched.scheduler.queue.entries import PendingPod, QueueEntry
from policysched.scheduler.queue.gang_registry import QueuedGang
from policysched.scheduler.quotas.quota_usage import QuotaUsage
from policysched.scheduler.steps import NEW_CLASS_COST, Steps, evaluation_cost

_PREFERRED_DOMAINS_MAX = 16
"""So many domains of a preferred level are tried for the whole gang."""


class GangAttempts:
    """Runs attempts for gangs that are placed as a whole."""

    def __init__(
        self,
        core: SchedulerCore,
        pod_attempts: PodAttempts,
        enqueuer: PodEnqueuer,
        preemption: DefaultPreemption,
    ) -> None:
        self._core, self._enqueuer = core, enqueuer
        self._pod_attempts, self._preemption = pod_attempts, preemption
        self._reclaim = GangReclaim(core, pod_attempts, preemption)
        self._parking = GangParking(core, pod_attempts, enqueuer)
        self.state = GangAttemptState()

    def begin(self, now_ns: int, *, is_limited: bool = True) -> None:
        """An attempt begins."""
        self.state = GangAttemptState(SearchPauses(now_ns, is_limited=is_limited))

    @property
    def _pauses(self) -> SearchPauses:
        return self.state.pauses

    def resume(self, now_ns: int, *, cluster_changed: bool, others_wait: bool) -> None:
        """The attempt continues after a pause. `others_wait`: entries that no pause decides."""
        self._pauses.now_ns, self._pauses.others_wait = now_ns, others_wait
        # One step may pause several times before the search reads it.
        self._pauses.cluster_changed |= cluster_changed
        self._pauses.count += 1
        self.state.member_keys = None

    @property
    def pausable_search(self) -> GangSearchResult | None:
        """The search that has yielded, if the cluster may change before it continues."""
        return self._pauses.search

    def has_begun_evictions(self, entry: QueueEntry) -> bool:
        """Whether the attempt is not without effect any more. An earlier eviction would have deferred it."""
        return isinstance(entry, QueuedGang) and any(map(self._preemption.is_evicting, entry.pending_members))

    def attempt_gang(self, gang: QueuedGang, now_ns: int) -> Steps[None]:
        """Attempt a gang that was just popped, then park or requeue the members that are left."""
        gang.missed_events.clear()
        state = self.state
        try:
            yield from self._attempt_gang(gang, now_ns)
        finally:  # they have names of a policy and of pods that may be gone by the next attempt
            state.member_keys = None
            state.class_numbers.clear()
            state.counted.clear()
            if gang.yields_no_more:  # the attempt was given up, or goes on later
                gang.yields_first, gang.yields_no_more = True, False

    def _attempt_gang(self, gang: QueuedGang, now_ns: int) -> Steps[None]:
        if gang.yields_first and self._core.queue.yield_to_earlier(gang, now_ns):
            return  # as it will not at the end: those may be many slices
        gang.yields_first, gang.yields_no_more = False, gang.yields_first or gang.yields_no_more
        was_last, gang.ordered_last = gang.ordered_last, False
        if self._preemption.evictions.defer_gang_attempt(gang):
            self._parking.park_until_evicted(gang, now_ns)
            return
        self.state.counted.count(gang)
        search = yield from self._search(gang)
        now_ns, needed = self._pauses.now_ns, gang.needed_count  # there may have been pauses
        enough = len(search.fits) >= needed
        search.shortage = gang.shortage(pod.uid for pod, _ in search.fits) if enough else None
        placed = search.fits if enough and search.shortage is None else []
        if placed and self._yields(gang, was_last, now_ns):
            return
        goes_on = not placed and not gang.overdue and devices_go_on_at_once(self._core, gang, counted=False)
        if goes_on or (yield from refused_by_interrupted(self._core, gang, placed, now_ns)):
            self.state.counted.undo(gang)
            gang.ordered_last = was_last
            return
        for pod, success in placed:
            self._pod_attempts.assume(pod, success, now_ns)
        if placed:
            gang.attempts, gang.overdue, gang.domains_tried = 0, False, frozenset()
            gang.was_restarted = gang.yields_no_more = False
            self._core.end_gang_failure(gang.id)
        if not gang.pending_members:
            self._enqueuer.refresh_gang(gang, now_ns, "GangScheduled")
            return
        self.state.has_failed = not placed
        if gang.overdue:
            withdraw_gang_nominations(self._core, gang, now_ns)
            self._enqueuer.gang_timed_out(gang, now_ns)
            return
        preemption: PreemptionStarted | NoPreemption | None = None
        evicting = gang.evicting_count
        if evicting and search.admitted_count is not None:
            assert search.refusal is not None, f"{gang} is not refused by a quota"
            preemption = yield from self._reclaim.run(
                gang, search.refusal, self._pauses, self._search_nodes, self._equivalence_keys
            )
            now_ns = self._pauses.now_ns
        elif (
            evicting and search.shortage is None and search.domains_tried is None and not self._is_cut_off
        ):  # otherwise a domain or a node that was not tried may have enough capacity
            keys = yield from self._equivalence_keys(gang)
            pauses = None if placed else self._pauses  # whatever the search for nodes did: nothing yields now
            preemption = yield from preempt_for_gang(
                self._preemption, self._pod_attempts, gang, search, keys, self._clock, pauses
            )
            now_ns = self._pauses.now_ns
        if gang.search_progress.goes_on:
            self._parking.go_on_later(gang, self.state.counted, now_ns)
            return
        preemption = unless_cut_off(self._core, gang, preemption, now_ns)
        reclaims_none = search.admitted_count is not None and isinstance(preemption, NoPreemption)
        if preemption is None or reclaims_none:
            withdraw_gang_nominations(self._core, gang, now_ns)
        yield from self._parking.park(gang, search, bool(placed), needed, preemption, now_ns)
        if self.state.counted.are_outdated(gang):
            self._enqueuer.refresh_gang(gang, now_ns, "PodAdd")

    def _yields(self, gang: QueuedGang, was_last: bool, now_ns: int) -> bool:
        """Whether the gang is put back behind earlier entries of its policy, as if it had not been attempted."""
        gang.ordered_last = was_last
        if not self._core.queue.yield_to_earlier(gang, now_ns, was_paused=self._pauses.count > 0):
            gang.ordered_last = False
            return False
        gang.yields_first = self._pauses.count > 0
        self.state.counted.undo(gang)
        return True

    def _search(self, gang: QueuedGang) -> Steps[GangSearchResult]:
        """Find nodes for the members. A gang with a topology key gets the first domain that fits enough members, or else the
        result of the domain that fits most, also of those that are too small for the gang."""
        if (over_budget := (yield from over_budget_message(self._core, gang))) is not None:
            return too_expensive(self._core, gang, reject_over_budget(over_budget))
        if (refused := (yield from refused_by_quotas(self._core, gang))) is not None:
            return refused
        return unless_refused(self._core, gang, (yield from self._search_nodes(gang)))

    def _search_nodes(
        self,
        gang: QueuedGang,
        removed: Sequence[Pod] = (),
        usage: QuotaUsage | None = None,
    ) -> Steps[GangSearchResult]:
        """Find nodes for members that the quotas admit. `removed`: pods that would be evicted; `usage`: of the quotas
        without them."""
        keys_of_members = yield from self._equivalence_keys(gang)
        if not (yield from search_devices_of_members(self._core, gang, keys_of_members)):
            return GangSearchResult(
                failures={"devices": continue_device_search(self._core, self._pauses.now_ns)}
            )
        skipped = domains_to_skip(gang) if usage is None else frozenset[TopologyDomain]()
        budget = DomainBudget(self._core, gang)
        if (
            not skipped
        ):  # otherwise an earlier attempt tried preferred ones, and this one goes on with the others
            together = yield from self._search_preferred(gang, removed, usage, budget)
            if together is not None:
                return together
        keys = gang.required_keys
        if not keys:
            search = yield from self._search_domain(gang, None, removed, usage)
            return (yield from self._with_backtracking(gang, [search], removed, usage)) or search
        searches: list[GangSearchResult] = []
        left_out = False
        equivalence_keys = yield from self._equivalence_keys(gang)
        domains = candidate_domains(
            self._core, gang, keys, equivalence_keys, self._clock, except_domains=skipped
        )
        while (domain := (yield from self._next_domain(gang, domains, removed, usage))) is not None:
            search = yield from self._search_domain(gang, domain, removed, usage)
            enough = search.fits and len(search.fits) >= gang.needed_count
            if enough and gang.shortage(pod.uid for pod, _ in search.fits) is None:
                return search
            if self._is_cut_off:
                return search
            search.overlay = None  # one for each of thousands of domains would fill the memory
            searches.append(search)
            budget.spend(search.operations, search.evaluations)
            if budget.is_exceeded:
                self._core.records.counters.count_over_budget(gang.policy)
                left_out = not gang.placed_members  # they fix the domain: the next attempt would try the same
                break
        backtracked = yield from self._with_backtracking(gang, searches, removed, usage)
        if backtracked is not None:
            return backtracked
        if not left_out:
            closest = closest_domain(self._core, gang, keys, self._pauses.now_ns)
            if closest is not None and all(search.domain != closest for search in searches):
                searches.append((yield from self._search_domain(gang, closest, removed, usage)))
        if not searches:
            no_domain = TopologyDomain(keys[-1], None)
            searches.append((yield from self._search_domain(gang, no_domain, removed, usage)))
        best = max(searches, key=lambda search: len(search.fits))
        if usage is None:
            remember_domains(gang, skipped, searches, best, left_out=left_out)
        best.other_domain_failures = [
            failure for search in searches if search is not best for failure in search.failures.values()
        ]
        return best

    @property
    def _is_cut_off(self) -> bool:  # the search for devices
        return self._core.cache.devices.allocation_cache.is_cut_off

    def _equivalence_keys(self, gang: QueuedGang) -> Steps[MemberKeys]:
        """Those of its pending members, made once until the attempt pauses or places some."""
        if self.state.member_keys is None or self.state.member_keys.keys() != gang.pending_members.keys():
            members = gang.pending_members.values()
            self.state.member_keys = yield from member_equivalence_keys(
                self._core, members, self.state.class_numbers
            )
        return self.state.member_keys

    def _clock(self) -> int:
        return self._pauses.now_ns

    def _search_preferred(
        self, gang: QueuedGang, removed: Sequence[Pod], usage: QuotaUsage | None, budget: DomainBudget
    ) -> Steps[GangSearchResult | None]:
        """All members in one domain of a preferred level, the narrowest level first. None: none that was tried takes
        them all."""
        if len(gang.levels) == len(gang.required_keys):
            return None
        members, vacancies = gang.members_in_order(), gang.vacancies
        count = len(members) if vacancies is None else min(vacancies, len(members))
        for depth in range(len(gang.levels), len(gang.required_keys), -1):
            equivalence_keys = yield from self._equivalence_keys(gang)  # members may have joined in a pause
            keys = [level.key for level in gang.levels[:depth]]
            candidates = candidate_domains(self._core, gang, keys, equivalence_keys, self._clock)
            domains = budget.limited(candidates)
            for _ in range(_PREFERRED_DOMAINS_MAX):
                domain = yield from self._next_domain(gang, domains, removed, usage)
                if domain is None:
                    break
                search = yield from self._search_domain(gang, domain, removed, usage)
                if len(search.fits) >= count:
                    return search
                budget.spend(search.operations, search.evaluations)
        return None

    def _next_domain(
        self,
        gang: QueuedGang,
        domains: Iterator[TopologyDomain | PendingPod],
        removed: Sequence[Pod],
        usage: QuotaUsage | None,
    ) -> Steps[TopologyDomain | None]:
        """The next of `candidate_domains`. None: there are no more."""
        core = self._core
        for found in domains:
            if isinstance(found, TopologyDomain):
                return found
            self._pauses.search = self._new_result(gang, None, removed, usage)
            operations = core.evaluator.decision_cost(found.pod)
            yield NEW_CLASS_COST + evaluation_cost(len(core.cache.nodes), operations)
            yield from lower_rules(core, found, self._pauses.now_ns)
            self._pauses.search = None
            self._pauses.cluster_changed = False  # nothing is on an overlay yet
            yield from self._pod_attempts.warm_up(found, self._pauses.now_ns)
        return None

    def _with_backtracking(
        self,
        gang: QueuedGang,
        searches: Sequence[GangSearchResult],
        removed: Sequence[Pod],
        usage: QuotaUsage | None,
    ) -> Steps[GangSearchResult | None]:
        """Search again, the most demanding member first, in the domains of searches that found too few nodes. None:
        members are equal, or there is no placement."""
        if self._is_cut_off or any(len(search.fits) >= gang.needed_count for search in searches):
            return None
        equivalence_keys = yield from self._equivalence_keys(gang)
        failed_classes = {key for search in searches for key in search.failures}
        failed = {uid for uid, key in equivalence_keys.items() if key in failed_classes}
        members = yield from most_demanding_first(self._core, gang, equivalence_keys, failed)
        if members is None:
            return None
        budget = BacktrackLimit(self._core.limits.gang_backtracks_max)
        trial = MemberTrial(self._core, self._pod_attempts, gang, removed, usage, self._pauses)
        for search in searches:
            if budget.is_spent:
                search.backtracks_exceeded = True
                continue
            trial.begin(search.domain)
            needed, place_max, domain = gang.needed_count, gang.vacancies, search.domain
            fits = yield from BacktrackingSearch(
                members, equivalence_keys, needed, place_max, domain, budget, trial
            ).run()
            search.backtracks_exceeded = budget.exceeded
            if fits is not None:
                return replace(search, fits=fits)  # the failures end when members that are left out fit
        return None

    def _new_result(
        self,
        gang: QueuedGang,
        domain: TopologyDomain | None,
        removed: Sequence[Pod],
        usage: QuotaUsage | None,
    ) -> GangSearchResult:
        victims = nodes_of(self._core, removed)
        return GangSearchResult(
            domain=domain, wanted=wanted(gang), victims=victims, reclaims=usage is not None
        )

    def _search_domain(
        self,
        gang: QueuedGang,
        domain: TopologyDomain | None,
        removed: Sequence[Pod],
        usage: QuotaUsage | None,
    ) -> Steps[GangSearchResult]:
        result = self._new_result(gang, domain, removed, usage)
        keys = yield from self._equivalence_keys(gang)
        search = DomainSearch(self._core, self._pod_attempts, gang, keys, result, usage, self._pauses)
        return (yield from search.run())

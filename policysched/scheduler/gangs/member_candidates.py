"""The least disruptive candidate for a member of a gang, by what is known from members before it.

    first of its class: a search among all nodes ──► candidates, kept for the class
    a later one:        only nodes that changed since are searched again ──► the best

Evictions for a member change nodes, and so do those of whole gangs elsewhere. If a rule depends on other nodes, only the node-local
rejections are reused.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace

from policysched.evaluate import DryRun
from policysched.model.identifiers import NodeName
from policysched.model.pods import Pod
from policysched.scheduler.core import SchedulerCore
from policysched.scheduler.preemption.best_candidate_search import (
    PODS_MAX,
    BestFirstSearch,
    find_best_candidate,
    rejection_reasons,
)
from policysched.scheduler.preemption.candidate_search import (
    CANDIDATES_MIN,
    CandidateSearchResult,
    find_candidates,
)
from policysched.scheduler.preemption.eviction_rights import EvictionRights
from policysched.scheduler.preemption.gang_placement import GangSearchContext, NoGangPlacement
from policysched.scheduler.preemption.running_gangs import EvictablePods
from policysched.scheduler.preemption.victim_selection import Candidate, PreemptionInputs
from policysched.scheduler.queue.entries import PendingPod
from policysched.scheduler.queue.gang_registry import QueuedGang
from policysched.scheduler.steps import Steps
from policysched.scheduler.unschedulable_message import unavailable_message

_PODS_MIN = 50
"""Where lower bounds are poor, the n-th class of a gang, or the n-th search after a pause, evaluates nodes with an n-th of the
pods that a single pod does, but with so many at least: 1,000 times 2,500 takes half a minute."""


@dataclass(slots=True)
class _CachedCandidates:
    """Candidates of one equivalence class, and how many members were placed when they were found.

    `BestFirstSearch` if an eviction on one node cannot change the verdict about another.
    """

    candidates: CandidateSearchResult | BestFirstSearch
    placed_count: int


@dataclass(slots=True)
class MemberCandidates:
    """Of one search. It is told of all that changes: `note_changes` of each placement, `forget`, and `follow` after a pause."""

    core: SchedulerCore
    gang: QueuedGang
    context: GangSearchContext
    _changed_nodes: list[set[NodeName]] = field(default_factory=list)  # by placement
    _by_class: dict[Hashable, _CachedCandidates] = field(default_factory=dict)
    _evictable: dict[EvictionRights, EvictablePods] = field(default_factory=dict)
    _search_count: int = 0  # of those among all nodes

    def note_changes(self, nodes: set[NodeName]) -> None:
        """A member is placed, and changes these nodes."""
        self._changed_nodes.append(nodes)
        for evictable in self._evictable.values():
            evictable.forget(nodes)

    def forget(self) -> None:
        """Whatever was found. What is known of pods that may be evicted stays."""
        self._by_class.clear()

    def follow(self, changed: set[NodeName] | None) -> None:
        """After a pause in which these nodes changed. None: any may have."""
        if changed is None:
            self._evictable.clear()
        for evictable in self._evictable.values():
            evictable.forget_answers()
            gone = evictable.by_node.keys() - self.core.cache.nodes.keys()
            evictable.forget((changed or set()) | gone)

    def least_disruptive(
        self,
        pod: PendingPod,
        dry_run: DryRun,
        allowed: EvictionRights,
        may_evict: Callable[[Pod], bool],
        cluster: PreemptionInputs,
    ) -> Steps[Candidate | NoGangPlacement]:
        evictable = self._evictable.setdefault(
            allowed, EvictablePods(may_evict, allowed.ask if allowed.is_slow else None)
        )
        equivalence_key, placed_count = self.context.equivalence_keys[pod.uid], len(self._changed_nodes)
        cached = self._by_class.get(equivalence_key)
        changed = set[NodeName]()
        if cached is not None:
            changed.update(*self._changed_nodes[cached.placed_count :])
        previous = None if cached is None else cached.candidates
        if dry_run.node_local:
            if isinstance(previous, BestFirstSearch):
                yield from previous.refresh(cluster, changed)
                best = yield from previous.best(dry_run, cluster)
                self._by_class[equivalence_key] = _CachedCandidates(previous, placed_count)
                if best is not None:
                    return best
            self._search_count += 1
            pods_max = max(_PODS_MIN, PODS_MAX // self._search_count)
            candidates, best = yield from find_best_candidate(dry_run, evictable, cluster, pods_max)
            if best is None:
                reasons = rejection_reasons(candidates, dry_run, cluster)
                return NoGangPlacement(allowed.explain(unavailable_message(cluster.node_count, reasons)))
            self._by_class[equivalence_key] = _CachedCandidates(candidates, placed_count)
            return best
        if isinstance(previous, CandidateSearchResult):
            rejected = {
                node: reason for node, reason in previous.node_rejections.items() if node not in changed
            }
            previous = replace(previous, node_rejections=rejected)
        else:
            previous = None
        least = max(1, CANDIDATES_MIN // self.gang.evicting_count)
        result = yield from find_candidates(
            dry_run, evictable, cluster, candidates_min=least, previous=previous
        )
        best = yield from result.best()
        if best is None:
            return NoGangPlacement(allowed.explain(unavailable_message(cluster.node_count, result.reasons)))
        if previous is not None:
            result = replace(result, failed_nodes=previous.failed_nodes | result.failed_nodes)
        self._by_class[equivalence_key] = _CachedCandidates(result, placed_count)
        return best

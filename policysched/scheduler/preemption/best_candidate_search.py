"""Lazy candidate search: the least disruptive node, without evaluating every node.

    nodes ──► lower bound of any eviction ──► heap, least first ◄──────────┐
                                                │                          │
            first is a bound for any pod ───────┼──► bound for this pod ──►┤
            first is a bound for this pod ──────┼──► evaluate ──► exact disruption
            first is exact ──► the best candidate

The bound for any pod is shared by all pods with the same rights to evict (`EvictablePods`), so that members of a gang do
not visit all nodes each. That for one pod follows from what `node_resources_fit` finds missing (`disruption_bound`).
A node is never better than its bound, so nodes behind the first exact one are not evaluated. The
result equals that of `find_candidates`, unless so many nodes are evaluated that the best of them suffices, or in vain. Requires
rules that are node-local.
"""

import heapq
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from policysched.evaluate import DryRun
from policysched.model.identifiers import NodeName
from policysched.model.pods import Pod
from policysched.scheduler.preemption.candidate_search import (
    NO_VICTIMS,
    NODES_PER_ATTEMPT,
    NOT_HELPFUL,
    NOT_SEARCHED,
    begun_elsewhere,
)
from policysched.scheduler.preemption.disruption_bound import (
    HOPELESS,
    bound_for_any_pod,
    disruption_lower_bound,
    unmet_reasons,
)
from policysched.scheduler.preemption.running_gangs import EvictablePods
from policysched.scheduler.preemption.victim_selection import (
    NODES_PER_BATCH,
    Candidate,
    Disruption,
    PreemptionInputs,
    VictimSelection,
    least_disruptive,
    select_victims_on_nodes,
)
from policysched.scheduler.steps import Steps

_FIRST_BATCH_NODES = 4
_FORGOTTEN = -1  # no entry of the heap has this serial
PODS_MAX = 2_500
"""On evaluated nodes, also for all members of a class of a gang together, before the best of these suffices: where pods differ
much in what they request, the lower bounds of many nodes are below what their evictions cost. That of a node where
all pods are needed is exact."""
_PODS_IN_VAIN_MAX = 2_500
"""On nodes evaluated in vain, before others are tried than those of the least bounds, and on these before the search ends: the
next attempt tries others."""
_PODS_PER_COST_UNIT = 4
"""Pods inspected for one unit of cost: inspecting a pod is cheaper than removing it."""


class BestFirstSearch:
    """Nodes with pods that may be evicted. `refresh` must be called for nodes that changed."""

    def __init__(self, evictable: EvictablePods, pods_max: int | None = None) -> None:
        self._evictable, self._pods_max = evictable, pods_max or PODS_MAX
        self._bounded: set[NodeName] = set()  # with the bound for this pod: others have the one for any pod
        self._evaluated: dict[NodeName, VictimSelection] = {}  # with exact disruption
        self._unmet: dict[NodeName, list[str]] = {}  # of hopeless nodes: the reasons
        # Sorted, so it is a heap.
        self._heap: list[tuple[Disruption, NodeName, int]] = evictable.in_order.copy()
        self._latest_serial: dict[NodeName, int] = {}
        self._serial = self._pod_count = 0
        self.reasons: Counter[str] = Counter()

    def refresh(self, cluster: PreemptionInputs, nodes: Collection[NodeName]) -> Steps[None]:
        """Replace what is known of changed nodes."""
        for node in sorted(nodes):
            self._latest_serial[node] = _FORGOTTEN
            self._bounded.discard(node)
            self._evaluated.pop(node, None)
            self._unmet.pop(node, None)
            pods = yield from cluster.evictable_pods(node, self._evictable)
            if pods:
                self._push(node, bound_for_any_pod(pods, cluster))
            yield _bound_cost(pods)

    def best(self, dry_run: DryRun, cluster: PreemptionInputs) -> Steps[Candidate | None]:
        """The least disruptive candidate, among equals the first node. None: there is no candidate."""
        batch_size, in_vain = _FIRST_BATCH_NODES, 0
        while True:
            if self._pod_count > self._pods_max and self._evaluated:
                evaluated = [self._evaluated[node] for node in sorted(self._evaluated)]
                return (yield from least_disruptive(evaluated).candidate())
            if in_vain > _PODS_IN_VAIN_MAX and not self._evaluated:
                return (yield from self._best_of_others(dry_run, cluster))
            batch = yield from self._most_promising(batch_size, dry_run, cluster)
            if not batch:
                self.reasons[NO_VICTIMS] = dry_run.potential_node_count - len(self._bounded)
                return None
            if batch[0] in self._evaluated:
                return (yield from self._evaluated[batch[0]].candidate())
            in_vain += yield from self._evaluate(batch, dry_run, cluster)
            batch_size = min(2 * batch_size, NODES_PER_BATCH)

    def _evaluate(
        self, nodes: Collection[NodeName], dry_run: DryRun, cluster: PreemptionInputs
    ) -> Steps[int]:
        """Returns how many pods are on them."""
        potential = {node: self._evictable.by_node[node] for node in sorted(nodes)}
        pod_count = sum(map(len, potential.values()))
        self._pod_count += pod_count
        selections = yield from select_victims_on_nodes(dry_run, potential, cluster, self.reasons)
        for selection in selections:
            self._evaluated[selection.node] = selection
            self._push(selection.node, selection.disruption)
            yield 1
        return pod_count

    def _best_of_others(self, dry_run: DryRun, cluster: PreemptionInputs) -> Steps[Candidate | None]:
        """Many nodes were evaluated in vain, so that a bound says little. Each attempt begins with others of the nodes that are
        left; the hopeless ones are not evaluated."""
        left = sorted(node for _, node, serial in self._heap if self._latest_serial.get(node, 0) == serial)
        self._heap.clear()
        yield from self._bound([node for node in left if node not in self._bounded], dry_run, cluster)
        self.reasons[NO_VICTIMS] = dry_run.potential_node_count - len(self._bounded)
        for node in left:
            self.reasons.update(self._unmet.get(node, ()))
        left = [node for node in left if node in self._bounded and node not in self._unmet]
        left, in_vain = begun_elsewhere(left, cluster.attempts, NODES_PER_ATTEMPT), 0
        while left and in_vain <= _PODS_IN_VAIN_MAX and not self._evaluated:
            batch, left = left[:NODES_PER_BATCH], left[NODES_PER_BATCH:]
            in_vain += yield from self._evaluate(batch, dry_run, cluster)
        if self._evaluated:
            for node in left:
                self._push(node, bound_for_any_pod(self._evictable.by_node[node], cluster))
            return (yield from least_disruptive(list(self._evaluated.values())).candidate())
        self.reasons[NOT_SEARCHED] = len(left)
        return None

    def _most_promising(
        self, batch_size: int, dry_run: DryRun, cluster: PreemptionInputs
    ) -> Steps[list[NodeName]]:
        """Pop up to `batch_size` nodes with a lower bound for this pod, or return the first node alone if it is exact.

        A batch ends before the first exact node, which stays in the heap.
        """
        size = batch_size
        while True:
            entries = self._pop(size)
            first = [node for _, node, _ in entries[:batch_size]]
            others = [node for _, node, _ in entries if node not in self._bounded]
            if self._bounded.issuperset(first):
                for disruption, node, _ in entries[batch_size:]:
                    self._push(node, disruption)
                return first or [node for _, node, _ in self._heap[:1]]
            for disruption, node, _ in entries:
                if node in self._bounded:
                    self._push(node, disruption)
            yield from self._bound(others, dry_run, cluster)
            size = min(2 * size, NODES_PER_BATCH)

    def _bound(self, nodes: Sequence[NodeName], dry_run: DryRun, cluster: PreemptionInputs) -> Steps[None]:
        """For this pod, and leave out those that are no candidates."""
        potential = dry_run.filter_potential_nodes(nodes)
        self._bounded.update(potential)
        yield 1 + len(nodes) // _PODS_PER_COST_UNIT
        for node, missing in zip(potential, dry_run.shortfalls(potential), strict=True):
            pods = self._evictable.by_node[node]
            if unmet := unmet_reasons(pods, missing):
                self._unmet[node] = unmet
                self._push(node, HOPELESS)
            else:
                yield from cluster.visit_gangs(pods)
                self._push(node, disruption_lower_bound(pods, missing, cluster))
            yield 2 * _bound_cost(pods)

    def _pop(self, batch_size: int) -> list[tuple[Disruption, NodeName, int]]:
        """Those before the first exact one."""
        entries: list[tuple[Disruption, NodeName, int]] = []
        while self._heap and len(entries) < batch_size:
            _, node, serial = self._heap[0]
            if self._latest_serial.get(node, 0) == serial:
                if node in self._evaluated:
                    break
                self._latest_serial[node] = _FORGOTTEN
                entries.append(self._heap[0])
            heapq.heappop(self._heap)
        return entries

    def _push(self, node: NodeName, disruption: Disruption) -> None:
        self._serial += 1
        self._latest_serial[node] = self._serial
        heapq.heappush(self._heap, (disruption, node, self._serial))


def _bound_cost(pods: Sequence[Pod]) -> int:
    return 1 + len(pods) // _PODS_PER_COST_UNIT


def find_best_candidate(
    dry_run: DryRun, evictable: EvictablePods, cluster: PreemptionInputs, pods_max: int | None = None
) -> Steps[tuple[BestFirstSearch, Candidate | None]]:
    """Search a node-local dry run; return the candidates for reuse, and the best one. `pods_max`: instead of `PODS_MAX`."""
    assert dry_run.node_local, "an eviction on one node may change the verdict about another"
    new = [node for node in dry_run.potential_nodes if node not in evictable.ordered_nodes]
    if evictable.is_slow:  # perhaps not all can be asked about
        new = begun_elsewhere(new, cluster.attempts, NODES_PER_ATTEMPT)
    for node in new:
        pods = yield from cluster.evictable_pods(node, evictable)
        if pods:
            evictable.in_order.append((bound_for_any_pod(pods, cluster), node, 0))
        yield _bound_cost(pods)
    if new:
        evictable.ordered_nodes.update(new)
        evictable.in_order.sort()
    candidates = BestFirstSearch(evictable, pods_max)
    best = yield from candidates.best(dry_run, cluster)
    return candidates, best


def rejection_reasons(
    candidates: BestFirstSearch, dry_run: DryRun, cluster: PreemptionInputs
) -> Mapping[str, int]:
    """How many nodes each reason rules out, if there is no candidate."""
    unhelpful_count = cluster.node_count - len(dry_run.potential_nodes)
    return candidates.reasons + Counter({NOT_HELPFUL: unhelpful_count})

"""Lazy candidate search: the least disruptive node, without evaluating every node.

    nodes ──► lower bound of the disruption ──► heap, least first ◄──────────┐
                                                  │                          │
                                     first is a lower bound ──► evaluate ──► exact disruption
                                     first is exact ──► the best candidate

The lower bound follows from what `node_resources_fit` finds missing: victims have to free that much.
A node is never better than its bound, so nodes behind the first exact one are not evaluated. The
result equals that of `find_candidates`. Requires rules that are node-local.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from policysched.evaluate import DryRun, VictimOrder
from policysched.model.identifiers import NodeName, PodUid
from policysched.model.pods import Pod
from policysched.scheduler.preemption.candidate_search import NO_VICTIMS, NOT_HELPFUL
from policysched.scheduler.preemption.running_gangs import EvictablePods
from policysched.scheduler.preemption.victim_selection import (
    NODES_PER_BATCH,
    NOT_STARTED_NS,
    PRIORITY_OFFSET,
    Candidate,
    Disruption,
    PreemptionInputs,
    VictimSelection,
    node_batches,
    select_victims_on_nodes,
)
from policysched.scheduler.steps import Steps

_FIRST_BATCH_NODES = 4
_PODS_PER_COST_UNIT = 4
"""Pods inspected for one unit of cost: inspecting a pod is cheaper than removing it."""


class BestFirstSearch:
    """Nodes with pods that may be evicted. `refresh` must be called for nodes that changed."""

    def __init__(self, may_evict: Callable[[Pod], bool]) -> None:
        self._evictable = EvictablePods(may_evict)
        self._pods: dict[NodeName, list[Pod]] = {}  # evictable, most important first
        self._evaluated: dict[NodeName, VictimSelection] = {}  # with exact disruption
        self._heap: list[tuple[Disruption, NodeName, int]] = []
        self._latest_serial: dict[NodeName, int] = {}
        self._serial = 0
        self.reasons: Counter[str] = Counter()

    def refresh(self, dry_run: DryRun, cluster: PreemptionInputs, nodes: Collection[NodeName]) -> Steps[None]:
        """Add new nodes, and replace what is known of changed ones."""
        for node in nodes:
            self._forget(node)
        potential_nodes = dry_run.filter_potential_nodes(nodes)
        for batch in node_batches(potential_nodes):
            for node, missing in zip(batch, dry_run.shortfalls(batch), strict=True):
                pods = yield from cluster.evictable_pods(node, self._evictable)
                if pods:
                    self._pods[node] = pods
                    self._push(node, disruption_lower_bound(pods, missing, cluster.started_ns, cluster.order))
                else:
                    self.reasons[NO_VICTIMS] += 1
                yield 1 + len(pods) // _PODS_PER_COST_UNIT

    def best(self, dry_run: DryRun, cluster: PreemptionInputs) -> Steps[Candidate | None]:
        """The least disruptive candidate, among equals the first node. None: there is no candidate."""
        batch_size = _FIRST_BATCH_NODES
        while True:
            batch = self._most_promising(batch_size)
            if not batch:
                return None
            if batch[0] in self._evaluated:
                return self._evaluated[batch[0]].candidate()
            potential = {node: self._pods[node] for node in sorted(batch)}
            selections = yield from select_victims_on_nodes(dry_run, potential, cluster, self.reasons)
            for selection in selections:
                self._evaluated[selection.node] = selection
                self._push(selection.node, selection.disruption)
            batch_size = min(2 * batch_size, NODES_PER_BATCH)

    def _most_promising(self, batch_size: int) -> list[NodeName]:
        """Pop up to `batch_size` nodes with a lower bound, or return the first node alone if it is exact.

        A batch ends before the first exact node, which stays in the heap.
        """
        nodes: list[NodeName] = []
        while self._heap and len(nodes) < batch_size:
            _, node, serial = self._heap[0]
            if self._latest_serial.get(node) == serial:
                if node in self._evaluated:
                    return nodes or [node]
                del self._latest_serial[node]
                nodes.append(node)
            heapq.heappop(self._heap)
        return nodes

    def _push(self, node: NodeName, disruption: Disruption) -> None:
        self._serial += 1
        self._latest_serial[node] = self._serial
        heapq.heappush(self._heap, (disruption, node, self._serial))

    def _forget(self, node: NodeName) -> None:
        self._latest_serial.pop(node, None)
        self._evaluated.pop(node, None)
        self._pods.pop(node, None)


def find_best_candidate(
    dry_run: DryRun, may_evict: Callable[[Pod], bool], cluster: PreemptionInputs
) -> Steps[tuple[BestFirstSearch, Candidate | None]]:
    """Search a node-local dry run; return the candidates for reuse, and the best one."""
    assert dry_run.node_local, "an eviction on one node may change the verdict about another"
    candidates = BestFirstSearch(may_evict)
    yield from candidates.refresh(dry_run, cluster, dry_run.potential_nodes)
    best = yield from candidates.best(dry_run, cluster)
    return candidates, best


def rejection_reasons(
    candidates: BestFirstSearch, dry_run: DryRun, cluster: PreemptionInputs
) -> Mapping[str, int]:
    """How many nodes each reason rules out, if there is no candidate."""
    unhelpful_count = cluster.node_count - len(dry_run.potential_nodes)
    return candidates.reasons + Counter({NOT_HELPFUL: unhelpful_count})


def disruption_lower_bound(
    in_order: list[Pod],
    missing: Mapping[str, int],
    started_ns: Callable[[PodUid], int | None],
    order: VictimOrder | None = None,
) -> Disruption:
    """Lower bound of the disruption on a node, for each part of the key by itself.

    `in_order`: evictable pods, most important first; what goes with them on other nodes only adds to
    it. `missing`: the amount to free by resource
    (`pods`: how many).
    """
    first_in_order: tuple[Any, ...] = ()
    ascending = in_order[::-1]
    if order is not None:
        first_in_order = order(ascending[0])
        ascending.sort(key=lambda pod: pod.priority)
    victim_count = max(
        [1, *(_victim_count_min(ascending, resource, amount) for resource, amount in missing.items())]
    )
    highest = max(
        [
            ascending[0].priority,
            *(_victim_priority_min(ascending, *shortfall) for shortfall in missing.items()),
        ]
    )
    lowest = [pod.priority for pod in ascending[: victim_count - 1]]
    offset_sum = sum(lowest) + highest + victim_count * PRIORITY_OFFSET
    starts = [started_ns(pod.uid) for pod in in_order if pod.priority == highest]
    latest_ns = max((NOT_STARTED_NS if start is None else start for start in starts), default=NOT_STARTED_NS)
    return 0, first_in_order, highest, offset_sum, victim_count, -latest_ns


def _victim_count_min(pods: Iterable[Pod], resource: str, amount: int) -> int:
    """The least number of victims that frees the amount."""
    if resource == "pods":
        return amount
    count = 0
    for size in sorted((pod.requests.get(resource, 0) for pod in pods), reverse=True):
        if amount <= 0:
            break
        amount -= size
        count += 1
    return count


def _victim_priority_min(ascending: Iterable[Pod], resource: str, amount: int) -> int:
    """The least priority that the most important victim must have."""
    highest = 0
    for pod in ascending:
        highest = pod.priority
        amount -= 1 if resource == "pods" else pod.requests.get(resource, 0)
        if amount <= 0:
            break
    return highest

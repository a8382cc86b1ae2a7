"""Which node hurts least, where each is judged by itself, without thinking every node through.

    candidates ──► whom could go there, and the least that it could cost ──► the most promising first
                                                                                   │
                     its real harm ◄── think it through ◄── is its cost real yet? ─┘
                          └──► back in line; whoever comes first with his real harm is the best of all

The least cost comes from what `node_resources_fit` finds missing: who goes has to free that much. A node is never better than
that, so those behind the first real one need no look. The same node comes out as if all had been thought through (`find_candidates`).
"""

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping

from policysched.evaluate import DryRun
from policysched.model.identifiers import NodeName, PodUid
from policysched.model.pods import Pod
from policysched.scheduler.preemption.candidates import (
    NO_VICTIMS,
    NODES_PER_BATCH,
    NOT_HELPFUL,
    NOT_STARTED_NS,
    PRIORITY_OFFSET,
    Candidate,
    PreemptionInputs,
    node_batches,
    search_cost,
    select_victims_on_nodes,
    sorted_by_importance,
)
from policysched.scheduler.steps import Steps

Disruption = tuple[int, int, int, int, int]
"""As `Candidate.disruption`."""

_FIRST_BATCH_NODES = 4
_PODS_PER_COST_UNIT = 4
"""A look at a pod costs less than to lift it: so many of them are one unit."""


class LazyCandidates:
    """Nodes on which somebody could make room. What is known of them holds as long as they do not change; `refresh` says so."""

    def __init__(self, may_evict: Callable[[Pod], bool]) -> None:
        self._may_evict = may_evict
        self._pods: dict[NodeName, list[Pod]] = {}  # who could go, the most important first
        self._evaluated: dict[NodeName, Candidate] = {}  # thought through
        self._heap: list[tuple[Disruption, NodeName, int]] = []
        self._latest_serial: dict[NodeName, int] = {}
        self._serial = 0
        self.reasons: Counter[str] = Counter()

    def refresh(self, dry_run: DryRun, cluster: PreemptionInputs, nodes: Collection[NodeName]) -> Steps[None]:
        """These nodes are new, or other than they were."""
        for node in nodes:
            self._forget(node)
        hopeful = dry_run.filter_potential_nodes(nodes)
        for some in node_batches(hopeful):
            looks = 0
            for node, missing in zip(some, dry_run.shortfalls(some), strict=True):
                pods = [one for one in cluster.pods_on(node) if self._may_evict(one)]
                looks += 1 + len(pods)
                if pods:
                    self._pods[node] = sorted_by_importance(pods, cluster.started_ns)
                    self._push(node, disruption_lower_bound(self._pods[node], missing, cluster.started_ns))
                else:
                    self.reasons[NO_VICTIMS] += 1
            yield looks // _PODS_PER_COST_UNIT

    def best(self, dry_run: DryRun, cluster: PreemptionInputs) -> Steps[Candidate | None]:
        """The candidate of least harm, among equals the first node. None: no node would do."""
        at_a_time = _FIRST_BATCH_NODES
        while True:
            some = self._most_promising(at_a_time)
            if not some:
                return None
            if some[0] in self._evaluated:
                return self._evaluated[some[0]]
            potential = {node: self._pods[node] for node in sorted(some)}
            for one in select_victims_on_nodes(dry_run, potential, cluster, self.reasons):
                self._evaluated[one.node] = one
                self._push(one.node, one.disruption)
            yield search_cost(potential)
            at_a_time = min(2 * at_a_time, NODES_PER_BATCH)

    def _most_promising(self, most: int) -> list[NodeName]:
        """The first alone where its harm is real, else as many that are to be thought through as stand before one whose harm is.
        These leave the line."""
        found: list[NodeName] = []
        while self._heap and len(found) < most:
            _, node, number = self._heap[0]
            if self._latest_serial.get(node) == number:
                if node in self._evaluated:
                    return found or [node]
                del self._latest_serial[node]
                found.append(node)
            heapq.heappop(self._heap)
        return found

    def _push(self, node: NodeName, harm: Disruption) -> None:
        self._serial += 1
        self._latest_serial[node] = self._serial
        heapq.heappush(self._heap, (harm, node, self._serial))

    def _forget(self, node: NodeName) -> None:
        self._latest_serial.pop(node, None)
        self._evaluated.pop(node, None)
        self._pods.pop(node, None)


def find_best_candidate(
    dry_run: DryRun, may_evict: Callable[[Pod], bool], cluster: PreemptionInputs
) -> Steps[tuple[LazyCandidates, Candidate | None]]:
    """All candidates of a dry run whose nodes are judged by themselves."""
    assert dry_run.node_local, "what goes from one node matters for others"
    prospects = LazyCandidates(may_evict)
    yield from prospects.refresh(dry_run, cluster, dry_run.potential_nodes)
    best = yield from prospects.best(dry_run, cluster)
    return prospects, best


def rejection_reasons(
    prospects: LazyCandidates, dry_run: DryRun, cluster: PreemptionInputs
) -> Mapping[str, int]:
    """How many nodes each reason rules out, where no node would do."""
    hopeless = cluster.node_count - len(dry_run.potential_nodes)
    return prospects.reasons + Counter({NOT_HELPFUL: hopeless})


def disruption_lower_bound(
    in_order: list[Pod], missing: Mapping[str, int], started_ns: Callable[[PodUid], int | None]
) -> Disruption:
    """A bound from below for what it costs to have room on a node, each part by itself. `in_order` are those who may go, the most
    important first; `missing` is how much has to be freed, by resource (`pods`: how many)."""
    ascending = in_order[::-1]
    number = max(
        [1, *(_victim_count_min(ascending, resource, amount) for resource, amount in missing.items())]
    )
    highest = max(
        [ascending[0].priority, *(_victim_priority_min(ascending, *one) for one in missing.items())]
    )
    lowest = [one.priority for one in ascending[: number - 1]]
    offset_sum = sum(lowest) + highest + number * PRIORITY_OFFSET
    starts = [started_ns(one.uid) for one in in_order if one.priority == highest]
    latest_ns = max((NOT_STARTED_NS if one is None else one for one in starts), default=NOT_STARTED_NS)
    return 0, highest, offset_sum, number, -latest_ns


def _victim_count_min(pods: Iterable[Pod], resource: str, amount: int) -> int:
    """At least so many have to go."""
    if resource == "pods":
        return amount
    count = 0
    for size in sorted((one.requests.get(resource, 0) for one in pods), reverse=True):
        if amount <= 0:
            break
        amount -= size
        count += 1
    return count


def _victim_priority_min(ascending: Iterable[Pod], resource: str, amount: int) -> int:
    """Somebody of at least this priority has to go."""
    highest = 0
    for one in ascending:
        highest = one.priority
        amount -= 1 if resource == "pods" else one.requests.get(resource, 0)
        if amount <= 0:
            break
    return highest

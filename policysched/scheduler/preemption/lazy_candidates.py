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
from policysched.model.objects import NodeName, Pod, PodUid
from policysched.scheduler.preemption.candidates import (
    NO_VICTIMS,
    NODES_AT_A_TIME,
    NOT_HELPFUL,
    NOT_STARTED_NS,
    PRIORITY_OFFSET,
    Candidate,
    Cluster,
    by_importance,
    cost_of,
    in_portions,
    try_nodes,
)
from policysched.scheduler.steps import Steps

Harm = tuple[int, int, int, int, int]
"""As `Candidate.harm`."""

_FIRST_AT_A_TIME = 4
_LOOKS_A_UNIT = 4
"""A look at a pod costs less than to lift it: so many of them are one unit."""


class Prospects:
    """Nodes on which somebody could make room. What is known of them holds as long as they do not change; `renew` says so."""

    def __init__(self, may_evict: Callable[[Pod], bool]) -> None:
        self._may_evict = may_evict
        self._pods: dict[NodeName, list[Pod]] = {}  # who could go, the most important first
        self._real: dict[NodeName, Candidate] = {}  # thought through
        self._line: list[tuple[Harm, NodeName, int]] = []
        self._latest: dict[NodeName, int] = {}
        self._count = 0
        self.reasons: Counter[str] = Counter()

    def renew(self, dry_run: DryRun, cluster: Cluster, nodes: Collection[NodeName]) -> Steps[None]:
        """These nodes are new, or other than they were."""
        for node in nodes:
            self._forget(node)
        hopeful = dry_run.curable(nodes)
        for some in in_portions(hopeful):
            looks = 0
            for node, missing in zip(some, dry_run.missing(some), strict=True):
                pods = [one for one in cluster.pods_on(node) if self._may_evict(one)]
                looks += 1 + len(pods)
                if pods:
                    self._pods[node] = by_importance(pods, cluster.started_ns)
                    self._queue(node, least_possible_harm(self._pods[node], missing, cluster.started_ns))
                else:
                    self.reasons[NO_VICTIMS] += 1
            yield looks // _LOOKS_A_UNIT

    def best(self, dry_run: DryRun, cluster: Cluster) -> Steps[Candidate | None]:
        """The candidate of least harm, among equals the first node. None: no node would do."""
        at_a_time = _FIRST_AT_A_TIME
        while True:
            some = self._most_promising(at_a_time)
            if not some:
                return None
            if some[0] in self._real:
                return self._real[some[0]]
            potential = {node: self._pods[node] for node in sorted(some)}
            for one in try_nodes(dry_run, potential, cluster, self.reasons):
                self._real[one.node] = one
                self._queue(one.node, one.harm)
            yield cost_of(potential)
            at_a_time = min(2 * at_a_time, NODES_AT_A_TIME)

    def _most_promising(self, most: int) -> list[NodeName]:
        """The first alone where its harm is real, else as many that are to be thought through as stand before one whose harm is.
        These leave the line."""
        found: list[NodeName] = []
        while self._line and len(found) < most:
            _, node, number = self._line[0]
            if self._latest.get(node) == number:
                if node in self._real:
                    return found or [node]
                del self._latest[node]
                found.append(node)
            heapq.heappop(self._line)
        return found

    def _queue(self, node: NodeName, harm: Harm) -> None:
        self._count += 1
        self._latest[node] = self._count
        heapq.heappush(self._line, (harm, node, self._count))

    def _forget(self, node: NodeName) -> None:
        self._latest.pop(node, None)
        self._real.pop(node, None)
        self._pods.pop(node, None)


def find_best(
    dry_run: DryRun, may_evict: Callable[[Pod], bool], cluster: Cluster
) -> Steps[tuple[Prospects, Candidate | None]]:
    """All candidates of a dry run whose nodes are judged by themselves."""
    assert dry_run.separate, "what goes from one node matters for others"
    prospects = Prospects(may_evict)
    yield from prospects.renew(dry_run, cluster, dry_run.candidates)
    best = yield from prospects.best(dry_run, cluster)
    return prospects, best


def reasons_of(prospects: Prospects, dry_run: DryRun, cluster: Cluster) -> Mapping[str, int]:
    """How many nodes each reason rules out, where no node would do."""
    hopeless = cluster.node_count - len(dry_run.candidates)
    return prospects.reasons + Counter({NOT_HELPFUL: hopeless})


def least_possible_harm(
    in_order: list[Pod], missing: Mapping[str, int], started_ns: Callable[[PodUid], int | None]
) -> Harm:
    """A bound from below for what it costs to have room on a node, each part by itself. `in_order` are those who may go, the most
    important first; `missing` is how much has to be freed, by resource (`pods`: how many)."""
    ascending = in_order[::-1]
    number = max([1, *(_how_many(ascending, resource, amount) for resource, amount in missing.items())])
    highest = max([ascending[0].priority, *(_how_high(ascending, *one) for one in missing.items())])
    lowest = [one.priority for one in ascending[: number - 1]]
    offset_sum = sum(lowest) + highest + number * PRIORITY_OFFSET
    starts = [started_ns(one.uid) for one in in_order if one.priority == highest]
    latest_ns = max((NOT_STARTED_NS if one is None else one for one in starts), default=NOT_STARTED_NS)
    return 0, highest, offset_sum, number, -latest_ns


def _how_many(pods: Iterable[Pod], resource: str, amount: int) -> int:
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


def _how_high(ascending: Iterable[Pod], resource: str, amount: int) -> int:
    """Somebody of at least this priority has to go."""
    highest = 0
    for one in ascending:
        highest = one.priority
        amount -= 1 if resource == "pods" else one.requests.get(resource, 0)
        if amount <= 0:
            break
    return highest

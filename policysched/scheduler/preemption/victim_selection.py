"""Preemption candidates: nodes that fit a pod once victims are evicted, and the least disruptive one.

For each node, all pods that may be evicted are removed. If the pod fits then, they are reprieved one by
one while it still fits: first those whose eviction would violate a disruption budget, then
the most important ones. The pods that cannot be reprieved are the victims. A running gang is a victim
whole, or keeps its minimum (`running_gangs`). Source:
`SelectVictimsOnNode` in kubernetes' `pkg/scheduler/framework/plugins/defaultpreemption` and
`pickOneNodeForPreemption` in `pkg/scheduler/framework/preemption`, v1.36.

kube-scheduler starts at a random node and stops once a tenth of the nodes (at least 100) are
candidates. Here all nodes are searched in order of name if an eviction on one node cannot change the
verdict about another. If a rule depends on other nodes (spreading, affinity), each node is evaluated
by itself, and the search stops at kube-scheduler's number. The search runs in steps, because it
takes long on a large cluster.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from policysched.evaluate import DryRun, VictimOrder
from policysched.model.identifiers import NodeName, PodUid
from policysched.model.pods import Pod
from policysched.model.workloads import DisruptionBudget
from policysched.scheduler.preemption.running_gangs import EvictablePods, GangOf, no_gang, reprieve_order
from policysched.scheduler.steps import Steps

NO_VICTIMS = "No preemption victims found for incoming pod"
NOT_HELPFUL = "Preemption is not helpful for scheduling"
CANDIDATES_MIN = 100
CANDIDATES_PERCENT = 10
NODES_PER_BATCH = 100
"""Nodes evaluated together on one overlay: few enough for a short step, enough for arrays to pay off."""

_SINGLE_NODE_COST_FACTOR = 10
"""Cost factor of a node evaluated by itself: rules that depend on other nodes run each time."""

NOT_STARTED_NS = 2**63 - 1
"""Start of a pod that the kubelet has not started; kube-scheduler treats it as started just now."""

PRIORITY_OFFSET = 2**31
"""Added to each priority in a sum, so that a node with fewer negative priorities does not win by that."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node where the pod fits without the `victims`, the most important victim first. Members of a
    gang that goes whole may be on other nodes.

    `violations` counts victims whose eviction violates a disruption budget. `started_ns` is the
    earliest start among the victims of the highest priority. `last_in_order` is the greatest key of the victims by the
    policy's `order`; empty without one.
    """

    node: NodeName
    victims: tuple[Pod, ...]
    violations: int
    started_ns: int
    last_in_order: tuple[Any, ...] = ()

    @property
    def disruption(self) -> tuple[int, tuple[Any, ...], int, int, int, int]:
        """Sort key, least first: kube-scheduler's criteria in order, except the last one (the first node). The policy's
        `order` follows the budgets."""
        priorities = [victim.priority for victim in self.victims]
        offset_sum = sum(priority + PRIORITY_OFFSET for priority in priorities)
        return (
            self.violations,
            self.last_in_order,
            max(priorities),
            offset_sum,
            len(priorities),
            -self.started_ns,
        )


@dataclass(frozen=True, slots=True)
class CandidateSearchResult:
    """Candidates, in the order in which they were tried, and how many nodes each reason rules out.

    `node_rejections` holds the reasons of node-local rules that reject a node whatever is evicted
    there; it covers `prefiltered_nodes`. `failed_nodes` were evaluated by themselves and are no
    candidates.
    """

    candidates: tuple[Candidate, ...]
    reasons: Mapping[str, int]
    node_rejections: Mapping[NodeName, tuple[str, ...]] = field(default_factory=dict)
    prefiltered_nodes: frozenset[NodeName] = frozenset()
    failed_nodes: frozenset[NodeName] = frozenset()


@dataclass(frozen=True, slots=True)
class PreemptionInputs:
    """Cluster state for preemption.

    `pods_on`: pods of a node in order of arrival. `started_ns`: when the kubelet started a pod
    (None: not yet). `node_count` counts all nodes. `gang_of`: the running gang of a pod.
    `order`: which victims go first by the policy; None: in kube-scheduler's order.
    """

    pods_on: Callable[[NodeName], Iterable[Pod]]
    started_ns: Callable[[PodUid], int | None]
    budgets: Collection[DisruptionBudget]
    node_count: int
    gang_of: GangOf = no_gang
    order: VictimOrder | None = None

    def evictable_pods(self, node: NodeName, evictable: EvictablePods) -> list[Pod]:
        """Those of the node's pods that may be victims, most important first."""
        pods = [pod for pod in self.pods_on(node) if evictable.may_evict(pod)]
        in_order = sorted_by_importance(pods, self.started_ns, self.order)
        return evictable.without_needed_members(in_order, self.gang_of)


def no_evictable_pods(dry_run: DryRun, node_count: int) -> CandidateSearchResult:
    """The result if no pod on any node may be evicted."""
    counts = {
        NO_VICTIMS: dry_run.potential_node_count,
        NOT_HELPFUL: node_count - dry_run.potential_node_count,
    }
    return CandidateSearchResult((), {reason: count for reason, count in counts.items() if count})


def find_candidates(
    dry_run: DryRun,
    may_evict: Callable[[Pod], bool],
    cluster: PreemptionInputs,
    *,
    only_nodes: Collection[NodeName] | None = None,
    candidates_min: int = CANDIDATES_MIN,
    previous: CandidateSearchResult | None = None,
) -> Steps[CandidateSearchResult]:
    """Search for candidates.

    `only_nodes` restricts the search. `candidates_min` and `previous` apply if each node is
    evaluated by itself: the search may stop at `candidates_min` candidates, and `previous` is the
    result for an equivalent pod, for nodes that are unchanged since; nodes that failed then come
    last.
    """
    reasons: Counter[str] = Counter()
    nodes = [node for node in dry_run.potential_nodes if only_nodes is None or node in only_nodes]

    evictable = EvictablePods(may_evict)

    def evictable_pods(batch: Iterable[NodeName]) -> dict[NodeName, list[Pod]]:
        pods_by_node = {node: cluster.evictable_pods(node, evictable) for node in batch}
        return {node: pods for node, pods in pods_by_node.items() if pods}

    candidates: list[Candidate] = []
    node_rejections = {} if previous is None else dict(previous.node_rejections)
    prefiltered = set[NodeName]() if previous is None else set(previous.prefiltered_nodes)
    failed: set[NodeName] = set()
    if dry_run.node_local:
        for batch in node_batches(nodes):
            potential = evictable_pods(batch)
            reasons[NO_VICTIMS] += len(batch) - len(potential)
            candidates += select_victims_on_nodes(dry_run, potential, cluster, reasons)
            yield search_cost(potential)
        nodes = []
    elif previous is not None:
        nodes.sort(key=lambda node: node in previous.failed_nodes)
    enough = max(candidates_min, len(nodes) * CANDIDATES_PERCENT * candidates_min // (100 * CANDIDATES_MIN))
    for batch in node_batches(nodes):
        if _has_enough(candidates, enough):
            break
        new = evictable_pods(node for node in batch if node not in prefiltered)
        node_rejections |= _node_local_rejections(dry_run, new)
        prefiltered.update(batch)
        yield search_cost(new)
        for node in batch:
            if node in node_rejections:
                reasons.update(node_rejections[node])
                continue
            potential = evictable_pods([node])
            reasons[NO_VICTIMS] += not potential
            new_candidates = (
                select_victims_on_nodes(dry_run, potential, cluster, reasons) if potential else []
            )
            candidates += new_candidates
            if not new_candidates:
                failed.add(node)
            if _has_enough(candidates, enough):
                break
            yield _SINGLE_NODE_COST_FACTOR * (1 + search_cost(potential))
    unhelpful_count = cluster.node_count - len(dry_run.potential_nodes)
    if unhelpful_count:
        reasons[NOT_HELPFUL] += unhelpful_count
    nonzero_reasons = {reason: count for reason, count in reasons.items() if count}
    return CandidateSearchResult(
        tuple(candidates), nonzero_reasons, node_rejections, frozenset(prefiltered), frozenset(failed)
    )


def _has_enough(candidates: Sequence[Candidate], enough: int) -> bool:
    return len(candidates) >= enough and any(not candidate.violations for candidate in candidates)


def node_batches(nodes: Sequence[NodeName]) -> Iterator[Sequence[NodeName]]:
    for start in range(0, len(nodes), NODES_PER_BATCH):
        yield nodes[start : start + NODES_PER_BATCH]


def search_cost(potential: Mapping[NodeName, Collection[Pod]]) -> int:
    return len(potential) + sum(map(len, potential.values()))


def least_disruptive(candidates: Sequence[Candidate]) -> Candidate:
    """The first of the least disruptive candidates."""
    return min(candidates, key=lambda candidate: candidate.disruption)


def sorted_by_importance(
    pods: Iterable[Pod], started_ns: Callable[[PodUid], int | None], order: VictimOrder | None = None
) -> list[Pod]:
    """Most important first: last by `order`, then by priority, then longest running.

    Of two pods that have not started the later one comes first: kube-scheduler's sort has the same
    effect, because it treats both as started just now.
    """

    def key(entry: tuple[int, Pod]) -> tuple[int, int, int]:
        index, pod = entry
        at_ns = started_ns(pod.uid)
        if at_ns is None:
            return -pod.priority, NOT_STARTED_NS, -index
        return -pod.priority, at_ns, index

    in_order = [pod for _, pod in sorted(enumerate(pods), key=key)]
    return in_order if order is None else sorted(in_order, key=order, reverse=True)


def _node_local_rejections(
    dry_run: DryRun, potential: Mapping[NodeName, list[Pod]]
) -> dict[NodeName, tuple[str, ...]]:
    """Nodes that a node-local rule rejects whatever is evicted, so no search on them is needed."""
    _remove_pods(dry_run, potential)
    nodes = list(potential)
    rejections = zip(nodes, dry_run.rejections(nodes, node_local_only=True), strict=True)
    _restore_pods(dry_run, potential)
    return {node: rejected for node, rejected in rejections if rejected}


def select_victims_on_nodes(
    dry_run: DryRun, potential: Mapping[NodeName, list[Pod]], cluster: PreemptionInputs, reasons: Counter[str]
) -> list[Candidate]:
    """Evaluate these nodes together: round n reprieves the n-th unit of each. Restores the overlay.

    If a rule depends on other nodes, the members of gangs that run elsewhere are removed too.
    """
    selections: dict[NodeName, _VictimSelection] = {}
    to_remove = dict(potential)
    if not dry_run.node_local:
        selections = {node: _VictimSelection(node, pods, cluster) for node, pods in potential.items()}
        to_remove = {node: [*pods, *selections[node].elsewhere] for node, pods in potential.items()}
    _remove_pods(dry_run, to_remove)
    nodes = list(potential)
    possible: list[_VictimSelection] = []
    for node, rejected in zip(nodes, dry_run.rejections(nodes), strict=True):
        reasons.update(rejected)
        if not rejected:  # else there is nothing to select, which visits all members of gangs that run there
            possible.append(selections.get(node) or _VictimSelection(node, potential[node], cluster))
    for index in range(max((len(selection.units) for selection in possible), default=0)):
        tried = [selection for selection in possible if selection.can_reprieve(index)]
        returned = {
            selection.node: selection.pods_of_unit(index, everywhere=not dry_run.node_local)
            for selection in tried
        }
        _restore_pods(dry_run, returned)
        for selection, rejected in zip(
            tried, dry_run.rejections([selection.node for selection in tried]), strict=True
        ):
            if rejected:
                _remove_pods(dry_run, {selection.node: returned[selection.node]})
            else:
                selection.reprieve(index)
    for selection in possible:
        removed = to_remove[selection.node]
        to_remove[selection.node] = [pod for pod in removed if pod.uid in selection.victim_uids]
    _restore_pods(dry_run, to_remove)
    return [selection.candidate() for selection in possible if selection.victim_uids]


class _VictimSelection:
    """Which units of a node are reprieved. The others are the victims."""

    def __init__(self, node: NodeName, in_order: list[Pod], cluster: PreemptionInputs) -> None:
        self.node = node
        self._cluster = cluster
        order = reprieve_order(in_order, cluster.gang_of, cluster.budgets, cluster.order)
        self.units = order.units
        self.elsewhere = order.elsewhere
        self._violating = order.violating
        self._pods = [*in_order, *self.elsewhere]
        self.victim_uids = set(map(_uid, self._pods))

    def can_reprieve(self, index: int) -> bool:
        """Whether there is such a unit, and it is not of a gang that goes whole."""
        if index >= len(self.units):
            return False
        gang = self.units[index].spare_of
        return gang is None or any(
            unit.gang is gang and unit.pods[0].uid not in self.victim_uids for unit in self.units
        )

    def pods_of_unit(self, index: int, *, everywhere: bool) -> list[Pod]:
        """The pods on this node that a reprieve returns, and those of its gang on other nodes."""
        unit = self.units[index]
        if unit.gang is None or not everywhere:
            return list(unit.pods)
        members = unit.gang.members
        return [*unit.pods, *(pod for pod in self.elsewhere if pod.uid in members)]

    def reprieve(self, index: int) -> None:
        self.victim_uids -= set(map(_uid, self.pods_of_unit(index, everywhere=True)))

    def candidate(self) -> Candidate:
        """The node with the victims; at least one unit was not reprieved."""
        victims = [pod for pod in self._pods if pod.uid in self.victim_uids]
        violations = sum(pod.uid in self._violating for pod in victims)
        if self.elsewhere:
            victims = sorted_by_importance(victims, self._cluster.started_ns, self._cluster.order)
        highest = max(victim.priority for victim in victims)
        starts = [self._cluster.started_ns(victim.uid) for victim in victims if victim.priority == highest]
        started_ns = min(NOT_STARTED_NS if start is None else start for start in starts)
        order = self._cluster.order
        last = () if order is None else max(map(order, victims))
        return Candidate(self.node, tuple(victims), violations, started_ns, last)


def _uid(pod: Pod) -> PodUid:
    return pod.uid


def _remove_pods(dry_run: DryRun, pods: Mapping[NodeName, Iterable[Pod]]) -> None:
    for node_pods in pods.values():
        for pod in node_pods:
            dry_run.overlay.remove_pod(pod.uid)


def _restore_pods(dry_run: DryRun, pods: Mapping[NodeName, Iterable[Pod]]) -> None:
    for node_pods in pods.values():
        for pod in node_pods:
            dry_run.overlay.restore_pod(pod.uid)

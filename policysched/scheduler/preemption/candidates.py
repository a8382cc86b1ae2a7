"""Preemption candidates: nodes that fit a pod once victims are evicted, and the least disruptive one.

For each node, all pods that may be evicted are removed. If the pod fits then, they are reprieved one
by one as long as it still fits: first those whose eviction would violate a disruption budget, then
the most important ones. The pods that cannot be reprieved are the victims. Source:
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

from policysched.cluster.budgets import split_by_budget
from policysched.evaluate import DryRun
from policysched.model.identifiers import NodeName, PodUid
from policysched.model.pods import Pod
from policysched.model.workloads import DisruptionBudget
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
    """A node where the pod fits without the `victims`, the most important victim first.

    `violations` counts victims whose eviction violates a disruption budget. `started_ns` is the
    earliest start among the victims of the highest priority.
    """

    node: NodeName
    victims: tuple[Pod, ...]
    violations: int
    started_ns: int

    @property
    def disruption(self) -> tuple[int, int, int, int, int]:
        """Sort key, least first: kube-scheduler's criteria in order, except the last one (the first node)."""
        priorities = [victim.priority for victim in self.victims]
        offset_sum = sum(priority + PRIORITY_OFFSET for priority in priorities)
        return self.violations, max(priorities), offset_sum, len(priorities), -self.started_ns


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
    (None: not yet). `node_count` counts all nodes.
    """

    pods_on: Callable[[NodeName], Iterable[Pod]]
    started_ns: Callable[[PodUid], int | None]
    budgets: Collection[DisruptionBudget]
    node_count: int


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

    def evictable_pods(batch: Iterable[NodeName]) -> dict[NodeName, list[Pod]]:
        pods_by_node = {node: [pod for pod in cluster.pods_on(node) if may_evict(pod)] for node in batch}
        return {
            node: sorted_by_importance(pods, cluster.started_ns)
            for node, pods in pods_by_node.items()
            if pods
        }

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


def sorted_by_importance(pods: Iterable[Pod], started_ns: Callable[[PodUid], int | None]) -> list[Pod]:
    """Most important first: by priority, then longest running.

    Of two pods that have not started the later one comes first: kube-scheduler's sort has the same
    effect, because it treats both as started just now.
    """

    def key(entry: tuple[int, Pod]) -> tuple[int, int, int]:
        index, pod = entry
        at_ns = started_ns(pod.uid)
        if at_ns is None:
            return -pod.priority, NOT_STARTED_NS, -index
        return -pod.priority, at_ns, index

    return [pod for _, pod in sorted(enumerate(pods), key=key)]


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
    """Evaluate these nodes together: round n reprieves the n-th pod of each. Restores the overlay."""
    _remove_pods(dry_run, potential)
    nodes = list(potential)
    possible: list[NodeName] = []
    for node, rejected in zip(nodes, dry_run.rejections(nodes), strict=True):
        reasons.update(rejected)
        if not rejected:
            possible.append(node)
    reprieve_order: dict[NodeName, list[Pod]] = {}
    violating: dict[NodeName, int] = {}
    for node in possible:
        first, others = split_by_budget(potential[node], cluster.budgets)
        reprieve_order[node], violating[node] = first + others, len(first)
    victims: dict[NodeName, list[Pod]] = {node: [] for node in possible}
    violations = dict.fromkeys(possible, 0)
    for index in range(max(map(len, reprieve_order.values()), default=0)):
        nodes_left = [node for node in possible if index < len(reprieve_order[node])]
        for node in nodes_left:
            dry_run.overlay.restore_pod(reprieve_order[node][index].uid)
        for node, rejected in zip(nodes_left, dry_run.rejections(nodes_left), strict=True):
            if rejected:
                pod = reprieve_order[node][index]
                dry_run.overlay.remove_pod(pod.uid)
                victims[node].append(pod)
                violations[node] += index < violating[node]
    to_restore = {node: victims.get(node, pods) for node, pods in potential.items()}
    _restore_pods(dry_run, to_restore)
    return [
        _candidate(node, potential[node], victims[node], violations[node], cluster)
        for node in possible
        if victims[node]
    ]


def _candidate(
    node: NodeName, in_order: list[Pod], victims: list[Pod], violations: int, cluster: PreemptionInputs
) -> Candidate:
    chosen = {victim.uid for victim in victims}
    ordered = tuple(pod for pod in in_order if pod.uid in chosen)
    starts = [cluster.started_ns(victim.uid) for victim in ordered if victim.priority == ordered[0].priority]
    started_ns = min(NOT_STARTED_NS if start is None else start for start in starts)
    return Candidate(node, ordered, violations, started_ns)


def _remove_pods(dry_run: DryRun, pods: Mapping[NodeName, Iterable[Pod]]) -> None:
    for node_pods in pods.values():
        for pod in node_pods:
            dry_run.overlay.remove_pod(pod.uid)


def _restore_pods(dry_run: DryRun, pods: Mapping[NodeName, Iterable[Pod]]) -> None:
    for node_pods in pods.values():
        for pod in node_pods:
            dry_run.overlay.restore_pod(pod.uid)

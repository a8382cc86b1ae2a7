"""Which nodes could take a pod if others made room, who would have to go there, and which node hurts least.

For each node: lift all pods that may be evicted; if the pod fits then, lay them back one after the other as long as it
still fits, those first whose disruption budget would be broken, then the most important; who cannot be laid back is a
victim. Source: `SelectVictimsOnNode` in kubernetes' `pkg/scheduler/framework/plugins/defaultpreemption` and
`pickOneNodeForPreemption` in `pkg/scheduler/framework/preemption`, v1.36.

kube-scheduler begins at a random node and stops once a tenth of the nodes (at least 100) turned out possible. Here
every node is looked at, in the order of their names, as long as what goes from one node changes nothing for another;
where a rule looks across nodes (spreading, affinity) each is thought through by itself, and it ends with as many. On a large
cluster that takes a while, so it goes in steps.
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
"""So many are tried on one overlay together, where they can be: few enough for a short step, enough for arrays to pay."""

_SINGLE_NODE_COST_FACTOR = 10
"""What a pod costs more on a node that is tried by itself: rules that look across nodes are asked each time."""

NOT_STARTED_NS = 2**63 - 1
"""kube-scheduler takes a pod that the kubelet has not taken up as started just now."""

PRIORITY_OFFSET = 2**31
"""Added to each priority of a sum, so that a node with fewer negative priorities is not the better for it."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node where the pod fits once the `victims` are gone, the most important of them first. `violations` counts
    those whose disruption budget that breaks. `started_ns` is the earliest start among those of the highest priority.
    """

    node: NodeName
    victims: tuple[Pod, ...]
    violations: int
    started_ns: int

    @property
    def disruption(self) -> tuple[int, int, int, int, int]:
        """The less, the better: kube-scheduler's steps in their order, but for the last one (the first node)."""
        priorities = [one.priority for one in self.victims]
        offset_sum = sum(priority + PRIORITY_OFFSET for priority in priorities)
        return self.violations, max(priorities), offset_sum, len(priorities), -self.started_ns


@dataclass(frozen=True, slots=True)
class CandidateSearchResult:
    """The candidates, in the order in which they were tried, and where there is none, how many nodes each reason rules out.
    `node_rejections` are nodes that a rule refuses which looks at nothing but the node, whoever goes from it, as far as nodes are `prefiltered_nodes`
    to be such or not; `failed_nodes` those that were thought through by themselves, in vain."""

    candidates: tuple[Candidate, ...]
    reasons: Mapping[str, int]
    node_rejections: Mapping[NodeName, tuple[str, ...]] = field(default_factory=dict)
    prefiltered_nodes: frozenset[NodeName] = frozenset()
    failed_nodes: frozenset[NodeName] = frozenset()


@dataclass(frozen=True, slots=True)
class PreemptionInputs:
    """What there is to evict: the pods on a node in the order in which they came, when the kubelet took each up (None:
    not yet), and the disruption budgets. `node_count` are all nodes."""

    pods_on: Callable[[NodeName], Iterable[Pod]]
    started_ns: Callable[[PodUid], int | None]
    budgets: Collection[DisruptionBudget]
    node_count: int


def no_evictable_pods(dry_run: DryRun, node_count: int) -> CandidateSearchResult:
    """Where it is known beforehand that no pod on any node may be evicted."""
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
    """`only_nodes`: only these nodes are thought through. Where each is thought through by itself, `candidates_min` possible nodes may be
    enough, and `previous` is what was found for a pod that agrees with this one, of nodes that have not changed since: those
    that failed then come last."""
    reasons: Counter[str] = Counter()
    nodes = [one for one in dry_run.potential_nodes if only_nodes is None or one in only_nodes]

    def who_may_go(some: Iterable[NodeName]) -> dict[NodeName, list[Pod]]:
        found = {node: [one for one in cluster.pods_on(node) if may_evict(one)] for node in some}
        return {node: sorted_by_importance(pods, cluster.started_ns) for node, pods in found.items() if pods}

    candidates: list[Candidate] = []
    beforehand = {} if previous is None else dict(previous.node_rejections)
    known = set[NodeName]() if previous is None else set(previous.prefiltered_nodes)
    failed: set[NodeName] = set()
    if dry_run.node_local:
        for some in node_batches(nodes):
            potential = who_may_go(some)
            reasons[NO_VICTIMS] += len(some) - len(potential)
            candidates += select_victims_on_nodes(dry_run, potential, cluster, reasons)
            yield search_cost(potential)
        nodes = []
    elif previous is not None:
        nodes.sort(key=lambda node: node in previous.failed_nodes)
    enough = max(candidates_min, len(nodes) * CANDIDATES_PERCENT * candidates_min // (100 * CANDIDATES_MIN))
    for some in node_batches(nodes):
        if _has_enough(candidates, enough):
            break
        new = who_may_go(node for node in some if node not in known)
        beforehand |= _node_local_rejections(dry_run, new)
        known.update(some)
        yield search_cost(new)
        for node in some:
            if node in beforehand:
                reasons.update(beforehand[node])
                continue
            potential = who_may_go([node])
            reasons[NO_VICTIMS] += not potential
            found = select_victims_on_nodes(dry_run, potential, cluster, reasons) if potential else []
            candidates += found
            if not found:
                failed.add(node)
            if _has_enough(candidates, enough):
                break
            yield _SINGLE_NODE_COST_FACTOR * (1 + search_cost(potential))
    hopeless = cluster.node_count - len(dry_run.potential_nodes)
    if hopeless:
        reasons[NOT_HELPFUL] += hopeless
    found_reasons = {reason: count for reason, count in reasons.items() if count}
    return CandidateSearchResult(
        tuple(candidates), found_reasons, beforehand, frozenset(known), frozenset(failed)
    )


def _has_enough(candidates: Sequence[Candidate], enough: int) -> bool:
    return len(candidates) >= enough and any(not one.violations for one in candidates)


def node_batches(nodes: Sequence[NodeName]) -> Iterator[Sequence[NodeName]]:
    for start in range(0, len(nodes), NODES_PER_BATCH):
        yield nodes[start : start + NODES_PER_BATCH]


def search_cost(potential: Mapping[NodeName, Collection[Pod]]) -> int:
    return len(potential) + sum(map(len, potential.values()))


def least_disruptive(candidates: Sequence[Candidate]) -> Candidate:
    """Among equals the first."""
    return min(candidates, key=lambda one: one.disruption)


def sorted_by_importance(pods: Iterable[Pod], started_ns: Callable[[PodUid], int | None]) -> list[Pod]:
    """The most important first: by priority, then who has run longest. Of two that have not started the later one
    comes first, as kube-scheduler's sorting has it while both count as started just now."""

    def key(entry: tuple[int, Pod]) -> tuple[int, int, int]:
        place, pod = entry
        at_ns = started_ns(pod.uid)
        if at_ns is None:
            return -pod.priority, NOT_STARTED_NS, -place
        return -pod.priority, at_ns, place

    return [pod for _, pod in sorted(enumerate(pods), key=key)]


def _node_local_rejections(
    dry_run: DryRun, potential: Mapping[NodeName, list[Pod]]
) -> dict[NodeName, tuple[str, ...]]:
    """The nodes that a rule refuses which looks at nothing but the node, whoever goes: they need not be thought
    through one by one."""
    _remove_pods(dry_run, potential)
    nodes = list(potential)
    found = zip(nodes, dry_run.refusals(nodes, node_local_only=True), strict=True)
    _restore_pods(dry_run, potential)
    return {node: refused for node, refused in found if refused}


def select_victims_on_nodes(
    dry_run: DryRun, potential: Mapping[NodeName, list[Pod]], cluster: PreemptionInputs, reasons: Counter[str]
) -> list[Candidate]:
    """Try these nodes at once: the n-th of each node is laid back in the n-th round. Leaves the overlay as it was."""
    _remove_pods(dry_run, potential)
    nodes = list(potential)
    possible: list[NodeName] = []
    for node, refused in zip(nodes, dry_run.refusals(nodes), strict=True):
        reasons.update(refused)
        if not refused:
            possible.append(node)
    lines: dict[NodeName, list[Pod]] = {}
    violating: dict[NodeName, int] = {}
    for node in possible:
        first, others = split_by_budget(potential[node], cluster.budgets)
        lines[node], violating[node] = first + others, len(first)
    victims: dict[NodeName, list[Pod]] = {node: [] for node in possible}
    violations = dict.fromkeys(possible, 0)
    for turn in range(max(map(len, lines.values()), default=0)):
        trying = [node for node in possible if turn < len(lines[node])]
        for node in trying:
            dry_run.overlay.restore_pod(lines[node][turn].uid)
        for node, refused in zip(trying, dry_run.refusals(trying), strict=True):
            if refused:
                pod = lines[node][turn]
                dry_run.overlay.remove_pod(pod.uid)
                victims[node].append(pod)
                violations[node] += turn < violating[node]
    gone = {node: victims.get(node, pods) for node, pods in potential.items()}
    _restore_pods(dry_run, gone)
    return [
        _candidate(node, potential[node], victims[node], violations[node], cluster)
        for node in possible
        if victims[node]
    ]


def _candidate(
    node: NodeName, in_order: list[Pod], victims: list[Pod], violations: int, cluster: PreemptionInputs
) -> Candidate:
    chosen = {one.uid for one in victims}
    ordered = tuple(one for one in in_order if one.uid in chosen)
    starts = [cluster.started_ns(one.uid) for one in ordered if one.priority == ordered[0].priority]
    started_ns = min(NOT_STARTED_NS if start is None else start for start in starts)
    return Candidate(node, ordered, violations, started_ns)


def _remove_pods(dry_run: DryRun, pods: Mapping[NodeName, Iterable[Pod]]) -> None:
    for those in pods.values():
        for one in those:
            dry_run.overlay.remove_pod(one.uid)


def _restore_pods(dry_run: DryRun, pods: Mapping[NodeName, Iterable[Pod]]) -> None:
    for those in pods.values():
        for one in those:
            dry_run.overlay.restore_pod(one.uid)

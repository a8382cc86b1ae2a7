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
from policysched.model.objects import DisruptionBudget, NodeName, Pod, PodUid
from policysched.scheduler.steps import Steps

NO_VICTIMS = "No preemption victims found for incoming pod"
NOT_HELPFUL = "Preemption is not helpful for scheduling"
CANDIDATES_LEAST = 100
CANDIDATES_PERCENT = 10
NODES_AT_A_TIME = 100
"""So many are tried on one overlay together, where they can be: few enough for a short step, enough for arrays to pay."""

_ALONE = 10
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
    def harm(self) -> tuple[int, int, int, int, int]:
        """The less, the better: kube-scheduler's steps in their order, but for the last one (the first node)."""
        priorities = [one.priority for one in self.victims]
        offset_sum = sum(priority + PRIORITY_OFFSET for priority in priorities)
        return self.violations, max(priorities), offset_sum, len(priorities), -self.started_ns


@dataclass(frozen=True, slots=True)
class Found:
    """The candidates, in the order in which they were tried, and where there is none, how many nodes each reason rules out.
    `beforehand` are nodes that a rule refuses which looks at nothing but the node, whoever goes from it, as far as nodes are `known`
    to be such or not; `failed` those that were thought through by themselves, in vain."""

    candidates: tuple[Candidate, ...]
    reasons: Mapping[str, int]
    beforehand: Mapping[NodeName, tuple[str, ...]] = field(default_factory=dict)
    known: frozenset[NodeName] = frozenset()
    failed: frozenset[NodeName] = frozenset()


@dataclass(frozen=True, slots=True)
class Cluster:
    """What there is to evict: the pods on a node in the order in which they came, when the kubelet took each up (None:
    not yet), and the disruption budgets. `node_count` are all nodes."""

    pods_on: Callable[[NodeName], Iterable[Pod]]
    started_ns: Callable[[PodUid], int | None]
    budgets: Collection[DisruptionBudget]
    node_count: int


def nobody_to_evict(dry_run: DryRun, node_count: int) -> Found:
    """Where it is known beforehand that no pod on any node may be evicted."""
    counts = {NO_VICTIMS: dry_run.candidate_count, NOT_HELPFUL: node_count - dry_run.candidate_count}
    return Found((), {reason: count for reason, count in counts.items() if count})


def find_candidates(
    dry_run: DryRun,
    may_evict: Callable[[Pod], bool],
    cluster: Cluster,
    *,
    among: Collection[NodeName] | None = None,
    least: int = CANDIDATES_LEAST,
    before: Found | None = None,
) -> Steps[Found]:
    """`among`: only these nodes are thought through. Where each is thought through by itself, `least` possible nodes may be
    enough, and `before` is what was found for a pod that agrees with this one, of nodes that have not changed since: those
    that failed then come last."""
    reasons: Counter[str] = Counter()
    nodes = [one for one in dry_run.candidates if among is None or one in among]

    def who_may_go(some: Iterable[NodeName]) -> dict[NodeName, list[Pod]]:
        found = {node: [one for one in cluster.pods_on(node) if may_evict(one)] for node in some}
        return {node: by_importance(pods, cluster.started_ns) for node, pods in found.items() if pods}

    candidates: list[Candidate] = []
    beforehand = {} if before is None else dict(before.beforehand)
    known = set[NodeName]() if before is None else set(before.known)
    failed: set[NodeName] = set()
    if dry_run.separate:
        for some in in_portions(nodes):
            potential = who_may_go(some)
            reasons[NO_VICTIMS] += len(some) - len(potential)
            candidates += try_nodes(dry_run, potential, cluster, reasons)
            yield cost_of(potential)
        nodes = []
    elif before is not None:
        nodes.sort(key=lambda node: node in before.failed)
    enough = max(least, len(nodes) * CANDIDATES_PERCENT * least // (100 * CANDIDATES_LEAST))
    for some in in_portions(nodes):
        if _are_enough(candidates, enough):
            break
        new = who_may_go(node for node in some if node not in known)
        beforehand |= _refused_beforehand(dry_run, new)
        known.update(some)
        yield cost_of(new)
        for node in some:
            if node in beforehand:
                reasons.update(beforehand[node])
                continue
            potential = who_may_go([node])
            reasons[NO_VICTIMS] += not potential
            found = try_nodes(dry_run, potential, cluster, reasons) if potential else []
            candidates += found
            if not found:
                failed.add(node)
            if _are_enough(candidates, enough):
                break
            yield _ALONE * (1 + cost_of(potential))
    hopeless = cluster.node_count - len(dry_run.candidates)
    if hopeless:
        reasons[NOT_HELPFUL] += hopeless
    found_reasons = {reason: count for reason, count in reasons.items() if count}
    return Found(tuple(candidates), found_reasons, beforehand, frozenset(known), frozenset(failed))


def _are_enough(candidates: Sequence[Candidate], enough: int) -> bool:
    return len(candidates) >= enough and any(not one.violations for one in candidates)


def in_portions(nodes: Sequence[NodeName]) -> Iterator[Sequence[NodeName]]:
    for start in range(0, len(nodes), NODES_AT_A_TIME):
        yield nodes[start : start + NODES_AT_A_TIME]


def cost_of(potential: Mapping[NodeName, Collection[Pod]]) -> int:
    return len(potential) + sum(map(len, potential.values()))


def least_harm(candidates: Sequence[Candidate]) -> Candidate:
    """Among equals the first."""
    return min(candidates, key=lambda one: one.harm)


def by_importance(pods: Iterable[Pod], started_ns: Callable[[PodUid], int | None]) -> list[Pod]:
    """The most important first: by priority, then who has run longest. Of two that have not started the later one
    comes first, as kube-scheduler's sorting has it while both count as started just now."""

    def key(entry: tuple[int, Pod]) -> tuple[int, int, int]:
        place, pod = entry
        at_ns = started_ns(pod.uid)
        if at_ns is None:
            return -pod.priority, NOT_STARTED_NS, -place
        return -pod.priority, at_ns, place

    return [pod for _, pod in sorted(enumerate(pods), key=key)]


def _refused_beforehand(
    dry_run: DryRun, potential: Mapping[NodeName, list[Pod]]
) -> dict[NodeName, tuple[str, ...]]:
    """The nodes that a rule refuses which looks at nothing but the node, whoever goes: they need not be thought
    through one by one."""
    _lift(dry_run, potential)
    nodes = list(potential)
    found = zip(nodes, dry_run.refusals(nodes, by_node_alone=True), strict=True)
    _lay_back(dry_run, potential)
    return {node: refused for node, refused in found if refused}


def try_nodes(
    dry_run: DryRun, potential: Mapping[NodeName, list[Pod]], cluster: Cluster, reasons: Counter[str]
) -> list[Candidate]:
    """Try these nodes at once: the n-th of each node is laid back in the n-th round. Leaves the overlay as it was."""
    _lift(dry_run, potential)
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
            dry_run.overlay.put_back(lines[node][turn].uid)
        for node, refused in zip(trying, dry_run.refusals(trying), strict=True):
            if refused:
                pod = lines[node][turn]
                dry_run.overlay.remove(pod.uid)
                victims[node].append(pod)
                violations[node] += turn < violating[node]
    gone = {node: victims.get(node, pods) for node, pods in potential.items()}
    _lay_back(dry_run, gone)
    return [
        _candidate(node, potential[node], victims[node], violations[node], cluster)
        for node in possible
        if victims[node]
    ]


def _candidate(
    node: NodeName, in_order: list[Pod], victims: list[Pod], violations: int, cluster: Cluster
) -> Candidate:
    chosen = {one.uid for one in victims}
    ordered = tuple(one for one in in_order if one.uid in chosen)
    starts = [cluster.started_ns(one.uid) for one in ordered if one.priority == ordered[0].priority]
    started_ns = min(NOT_STARTED_NS if start is None else start for start in starts)
    return Candidate(node, ordered, violations, started_ns)


def _lift(dry_run: DryRun, pods: Mapping[NodeName, Iterable[Pod]]) -> None:
    for those in pods.values():
        for one in those:
            dry_run.overlay.remove(one.uid)


def _lay_back(dry_run: DryRun, pods: Mapping[NodeName, Iterable[Pod]]) -> None:
    for those in pods.values():
        for one in those:
            dry_run.overlay.put_back(one.uid)

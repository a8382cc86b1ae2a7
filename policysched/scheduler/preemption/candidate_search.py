"""Search for all candidates of a preemption, or as many as suffice.

If a rule depends on other nodes, what takes long is to remove all members of a gang from the overlay, on many nodes, and to
add them back. So nodes take turns: all are tried whose victims include the same whole gangs, before others are.

    gangs that are removed: {g} ──► {}: g is reprieved, if the pod fits beside it ── yes ──► the other units
                                                       └── no ──► {g} again: the other units
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from typing import TypeVar

from policysched.evaluate import DryRun, Overlay
from policysched.model.identifiers import NodeName, PodUid
from policysched.model.pods import Pod
from policysched.scheduler.preemption.running_gangs import EvictablePods, RunningGang
from policysched.scheduler.preemption.victim_selection import (
    NODES_PER_BATCH,
    Candidate,
    PreemptionInputs,
    VictimSelection,
    change_in_steps,
    least_disruptive,
    node_batches,
    select_victims_on_nodes,
)
from policysched.scheduler.steps import Steps, run_to_completion

NO_VICTIMS = "No preemption victims found for incoming pod"
NOT_HELPFUL = "Preemption is not helpful for scheduling"
NOT_SEARCHED = "node(s) were not searched for victims in this attempt"
CANDIDATES_MIN = 100
CANDIDATES_PERCENT = 10

_MOVES_MAX = 20_000
"""How often members of gangs leave the overlay or return before the candidates found so far suffice, if one violates
no budget: about 0.1 s. Beyond, each node has members of other gangs."""

_COST_MAX = 30_000
"""Of moves and of evaluating nodes by themselves, before one candidate suffices even if it violates budgets, as all may: less
than that of kube-scheduler's number of nodes with thirty pods each. Without a candidate the search ends too, and the next
attempt begins with other nodes."""

_SINGLE_NODE_COST = 10
"""Of evaluating a node by itself: rules that depend on other nodes run each time."""

NODES_PER_ATTEMPT = 499
"""By how many nodes the next attempt begins later: fewer than a search evaluates of nodes with thirty pods. A
prime number, so that attempts do not leave out the same nodes if it evaluates fewer."""


Gangs = frozenset[RunningGang]
Searched = TypeVar("Searched")


def begun_elsewhere(all_of: Sequence[Searched], attempts: int, step: int) -> list[Searched]:
    """What a search that may not look at all begins with in this attempt: so many later than in the one before, also if their number
    is a multiple of that."""
    begin = attempts * (step + (len(all_of) % step == 0)) % max(1, len(all_of))
    return [*all_of[begin:], *all_of[:begin]]


@dataclass(frozen=True, slots=True)
class CandidateSearchResult:
    """The nodes that are candidates, in the order in which they were tried, and how many nodes each reason rules out.

    `node_rejections` holds the reasons of node-local rules that reject a node whatever is evicted
    there; it covers `prefiltered_nodes`. `failed_nodes` were evaluated by themselves and are no
    candidates.
    """

    selections: tuple[VictimSelection, ...]
    reasons: Mapping[str, int]
    node_rejections: Mapping[NodeName, tuple[str, ...]] = field(default_factory=dict)
    prefiltered_nodes: frozenset[NodeName] = frozenset()
    failed_nodes: frozenset[NodeName] = frozenset()

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """All of them, each with all victims, which takes long where these are gangs."""
        return tuple(run_to_completion(selection.candidate()) for selection in self.selections)

    def best(self) -> Steps[Candidate | None]:
        return (yield from least_disruptive(self.selections).candidate()) if self.selections else None


def no_evictable_pods(dry_run: DryRun, node_count: int) -> CandidateSearchResult:
    """The result if no pod on any node may be evicted."""
    counts = {
        NO_VICTIMS: dry_run.potential_node_count,
        NOT_HELPFUL: node_count - dry_run.potential_node_count,
    }
    return CandidateSearchResult((), {reason: count for reason, count in counts.items() if count})


def find_candidates(
    dry_run: DryRun,
    evictable: EvictablePods,
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

    evictable_by_node: dict[NodeName, list[Pod]] = {}

    def evictable_pods(batch: Sequence[NodeName]) -> Steps[dict[NodeName, list[Pod]]]:
        for node in batch:
            if node not in evictable_by_node:
                evictable_by_node[node] = yield from cluster.evictable_pods(node, evictable)
                yield 1
        return {node: pods for node in batch if (pods := evictable_by_node[node])}

    candidates: list[VictimSelection] = []
    node_rejections = {} if previous is None else dict(previous.node_rejections)
    prefiltered = set[NodeName]() if previous is None else set(previous.prefiltered_nodes)
    failed: set[NodeName] = set()
    if dry_run.node_local:
        for batch in node_batches(nodes):
            potential = yield from evictable_pods(batch)
            reasons[NO_VICTIMS] += len(batch) - len(potential)
            candidates += yield from select_victims_on_nodes(dry_run, potential, cluster, reasons)
        nodes = []
    elif nodes:
        nodes = begun_elsewhere(nodes, cluster.attempts, NODES_PER_ATTEMPT)
    if previous is not None:
        nodes.sort(key=lambda node: node in previous.failed_nodes)
    enough = max(candidates_min, len(nodes) * CANDIDATES_PERCENT * candidates_min // (100 * CANDIDATES_MIN))
    removed, turn, keeps_budgets = _RemovedPods(dry_run.overlay), 1, False
    not_searched = len(nodes)
    for batch in node_batches(nodes):
        if removed.suffice(candidates, enough, keeps_budgets):
            break
        new = yield from evictable_pods([node for node in batch if node not in prefiltered])
        node_rejections |= yield from _node_local_rejections(dry_run, new)
        prefiltered.update(batch)
        untried: list[NodeName] = []
        for node in batch:
            if node in node_rejections:
                reasons.update(node_rejections[node])
            else:
                untried.append(node)
        not_searched -= len(batch) - len(untried)
        while untried and not removed.suffice(candidates, enough, keeps_budgets):
            size = max(turn, enough - len(candidates))
            together, untried, turn = untried[:size], untried[size:], min(2 * turn, NODES_PER_BATCH)
            potential = yield from evictable_pods(together)
            reasons[NO_VICTIMS] += len(together) - len(potential)
            selections, waiting_count = yield from _select_victims_in_turns(
                dry_run, removed, potential, cluster, reasons
            )
            not_searched -= len(together) - waiting_count
            for node in together:
                if keeps_budgets and len(candidates) >= enough:
                    break  # the others were tried for nothing
                if node in selections:
                    candidates.append(selections[node])
                    keeps_budgets |= not selections[node].violations
                else:
                    failed.add(node)  # or not evaluated to the end
    reasons[NOT_SEARCHED] += not_searched
    unhelpful_count = cluster.node_count - len(dry_run.potential_nodes)
    if unhelpful_count:
        reasons[NOT_HELPFUL] += unhelpful_count
    nonzero_reasons = {reason: count for reason, count in reasons.items() if count}
    return CandidateSearchResult(
        tuple(candidates), nonzero_reasons, node_rejections, frozenset(prefiltered), frozenset(failed)
    )


def _node_local_rejections(
    dry_run: DryRun, potential: Mapping[NodeName, list[Pod]]
) -> Steps[dict[NodeName, tuple[str, ...]]]:
    """Nodes that a node-local rule rejects whatever is evicted, so no search on them is needed."""
    uids = [pod.uid for pods in potential.values() for pod in pods]
    yield from change_in_steps(dry_run.overlay.remove_pod, uids)
    nodes = list(potential)
    rejections = zip(nodes, dry_run.rejections(nodes, node_local_only=True), strict=True)
    yield from change_in_steps(dry_run.overlay.restore_pod, uids)
    yield len(nodes)
    return {node: rejected for node, rejected in rejections if rejected}


def _select_victims_in_turns(
    dry_run: DryRun,
    removed: "_RemovedPods",
    potential: Mapping[NodeName, list[Pod]],
    cluster: PreemptionInputs,
    reasons: Counter[str],
) -> Steps[tuple[dict[NodeName, VictimSelection], int]]:
    """The nodes that are candidates, and how many were not evaluated to the end. Each is evaluated by itself: pods of others
    are not removed. Restores the overlay."""
    found: dict[NodeName, VictimSelection] = {}
    keeps_budgets = is_possible = False

    def evaluate(selection: VictimSelection) -> Iterator[bool]:
        """Begins, and goes on after each True, while its victims and no other pods are removed."""
        nonlocal keeps_budgets, is_possible
        (rejected,) = dry_run.rejections([selection.node])
        reasons.update(rejected)
        if rejected:
            return
        is_possible = True
        for index in range(len(selection.units)):
            if selection.can_reprieve(index):
                selection.reprieve(index)
                yield True
                if dry_run.rejections([selection.node])[0]:
                    selection.evict(index)
        if selection.victim_uids:
            found[selection.node] = selection
            keeps_budgets |= not selection.violations

    waiting: dict[Gangs, list[tuple[VictimSelection, Iterator[bool]]]] = {}

    def wait(selection: VictimSelection, evaluation: Iterator[bool]) -> None:
        waiting.setdefault(frozenset(selection.whole_gangs()), []).append((selection, evaluation))

    for node, pods in potential.items():
        selection = VictimSelection(node, pods, cluster)
        wait(selection, evaluate(selection))
        yield 1
    while waiting and not removed.suffice(found, len(potential), keeps_budgets, is_possible):
        gangs = removed.gangs if removed.gangs in waiting else next(reversed(waiting))
        selection, evaluation = waiting[gangs].pop(0)
        if not waiting[gangs]:
            del waiting[gangs]
        while gangs == frozenset(selection.whole_gangs()):
            yield from removed.replace(gangs, selection.victims_on_node())
            yield _SINGLE_NODE_COST
            if not next(evaluation, False):
                break
        else:
            wait(selection, evaluation)
    yield from removed.replace(frozenset(), ())
    return found, sum(map(len, waiting.values()))


class _RemovedPods:
    """What is removed from an overlay: all members of `gangs`, and single pods of a node."""

    def __init__(self, overlay: Overlay) -> None:
        self._overlay = overlay
        self._moves = self._single_moves = self._evaluations = 0
        self.gangs: Gangs = frozenset()
        self._single: list[PodUid] = []

    def suffice(self, candidates: Sized, enough: int, keeps_budgets: bool, is_possible: bool = False) -> bool:
        """Whether no others are searched, maybe without a candidate. `keeps_budgets`: one of them violates no budget;
        `is_possible`: an evaluation that has begun ends with one."""
        if self._moves + self._single_moves // 2 + _SINGLE_NODE_COST * self._evaluations > _COST_MAX:
            return bool(candidates) or not is_possible
        if self._moves > _MOVES_MAX:
            enough = 1
        return keeps_budgets and len(candidates) >= enough

    def replace(self, gangs: Gangs, pods: Iterable[Pod]) -> Steps[None]:
        """Remove these gangs and pods, and restore what else is removed. An evaluation of the node follows."""
        self._evaluations += 1
        single = [pod.uid for pod in pods if not any(pod.uid in gang.members for gang in gangs)]
        before, after = self._single, single
        self._single_moves += len(before) + len(after) - 2 * len(set(before).intersection(after))
        if gangs != self.gangs:
            before = [*before, *(uid for gang in self.gangs for uid in gang.members)]
            after = [*after, *(uid for gang in gangs for uid in gang.members)]
            self._moves += sum(len(gang.members) for gang in gangs ^ self.gangs)
        self.gangs, self._single = gangs, single
        staying = set(before).intersection(after)
        yield from change_in_steps(self._overlay.restore_pod, [uid for uid in before if uid not in staying])
        yield from change_in_steps(self._overlay.remove_pod, [uid for uid in after if uid not in staying])

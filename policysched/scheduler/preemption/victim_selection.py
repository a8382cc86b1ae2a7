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
takes long on a large cluster. A node costs what is on it, however many members its gangs have
elsewhere: they are victims without being listed, except for the node that is chosen.
The search through the nodes is in `candidate_search`.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

from policysched.cluster.disruption_budgets import LeastViolations, ViolationCounter
from policysched.evaluate import DryRun, VictimOrder
from policysched.model.identifiers import NodeName, PodUid
from policysched.model.pods import Pod
from policysched.model.workloads import DisruptionBudget
from policysched.scheduler.preemption.running_gangs import (
    EvictablePods,
    GangOf,
    ReprieveOrder,
    RunningGang,
    VictimUnit,
    no_gang,
    reprieve_order,
)
from policysched.scheduler.steps import Steps, visit_in_pieces

NODES_PER_BATCH = 100
"""Nodes evaluated together on one overlay: few enough for a short step, enough for arrays to pay off."""

PODS_PER_STEP = 100
"""Pods that one step removes from an overlay or adds back."""

NOT_STARTED_NS = 2**63 - 1
"""Start of a pod that the kubelet has not started; kube-scheduler treats it as started just now."""

PRIORITY_OFFSET = 2**31
"""Added to each priority in a sum, so that a node with fewer negative priorities does not win by that."""


Disruption = tuple[int, tuple[Any, ...], int, int, int, int]
"""See `Candidate.disruption`."""


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
    def disruption(self) -> Disruption:
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
class PreemptionInputs:
    """Cluster state for preemption.

    `pods_on`: pods of a node in order of arrival. `started_ns`: when the kubelet started a pod
    (None: not yet). `node_count` counts all nodes. `gang_of`: the running gang of a pod.
    `order`: which victims go first by the policy; None: in kube-scheduler's order. `attempts`: for the pod or gang so far;
    a search that ends before it has tried all nodes begins with others each time.
    """

    pods_on: Callable[[NodeName], Iterable[Pod]]
    started_ns: Callable[[PodUid], int | None]
    budgets: Collection[DisruptionBudget]
    node_count: int
    gang_of: GangOf = no_gang
    order: VictimOrder | None = None
    attempts: int = 0

    def evictable_pods(self, node: NodeName, evictable: EvictablePods) -> Steps[list[Pod]]:
        """Those of the node's pods that may be victims, most important first."""
        if (known := evictable.by_node.get(node)) is not None:
            return known
        yield from evictable.ask(self.pods_on(node))
        pods = [pod for pod in self.pods_on(node) if evictable.may_evict(pod)]
        in_order = sorted_by_importance(pods, self.started_ns, self.order)
        evictable.by_node[node] = yield from evictable.without_needed_members(in_order, self.gang_of)
        return evictable.by_node[node]

    def visit_gangs(self, pods: Iterable[Pod]) -> Steps[None]:
        """Learn of the gangs of these pods what a search asks about all their members, in pieces: a node, or many nodes with a
        gang each, would otherwise visit them at once."""
        for gang in self._gangs_without("disruption", pods):
            parts, least = list[Disruption](), LeastViolations(self.budgets)
            for some in gang.in_parts():
                parts.append(self.disruption_without_budgets(some))
                gang.remember("least violations", least.add(some))
                yield 1 + len(some)
            disruption = _together(parts)
            gang.remember("order", disruption[1])
            gang.remember("priority", disruption[2])
            gang.remember("disruption", disruption)

    def count_violations(self, pods: Iterable[Pod]) -> Steps[None]:
        """Likewise, what only nodes ask that are evaluated."""
        for gang in self._gangs_without("budgets", pods):
            counter = ViolationCounter((), self.budgets)
            for some in gang.in_parts():
                counter.add(some)
                yield 1 + len(some)
            gang.remember("budgets", counter)

    def _gangs_without(self, what: str, pods: Iterable[Pod]) -> Iterator[RunningGang]:
        for pod in pods:
            gang = self.gang_of(pod)
            if gang is not None and not gang.remembers(what):
                yield gang

    def violations_least(self, gang: RunningGang) -> int:
        """How many members violate a budget at least, if all are evicted."""
        return gang.once("least violations", lambda members: LeastViolations(self.budgets).add(members))

    def of_members(self, gang: RunningGang) -> Disruption:
        """The disruption of all members, without budgets."""
        return gang.once("disruption", self.disruption_without_budgets)

    def disruption_without_budgets(self, victims: Collection[Pod]) -> Disruption:
        return self.candidate(NodeName(""), victims, 0).disruption

    def candidate(self, node: NodeName, victims: Collection[Pod], violations: int) -> Candidate:
        highest = max(victim.priority for victim in victims)
        starts = [self.started_ns(victim.uid) for victim in victims if victim.priority == highest]
        started_ns = min(NOT_STARTED_NS if start is None else start for start in starts)
        last = () if self.order is None else max(map(self.order, victims))
        return Candidate(node, tuple(victims), violations, started_ns, last)

    def sorted_candidate(self, node: NodeName, victims: Sequence[Pod], violations: int) -> Steps[Candidate]:
        """The same of thousands, which are sorted here, in pieces: by what is asked once of each of them."""
        starts, orders = dict[PodUid, int | None](), dict[PodUid, tuple[Any, ...]]()

        def ask(pod: Pod) -> None:
            starts[pod.uid] = self.started_ns(pod.uid)
            if self.order is not None:
                orders[pod.uid] = self.order(pod)

        yield from visit_in_pieces(victims, ask, 1)
        order = None if self.order is None else lambda pod: orders[pod.uid]
        in_order = sorted_by_importance(victims, starts.__getitem__, order)
        yield len(victims) // 10
        known = replace(self, started_ns=starts.__getitem__, order=order)
        return known.candidate(node, in_order, violations)


def _together(parts: Sequence[Disruption]) -> Disruption:
    """Of disjoint victims."""
    violations, last_in_order, highest, offset_sums, counts, starts = zip(*parts, strict=True)
    start = max(at for at, priority in zip(starts, highest, strict=True) if priority == max(highest))
    return sum(violations), max(last_in_order), max(highest), sum(offset_sums), sum(counts), start


def node_batches(nodes: Sequence[NodeName]) -> Iterator[Sequence[NodeName]]:
    for start in range(0, len(nodes), NODES_PER_BATCH):
        yield nodes[start : start + NODES_PER_BATCH]


Choice = TypeVar("Choice", Candidate, "VictimSelection")


def least_disruptive(candidates: Sequence[Choice]) -> Choice:
    """The first of the least disruptive candidates."""
    return min(candidates, key=lambda candidate: candidate.disruption)


def sorted_by_importance(
    pods: Iterable[Pod], started_ns: Callable[[PodUid], int | None], order: VictimOrder | None = None
) -> list[Pod]:
    """Most important first: last by `order`, then by priority, then longest running.

    Of two pods that have not started the later one comes first: kube-scheduler's sort has the same
    effect, because it treats both as started just now.
    """

    keys: list[tuple[int, int, int]] = []
    listed = list(pods)
    for index, pod in enumerate(listed):
        at_ns = started_ns(pod.uid)
        keys.append((-pod.priority, *((NOT_STARTED_NS, -index) if at_ns is None else (at_ns, index))))
    in_order = [listed[abs(index)] for *_, index in sorted(keys)]
    return in_order if order is None else sorted(in_order, key=order, reverse=True)


def select_victims_on_nodes(
    dry_run: DryRun, potential: Mapping[NodeName, list[Pod]], cluster: PreemptionInputs, reasons: Counter[str]
) -> Steps[list["VictimSelection"]]:
    """Evaluate these nodes together: round n reprieves the n-th unit of each. Restores the overlay. No rule depends on
    other nodes, so members of gangs that run elsewhere stay on the overlay."""
    if not potential:
        return []
    yield from change_in_steps(
        dry_run.overlay.remove_pod, [pod.uid for pods in potential.values() for pod in pods]
    )
    nodes = list(potential)
    possible: list[VictimSelection] = []
    for node, rejected in zip(nodes, dry_run.rejections(nodes), strict=True):
        reasons.update(rejected)
        if not rejected:
            possible.append(VictimSelection(node, potential[node], cluster))
    yield len(nodes)
    for selection in possible:
        yield from cluster.visit_gangs(potential[selection.node])
        yield from cluster.count_violations(potential[selection.node])
        yield 1 + len(selection.units)
    for index in range(max((len(selection.units) for selection in possible), default=0)):
        tried = [selection for selection in possible if selection.can_reprieve(index)]
        for selection in tried:
            _restore_pods(dry_run, {selection.node: selection.units[index].pods})
        for selection, rejected in zip(
            tried, dry_run.rejections([selection.node for selection in tried]), strict=True
        ):
            if not rejected:
                selection.reprieve(index)
                continue
            _remove_pods(dry_run, {selection.node: selection.units[index].pods})
        yield len(tried)
    removed = {**potential, **{selection.node: selection.victims_on_node() for selection in possible}}
    yield from change_in_steps(
        dry_run.overlay.restore_pod, [pod.uid for pods in removed.values() for pod in pods]
    )
    return [selection for selection in possible if selection.victim_uids]


class VictimSelection:
    """Which units of a node are reprieved. The others are the victims, and so are all members of their gangs."""

    def __init__(self, node: NodeName, in_order: list[Pod], cluster: PreemptionInputs) -> None:
        self.node = node
        self._cluster = cluster
        self._pods = in_order
        self._has_gangs = any(cluster.gang_of(pod) is not None for pod in in_order)
        self._uids = frozenset(pod.uid for pod in in_order)
        self.victim_uids = set(self._uids)
        """Those on the node."""

    @cached_property
    def _order(self) -> ReprieveOrder:
        """Not asked for where the pod does not fit whatever is evicted."""
        return reprieve_order(self._pods, self._cluster.gang_of, self._cluster.budgets, self._cluster.order)

    @property
    def units(self) -> tuple[VictimUnit, ...]:
        return self._order.units

    def can_reprieve(self, index: int) -> bool:
        """Whether there is such a unit, and it is not of a gang that goes whole."""
        if index >= len(self.units):
            return False
        gang = self.units[index].spare_of
        return gang is None or any(
            unit.gang is gang and unit.pods[0].uid not in self.victim_uids for unit in self.units
        )

    def reprieve(self, index: int) -> None:
        self.victim_uids -= {pod.uid for pod in self.units[index].pods}

    def evict(self, index: int) -> None:
        """It was reprieved, and the pod does not fit beside it."""
        self.victim_uids |= {pod.uid for pod in self.units[index].pods}

    def victims_on_node(self) -> list[Pod]:
        return [pod for pod in self._pods if pod.uid in self.victim_uids]

    @property
    def violations(self) -> int:
        """As of the candidate."""
        elsewhere = self._order.violations_elsewhere
        on_node = len(self._order.violating & self.victim_uids)
        return on_node + sum(elsewhere[gang] for gang in self.whole_gangs())

    @cached_property
    def disruption(self) -> Disruption:
        """As of the candidate. Of members of gangs only those on the node are visited."""
        gangs = self.whole_gangs()
        parts = [self._cluster.of_members(gang) for gang in gangs]
        others = [pod for pod in self.victims_on_node() if not any(pod.uid in gang.members for gang in gangs)]
        if others:
            parts.append(self._cluster.disruption_without_budgets(others))
        return (self.violations, *_together(parts)[1:])

    def candidate(self) -> Steps[Candidate]:
        """The node with the victims; at least one unit was not reprieved."""
        victims = self.victims_on_node()
        gangs = self._order.violations_elsewhere
        if any(uid not in self._uids for gang in gangs for uid in gang.members):
            for gang in self.whole_gangs():
                victims += [gang.members[uid] for uid in self._elsewhere(gang)]
            return (yield from self._cluster.sorted_candidate(self.node, victims, self.violations))
        return self._cluster.candidate(self.node, victims, self.violations)

    def whole_gangs(self) -> list[RunningGang]:
        """Those that are victims, in order of their first pods on the node."""
        if not self._has_gangs:
            return []
        reprieved = {unit.gang for unit in self.units if unit.pods[0].uid not in self.victim_uids}
        return [gang for gang in self._order.violations_elsewhere if gang not in reprieved]

    def _elsewhere(self, gang: RunningGang) -> list[PodUid]:
        return [uid for uid in gang.members if uid not in self._uids]


def change_in_steps(change: Callable[[PodUid], None], uids: Sequence[PodUid]) -> Steps[None]:
    """Change an overlay by these pods."""
    for start in range(0, len(uids), PODS_PER_STEP):
        some = uids[start : start + PODS_PER_STEP]
        for uid in some:
            change(uid)
        yield len(some)


def _remove_pods(dry_run: DryRun, pods: Mapping[NodeName, Iterable[Pod]]) -> None:
    for node_pods in pods.values():
        for pod in node_pods:
            dry_run.overlay.remove_pod(pod.uid)


def _restore_pods(dry_run: DryRun, pods: Mapping[NodeName, Iterable[Pod]]) -> None:
    for node_pods in pods.values():
        for pod in node_pods:
            dry_run.overlay.restore_pod(pod.uid)

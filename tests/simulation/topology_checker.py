"""Preferred topology levels, by the reference implementation: of two neighbours in rank, the second is next to the first
as long as there is room, also for the members behind it.

The members of one decision are taken out of the cluster and placed again by rank, each on the node of the decision.
"""

from collections.abc import Callable, Sequence

from policysched.lang.ir.program import TopologyLevel
from policysched.model.identifiers import NodeName
from policysched.model.pods import Pod
from policysched.scheduler.commands import Bind
from policysched.scheduler.gangs.neighbours import rank_of
from policysched.scheduler.scheduler import Scheduler
from tests.reference import evaluate, gang_terms
from tests.simulation.hypothetical import without_listeners

Member = tuple[int, Pod, NodeName]


class TopologyChecker:
    """Checks one process of a replica. `fail` gets a message for each violation."""

    def __init__(self, scheduler: Scheduler, now_ns: Callable[[], int], fail: Callable[[str], None]) -> None:
        self._core, self._now_ns, self._fail = scheduler._core, now_ns, fail
        self.comparisons = 0

    def check_binds(self, binds: Sequence[Bind]) -> None:
        """Called when these binds are decided, before they are sent. Gangs of which a member has no rank, and those
        whose attempt paused, are skipped: the cluster was another one then."""
        core = self._core
        gangs: dict[tuple[str, str], tuple[tuple[TopologyLevel, ...], list[Member]]] = {}
        for bind in binds:
            pod = core.cache.pods[bind.uid].pod
            terms = gang_terms(core.policies.running[bind.policy].program, pod, core.namespace_of(pod))
            if terms is None or all(level.required for level in terms.levels):
                continue
            rank = rank_of(pod)
            assert rank is not None, f"{pod.full_name} of a gang with preferred levels has no rank"
            gangs.setdefault(terms.key, (terms.levels, []))[1].append((rank, pod, bind.node))
        for levels, members in gangs.values():
            if len({rank for rank, _, _ in members}) == len(members) > 1:
                with without_listeners(core.cache.ledger):
                    self._check_gang(levels, sorted(members, key=lambda member: member[0]))

    def _check_gang(self, levels: tuple[TopologyLevel, ...], members: list[Member]) -> None:
        core = self._core
        gang = core.gangs.gang_of(members[0][1].uid)
        decided = {pod.uid for _, pod, _ in members}
        if gang is None or gang.placed_members.keys() - decided or core.cache.nominated:
            return  # neighbours that were placed before, and room that is kept
        for _, pod, _ in members:
            core.cache.ledger.withdraw(pod.uid)
        before: NodeName | None = None
        for index, (_, pod, node) in enumerate(members):
            if before is not None and self._domain(levels, node) != self._domain(levels, before):
                self._check_neighbour(
                    levels, pod, node, before, [later for _, later, _ in members[index + 1 :]]
                )
            core.cache.ledger.assume(pod, node)
            before = node

    def _check_neighbour(
        self,
        levels: tuple[TopologyLevel, ...],
        pod: Pod,
        node: NodeName,
        before: NodeName,
        later: Sequence[Pod],
    ) -> None:
        self.comparisons += 1
        near = [
            name
            for name in self._nodes_for(pod)
            if self._domain(levels, name) == self._domain(levels, before)
            and self._fit_after(later, pod, name, [level for level in levels if level.required])
        ]
        if near:
            self._fail(
                f"{pod.full_name} goes to {node}, and its neighbour on {before} has room beside it: {near}"
            )

    def _fit_after(
        self, later: Sequence[Pod], pod: Pod, node: NodeName, required: Sequence[TopologyLevel]
    ) -> bool:
        """Whether unequal members would still have a node, one after the other, with the pod on this one."""
        ledger, placed = self._core.cache.ledger, [pod]
        ledger.assume(pod, node)
        try:
            for member in later:
                nodes = [
                    name
                    for name in self._nodes_for(member)
                    if self._domain(required, name) == self._domain(required, node)
                ]
                if not nodes:
                    return False
                ledger.assume(member, nodes[0])
                placed.append(member)
        finally:
            for member in placed:
                ledger.withdraw(member.uid)
        return True

    def _nodes_for(self, pod: Pod) -> list[NodeName]:
        core = self._core
        explanation = evaluate(
            core.policies.running[pod.scheduler].program,
            pod,
            core.cache,
            now_ns=self._now_ns(),
            facts=core.binds.in_flight[pod.uid].pod.facts,
            samples=core.samples.of_policy(pod.scheduler),
        )
        return [NodeName(name) for name in explanation.feasible]

    def _domain(self, levels: Sequence[TopologyLevel], node: NodeName) -> tuple[str | None, ...]:
        labels = self._core.cache.nodes[node].labels
        return tuple(labels.get(level.key) for level in levels)

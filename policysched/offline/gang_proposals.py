"""What would make a gang start: a lower minimum, changes of one member, and changes of other pods and of nodes.

Each proposal is decided by the scheduler core, as in `simulate`, with the change applied to the cluster: the members are
placed at once, and no pod is evicted.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from policysched.explanations.proposals import (
    UNSCHEDULABLE_TAINT,
    Proposal,
    Situation,
    describe_node,
    move_a_pod,
    node_kinds,
)
from policysched.explanations.record import ExplainedGang
from policysched.from_files.cluster_files import ClusterFiles
from policysched.from_files.cluster_variants import ClusterVariants, NotTried, check_time
from policysched.from_files.simulate import SimulationResult
from policysched.lang.ir.expr import Const
from policysched.lang.ir.program import Program
from policysched.lang.types.kinds import INT
from policysched.model.identifiers import NodeName
from policysched.model.nodes import Node
from policysched.model.pods import Pod

_MEMBER_KINDS = ("request", "toleration", "node selector")
_NODES_TRIED_MAX = 8
_HOSTNAME = "kubernetes.io/hostname"


@dataclass(frozen=True, slots=True)
class GangSituation:
    """A gang and a member that stays pending. `variants` have the placed pods and this gang, and decide it; `situation_of`
    evaluates a pod alone on such files. At `deadline_s` (`time.monotonic`) no more is tried."""

    program: Program
    pod: Pod
    gang: ExplainedGang
    variants: ClusterVariants
    situation_of: Callable[[ClusterFiles, Pod], Situation]
    deadline_s: float = math.inf

    @property
    def files(self) -> ClusterFiles:
        return self.variants.files

    def started(self, program: Program, files: ClusterFiles) -> SimulationResult | None:
        """None if the gang does not start, or only after evictions. Raises NotTried."""
        result = self.variants.simulate(program, files, self.deadline_s)
        return result if result.placements and not result.preempted else None

    def with_member(self, pod: Pod) -> ClusterFiles:
        """The files with this pod in place of the member."""
        changed = replace(pod, scheduler=self.program.name)
        pods = [
            replace(observed, pod=changed) if observed.pod.uid == pod.uid else observed
            for observed in self.files.pods
        ]
        return replace(self.files, pods=pods)


@dataclass(slots=True)
class GangProposals:
    """`not_tried`: the changes of which it is unknown whether they help, each with the reason."""

    proposals: list[Proposal] = field(default_factory=list)
    not_tried: dict[str, str] = field(default_factory=dict)

    def add(self, change: str, of_change: Iterator[Proposal]) -> None:
        try:
            self.proposals += of_change
        except NotTried as error:
            self.not_tried[change] = str(error)


def gang_proposals(situation: GangSituation, of_member: Iterable[Proposal]) -> GangProposals:
    """A lower minimum if the gang is blocked; of the proposals for the member alone those with which the gang starts
    and takes the member along; and one change of each kind of another pod and of the nodes."""
    gang, result = situation.gang, GangProposals()
    minimum = _LargestMinimum(gang.placed)
    if gang.blocked:
        result.add("lower min", _lower_minimum(situation, minimum))
    for proposal in of_member:
        if proposal.kind in _MEMBER_KINDS and proposal.pod is not None:
            result.add(proposal.text, _change_member(situation, proposal, proposal.pod))
    if gang.blocked and gang.placed + gang.pending >= gang.minimum:
        result.add("uncordon a node", _uncordon(situation))
        result.add("move a pod", _move(situation, minimum.started))
        result.add("add nodes", _add_nodes(situation, gang.minimum - max(minimum.value, gang.placed)))
    return result


def _change_member(situation: GangSituation, proposal: Proposal, changed: Pod) -> Iterator[Proposal]:
    result = situation.started(situation.program, situation.with_member(changed))
    node = None if result is None else _node_of(situation.pod, result)
    if node is not None:
        yield replace(proposal, node=node)


# ── the minimum ────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class _LargestMinimum:
    """The largest minimum with which the gang is known to start, and how it does; None: with none."""

    value: int
    started: SimulationResult | None = None


def _lower_minimum(situation: GangSituation, largest: _LargestMinimum) -> Iterator[Proposal]:
    """By bisection: with one more the gang does not start."""
    low, high = 0, situation.gang.minimum - 1
    while low < high:
        middle = (low + high + 1) // 2
        result = situation.started(
            with_minimum(situation.program, middle), situation.with_member(situation.pod)
        )
        if result is None:
            high = middle - 1
        else:
            low = largest.value = middle
            largest.started = result
    if largest.started is not None:
        text = f"min {low} instead of {situation.gang.minimum}"
        yield Proposal("minimum", text, _node_of(situation.pod, largest.started))


def with_minimum(program: Program, minimum: int) -> Program:
    """The policy with this minimum for every gang."""
    gang = program.gang
    assert gang is not None, "only a policy with gangs has a minimum"
    return replace(program, gang=replace(gang, minimum=Const(minimum, INT, gang.minimum.span)))


# ── the cluster ────────────────────────────────────────────────────────────────────────────────────────────────────


def _uncordon(situation: GangSituation) -> Iterator[Proposal]:
    cordoned = sorted(
        (node for node in situation.files.nodes if is_cordoned(node)), key=lambda node: node.name
    )
    for node in cordoned[:_NODES_TRIED_MAX]:
        result = situation.started(situation.program, with_node(situation.files, uncordoned(node)))
        if result is not None:
            member_node = _node_of(situation.pod, result)
            yield Proposal("uncordon", f"uncordon {node.name}", member_node, uncordoned=node.name)
            return


def _move(situation: GangSituation, started: SimulationResult | None) -> Iterator[Proposal]:
    """A pod that leaves its node for the first member without one, where those that fit now have theirs."""
    placements = () if started is None else started.placements
    nodes = {placement.pod: NodeName(placement.node) for placement in placements}
    files = with_placed(situation.files, nodes)
    members = [observed.pod for observed in files.pods if observed.node is None]
    left = sorted(members, key=lambda pod: (pod.uid != situation.pod.uid, pod.full_name))
    if not left:
        return
    check_time(situation.deadline_s)
    proposal = next(filter(None, move_a_pod(situation.situation_of(files, left[0]))), None)
    if proposal is None or proposal.moved is None:
        return
    moved, target = proposal.moved
    result = situation.started(situation.program, with_placed(situation.files, {moved.full_name: target}))
    if result is not None:
        yield replace(proposal, node=_node_of(situation.pod, result))


def _add_nodes(situation: GangSituation, missing: int) -> Iterator[Proposal]:
    """The fewest further nodes of one kind with which the gang starts; the smallest kind that helps. They have the labels
    of the node that they are like, but for its name."""

    def started(like: Node, count: int) -> SimulationResult | None:
        return situation.started(situation.program, with_added_nodes(situation.files, like, count))

    for like in node_kinds(situation.files.nodes)[:_NODES_TRIED_MAX]:
        best = started(like, missing)
        if best is None:
            continue
        low, high = 1, missing
        while low < high:
            middle = (low + high) // 2
            result = started(like, middle)
            low, high, best = (low, middle, result) if result is not None else (middle + 1, high, best)
        nodes_text = "a node" if high == 1 else f"{high} nodes"
        text = f"add {nodes_text} like {like.name} ({describe_node(like)})"
        member_node = _node_of(situation.pod, best)
        is_added = member_node is not None and all(member_node != node.name for node in situation.files.nodes)
        yield Proposal("node", text, like.name if is_added else member_node, like=like.name, count=high)
        return


def is_cordoned(node: Node) -> bool:
    return node.unschedulable or any(taint.key == UNSCHEDULABLE_TAINT for taint in node.taints)


def uncordoned(node: Node) -> Node:
    taints = tuple(taint for taint in node.taints if taint.key != UNSCHEDULABLE_TAINT)
    return replace(node, unschedulable=False, taints=taints)


def with_node(files: ClusterFiles, node: Node) -> ClusterFiles:
    """The files with this node in place of the one with its name."""
    return replace(files, nodes=[node if each.name == node.name else each for each in files.nodes])


def with_added_nodes(files: ClusterFiles, like: Node, count: int) -> ClusterFiles:
    """The files with further nodes of this kind."""
    added = []
    for number in range(1, count + 1):
        name = f"{like.name}-added-{number}"
        added.append(replace(like, name=NodeName(name), uid=name, labels={**like.labels, _HOSTNAME: name}))
    return replace(files, nodes=[*files.nodes, *added])


def with_placed(files: ClusterFiles, nodes: Mapping[str, NodeName]) -> ClusterFiles:
    """The files with these pods (`namespace/name`) on these nodes."""
    pods = [
        replace(observed, node=nodes.get(observed.pod.full_name, observed.node)) for observed in files.pods
    ]
    return replace(files, pods=pods)


def _node_of(pod: Pod, result: SimulationResult) -> NodeName | None:
    return next(
        (NodeName(placement.node) for placement in result.placements if placement.pod == pod.full_name), None
    )

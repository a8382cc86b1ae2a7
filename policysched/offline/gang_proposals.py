"""What would make a gang start: a lower minimum, and changes of one member with which the whole gang starts.

Each proposal is decided by the scheduler core, as in `simulate`: the members are placed at once, and nobody is evicted.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from policysched.explanations.proposals import Proposal
from policysched.explanations.record import ExplainedGang
from policysched.from_files.simulate import SimulationResult
from policysched.lang.ir.expr import Const
from policysched.lang.ir.program import Program
from policysched.lang.types.kinds import INT
from policysched.model.identifiers import NodeName
from policysched.model.pods import Pod

_MEMBER_KINDS = ("request", "toleration", "node selector")


@dataclass(frozen=True, slots=True)
class GangSituation:
    """A gang and a member that stays pending. `simulated` decides the gang alone, by this program and with this pod in
    place of the member."""

    program: Program
    pod: Pod
    gang: ExplainedGang
    simulated: Callable[[Program, Pod], SimulationResult]

    def started(self, program: Program, pod: Pod) -> SimulationResult | None:
        """None if the gang does not start, or only after evictions."""
        result = self.simulated(program, pod)
        return result if result.placements and not result.preempted else None


def gang_proposals(situation: GangSituation, of_member: Sequence[Proposal]) -> Iterator[Proposal]:
    """A lower minimum if the gang is blocked, and of the proposals for the member alone those with which the gang starts
    and takes the member along. Changes of other pods and of nodes are left out: they are evaluated for one member."""
    lowered = _lower_minimum(situation) if situation.gang.blocked else None
    if lowered is not None:
        yield lowered
    for proposal in of_member:
        if proposal.kind not in _MEMBER_KINDS or proposal.pod is None:
            continue
        result = situation.started(situation.program, proposal.pod)
        node = None if result is None else _node_of(situation.pod, result)
        if node is not None:
            yield replace(proposal, node=node)


def _lower_minimum(situation: GangSituation) -> Proposal | None:
    """The largest minimum with which the gang starts, by bisection: with one more it does not."""
    low, high, best = 0, situation.gang.minimum - 1, None
    while low < high:
        middle = (low + high + 1) // 2
        result = situation.started(with_minimum(situation.program, middle), situation.pod)
        if result is None:
            high = middle - 1
        else:
            low, best = middle, result
    if best is None:
        return None
    return Proposal(
        "minimum", f"min {low} instead of {situation.gang.minimum}", _node_of(situation.pod, best)
    )


def with_minimum(program: Program, minimum: int) -> Program:
    """The policy with this minimum for every gang."""
    gang = program.gang
    assert gang is not None, "only a policy with gangs has a minimum"
    return replace(program, gang=replace(gang, minimum=Const(minimum, INT, gang.minimum.span)))


def _node_of(pod: Pod, result: SimulationResult) -> NodeName | None:
    return next(
        (NodeName(placement.node) for placement in result.placements if placement.pod == pod.full_name), None
    )

"""What `explain` proposes for a gang that does not start is applied, and `simulate` decides: the gang starts with the change,
and does not with a step less of it."""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from policysched.explanations.proposals import Proposal, request_step, with_requests
from policysched.explanations.record import ExplainResult
from policysched.from_files.cluster_files import ClusterFiles
from policysched.from_files.simulate import simulate
from policysched.lang.ir.program import Program
from policysched.model.pods import Pod
from policysched.offline import gang_proposals as module
from policysched.offline.pod_explanation import explain_pod
from tests.builders import node, pending, placed, pod
from tests.reference.checked import program
from tests.scheduler.rig import START_NS

INPUTS = (
    'input group: string = pod.labels["group"] optional',
    'input least: int = pod.labels["least"] default 1 invalid reject "least must be a number"',
)
RULES = ("filter node_resources_fit", "filter taint_toleration")
PROGRAMS = [
    program(*INPUTS, gang, *others, *RULES, "preemption never")
    for gang in (
        "gang by group { min = least }",
        'gang by group { min = least  topology = "zone" }',
        'gang by group { min = least  topology = ["zone" required, "rack" required] }',
    )
    for others in ((), ('quota team by group else "none" { "g" { pods = 4 } others unlimited }',))
]
SEEDS = 200


class Scene:
    """A small cluster and a gang that may be too large for it. A label of each member says the minimum, so that a lower
    one is applied by the members, not by the policy."""

    def __init__(self, seed: int) -> None:
        dice = random.Random(seed)
        self.program: Program = PROGRAMS[seed % len(PROGRAMS)]
        self.nodes = [
            node(
                f"n{index}",
                cpu=str(dice.randint(1, 5)),
                labels={"zone": f"z{index % 2}", "rack": f"r{index % 3}"},
                taints=dice.choice(((), ("team=ml:NoSchedule",))),
            )
            for index in range(dice.randint(1, 4))
        ]
        count = dice.randint(2, dice.choice((3, 8)))
        self.minimum = dice.randint(2, count + 1)
        self.placed_count = dice.choice((0, 0, 1))
        large = dice.choice((1, 1, 3, 6, 6))
        self.members = [
            pod(f"p{index}", cpu=str(large if index == count - 1 else 1), scheduler="test")
            for index in range(count)
        ]
        self.asked = self.members[dice.choice((-1, self.placed_count))]

    def files(self, minimum: int, asked: Pod) -> ClusterFiles:
        labels = {"group": "g", "least": str(minimum)}
        members = [
            replace(asked if member.uid == asked.uid else member, labels=labels) for member in self.members
        ]
        return ClusterFiles(
            nodes=self.nodes,
            pods=[
                placed(member, self.nodes[0].name) if index < self.placed_count else pending(member)
                for index, member in enumerate(members)
            ],
        )

    def explained(self) -> ExplainResult:
        files = self.files(self.minimum, self.asked)
        return explain_pod(self.program, files, self.asked.full_name, samples={}, now_ns=START_NS)

    def nodes_of_started(self, minimum: int, asked: Pod) -> dict[str, str]:
        """The nodes of the pods that start; none if the gang does not."""
        files = self.files(minimum, asked)
        result = simulate(self.program, files, samples={}, scope="named", now_ns=START_NS)
        assert not result.placements or len(result.placements) + self.placed_count >= minimum
        return {placement.pod: placement.node for placement in result.placements}

    def without_and_with(self, proposal: Proposal) -> tuple[list[dict[str, str]], dict[str, str]]:
        """What starts with one step less, and with the proposal."""
        if proposal.kind == "minimum":
            minimum = int(proposal.text.split()[1])
            less = self.nodes_of_started(minimum + 1, self.asked)
            return [less], self.nodes_of_started(minimum, self.asked)
        assert proposal.pod is not None
        lowered = {
            name: amount
            for name, amount in proposal.pod.requests.items()
            if amount < self.asked.requests[name]
        }
        less_lowered = [
            with_requests(self.asked, {**lowered, name: amount + request_step(name)})
            for name, amount in lowered.items()
        ]
        steps_less = [self.nodes_of_started(self.minimum, asked) for asked in less_lowered or [self.asked]]
        return steps_less, self.nodes_of_started(self.minimum, proposal.pod)


def broken(scene: Scene) -> Iterator[str]:
    """Each proposal that does not start the gang, names another node, or of which a step less would do."""
    for proposal in scene.explained().proposals:
        steps_less, started = scene.without_and_with(proposal)
        if not started:
            yield f"{proposal.text}: the gang does not start"
        if started.get(scene.asked.full_name) != proposal.node:
            yield f"{proposal.text}: the member does not go to {proposal.node}"
        if any(steps_less):
            yield f"{proposal.text}: a step less is enough"


def test_every_proposal_starts_the_gang_and_a_step_less_does_not() -> None:
    kinds, without_the_member = Counter[str](), 0

    for seed in range(SEEDS):
        scene = Scene(seed)
        assert list(broken(scene)) == [], f"seed {seed}"
        found = scene.explained().proposals
        kinds.update(proposal.kind for proposal in found)
        without_the_member += sum(proposal.node is None for proposal in found)

    assert set(kinds) == {"minimum", "request", "toleration"}
    assert without_the_member


def _one_too_low(monkeypatch: pytest.MonkeyPatch) -> None:
    lower = module.with_minimum
    monkeypatch.setattr(module, "with_minimum", lambda policy, minimum: lower(policy, minimum + 1))


def _one_too_high(monkeypatch: pytest.MonkeyPatch) -> None:
    lower = module.with_minimum
    monkeypatch.setattr(module, "with_minimum", lambda policy, minimum: lower(policy, minimum - 1))


def _believes_the_member_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "gang_proposals", lambda _, of_member: of_member)
    monkeypatch.setattr("policysched.offline.pod_explanation.gang_proposals", lambda _, of_member: of_member)


@pytest.mark.parametrize("bug", [_one_too_low, _one_too_high, _believes_the_member_alone])
def test_planted_bugs_are_found(bug: object, monkeypatch: pytest.MonkeyPatch) -> None:
    assert callable(bug)
    bug(monkeypatch)

    assert any(problem for seed in range(SEEDS) for problem in broken(Scene(seed)))


def test_a_gang_that_starts_gets_no_lower_minimum() -> None:
    scenes = [Scene(seed) for seed in range(SEEDS)]
    started = [scene for scene in scenes if scene.nodes_of_started(scene.minimum, scene.asked)]

    assert started
    for scene in started:
        assert all(proposal.kind != "minimum" for proposal in scene.explained().proposals)

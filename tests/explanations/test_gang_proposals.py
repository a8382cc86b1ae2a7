"""What `explain` proposes for a gang that does not start is applied, and `simulate` decides: the gang starts with the change,
and does not with a step less of it.

At least `POLICYSCHED_PROPOSALS` of them are judged.
"""

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest

from policysched.explanations.record import ExplainResult
from policysched.from_files.cluster_files import ClusterFiles
from policysched.model.identifiers import NodeName
from policysched.model.nodes import Node
from policysched.offline import gang_proposals as module
from policysched.offline.pod_explanation import explain_pod
from tests.explanations.gang_scenes import Scene
from tests.scheduler.rig import START_NS

SEEDS = 180
PROPOSALS = int(os.environ.get("POLICYSCHED_PROPOSALS", "0"))


def broken(scene: Scene, result: ExplainResult | None = None) -> Iterator[str]:
    """Each proposal that does not start the gang, names another node, or of which a step less would do."""
    result = result or scene.explained()
    assert result.gang is not None
    for proposal in result.proposals:
        steps_less, started = scene.without_and_with(proposal)
        if not started:
            yield f"{proposal.text}: the gang does not start"
        if proposal.kind != "node" and started.get(scene.asked.full_name) != proposal.node:
            yield f"{proposal.text}: the member does not go to {proposal.node}"
        # A gang that starts without the member is helped only by what takes the member along.
        if any(less if result.gang.blocked else scene.asked.full_name in less for less in steps_less):
            yield f"{proposal.text}: a step less is enough"


def test_every_proposal_starts_the_gang_and_a_step_less_does_not() -> None:
    kinds, without_the_member, seed = Counter[str](), 0, 0

    while seed < SEEDS or kinds.total() < PROPOSALS:
        scene = Scene(seed)
        explained = scene.explained()
        assert list(broken(scene, explained)) == [], f"seed {seed}"
        proposals = explained.proposals
        kinds.update(proposal.kind for proposal in proposals)
        without_the_member += sum(proposal.node is None for proposal in proposals)
        seed += 1

    print(f"{kinds.total()} proposals for gangs in {seed} clusters: {dict(kinds)}")
    assert set(kinds) == {"minimum", "request", "toleration", "uncordon", "move", "node"}
    assert without_the_member


def _one_too_low(monkeypatch: pytest.MonkeyPatch) -> None:
    lower = module.with_minimum
    monkeypatch.setattr(module, "with_minimum", lambda policy, minimum: lower(policy, minimum + 1))


def _one_too_high(monkeypatch: pytest.MonkeyPatch) -> None:
    lower = module.with_minimum
    monkeypatch.setattr(module, "with_minimum", lambda policy, minimum: lower(policy, minimum - 1))


def _adds_one_node_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    add = module.with_added_nodes
    monkeypatch.setattr(module, "with_added_nodes", lambda files, like, count: add(files, like, count + 1))


def _opens_every_node(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_all(files: ClusterFiles, _node: Node) -> ClusterFiles:
        return replace(files, nodes=[module.uncordoned(each) for each in files.nodes])

    monkeypatch.setattr(module, "with_node", with_all)


def _moves_every_pod_away(monkeypatch: pytest.MonkeyPatch) -> None:
    seated = module.with_placed

    def without(files: ClusterFiles, nodes: Mapping[str, NodeName]) -> ClusterFiles:
        is_move = any("old-" in name for name in nodes)
        kept = [each for each in files.pods if not (is_move and each.pod.name.startswith("old-"))]
        return seated(replace(files, pods=kept), nodes)

    monkeypatch.setattr(module, "with_placed", without)


def _believes_the_member_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "policysched.offline.pod_explanation.gang_proposals",
        lambda _, of_member: module.GangProposals(list(of_member)),
    )


BUGS = [
    _one_too_low,
    _one_too_high,
    _adds_one_node_too_few,
    _opens_every_node,
    _moves_every_pod_away,
    _believes_the_member_alone,
]


@pytest.mark.parametrize("bug", BUGS)
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


def test_what_there_was_no_time_for_is_named() -> None:
    scene = next(scene for scene in map(Scene, range(SEEDS)) if len(scene.explained().proposals) > 1)
    files = scene.files(scene.minimum, scene.asked)

    result = explain_pod(
        scene.program, files, scene.asked.full_name, samples={}, now_ns=START_NS, deadline_s=0.0
    )

    assert result.proposals == ()
    assert result.not_tried in result.notes
    for change in ("lower min", "uncordon a node", "move a pod", "add nodes"):
        assert f"{change} (no time left)" in str(result.not_tried)

"""`explain`, `simulate`, `test` and `run` say the same about a gang: it is placed whole, or nobody of it is; also under a quota
and in levels of topology."""

from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory

import orjson
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from policysched.daemon import status_documents
from policysched.daemon.status_documents import DecisionsDocument
from policysched.from_files.cluster_files import ClusterFiles
from policysched.from_files.simulate import SimulationResult, simulate
from policysched.offline import pod_explanation
from policysched.offline.pod_explanation import ExplainResult, explain_pod
from policysched.policytest.runner import run_test_files
from policysched.scheduler.queue.gang_registry import QueuedGang
from tests.builders import node, pending, pod
from tests.reference.checked import program
from tests.scheduler.rig import START_NS, Rig

INPUTS = (
    'input group: string = pod.labels["group"] optional',
    'input least: int = pod.labels["least"] default 1 invalid reject "least must be a number"',
)
WHOLE = "gang by group { min = least }"
QUOTA = 'quota team by group else "none" { "g" { cpu = 6, pods = 3 } others unlimited }'
LEVELS = 'gang by group { min = least  topology = ["zone" required, "rack" preferred] }'
VARIANTS = {
    name: (*INPUTS, *lines, "filter node_resources_fit", "preemption never")
    for name, lines in {
        "whole": (WHOLE,),
        "levels": (LEVELS,),
        "quota": (WHOLE, QUOTA),
        "quota and levels": (LEVELS, QUOTA),
    }.items()
}
PROGRAMS = {name: program(*lines) for name, lines in VARIANTS.items()}
TEXTS = {name: "\n".join(("policy test version 1", *lines, "")) for name, lines in VARIANTS.items()}


def node_labels(index: int) -> dict[str, str]:
    return {"zone": f"z{index % 2}", "rack": f"r{index}"}


def files_of(capacities: list[int], members: list[int], least: int) -> ClusterFiles:
    labels = {"group": "g", "least": str(least)}
    return ClusterFiles(
        nodes=[
            node(f"n{index}", cpu=str(cpu), labels=node_labels(index)) for index, cpu in enumerate(capacities)
        ],
        pods=[
            pending(pod(f"p{index}", cpu=str(cpu), labels=labels, scheduler="test"))
            for index, cpu in enumerate(members)
        ],
    )


def explained(files: ClusterFiles, name: str, variant: str = "whole") -> ExplainResult:
    return explain_pod(PROGRAMS[variant], files, name, samples={}, now_ns=START_NS)


def simulated(files: ClusterFiles, variant: str = "whole") -> SimulationResult:
    return simulate(PROGRAMS[variant], files, samples={}, scope="named", now_ns=START_NS)


def test_no_member_of_a_gang_that_cannot_start_would_be_assigned() -> None:
    files = files_of([6], [1] * 8, 8)

    result = explained(files, "p0")

    assert result.explanation.selected is None
    assert result.message.startswith("gang default/g: 6 of 8 members fit now: 0/1 nodes are available")


def test_a_member_of_a_gang_that_starts_would_be_assigned() -> None:
    result = explained(files_of([4, 4], [1] * 8, 8), "p0")

    assert result.explanation.selected is not None


def check_one_answer(capacities: list[int], members: list[int], least: int, variant: str = "whole") -> None:
    files = files_of(capacities, members, least)
    placed = {placement.pod for placement in simulated(files, variant).placements}
    pending_pods = dict(simulated(files, variant).pending)

    for index in range(len(members)):
        result = explained(files, f"p{index}", variant)
        name = f"default/p{index}"
        assert (result.explanation.selected is not None) == (name in placed), name
        assert name in placed or result.message == pending_pods[name]


CASES = st.tuples(
    st.lists(st.integers(1, 6), min_size=1, max_size=3),
    st.lists(st.integers(1, 3), min_size=1, max_size=4),
    st.integers(1, 5),
    st.sampled_from(sorted(VARIANTS)),
)
Case = tuple[list[int], list[int], int, str]


def runs_the_same(capacities: list[int], members: list[int], least: int, variant: str = "whole") -> None:
    """The scheduler as `run` has it, and its `/decisions`."""
    files = files_of(capacities, members, least)
    expected = simulated(files, variant)
    rig = Rig(TEXTS[variant], *files.nodes, *files.pods)
    rig.settle()
    assert rig.placements() == {
        placement.pod.removeprefix("default/"): placement.node for placement in expected.placements
    }
    for name, message in expected.pending:
        status = rig.scheduler.pending_pods.status(name)
        assert status is not None and message == status.message, name
    page = orjson.loads(DecisionsDocument(rig.scheduler, lambda: None).look(100, "")())
    attempts = [record["gang_attempt"] for record in page["decisions"] if record["attempt"] == 1]
    whole = {"placed": len(expected.placements), "pending": len(members) - len(expected.placements)}
    for attempt in attempts:
        assert {key: attempt[key] for key in whole} == whole
        assert len(attempt["decision_ids"]) == len(members)


def policy_tests_agree(
    folder: Path, capacities: list[int], members: list[int], least: int, variant: str
) -> None:
    """`policysched test` passes with what `simulate` says, and fails with the contrary for one pod."""
    placed = {
        placement.pod for placement in simulated(files_of(capacities, members, least), variant).placements
    }
    nodes = [f"n{index}" for index in range(len(capacities))]
    expected: dict[str, object] = {
        f"p{index}": nodes if f"default/p{index}" in placed else None for index in range(len(members))
    }
    labels = {"group": "g", "least": str(least)}
    document = {
        "policy": "test.policy",
        "nodes": [
            {"name": name, "cpu": cpu, "labels": node_labels(index)}
            for index, (name, cpu) in enumerate(zip(nodes, capacities, strict=True))
        ],
        "tests": [
            {
                "name": name,
                "pods": [
                    {"name": f"p{index}", "cpu": cpu, "labels": labels} for index, cpu in enumerate(members)
                ],
                "expect": {"node": {**expected, **change}},
            }
            for name, change in (
                ("as simulated", {}),
                ("contrary", {"p0": None if expected["p0"] else nodes}),
            )
        ],
    }
    (folder / "test.policy").write_text(TEXTS[variant])
    (folder / "test_test.yaml").write_text(yaml.safe_dump(document))
    (result,) = run_test_files([str(folder / "test_test.yaml")]).files
    assert result.problems == ()
    assert [not test.failures for test in result.results] == [True, False], (capacities, members, least)


@settings(max_examples=25, deadline=None)
@given(case=CASES)
def test_run_and_simulate_give_one_answer(case: Case) -> None:
    runs_the_same(*case)


@settings(max_examples=15, deadline=None)
@given(case=CASES)
def test_policy_tests_and_simulate_give_one_answer(case: Case) -> None:
    """All members are needed: where members beyond the minimum go depends on the UIDs, which tests draw anew."""
    capacities, members, least, variant = case
    with TemporaryDirectory() as folder:
        policy_tests_agree(Path(folder), capacities, members, max(least, len(members)), variant)


@settings(max_examples=25, deadline=None)
@given(case=CASES)
def test_explain_and_simulate_give_one_answer(case: Case) -> None:
    check_one_answer(*case)


def test_a_member_that_is_explained_alone_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_explanation, "_gang_members", lambda *_: [])

    with pytest.raises(AssertionError):
        check_one_answer([2], [1, 2], 2)


@pytest.mark.parametrize(
    ("variant", "capacities", "members"),
    [("quota", [9], [1, 1, 1, 1]), ("levels", [2, 2], [1, 1, 1]), ("quota and levels", [9, 9], [2, 2, 3])],
)
def test_a_quota_or_a_level_that_is_overlooked_is_detected(
    variant: str, capacities: list[int], members: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    check_one_answer(capacities, members, len(members), variant)
    alone = explained
    monkeypatch.setattr(f"{__name__}.explained", lambda files, name, _variant: alone(files, name))

    with pytest.raises(AssertionError):
        check_one_answer(capacities, members, len(members), variant)


def test_a_gang_that_runs_in_part_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QueuedGang, "needed_count", property(lambda _: 0))
    monkeypatch.setattr(
        f"{__name__}.simulated", lambda *_: SimulationResult(PROGRAMS["whole"], (), (), (), "named", {})
    )

    with pytest.raises(AssertionError):
        runs_the_same([2], [1, 2], 2)


def test_decisions_about_a_gang_one_by_one_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = {"placed": 1, "pending": 0, "decision_ids": [1]}
    monkeypatch.setattr(status_documents, "_gang_attempts", lambda _: defaultdict(lambda: alone))

    with pytest.raises(AssertionError):
        runs_the_same([2], [1, 1], 2)

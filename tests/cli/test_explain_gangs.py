"""`explain` of a member of a gang says what `simulate` says: the gang is placed whole, or nobody of it is."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policysched.from_files.cluster_files import ClusterFiles
from policysched.from_files.simulate import SimulationResult, simulate
from policysched.offline import pod_explanation
from policysched.offline.pod_explanation import ExplainResult, explain_pod
from tests.builders import node, pending, pod
from tests.reference.checked import program
from tests.scheduler.rig import START_NS

GANG = program(
    'input group: string = pod.labels["group"] optional',
    'input least: int = pod.labels["least"] default 1 invalid reject "least must be a number"',
    "gang by group { min = least }",
    "filter node_resources_fit",
    "preemption never",
)


def files_of(capacities: list[int], members: list[int], least: int) -> ClusterFiles:
    labels = {"group": "g", "least": str(least)}
    return ClusterFiles(
        nodes=[node(f"n{index}", cpu=str(cpu)) for index, cpu in enumerate(capacities)],
        pods=[
            pending(pod(f"p{index}", cpu=str(cpu), labels=labels, scheduler=GANG.name))
            for index, cpu in enumerate(members)
        ],
    )


def explained(files: ClusterFiles, name: str) -> ExplainResult:
    return explain_pod(GANG, files, name, samples={}, now_ns=START_NS)


def simulated(files: ClusterFiles) -> SimulationResult:
    return simulate(GANG, files, samples={}, scope="named", now_ns=START_NS)


def test_no_member_of_a_gang_that_cannot_start_would_be_assigned() -> None:
    files = files_of([6], [1] * 8, 8)

    result = explained(files, "p0")

    assert result.explanation.selected is None
    assert result.message.startswith("gang default/g: 6 of 8 members fit now: 0/1 nodes are available")


def test_a_member_of_a_gang_that_starts_would_be_assigned() -> None:
    result = explained(files_of([4, 4], [1] * 8, 8), "p0")

    assert result.explanation.selected is not None


def check_one_answer(capacities: list[int], members: list[int], least: int) -> None:
    files = files_of(capacities, members, least)
    placed = {placement.pod for placement in simulated(files).placements}
    pending_pods = dict(simulated(files).pending)

    for index in range(len(members)):
        result = explained(files, f"p{index}")
        name = f"default/p{index}"
        assert (result.explanation.selected is not None) == (name in placed), name
        if (
            pending_pods.get(name) == "waiting"
        ):  # `simulate` reports no message for a gang with missing members
            assert result.message == "gang default/g: too few of its members exist"
        else:
            assert name in placed or result.message == pending_pods[name]


CASES = st.tuples(
    st.lists(st.integers(1, 6), min_size=1, max_size=3),
    st.lists(st.integers(1, 3), min_size=1, max_size=4),
    st.integers(1, 5),
)


@settings(max_examples=25, deadline=None)
@given(case=CASES)
def test_explain_and_simulate_give_one_answer(case: tuple[list[int], list[int], int]) -> None:
    check_one_answer(*case)


def test_a_member_that_is_explained_alone_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_explanation, "_pending_gang_members", lambda *_: [])

    with pytest.raises(AssertionError):
        check_one_answer([2], [1, 2], 2)

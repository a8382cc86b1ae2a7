"""`explain`, `simulate`, `test` and `run` say the same about preemption: who is evicted for a pod or for a whole gang, and
where it then goes. The running pods are single or a gang themselves."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from policysched.from_files.cluster_files import ClusterFiles
from policysched.from_files.simulate import SimulationResult, simulate
from policysched.offline import pod_explanation
from policysched.offline.pod_explanation import explain_pod
from policysched.policytest.runner import run_test_files
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.preemption.running_gangs import RunningGangs
from tests.builders import node, pending, placed, pod
from tests.cli.test_explain_gangs import INPUTS, WHOLE
from tests.reference.checked import program
from tests.scheduler.rig import START_NS, Rig

ORDER = (
    'score first weight 2 when node.name == "n0" higher 1 normalize range(0, 1)',
    'score second weight 1 when node.name == "n1" higher 1 normalize range(0, 1)',
)
"""Where nodes are equal, their place would depend on UIDs, which policy tests choose by themselves."""
LINES = (*INPUTS, WHOLE, "filter node_resources_fit", *ORDER, "preemption { victims = own }")
PROGRAM = program(*LINES)
TEXT = "\n".join(("policy test version 1", *LINES, ""))
URGENT = 1000


class Running(NamedTuple):
    node: int
    cpu: int
    in_gang: bool


class Case(NamedTuple):
    """`least` 0: the members are single pods, one of them."""

    capacities: list[int]
    running: list[Running]
    members: list[int]
    least: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    capacities = draw(st.lists(st.integers(2, 5), min_size=1, max_size=3))
    running, free = list[Running](), dict(enumerate(capacities))
    for _ in range(draw(st.integers(1, 6))):
        on, cpu = draw(st.integers(0, len(capacities) - 1)), draw(st.integers(1, 2))
        if cpu <= free[on]:
            free[on] -= cpu
            running.append(Running(on, cpu, draw(st.booleans())))
    if draw(st.booleans()):
        return Case(capacities, running, [draw(st.integers(1, 5))], 0)
    members = draw(st.lists(st.integers(1, 3), min_size=2, max_size=3))
    return Case(capacities, running, members, len(members))


def pods_of(case: Case) -> list[dict[str, Any]]:
    """In the short form of a policy test. No two running pods have one priority, so that no tie is broken by UIDs."""
    old = {"group": "old", "least": "2"}
    running = [
        {"name": f"old{index}", "cpu": each.cpu, "priority": index, "node": f"n{each.node}"}
        | ({"labels": old} if each.in_gang else {})
        for index, each in enumerate(case.running)
    ]
    labels = {"group": "new", "least": str(case.least)}
    waiting = [
        {"name": f"p{index}", "cpu": cpu, "priority": URGENT} | ({"labels": labels} if case.least else {})
        for index, cpu in enumerate(case.members)
    ]
    return [*running, *waiting]


def files_of(case: Case) -> ClusterFiles:
    observed = []
    for short in pods_of(case):
        on, cpu = short.get("node"), str(short["cpu"])
        value = pod(
            short["name"], cpu=cpu, priority=short["priority"], labels=short.get("labels"), scheduler="test"
        )
        observed.append(pending(value) if on is None else placed(value, on))
    nodes = [node(f"n{index}", cpu=str(cpu)) for index, cpu in enumerate(case.capacities)]
    return ClusterFiles(nodes=nodes, pods=observed)


def simulated(case: Case) -> SimulationResult:
    return simulate(PROGRAM, files_of(case), samples={}, scope="named", now_ns=START_NS)


def placements_of(result: SimulationResult) -> dict[str, str]:
    return {placement.pod.removeprefix("default/"): placement.node for placement in result.placements}


def explain_agrees(case: Case) -> None:
    result = simulated(case)
    for index in range(len(case.members)):
        explained = explain_pod(PROGRAM, files_of(case), f"p{index}", samples={}, now_ns=START_NS)
        evicting = [note.partition(", evicting ")[2] for note in explained.notes if ", evicting " in note]
        assert evicting == ([", ".join(result.preempted)] if result.preempted else [])
        at_once = not result.preempted and f"p{index}" in placements_of(result)
        assert (explained.explanation.selected is not None) == at_once, explained.message
        if not placements_of(result):
            assert explained.message == dict(result.pending)[f"default/p{index}"]


def run_agrees(case: Case) -> None:
    result, files = simulated(case), files_of(case)
    rig = Rig(TEXT, *files.nodes, *files.pods)
    rig.settle()
    victims = list[str]()
    for evict in rig.of(c.Evict):
        victims += [f"default/{victim.name}" for victim in evict.victims]
        uids = tuple(victim.uid for victim in evict.victims)
        rig.handle(e.Evicted(evict.uid, uids), *(e.PodDeleted(uid) for uid in uids))
    rig.settle()

    assert victims == list(result.preempted)
    assert rig.placements() == placements_of(result)


def policy_tests_agree(case: Case, folder: Path) -> None:
    """`policysched test` passes with what `simulate` says, and fails with the contrary."""
    result = simulated(case)
    evicted = sorted(result.preempted)
    pods = {
        f"p{index}": placements_of(result).get(f"p{index}") is not None for index in range(len(case.members))
    }
    nodes = [f"n{index}" for index in range(len(case.capacities))]
    expected = {name: nodes if is_placed else None for name, is_placed in pods.items()}
    contrary = {**expected, "p0": None if pods["p0"] else nodes}
    document = {
        "policy": "test.policy",
        "nodes": [{"name": name, "cpu": cpu} for name, cpu in zip(nodes, case.capacities, strict=True)],
        "tests": [
            {"name": name, "pods": pods_of(case), "expect": {"node": wanted, "evicted": victims}}
            for name, wanted, victims in (
                ("as simulated", expected, evicted),
                ("contrary", contrary, evicted),
                ("other victims", expected, [] if evicted else ["default/old0"]),
            )
        ],
    }
    (folder / "test.policy").write_text(TEXT)
    (folder / "test_test.yaml").write_text(yaml.safe_dump(document))
    (outcome,) = run_test_files([str(folder / "test_test.yaml")]).files
    assert outcome.problems == ()
    assert [not test.failures for test in outcome.results] == [True, False, False], case


TWO_OF_A_GANG = Case([4], [Running(0, 2, True), Running(0, 2, True)], [2], 0)
"""One of the two members would be enough; the gang goes whole."""
GANG_FOR_TWO = Case([3, 3], [Running(0, 2, False), Running(1, 2, False)], [2, 2], 2)
EQUAL_NODES = Case(
    [4, 3],
    [Running(1, 1, False), Running(1, 1, False), Running(0, 2, False), Running(0, 1, False)],
    [1, 2],
    2,
)
"""The first member can go to both."""


@settings(max_examples=25, deadline=None)
@example(TWO_OF_A_GANG)
@example(GANG_FOR_TWO)
@given(case=cases())
def test_explain_and_simulate_give_one_answer(case: Case) -> None:
    explain_agrees(case)


@settings(max_examples=25, deadline=None)
@example(TWO_OF_A_GANG)
@example(GANG_FOR_TWO)
@given(case=cases())
def test_run_and_simulate_give_one_answer(case: Case) -> None:
    run_agrees(case)


@settings(max_examples=15, deadline=None)
@example(EQUAL_NODES)
@example(TWO_OF_A_GANG)
@example(GANG_FOR_TWO)
@given(case=cases().filter(lambda case: case.running))
def test_policy_tests_and_simulate_give_one_answer(case: Case) -> None:
    with TemporaryDirectory() as folder:
        policy_tests_agree(case, Path(folder))


def test_the_examples_evict() -> None:
    assert sorted(simulated(TWO_OF_A_GANG).preempted) == ["default/old0", "default/old1"]
    assert sorted(simulated(GANG_FOR_TWO).preempted) == ["default/old0", "default/old1"]
    assert len(placements_of(simulated(GANG_FOR_TWO))) == 2


def test_victims_that_explain_leaves_out_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_explanation, "_explain_preemption", lambda *_: None)

    with pytest.raises(AssertionError):
        explain_agrees(GANG_FOR_TWO)


def test_a_run_that_evicts_a_gang_in_part_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = simulated(TWO_OF_A_GANG)
    monkeypatch.setattr(f"{__name__}.simulated", lambda _: expected)
    monkeypatch.setattr(RunningGangs, "__call__", lambda *_: None)

    with pytest.raises(AssertionError):
        run_agrees(TWO_OF_A_GANG)

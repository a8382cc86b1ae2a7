"""A few of upstream's e2e tests beside policysched, and how their outcomes are read, recorded and shown.

`make e2e-upstream` runs all of them beside both schedulers; its outcomes are in `outcomes.json`.
"""

import json
from dataclasses import replace
from pathlib import Path
from random import SystemRandom
from typing import Any

import pytest

from policysched.cluster.devices.cel_selectors import DeviceSelectors
from tests.controlplane.certificates import openssl_missing
from tests.controlplane.programs import PROGRAM_NAMES, Programs
from tests.missing_programs import leave_out
from tests.upstream import recorded
from tests.upstream.__main__ import row_of
from tests.upstream.cluster import FEATURES, hollow_cluster, policy_text, policysched, remove_left_behind
from tests.upstream.e2e import (
    OUTCOMES,
    Outcome,
    UpstreamTest,
    all_tests,
    gates_on_by_default,
    outcomes_in,
    read_report,
    run_tests,
)
from tests.upstream.recorded import NOT_RUN, OTHER_CASES, PASSED, Row, Run, merged

Json = dict[str, Any]

SELECTORS = "control plane with different ResourceSlices keeps pod pending because of CEL runtime errors"
SUBSET = (
    SELECTORS,
    "validates that taints-tolerations is respected if not matching",
    "validates that NodeSelector is respected if matching",
    "should schedule pods only when quorum is reached",
    "workload-aware preemption should preempt entire group with All disruption mode by a pod group",
    "control plane supports simple pod referencing inline resource claim",
)
"""The names of tests of each kind that take few seconds."""


def ignore_selectors() -> None:
    DeviceSelectors.matches = lambda *_: True  # type: ignore[method-assign]


@pytest.mark.control_plane
def test_a_few_of_upstreams_tests_pass_and_one_detects_a_planted_bug(
    control_plane_programs: Programs, upstream_tests: Path, tmp_path: Path
) -> None:
    missing = openssl_missing() or control_plane_programs.missing(*PROGRAM_NAMES)
    if missing:
        leave_out("control-plane", missing)
    chosen = [test for test in all_tests(upstream_tests, tmp_path) if test.name in SUBSET]
    selectors = [test for test in chosen if test.name == SELECTORS]

    with hollow_cluster(control_plane_programs, upstream_tests) as control_plane:
        with policysched(control_plane):
            outcomes = run_tests(upstream_tests, control_plane, chosen, tmp_path)
        with policysched(control_plane, plant=ignore_selectors):
            planted = run_tests(upstream_tests, control_plane, selectors, tmp_path)

    assert sorted(test.name for test in outcomes) == sorted(SUBSET)
    assert {test.name: outcome for test, outcome in outcomes.items() if outcome.state != PASSED} == {}
    assert [outcome.state for outcome in planted.values()] == ["failed"]


def test_what_passes_with_kube_scheduler_passes_with_policysched() -> None:
    run = recorded.read(recorded.RECORDED["e2e"])
    passing = {row.name for row in run.rows if row.states.get("policysched") == PASSED}

    assert [f"{row.area}: {row.name}" for row in run.rows if row.worse] == []
    assert passing >= set(SUBSET)


def spec(
    *texts: str, labels: tuple[str, ...] = (), kind: str = "It", state: str = PASSED, why: str = ""
) -> Json:
    *containers, leaf = texts
    return {
        "ContainerHierarchyTexts": containers or None,
        "ContainerHierarchyLabels": [list(labels)] if labels else None,
        "LeafNodeType": kind,
        "LeafNodeText": leaf,
        "LeafNodeLabels": None,
        "State": state,
        "RunTime": 2_500_000_000,
        **({"Failure": {"Message": why}} if why else {}),
    }


def report(folder: Path, *specs: Json) -> Path:
    path = folder / "report.json"
    path.write_text(json.dumps([{"SpecReports": list(specs)}]))
    return path


def test_a_report_has_the_outcome_of_each_test(tmp_path: Path) -> None:
    path = report(
        tmp_path,
        spec("[BeforeSuite]", kind="SynchronizedBeforeSuite"),
        spec("[sig-scheduling] Preds [Serial]", "binds [Slow]", labels=("Serial",)),
        spec("[sig-node] [DRA]", "control plane", "waits", state="failed", why="timed out\nat line 3"),
    )

    ((binds, passed), (waits, failed)) = read_report(path)

    assert (binds.area, binds.name, binds.labels) == ("Preds", "binds", {"Serial"})
    assert binds.full_name == "[sig-scheduling] Preds [Serial] binds [Slow]"
    assert passed == Outcome(PASSED, "", 2.5)
    assert (waits.area, waits.name) == ("DRA", "control plane waits")
    assert failed == Outcome("failed", "timed out", 2.5)


def test_only_outcomes_of_all_tests_are_taken_from_an_earlier_run(tmp_path: Path) -> None:
    first, second = (UpstreamTest(("[sig-scheduling] A", name), frozenset()) for name in ("x", "y"))
    assert outcomes_in(tmp_path, [first]) is None
    path = report(
        tmp_path,
        spec(*first.path, state="skipped", why="needs two zones"),
        spec(*second.path, state="skipped"),
    )
    path.rename(tmp_path / OUTCOMES)

    assert outcomes_in(tmp_path, [first]) == {first: Outcome("skipped", "needs two zones", 2.5)}
    assert outcomes_in(tmp_path, [first, second]) is None, "the second was not chosen"


def test_a_suite_whose_set_up_fails_has_no_outcomes(tmp_path: Path) -> None:
    path = report(tmp_path, spec("[BeforeSuite]", kind="SynchronizedBeforeSuite", why="no node is ready"))

    with pytest.raises(AssertionError, match="no node is ready"):
        list(read_report(path))


def upstream_test(name: str, *labels: str) -> UpstreamTest:
    return UpstreamTest(("[sig-scheduling] A", name), frozenset(labels))


@pytest.mark.parametrize(
    ("labels", "obstacle"),
    [
        ((), None),
        (("FeatureGate:GenericWorkload",), None),
        (
            ("FeatureGate:GenericWorkload", "FeatureGate:Y", "FeatureGate:X"),
            "needs X, Y, off by default",
        ),
        (
            ("Feature:DynamicResourceAllocation",),
            "needs a kubelet that runs the containers of a device driver",
        ),
    ],
)
def test_a_test_that_cannot_run_on_hollow_nodes_says_why(
    labels: tuple[str, ...], obstacle: str | None
) -> None:
    assert upstream_test("x", *labels).obstacle(FEATURES.gates.keys()) == obstacle


def test_gates_are_on_by_default_that_a_test_needs_without_saying_otherwise() -> None:
    tests = [
        upstream_test("x", "FeatureGate:On"),
        upstream_test("y", "FeatureGate:On", "FeatureGate:Off", "Feature:OffByDefault"),
    ]

    assert gates_on_by_default(tests) == {"On"}


def test_the_table_counts_passes_and_names_the_rest() -> None:
    both = {"kube-scheduler": PASSED, "policysched": PASSED}
    run = Run(
        "v1.37.2",
        [
            Row("Preds", "binds", both),
            Row("Preds", "spreads", {**both, "policysched": "failed"}, "took | long"),
            Row("Zones", "spreads", dict.fromkeys(both, "skipped"), "needs two zones"),
            Row("DRA", "runs", {}, "needs containers"),
        ],
    )

    lines = list(recorded.lines(run, "Tests of {}:"))

    assert [row.worse for row in run.rows] == [False, True, False, False]
    assert "| Preds | 2 | 2 | 1 |" in lines
    assert "| all | 2 | 2 | 1 |" in lines
    assert "| Preds: spreads | passed | failed | took \\| long |" in lines
    assert "| needs two zones (1) | Zones: spreads |" in lines
    assert "| needs containers (1) | DRA: runs |" in lines


def test_what_a_killed_kubelet_leaves_in_the_systems_folder_is_removed(tmp_path: Path) -> None:
    folder, other = tmp_path / "hollow-kubelet.1", tmp_path / "hollow-kubelet.2"
    (folder / "pods").mkdir(parents=True)
    other.mkdir()
    socket = Path("/tmp") / f"kubelet_remote_{SystemRandom().randrange(10**12)}.sock"
    socket.touch()

    remove_left_behind(
        f"I1126 hollow_kubelet.go:128] Using {folder} as root dir for hollow-kubelet\n"
        f'I1126 remote_runtime.go:162] "Connecting to runtime service" endpoint="unix://{socket}"\n' * 2
    )

    assert [folder.exists(), other.exists(), socket.exists()] == [False, True, False]


def test_recorded_outcomes_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "outcomes.json"
    run = Run(
        "v1.37.2",
        [row_of(UpstreamTest(("a", "b"), frozenset()), None, {"policysched": Outcome("failed", "x", 1.0)})],
    )

    recorded.write(run, path)

    assert recorded.read(path) == run
    assert run.rows[0] == Row("a", "b", {"policysched": "failed"}, "x")


def test_some_tests_that_are_run_again_leave_the_outcomes_of_the_others() -> None:
    def passed(name: str) -> Row:
        return Row("area", name, {"policysched": PASSED})

    def run(*rows: Row) -> Run:
        return Run("v1.37.2", list(rows))

    not_run = Row("area", "TestB", {}, NOT_RUN)
    rest = Row("area", f"TestB{OTHER_CASES}", {}, NOT_RUN)
    of_a, first, second = passed("TestA"), passed("TestB/first"), passed("TestB/second")

    in_part = merged(run(of_a, not_run), run(first, rest))
    whole = merged(in_part, run(first, second))

    assert in_part == run(of_a, first, rest)
    assert whole == run(of_a, first, second)
    assert merged(replace(whole, kubernetes="v1.36.3"), run(first)) == run(first)


def test_the_policy_decides_for_the_default_scheduler_and_for_pod_groups() -> None:
    text = policy_text()

    assert "policy default-scheduler version 1" in text
    assert "include pod_groups" in text

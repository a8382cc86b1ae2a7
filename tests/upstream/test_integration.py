"""Upstream's integration tests of the scheduler: a few of them beside policysched, how they are changed to judge another program
than their own, and how their logs are read.

`make e2e-upstream` runs all of them beside both schedulers; its outcomes are in `integration.json`.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.controlplane.programs import Programs
from tests.go_program import BuildFailed
from tests.missing_programs import leave_out
from tests.upstream import integration, recorded
from tests.upstream.e2e import Outcome
from tests.upstream.integration import (
    NO_SCHEDULER,
    OBSTACLES,
    POLICYSCHED,
    IntegrationTest,
    cases_in,
    rows,
)
from tests.upstream.integration_build import MODULE, PACKAGES, SHARED, write_module
from tests.upstream.integration_run import all_tests, run_tests
from tests.upstream.recorded import PASSED, Row

SCORE = "TestImageLocalityScoring"
SUBSET = (SCORE, "TestNodeResourcesFilter")
TEST = IntegrationTest("scheduler/taint", "TestTaints")
NAME = TEST.function


@pytest.mark.control_plane
def test_a_few_of_upstreams_integration_tests_pass_and_one_detects_a_wrong_policy(
    control_plane_programs: Programs, upstream_integration_tests: Path, tmp_path: Path
) -> None:
    missing = control_plane_programs.missing("etcd")
    if missing:
        leave_out("control-plane", missing)
    every = all_tests(upstream_integration_tests, control_plane_programs, tmp_path)
    chosen = [test for test in every if test.name in SUBSET]
    scores = [test for test in every if test.name == SCORE]

    def run(tests: Sequence[IntegrationTest], folder: str, added_to_policy: str = "") -> dict[str, str]:
        outcomes = run_tests(
            upstream_integration_tests,
            tests,
            POLICYSCHED,
            control_plane_programs,
            tmp_path / folder,
            added_to_policy,
        )
        return {case: outcome.state for of in outcomes.values() for case, outcome in of.items()}

    states = run(chosen, "right")
    wrong = run(scores, "wrong", '\nfilter other require node.name != "testnode-large-image"\n')

    assert {name.partition("/")[0] for name in OBSTACLES} <= {test.name for test in every}
    assert {case.partition("/")[0] for case in states} == set(SUBSET)
    assert set(states.values()) == {PASSED}
    assert wrong == {SCORE: "failed"}


def test_what_passes_with_kube_scheduler_passes_with_policysched() -> None:
    run = recorded.read(recorded.RECORDED["integration"])

    passing = {row.name.partition("/")[0] for row in run.rows if row.states.get(POLICYSCHED) == PASSED}

    assert [f"{row.area}: {row.name}" for row in run.rows if row.worse] == []
    assert passing >= set(SUBSET)


def upstream_folder(folder: Path, start: str, wait: str) -> Path:
    for package in {*SHARED, *PACKAGES}:
        (folder / package).mkdir(parents=True, exist_ok=True)
    (folder / "scheduler" / "taint" / "taint_test.go").write_text(
        'package taint\nimport (\n\t"testing"\n\t"k8s.io/kubernetes/test/integration/util"\n)\n'
        f"func TestTaints(t *testing.T) {{\n\t{start}\n\t{wait}\n}}\n"
    )
    return folder


START = "go testCtx.Scheduler.Run(testCtx.Ctx)"
WAIT = "wait.PollUntilContextTimeout(ctx, time.Second, timeout, false, done)"


def test_a_copy_starts_another_program_and_waits_longer(tmp_path: Path) -> None:
    module = tmp_path / "module"
    module.mkdir()

    write_module(upstream_folder(tmp_path / "upstream", START, WAIT), module)

    copy = (module / "scheduler" / "taint" / "taint.go").read_text()
    assert "external.Start(testCtx.Scheduler, testCtx.Ctx)" in copy
    assert "external.PollUntilContextTimeout(ctx," in copy
    assert f'"{MODULE}/util"' in copy
    assert f'"{MODULE}/external"' in copy
    assert re.search(
        rf"func {NAME}\(t \*testing.T\) {{ p0.TestTaints\(t\) }}", (module / "all_test.go").read_text()
    )


@pytest.mark.parametrize(("start", "wait"), [("sched.Start(ctx)", WAIT), (START, "eventually(done)")])
def test_tests_that_start_or_wait_in_another_way_are_not_built(start: str, wait: str, tmp_path: Path) -> None:
    module = tmp_path / "module"
    module.mkdir()

    with pytest.raises(BuildFailed, match="is nowhere in"):
        write_module(upstream_folder(tmp_path / "upstream", start, wait), module)


def test_a_log_has_the_outcome_of_each_case() -> None:
    log = f"""\
=== RUN   {NAME}
=== RUN   {NAME}/fits

=== SCHEDULER
    taint.go:12: creating pods
    shared_informer.go:524: I1126 22:13:27.672395] Waiting for caches to sync
=== RUN   {NAME}/waits

=== SCHEDULER
    taint.go:40: pod x was not scheduled
    reflector.go:1: E1126 22:13:27.672395] it ended
    --- PASS: {NAME}/fits (1.50s)
    --- FAIL: {NAME}/waits (0.25s)
=== RUN   {NAME}/binds
    --- PASS: {NAME}/binds (0.10s)
--- FAIL: {NAME} (2.00s)
"""

    assert cases_in(log, TEST) == {
        "TestTaints/fits": Outcome(PASSED, "creating pods", 1.5),
        "TestTaints/waits": Outcome("failed", "pod x was not scheduled", 0.25),
        "TestTaints/binds": Outcome("skipped", NO_SCHEDULER, 0.1),
    }


@pytest.mark.parametrize(
    ("case", "skipped"),
    [
        ("fits_(Async_preemption_enabled:_false)", True),
        ("fits_(Async_preemption_enabled:_true)", False),
        ("fits/InterPodAffinityHostnameFastPath=true", True),
        ("fits/InterPodAffinityHostnameFastPath=false", False),
    ],
)
def test_cases_with_another_feature_gate_are_skipped(case: str, skipped: bool) -> None:
    """`go test` splits a pattern into alternatives, and an alternative and a name by `/`."""
    name = [TEST.function, *case.split("/")]
    alternatives = [pattern.split("/") for pattern in re.split(rf"\|(?=\^{TEST.function})", TEST.skip)]

    assert skipped == any(
        len(name) >= len(patterns) and all(map(re.search, patterns, name)) for patterns in alternatives
    )


def test_the_scheduler_of_a_test_decides_in_its_cases() -> None:
    log = f"=== RUN   {NAME}\n=== SCHEDULER\n=== RUN   {NAME}/a/b\n--- PASS: {NAME}/a/b (1.00s)\n--- PASS: {NAME} (1.00s)\n"

    assert {case: outcome.state for case, outcome in cases_in(log, TEST).items()} == {
        "TestTaints/a/b": PASSED
    }


def test_a_test_whose_process_ends_has_failed() -> None:
    log = f"=== RUN   {NAME}\npanic: test timed out after 30m\n"

    assert cases_in(log, TEST) == {"TestTaints": Outcome("failed", "its process ended", 0.0)}


def test_a_row_says_why_a_test_judges_only_kube_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        integration, "OBSTACLES", {"TestPlugins": "registers plugins", "TestTaints/with_": "counts calls"}
    )
    tests = [TEST, IntegrationTest("scheduler", "TestPlugins")]
    outcomes = {
        "kube-scheduler": {TEST: {"TestTaints/fits": Outcome(PASSED, "", 1.0)}},
        "policysched": {TEST: {"TestTaints/fits": Outcome("failed", "not scheduled", 1.0)}},
    }

    fits, left_out, plugins, *packages = rows(tests, outcomes)

    assert fits == Row(
        "scheduler/taint",
        "TestTaints/fits",
        {"kube-scheduler": PASSED, "policysched": "failed"},
        "not scheduled",
    )
    assert fits.worse
    assert left_out == Row("scheduler/taint", "TestTaints/with_", {}, "counts calls")
    assert plugins == Row("scheduler", "TestPlugins", {}, "registers plugins")
    assert Row("scheduler/plugins", "all", {}, "registers plugins in the scheduler's process") in packages

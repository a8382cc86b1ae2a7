"""Run upstream's tests of a scheduler beside kube-scheduler and beside policysched: the e2e tests of scheduling and of dynamic
resource allocation, and the integration tests of the scheduler.

    python -m tests.upstream [--suite NAME] [--only NAME] [--match TEXT] [--cases PATTERN] [--keep FOLDER]

Without `--only` it records the outcomes in `tests/upstream/outcomes.json` and `integration.json`, which the tables in
docs/upstream-tests.md are generated from; with `--match` or `--cases` those of all other tests stay. Exits with 1 if a test passes with kube-scheduler alone.
"""

import argparse
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tests.controlplane.certificates import openssl_missing
from tests.controlplane.programs import PROGRAM_NAMES, Programs, find_programs
from tests.go_program import BuildFailed, say
from tests.house import docs
from tests.upstream import integration, integration_run, recorded
from tests.upstream.build import upstream_binary
from tests.upstream.cluster import FEATURES, SCHEDULERS, hollow_cluster
from tests.upstream.e2e import Outcome, UpstreamTest, all_tests, gates_on_by_default, outcomes_in, run_tests
from tests.upstream.integration_build import integration_binary
from tests.upstream.recorded import PASSED, Row, Run


def main() -> int:
    parser = argparse.ArgumentParser(description="Upstream's tests of a scheduler beside two schedulers.")
    parser.add_argument("--suite", choices=tuple(SUITES), help="one of the two suites")
    parser.add_argument("--only", choices=tuple(SCHEDULERS), help="one scheduler")
    parser.add_argument("--match", default="", help="tests whose full name has this text")
    parser.add_argument("--cases", default="", help="a pattern of the cases of the integration test --match")
    parser.add_argument(
        "--keep", type=Path, help="a folder for the logs and reports; what it has is not run again"
    )
    options = parser.parse_args()
    programs = find_programs()
    missing = openssl_missing() or programs.missing(*PROGRAM_NAMES)
    if missing:
        say(missing)
        return 2
    schedulers = [options.only] if options.only else list(SCHEDULERS)
    worse = False
    with tempfile.TemporaryDirectory(prefix="policysched-upstream-") as temporary:
        folder = (options.keep or Path(temporary)).resolve()
        for suite in [options.suite] if options.suite else list(SUITES):
            (folder / suite).mkdir(parents=True, exist_ok=True)
            try:
                rows = SUITES[suite](programs, schedulers, options, folder / suite)
            except BuildFailed as failure:
                say(str(failure))
                return 2
            run = Run(programs["kube-apiserver"].kubernetes_version or "", rows)
            print("\n".join(recorded.lines(run, recorded.TITLES[suite])))
            worse = worse or any(row.worse for row in rows)
            if not options.only:
                path = recorded.RECORDED[suite]
                if options.match or options.cases:
                    run = recorded.merged(recorded.read(path), run)
                recorded.write(run, path)
                docs.main(["--update"])
    return int(worse)


def run_e2e(programs: Programs, schedulers: Sequence[str], options: Namespace, folder: Path) -> list[Row]:
    upstream = upstream_binary()
    tests = [test for test in all_tests(upstream, folder) if options.match in test.full_name]
    gates_on = gates_on_by_default(tests) | FEATURES.gates.keys()
    able = [test for test in tests if test.obstacle(gates_on) is None]
    say(f"{len(able)} of {len(tests)} e2e tests can run on hollow nodes")
    outcomes = {name: judge(name, programs, upstream, able, folder / name) for name in schedulers}
    return [
        row_of(test, test.obstacle(gates_on), {name: of.get(test) for name, of in outcomes.items()})
        for test in tests
    ]


def run_integration(
    programs: Programs, schedulers: Sequence[str], options: Namespace, folder: Path
) -> list[Row]:
    binary = integration_binary()
    every = integration_run.all_tests(binary, programs, folder / "tools")
    tests = [test for test in every if options.match in test.full_name]
    if options.cases:
        tests = [replace(test, cases=options.cases) for test in tests if test.name == options.match]
    able = [test for test in tests if test.obstacle is None]
    say(f"{len(able)} of {len(tests)} integration tests judge any scheduler; their logs are in {folder}")
    outcomes = {
        name: integration_run.run_tests(binary, able, name, programs, folder / name) for name in schedulers
    }
    return list(integration.rows(tests, outcomes))


def judge(
    scheduler: str, programs: Programs, upstream: Path, tests: Sequence[UpstreamTest], folder: Path
) -> Mapping[UpstreamTest, Outcome]:
    """The outcomes with this scheduler in a cluster of its own. If the folder has them already, nothing is run."""
    folder.mkdir(exist_ok=True)
    if (kept := outcomes_in(folder, tests)) is not None:
        return kept
    say(f"running them with {scheduler}; their log is {folder / 'e2e.log'}")
    with hollow_cluster(programs, upstream) as control_plane, SCHEDULERS[scheduler](control_plane):
        return run_tests(upstream, control_plane, tests, folder)


def row_of(test: UpstreamTest, obstacle: str | None, outcomes: Mapping[str, Outcome | None]) -> Row:
    ran = {name: outcome for name, outcome in outcomes.items() if outcome is not None}
    why = obstacle or next((outcome.why for outcome in ran.values() if outcome.state != PASSED), "")
    return Row(test.area, test.name, {name: outcome.state for name, outcome in ran.items()}, why)


SUITES: Mapping[str, Callable[[Programs, Sequence[str], Namespace, Path], list[Row]]] = {
    "e2e": run_e2e,
    "integration": run_integration,
}


if __name__ == "__main__":
    sys.exit(main())

"""Run upstream's e2e tests of scheduling and of dynamic resource allocation beside kube-scheduler and beside policysched.

    python -m tests.upstream [--only NAME] [--match TEXT] [--keep FOLDER]

Without `--only` and `--match` it records the outcomes in `tests/upstream/outcomes.json`, which the table in
docs/upstream-tests.md is generated from. Exits with 1 if a test passes with kube-scheduler alone.
"""

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.controlplane.certificates import openssl_missing
from tests.controlplane.programs import PROGRAM_NAMES, Programs, find_programs
from tests.go_program import BuildFailed, say
from tests.house import docs
from tests.upstream import recorded
from tests.upstream.build import upstream_binary
from tests.upstream.cluster import FEATURES, SCHEDULERS, hollow_cluster
from tests.upstream.e2e import Outcome, UpstreamTest, all_tests, gates_on_by_default, outcomes_in, run_tests
from tests.upstream.recorded import PASSED, Row, Run


def main() -> int:
    parser = argparse.ArgumentParser(description="Upstream's e2e tests beside two schedulers.")
    parser.add_argument("--only", choices=tuple(SCHEDULERS), help="one scheduler")
    parser.add_argument("--match", default="", help="tests whose full name has this text")
    parser.add_argument(
        "--keep", type=Path, help="a folder for the logs and reports; what it has is not run again"
    )
    options = parser.parse_args()
    programs = find_programs()
    missing = openssl_missing() or programs.missing(*PROGRAM_NAMES)
    if missing:
        say(missing)
        return 2
    try:
        upstream = upstream_binary()
    except BuildFailed as failure:
        say(str(failure))
        return 2
    schedulers = [options.only] if options.only else list(SCHEDULERS)
    with tempfile.TemporaryDirectory(prefix="policysched-upstream-") as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        tests = [test for test in all_tests(upstream, folder) if options.match in test.full_name]
        gates_on = gates_on_by_default(tests) | FEATURES.gates.keys()
        able = [test for test in tests if test.obstacle(gates_on) is None]
        say(f"{len(able)} of {len(tests)} tests can run on hollow nodes")
        outcomes = {name: judge(name, programs, upstream, able, folder / name) for name in schedulers}
    run = Run(
        programs["kube-apiserver"].kubernetes_version or "",
        [
            row_of(test, test.obstacle(gates_on), {name: of.get(test) for name, of in outcomes.items()})
            for test in tests
        ],
    )
    print("\n".join(recorded.lines(run)))
    if not (options.only or options.match):
        recorded.write(run)
        docs.main(["--update"])
    return int(any(row.worse for row in run.rows))


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


if __name__ == "__main__":
    sys.exit(main())

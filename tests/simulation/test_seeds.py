"""Two hundred seeds of faults, played through the whole scheduler: see `world` for what happens and what must hold.

`python -m tests.simulation` plays more of them, and one of them again.
"""

import os
import subprocess
import sys

import pytest

from policysched.daemon.compiling import compile_sync
from tests.simulation.failure_report import failure
from tests.simulation.policy_texts import BAD, GOOD, SCHEDULERS
from tests.simulation.world import run_seed

SEEDS, SEEDS_PER_TEST, EVENTFUL_SEEDS = 200, 11, 24


@pytest.mark.parametrize("first", range(EVENTFUL_SEEDS, SEEDS, SEEDS_PER_TEST))
def test_under_faults_every_invariant_holds_and_the_scheduler_recovers(first: int) -> None:
    for seed in range(first, min(first + SEEDS_PER_TEST, SEEDS)):
        report = run_seed(seed)

        assert not report.problems, failure(report)


def test_the_first_seeds_meet_every_kind_of_fault_and_every_invariant_holds() -> None:
    reports = [run_seed(seed) for seed in range(EVENTFUL_SEEDS)]

    for report in reports:
        assert not report.problems, failure(report)
    faults = {name for report in reports for name, count in report.drawn.items() if count}
    assert faults >= {"lost before", "lost after", "late", "cut", "doubled"}
    assert sum(report.bound for report in reports) > 12 * 10
    trace = "\n".join(line for report in reports for line in report.trace)
    for event in (
        "is killed",
        "is to stop",
        "is broken",
        "ConfigMap is deleted",
        "forgets its history",
        "leaves",
        "members of gang",
        "which asks for",
        "OutOf",
    ):
        assert event in trace, f"in none of the seeds: {event}"


@pytest.mark.parametrize("key", sorted(GOOD))
def test_what_is_said_to_check_does_and_what_is_said_not_to_does_not(key: str) -> None:
    usual = {name: texts[0] for name, texts in GOOD.items()}

    for text in GOOD[key]:
        checked = compile_sync({**usual, key: text}, "ConfigMap of the simulation").sources
        assert {one.program.name for one in checked.values() if one.program} == set(SCHEDULERS)
    for text in BAD[key]:
        broken = compile_sync({**usual, key: text}, "ConfigMap of the simulation").sources[key]
        assert broken.program is None and broken.diagnostics


def test_a_seed_is_the_same_under_every_hash_seed_of_python() -> None:
    script = "from tests.simulation.world import run_seed; print([run_seed(seed).digest for seed in (2, 22)])"

    digests = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": "."},
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout
        for hash_seed in ("0", "1")
    }

    assert len(digests) == 1

"""Seeds of faults, played through the whole scheduler: no seed violates an invariant. `tests/recording/test_replay.py` plays
those that failed once, because it also repeats their decisions. Those that take very long are left out.

`python -m tests.simulation` plays more seeds (`make simulate`: 10,000), and replays one.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from random import Random

import pytest

from policysched.cluster.devices import allocation_cache
from policysched.cluster.devices.allocation_cache import AllocationCache
from policysched.daemon.policy_checker import check_texts
from policysched.scheduler import attempt_runner
from tests.simulation.failure_report import failure
from tests.simulation.policy_texts import BAD, GOOD, SCHEDULERS
from tests.simulation.team_texts import TEAM_TEXTS
from tests.simulation.world import Report, World, compiled, run_seed

EVENTFUL_SEEDS, OTHER_SEEDS = range(24), (range(52, 56), range(57, 60))


@pytest.mark.parametrize("seeds", OTHER_SEEDS, ids=str)
def test_every_invariant_holds_under_faults_and_at_rest(seeds: Sequence[int]) -> None:
    for seed in seeds:
        report = run_seed(seed)

        assert not report.problems, failure(report)


def test_the_first_seeds_contain_every_kind_of_fault_and_hold_every_invariant() -> None:
    reports = [_play(seed) for seed in EVENTFUL_SEEDS]

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


def problems_with_small_slices_of_device_searches(seeds: Sequence[int]) -> list[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attempt_runner, "SLICE_STEPS_MAX", 8)
        patch.setattr(attempt_runner, "GANG_SLICE_STEPS_MAX", 30)
        patch.setattr(attempt_runner, "CHARGED_STEPS", 20)
        patch.setattr(allocation_cache, "PIECE_STEPS", 2)
        return [problem for seed in seeds for problem in run_seed(seed).problems]


def test_every_invariant_holds_where_searches_for_devices_are_cut_into_slices() -> None:
    assert problems_with_small_slices_of_device_searches((17, 24, 49)) == []


def test_a_verdict_of_a_search_that_was_cut_off_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AllocationCache, "is_cut_off", False)

    assert problems_with_small_slices_of_device_searches((17, 24)) != []


def test_an_exception_that_nobody_retrieves_is_reported_from_a_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    async def forget_a_task(world: World) -> None:
        async def fail() -> None:
            raise ValueError("of a forgotten task")

        cycle: list[object] = [asyncio.create_task(fail())]
        cycle.append(cycle)

    monkeypatch.setattr(World, "_run_other_scheduler", forget_a_task)

    assert any("of a forgotten task" in problem for problem in run_seed(0).problems)


@pytest.mark.parametrize("key", sorted(GOOD))
def test_the_good_texts_are_valid_and_the_bad_ones_are_not(key: str) -> None:
    usual = {name: texts[0] for name, texts in GOOD.items()}

    assert GOOD[key] and BAD[key]
    for text in GOOD[key]:
        checked = check_texts({**usual, key: text}, "ConfigMap of the simulation").sources
        assert {source.program.name for source in checked.values() if source.program} == set(SCHEDULERS)
    for text in BAD[key]:
        broken = check_texts({**usual, key: text}, "ConfigMap of the simulation").sources[key]
        assert broken.program is None and broken.diagnostics


@pytest.mark.parametrize("number", range(3))
def test_texts_are_the_same_compiled_together_and_one_by_one(number: int) -> None:
    random = Random(number)
    texts = {key: random.choice((*texts, *BAD.get(key, ()))) for key, texts in {**GOOD, **TEAM_TEXTS}.items()}

    together, one_by_one = check_texts(texts, "ConfigMap of the simulation").sources, compiled(texts).sources

    assert list(one_by_one) == list(together)
    for key, source in together.items():
        assert one_by_one[key].program == source.program
        assert list(map(repr, one_by_one[key].diagnostics)) == list(map(repr, source.diagnostics))


def test_a_seed_has_the_same_trace_under_another_hash_seed_of_python() -> None:
    script = "from tests.simulation.world import run_seed; print([run_seed(seed).digest for seed in (2, 22)])"
    other_hash_seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"

    other = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONHASHSEED": other_hash_seed, "PYTHONPATH": "."},
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    ).stdout

    assert other.strip() == str([_play(seed).digest for seed in (2, 22)])


@cache
def _play(seed: int) -> Report:
    """Several tests read the same run."""
    return run_seed(seed)

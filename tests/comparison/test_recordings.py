"""What `diff --recording` says is what `run` would have done: compared with the same workload, decided by each policy itself,
and the causes with brute force over all mixtures of the edited text."""

import random
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from policysched.comparison.compared_recording import ComparedRecording, compared_recording
from policysched.comparison.comparison import Comparison, compare
from policysched.comparison.forked import no_progress
from policysched.comparison.outcomes import Outcomes
from policysched.comparison.rerun import Rerun
from policysched.lang.ir.program import Program
from policysched.recording.reader import RecordedEvent, Recording, UnusableRecording, open_recording
from policysched.scheduler import events as e
from policysched.scheduler.limits import SECOND_NS
from tests import builders
from tests.builders import pending, placed
from tests.comparison.clusters import EDITS, NOW_NS, POLICY, edited, line_of, policy
from tests.comparison.test_causes import Causes, attributed
from tests.comparison.workloads import STEPS, played, random_workload, record
from tests.recording.recorded import Recorded
from tests.recording.simulated import record_seed

SEEDS = range(2)


def compared(folder: Path, since_ns: int | None = None) -> ComparedRecording:
    recorded = compared_recording(open_recording(folder), "test", since_ns, None)
    recorded.workers = 1
    return recorded


def as_texts(outcomes: Outcomes) -> dict[str, str]:
    return {pod: outcome.node or outcome.kind for pod, outcome in outcomes.items()}


def after(comparison: Comparison, before: dict[str, str]) -> dict[str, str]:
    """What each pod gets with the new policy."""
    changed = {pod: change.after.node or change.after.kind for pod, change in comparison.changed.items()}
    return before | changed


def check_recording(seed: int, folder: Path) -> int:
    """The number of changed pods."""
    chosen = tuple(random.Random(seed).sample(EDITS, 3))
    workload = random_workload(seed)
    before = record(workload, POLICY, folder)
    results = {
        subset: played(workload, edited(subset)) for size in range(4) for subset in combinations(chosen, size)
    }
    assert before == results[()]

    comparison = compare(policy(POLICY), policy(edited(chosen)), compared(folder))

    assert comparison.as_recorded is not None
    assert comparison.as_recorded[0] == comparison.as_recorded[1] > 20
    assert after(comparison, before) == results[chosen]
    expected: dict[str, frozenset[frozenset[int]]] = {}
    text = edited(chosen)
    for pod in before:
        if before[pod] != results[chosen][pod]:
            enough = [subset for subset, result in results.items() if result[pod] == results[chosen][pod]]
            smallest = min(len(subset) for subset in enough)
            expected[pod] = frozenset(
                frozenset(line_of(edit, text) for edit in subset)
                for subset in enough
                if len(subset) == smallest
            )
    recorded: Causes = attributed(comparison)
    assert recorded == expected
    return len(expected)


def test_three_planted_edits_change_the_pods_that_run_would_change_and_are_attributed_to_their_lines(
    tmp_path: Path,
) -> None:
    assert sum(check_recording(seed, tmp_path / str(seed)) for seed in SEEDS) > 20


def test_pods_that_stay_on_their_recorded_nodes_are_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted bug: a pod that is bound in the recording is taken over as it is."""
    monkeypatch.setattr(Rerun, "_adapt_pod", lambda _self, observed: e.PodUpdated(observed))

    with pytest.raises((AssertionError, KeyError)):
        for seed in SEEDS:
            check_recording(seed, tmp_path / str(seed))


def test_the_last_part_of_a_recording_follows_what_was_recorded_before(tmp_path: Path) -> None:
    recorded = record(random_workload(1), POLICY, tmp_path, file_bytes_max=1)
    assert len(list(tmp_path.iterdir())) > 3
    since_ns = NOW_NS + STEPS // 2 * SECOND_NS

    run, _ = compared(tmp_path, since_ns).run_both(policy(POLICY), policy(POLICY), lambda *_: None)

    outcomes = as_texts(run.outcomes)
    assert 10 < len(outcomes) < len(recorded)
    assert outcomes.items() <= recorded.items()


def test_a_recording_without_its_first_file_begins_with_its_snapshot(tmp_path: Path) -> None:
    recorded = record(random_workload(1), POLICY, tmp_path, file_bytes_max=1)
    first, *_ = sorted(tmp_path.iterdir())
    first.unlink()

    run, _ = compared(tmp_path).run_both(policy(POLICY), policy(POLICY), lambda *_: None)

    same, total = run.as_recorded or (0, 0)
    assert total > 10
    assert same > 0.9 * total
    assert as_texts(run.outcomes).keys() <= recorded.keys()


@pytest.mark.parametrize("seed", [3, 8])
def test_a_recording_with_faults_and_restarts_is_run_again_without_a_contradiction(
    seed: int, tmp_path: Path
) -> None:
    """Gangs, preemption, quotas, samples, reloads, lost and refused binds, other leaders."""
    record_seed(seed, tmp_path)
    programs = first_programs(open_recording(tmp_path))
    assert programs

    for program in programs:
        rerun = Rerun(program)
        for item in open_recording(tmp_path).items():
            rerun.apply(item)
        rerun.finish()

        same, total = rerun.as_recorded()
        assert rerun.scheduler.check() == []
        assert total > 5
        assert same > 0


def test_a_pod_that_was_evicted_in_the_recording_stays_with_a_policy_that_evicts_none(tmp_path: Path) -> None:
    """A kubelet gives a deleted pod its last phase before the pod is gone. Neither does a restart of the recorded process end it."""
    recorded, restarted = Recorded(tmp_path / "first"), Recorded(tmp_path / "second")
    low, high = [builders.pod(name, cpu="4", priority=at) for at, name in enumerate(("low", "high"))]

    def decide() -> None:
        while recorded.scheduler.ready(recorded.now_ns):
            recorded.decide()

    recorded.handle(e.PodUpdated(pending(low)))
    decide()
    recorded.handle(e.PodUpdated(placed(low, "a")))
    recorded.handle(e.PodUpdated(pending(high)))
    decide()
    recorded.handle(e.Evicted(high.uid, (low.uid,)))
    for phase in ("Running", "Failed"):
        recorded.handle(e.PodUpdated(replace(placed(low, "a"), deleting=True, preempted=True, phase=phase)))
    recorded.handle(e.PodDeleted(low.uid))
    recorded.now_ns += 60 * SECOND_NS
    decide()
    restarted.handle(e.PodUpdated(placed(high, "a")))
    never = policy("policy test version 1\ninclude kube_default\npreemption never\n")
    rerun = Rerun(never)

    for run in (recorded, restarted):
        run.writer.write_all()
        for item in open_recording(run.folder).items():
            rerun.apply(item)
        rerun.finish()

        assert as_texts(rerun.outcomes()) == {"default/low": "a", "default/high": "pending"}
    assert recorded.scheduler.cache.ledger.placement(high.uid) is not None


def first_programs(recording: Recording) -> list[Program]:
    for item in recording.items():
        if isinstance(item, RecordedEvent) and isinstance(item.event, e.PoliciesUpdated):
            bundle = item.event.bundle
            programs = [] if bundle is None else [source.program for source in bundle.sources.values()]
            if any(programs):
                return [program for program in programs if program is not None]
    return []


def test_mixtures_that_are_not_policies_do_not_run_the_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Recorded(tmp_path).writer.write_all()
    recording = compared(tmp_path)
    monkeypatch.setattr(Recording, "items", lambda *_: pytest.fail("the recording is read"))

    assert list(recording.run_each([None, None], "", no_progress)) == [None, None]


def test_a_policy_of_another_name_takes_the_place_of_the_only_one(tmp_path: Path) -> None:
    Recorded(tmp_path, policies=("a", "b")).writer.write_all()
    Recorded(tmp_path / "one").writer.write_all()

    with pytest.raises(UnusableRecording, match="has no policy c; it has a, b"):
        compared_recording(open_recording(tmp_path), "c", None, None)
    assert compared_recording(open_recording(tmp_path / "one"), "c", None, None).policy_name == "test"

"""The property of recordings: what a seed of the simulation recorded is decided again byte for byte, with its faults,
restarts, gangs, preemption, quotas, samples and reloads. Each planted bug makes a replay say so."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from policysched.recording import replay as replay_module
from policysched.recording.reader import Item, RecordedDecide, RecordedEvent, Recording, open_recording
from policysched.recording.recorder import RecordedScheduler
from policysched.recording.replay import ReplayReport, replay
from policysched.recording.tracked_objects import TrackedObjects
from policysched.scheduler import events as e
from policysched.scheduler.scheduler import Scheduler
from tests.recording.recorded import Recorded
from tests.recording.simulated import record_seed
from tests.simulation.failure_report import failure

SEEDS = (3, 8)
"""Together they have every event that the planted bugs leave out."""

MENDED_SEEDS = (
    2000332,
    3100877,
    3100919,
    4002271,
    4003121,
    4003529,
    4003788,
    4004688,
    6000165,
    10000421,
    10002504,
    10003858,
    12002171,
)
"""They failed once, with a fault of policysched or of a checker: their histories are eventful. `tests/simulation/test_seeds.py`
plays others, and `make simulate` 10,000."""


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """By seed: small files, so that there are many snapshots."""
    folders = {}
    for seed in SEEDS:
        folders[seed] = tmp_path_factory.mktemp(f"seed-{seed}")
        report, writers = record_seed(seed, folders[seed], file_bytes_max=1)
        assert not report.problems and not any(writer.counts.dropped for writer in writers)
    return folders


def outcome(report: ReplayReport) -> tuple[int, list[Any], list[str]]:
    return report.different, report.differences[:1], report.problems[:1]


@pytest.mark.parametrize("seed", SEEDS)
def test_every_decision_of_a_seed_is_reproduced(recordings: dict[int, Path], seed: int) -> None:
    report = replay(open_recording(recordings[seed]))

    assert outcome(report) == (0, [], [])
    assert report.decisions == report.same["run"] > 50


@pytest.mark.search
@pytest.mark.parametrize("seed", MENDED_SEEDS)
def test_every_decision_of_a_mended_seed_is_reproduced_and_it_violates_no_invariant(
    seed: int, tmp_path: Path
) -> None:
    report, _ = record_seed(seed, tmp_path)

    assert not report.problems, failure(report)
    assert outcome(replay(open_recording(tmp_path))) == (0, [], [])


def test_without_their_first_files_nearly_all_decisions_are_reproduced_from_snapshots(
    recordings: dict[int, Path],
) -> None:
    """What a snapshot lacks is named in `recorded_order`, and the seeds do all of it all the time."""
    same = different = 0
    for folder in recordings.values():
        report = replay(_without_starts(open_recording(folder)))
        assert not report.problems and not report.same["run"]
        same, different = same + report.same["snapshot"], different + report.different

    assert same > 150
    assert different < 0.05 * same


def test_a_part_of_a_recording_is_replayed_from_the_snapshot_before_it(recordings: dict[int, Path]) -> None:
    whole = replay(open_recording(recordings[8]))
    assert whole.first_ns is not None and whole.last_ns is not None
    middle_ns = (whole.first_ns + whole.last_ns) // 2

    later = replay(open_recording(recordings[8]), since_ns=middle_ns)
    earlier = replay(open_recording(recordings[8]), until_ns=middle_ns - 1)

    assert later.first_ns is not None and later.first_ns >= middle_ns
    assert earlier.last_ns is not None and earlier.last_ns < middle_ns
    assert later.decisions + earlier.decisions == whole.decisions
    assert later.different == earlier.different == 0


# ── planted bugs ───────────────────────────────────────────────────────────────────────────────────────────────────

OMITTED = (
    *(e.PodUpdated, e.PodDeleted, e.NodeUpdated, e.NamespaceUpdated),
    *(e.PoliciesUpdated, e.SamplesArrived, e.Synced),
    *(e.StorageObjectUpdated, e.DeviceObjectUpdated, e.Evicted, e.ExtendersAnswered),
)


@pytest.mark.parametrize("kind", OMITTED)
def test_a_recording_without_a_kind_of_event_is_not_reproduced(
    recordings: dict[int, Path], kind: type
) -> None:
    def lacks(item: Item) -> bool:
        return isinstance(item, RecordedEvent) and isinstance(item.event, kind)

    with _items(lambda item: None if lacks(item) else item):
        assert any(_differs(folder) for folder in recordings.values()), f"nothing depends on {kind.__name__}"


def test_a_decision_at_another_time_is_noticed(recordings: dict[int, Path]) -> None:
    def later(item: Item) -> Item:
        return replace(item, at_ns=item.at_ns + 1) if isinstance(item, RecordedDecide) else item

    with _items(later):
        assert _differs(recordings[8])


def test_a_scheduler_that_decides_otherwise_is_noticed(recordings: dict[int, Path]) -> None:
    def decide(self: Scheduler, now_ns: int) -> list[Any]:
        self.core.records.next_id += 1
        return original(self, now_ns)

    original = Scheduler.decide
    with patch.object(Scheduler, "decide", decide):
        assert _differs(recordings[8])


def test_evictions_that_are_not_repeated_are_noticed(recordings: dict[int, Path]) -> None:
    with patch.object(replay_module, "Evict", type("Other", (), {})):
        assert any(_differs(folder) for folder in recordings.values())


@pytest.mark.parametrize("is_recorded", [True, False])
def test_the_time_that_is_charged_to_policies_is_part_of_a_recording(
    tmp_path: Path, is_recorded: bool
) -> None:
    """Whatever the scheduler is told beside events decides too."""
    account_time = RecordedScheduler.account_time if is_recorded else Scheduler.account_time
    with patch.object(RecordedScheduler, "account_time", account_time):
        recorded = Recorded(tmp_path, policies=("test", "other"))
        for number in range(6):
            recorded.add_pod(scheduler=("test", "other")[number % 2])
        while recorded.scheduler.ready(recorded.now_ns):
            recorded.decide(elapsed_ns=10**10 if recorded.scheduler.decisions[-1:] == [] else 1)
    recorded.writer.write_all()

    assert len(recorded.scheduler.decisions) == 6
    assert _differs(tmp_path) is not is_recorded


def test_a_snapshot_that_forgets_new_pods_is_noticed(recordings: dict[int, Path], tmp_path: Path) -> None:
    def track(self: TrackedObjects, event: e.Event) -> None:
        if not isinstance(event, e.PodUpdated | e.NodeUpdated):
            original(self, event)

    original = TrackedObjects.track
    with patch.object(TrackedObjects, "track", track):
        record_seed(3, tmp_path, file_bytes_max=1)

    known = replay(_without_starts(open_recording(recordings[3]))).different
    assert replay(_without_starts(open_recording(tmp_path))).different > known


def _differs(folder: Path) -> bool:
    report = replay(open_recording(folder))
    return bool(report.different or report.problems)


def _items(change: Any) -> Any:
    """What the reader yields, changed; None: left out."""
    original = Recording.items

    def items(self: Recording, *args: Any) -> Iterator[Item]:
        return (changed for item in original(self, *args) if (changed := change(item)) is not None)

    return patch.object(Recording, "items", items)


def _without_starts(recording: Recording) -> Recording:
    return Recording(tuple(file for file in recording.files if not file.header.is_start), recording.problems)

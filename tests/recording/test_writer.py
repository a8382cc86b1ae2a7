"""What becomes of a recording where the disk fails or is slow, the process is killed, or files are old, cut off or edited."""

import errno
import os
import stat
from pathlib import Path
from unittest.mock import patch

import pytest

from policysched import __version__
from policysched.recording.format import parse_file_name
from policysched.recording.reader import RecordingGap, RunEnded, UnusableRecording, open_recording
from policysched.recording.recorder import AGE_MAX_S
from policysched.recording.replay import replay
from policysched.schemas import findings
from tests.bench.clusters import NOW_NS
from tests.recording.recorded import Recorded, lines, write_member


def test_each_line_has_the_documented_form_and_only_the_owner_may_read_the_file(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path / "new" / "folder")
    recorded.place_pods(3)
    recorded.add_pod(cpu="1000")
    while recorded.scheduler.ready(recorded.now_ns):  # preemption is a piece of its own
        recorded.decide()
    recorded.writer.write_all()

    (file,) = recorded.files()
    written = list(lines(file))

    assert [line for line in written if findings("recording-line", line)] == []
    assert [line["kind"] for line in written[:2]] == ["header", "snapshot-end"]
    assert written[-1]["kind"] == "end"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    decisions = [made for line in written for made in line.get("decisions", ())]  # type: ignore[attr-defined]
    assert [made["node"] for made in decisions] == ["a", "a", "a", None]
    assert decisions[0]["detail"]["best"][0]["node"] == "a"
    assert decisions[3]["detail"]["rejections"] == {"node_resources_fit": 1}
    assert decisions[0]["order_key"][-1] == decisions[0]["uid"]


def test_files_are_rotated_and_the_oldest_are_removed(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path, file_bytes_max=1_000, bytes_max=12_000)
    for _ in range(20):
        recorded.place_pods(5)
        recorded.writer.write_queued()
        recorded.writer._guarded(recorded.writer._flush)
    recorded.writer.write_all()

    numbers = [parse_file_name(path.name)[1] for path in recorded.files()]  # type: ignore[index]
    assert numbers[0] > 1 and numbers == list(range(numbers[0], numbers[-1] + 1))
    sizes = [path.stat().st_size for path in recorded.files()]
    assert sum(sizes) - max(sizes) < 12_000  # the file that is written may exceed its share
    report = replay(open_recording(tmp_path))
    assert (report.different, report.problems) == (0, [])
    assert report.same["snapshot"] == report.decisions > 10


def test_files_that_are_too_old_are_removed(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path, age_max_s=3600)
    for _ in range(2):
        recorded.recorder.wants_snapshot = True
        recorded.place_pods(1)
        recorded.writer.write_queued()
    os.utime(recorded.files()[0], ns=(0, NOW_NS - 3601 * 10**9))
    other = tmp_path / "notes.txt"
    other.write_text("not a recording")
    os.utime(other, ns=(0, 0))

    recorded.recorder.wants_snapshot = True
    recorded.place_pods(1)
    recorded.writer.write_queued()

    assert [path.name[-15:] for path in recorded.files()] == [
        "000002.jsonl.gz",
        "000003.jsonl.gz",
        "000004.jsonl.gz",
        "notes.txt",
    ]


def test_a_full_disk_leaves_a_reported_gap_and_the_recording_continues(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path)
    recorded.place_pods(3)
    recorded.writer.write_queued()
    recorded.writer._guarded(recorded.writer._flush)

    with patch("policysched.recording.writer.os.write", side_effect=OSError(errno.ENOSPC, "no space")):
        recorded.place_pods(2)
        recorded.writer.write_queued()
        recorded.writer._guarded(recorded.writer._flush)
        failure = recorded.writer.counts.failure
        recorded.place_pods(2)
        recorded.writer.write_queued()
    assert "no space" in failure and recorded.writer.counts.dropped > 6
    recorded.recorder.wants_snapshot = True  # what the writer does ten seconds later
    recorded.place_pods(4)
    recorded.writer.write_all()

    recording = open_recording(tmp_path)
    report = replay(recording)
    (gap,) = report.gaps
    assert recorded.writer.counts.failure == ""
    assert gap.lines == recorded.writer.counts.dropped and "no space" in gap.reason
    assert (report.different, report.problems) == (0, [])
    assert (report.same["run"], report.same["snapshot"]) == (3, 4)


def check_that_one_gap_follows(recorded: Recorded, folder: Path, *, dropped_at_least: int) -> None:
    """Calls were dropped; once the disk writes again, the rest is recorded and replays."""
    recorded.writer.write_queued()
    recorded.place_pods(5)
    recorded.writer.write_all()

    report = replay(open_recording(folder))
    (gap,) = report.gaps
    assert gap.lines == recorded.recorder.dropped >= dropped_at_least and "too slow" in gap.reason
    assert (report.different, report.problems) == (0, [])
    assert report.same["snapshot"]


def test_a_disk_that_is_too_slow_drops_calls_and_never_more_than_the_queue_holds(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path, queue_max=20)
    recorded.place_pods(30)
    assert len(recorded.recorder.queue) <= 21

    check_that_one_gap_follows(recorded, tmp_path, dropped_at_least=51)


def test_a_disk_that_hangs_lets_no_call_wait_for_longer_than_two_minutes(tmp_path: Path) -> None:
    """However few they are: each may have a pod of a megabyte."""
    recorded = Recorded(tmp_path)
    recorded.place_pods(3)
    queued = len(recorded.recorder.queue)
    recorded.monotonic_s += AGE_MAX_S
    recorded.place_pods(20)
    assert len(recorded.recorder.queue) == queued

    check_that_one_gap_follows(recorded, tmp_path, dropped_at_least=21)


def test_a_folder_that_cannot_be_made_holds_up_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    recorded = Recorded(tmp_path / "file" / "folder")
    recorded.place_pods(3)

    recorded.writer.write_all()

    assert len(recorded.scheduler.decisions) == 3
    assert "Not a directory" in recorded.writer.counts.failure


def test_every_cut_of_a_file_is_read_up_to_the_cut(tmp_path: Path) -> None:
    """As `kill -9` leaves it, and worse."""
    recorded = Recorded(tmp_path)
    for _ in range(5):
        recorded.place_pods(2)
        recorded.writer.write_queued()
        recorded.writer._guarded(recorded.writer._flush)
    (file,) = recorded.files()
    whole = file.read_bytes()
    assert _replayed(tmp_path) == (10, 0, 0)

    names = set()
    for length in range(len(whole) - 1, len(whole) // 3, -97):
        file.write_bytes(whole[:length])
        same, different, problems = _replayed(tmp_path)
        assert different == 0 and problems <= 1
        names.add((same, problems))
    assert len(names) > 5 and any(problems for _, problems in names)


def test_a_changed_byte_is_reported_and_loses_the_rest_of_its_file_alone(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path)
    recorded.place_pods(4)
    recorded.recorder.wants_snapshot = True
    recorded.place_pods(4)
    recorded.writer.write_all()
    first = recorded.files()[0]
    content = bytearray(first.read_bytes())
    content[len(content) * 2 // 3] ^= 0xFF
    first.write_bytes(content)

    report = replay(open_recording(tmp_path))

    assert [problem.split(":")[0] for problem in report.problems] == [first.name]
    assert "damaged" in report.problems[0]
    assert report.different == 0 and report.same["snapshot"] >= 3


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"format": 99, "policysched": "9.0"},
            "format 99, written by policysched 9.0; this version reads format 2",
        ),
        (
            {"format": 1, "settings": {"authority": {"policies": []}}},
            f"format 1, written by policysched {__version__}; this version reads format 2",
        ),
        ({"kind": "event"}, "the first line is not a header"),
        ({"run": None}, None),
    ],
)
def test_a_recording_of_another_version_is_refused_in_one_line(
    tmp_path: Path, change: dict[str, object], reason: str | None
) -> None:
    recorded = Recorded(tmp_path)
    recorded.writer.write_all()
    (file,) = recorded.files()
    header = {**next(lines(file)), **change}
    if header["run"] is None:
        del header["run"]
    file.write_bytes(write_member(header))

    with pytest.raises(UnusableRecording) as refused:
        open_recording(tmp_path)

    assert (reason or "Header lacks run") in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_edited_decision_is_a_difference_and_an_unknown_line_ends_its_file(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path)
    recorded.place_pods(3)
    recorded.writer.write_all()
    (file,) = recorded.files()
    written = list(lines(file))
    decided = [line for line in written if line.get("decisions")]
    decided[1]["decisions"][0]["score"] += 1  # type: ignore[index]
    file.write_bytes(write_member(*written, {"kind": "surprise"}))

    report = replay(open_recording(tmp_path))

    (difference,) = report.differences
    assert (difference.id, difference.unit) == (2, "default/p2")
    assert list(difference.fields) == ["score"]
    assert "a line of the unknown kind 'surprise'" in report.problems[0]


def test_a_run_that_ends_in_order_is_marked_as_complete(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path)
    recorded.place_pods(1)
    recorded.writer.start()
    recorded.writer.close()

    items = list(open_recording(tmp_path).items())

    assert isinstance(items[-1], RunEnded)
    assert not any(isinstance(item, RecordingGap) for item in items)


def _replayed(folder: Path) -> tuple[int, int, int]:
    report = replay(open_recording(folder))
    return report.same["run"], report.different, len(report.problems)

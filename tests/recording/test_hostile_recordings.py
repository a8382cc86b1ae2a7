"""Recordings from a stranger, as with a bug report: whatever they say, replay ends with a report or with one line."""

import gzip
import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import orjson
import pytest

from policysched.recording import reader
from policysched.recording import replay as replay_module
from policysched.recording.reader import UnusableRecording, open_recording
from policysched.recording.replay import ReplayReport, replay
from tests.recording.recorded import Recorded

HOSTILE_VALUES: tuple[Any, ...] = (
    *(None, True, -1, 2**63 - 1, 1e308, "", "\x00\x1b[2J", "9" * 6000, "1/0", [], {}, [1, 2], ["a", "b"]),
    *({"a": 1}, {"__integer__": "9" * 6000}, {"__integer__": 5}, {"__integer__": "9" * 30}),
)
DEEP = b"[" * 1000 + b"]" * 1000
MUTATIONS = 150


@pytest.fixture(scope="module")
def recorded_lines(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    recorded = Recorded(tmp_path_factory.mktemp("recording"))
    recorded.place_pods(3)
    recorded.add_pod(cpu="100")
    while recorded.scheduler.ready(recorded.now_ns):
        recorded.decide()
    recorded.writer.write_all()
    (file,) = recorded.files()
    return gzip.decompress(file.read_bytes()).splitlines()


def replayed(folder: Path, lines: list[bytes]) -> ReplayReport | UnusableRecording:
    folder.mkdir(exist_ok=True)
    file = folder / "20260105T100000Z-test.000001.jsonl.gz"
    file.write_bytes(gzip.compress(b"\n".join(lines) + b"\n", 1))
    try:
        return replay(open_recording(folder), 1, 2**62)
    except UnusableRecording as error:
        return error


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield place
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*place, key))


def changed(line: bytes, random: Random) -> bytes:
    """One value of the line is another one, or is missing."""
    value = holder = json.loads(line)
    *path, key = random.choice(list(places(value))[1:])
    for step in path:
        holder = holder[step]
    if isinstance(holder, dict) and random.random() < 0.2:
        del holder[key]
    else:
        holder[key] = random.choice(HOSTILE_VALUES)
    return json.dumps(value).encode()


def test_a_value_of_any_other_form_ends_the_replay_with_a_problem_and_no_traceback(
    recorded_lines: list[bytes], tmp_path: Path
) -> None:
    assert isinstance(report := replayed(tmp_path, recorded_lines), ReplayReport)
    assert (report.different, report.problems, report.decisions) == (0, [], 4)

    random, with_problems = Random(1), 0
    for _ in range(MUTATIONS):
        index = random.randrange(len(recorded_lines))
        lines = [*recorded_lines]
        lines[index] = changed(lines[index], random)
        report = replayed(tmp_path, lines)
        problems = [str(report)] if isinstance(report, UnusableRecording) else report.problems
        with_problems += bool(problems)
        assert all(len(problem) < 500 for problem in problems)

    assert with_problems > MUTATIONS / 2


@pytest.mark.parametrize("at_ns", [1e300, 1.5, -1, 2**63, {"__integer__": "9" * 30}])
def test_a_decision_at_no_time_ends_the_file_at_its_line(
    recorded_lines: list[bytes], tmp_path: Path, at_ns: Any
) -> None:
    number = next(index for index, line in enumerate(recorded_lines) if json.loads(line).get("decisions"))
    line = json.loads(recorded_lines[number])
    line["decisions"][0]["at_ns"] = at_ns
    lines = [*recorded_lines[:number], json.dumps(line).encode(), *recorded_lines[number + 1 :]]

    report = replayed(tmp_path, lines)

    assert isinstance(report, ReplayReport)
    (problem,) = report.problems
    assert f"line {number + 1}: not a decision: its `at_ns` is no time" in problem


def test_planted_trust_in_the_form_of_values_is_detected(recorded_lines: list[bytes], tmp_path: Path) -> None:
    with (
        patch.object(reader, "MALFORMED", ()),
        patch.object(replay_module, "CONTRADICTIONS", (AssertionError,)),
        pytest.raises(Exception, match=r".") as raised,
    ):
        test_a_value_of_any_other_form_ends_the_replay_with_a_problem_and_no_traceback(
            recorded_lines, tmp_path
        )
    assert not isinstance(raised.value, AssertionError)


def test_deeply_nested_values_end_the_file(recorded_lines: list[bytes], tmp_path: Path) -> None:
    for index, line in enumerate(recorded_lines):
        for field in json.loads(line):
            lines = [*recorded_lines]
            lines[index] = json.dumps({**json.loads(line), field: "@"}).encode().replace(b'"@"', DEEP)
            report = replayed(tmp_path, lines)
            assert isinstance(report, UnusableRecording) or report.problems or field == "duration_ns"


def test_a_small_file_that_expands_to_one_huge_line_takes_no_memory_for_it(
    recorded_lines: list[bytes], tmp_path: Path
) -> None:
    huge = b'{"kind":"event","at_ns":1,"event":"%s"}' % (b" " * (40 << 20))
    file = tmp_path / "20260105T100000Z-test.000001.jsonl.gz"
    file.write_bytes(gzip.compress(b"\n".join((*recorded_lines[:3], huge)) + b"\n"))
    assert file.stat().st_size < 1 << 20
    del huge

    tracemalloc.start()
    with patch.object(reader, "LINE_BYTES_MAX", 1 << 20):
        report = replay(open_recording(tmp_path))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    (problem,) = report.problems
    assert problem.endswith("a line has more than 1048576 bytes; the rest of it is not read")
    assert peak_bytes < 20 << 20


def test_every_line_is_read_whatever_the_pieces(recorded_lines: list[bytes], tmp_path: Path) -> None:
    members = [gzip.compress(line + b"\n") for line in recorded_lines]
    file = tmp_path / "20260105T100000Z-test.000001.jsonl.gz"
    for content in (b"".join(members), gzip.compress(b"\n".join(recorded_lines) + b"\n")):
        file.write_bytes(content)
        for piece_bytes in (1, 7, 64, 4096):
            with patch.object(reader, "_PIECE_BYTES", piece_bytes):
                assert [line for line, _ in reader._read_lines(file)] == recorded_lines


def test_texts_of_a_recording_cannot_write_to_the_terminal(
    recorded_lines: list[bytes], tmp_path: Path
) -> None:
    header = orjson.loads(recorded_lines[0])
    other_version = orjson.dumps({**header, "format": 1, "policysched": "\x1b[2J"})

    report = replayed(tmp_path, [other_version, *recorded_lines[1:]])

    assert isinstance(report, UnusableRecording)
    assert "\\x1b[2J" in str(report) and str(report).isprintable()

"""`policysched replay` as its user sees it."""

import json
from pathlib import Path

import pytest

from policysched.schemas import findings
from tests.cli.builders import on_a_terminal, run
from tests.recording.recorded import Recorded, edit_score


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    recorded = Recorded(tmp_path)
    recorded.place_pods(3)
    recorded.writer.write_all()
    return tmp_path


def test_a_recording_that_is_reproduced_exits_with_0(folder: Path) -> None:
    done = run("replay", str(folder))

    assert (done.code, done.err) == (0, "")
    assert done.out == "3 decisions, 3 the same, 0 different\n"
    assert on_a_terminal("replay", str(folder)) == done.out


def test_a_difference_is_shown_with_both_sides_and_exits_with_1(folder: Path) -> None:
    edit_score(folder, decision=2)

    text, record = run("replay", str(folder)), run("replay", str(folder), "--output-format", "json")

    assert (text.code, record.code) == (1, 1)
    assert "decision 2 at 20" in text.out and ": default/p2\n" in text.out
    assert text.out.endswith("3 decisions, 2 the same, 1 different\n")
    page = json.loads(record.out)
    assert findings("replay", page) == []
    assert list(page["differences"][0]["fields"]) == ["score"]


def test_what_cannot_be_replayed_is_one_line_and_exits_with_2(folder: Path, tmp_path: Path) -> None:
    for arguments, reason in (
        ((str(tmp_path / "missing"),), "no such folder"),
        ((str(folder), "--last", "1h", "--from", "2026-01-01T00:00:00Z"), "--from or --last, not both"),
        ((str(folder), "--last", "soon"), "is not a duration"),
    ):
        done = run("replay", *arguments)
        assert done.code == 2 and reason in done.err and done.err.count("\n") == 1, done.err
    for file in folder.iterdir():
        file.write_bytes(b"edited")
    done = run("replay", str(folder))
    assert done.code == 2 and done.err.count("\n") == 1, done.err

"""The tables of the grammar, kept by one command for the next."""

import contextvars
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from policysched.data_files import cache_folder, cached_file, enable_file_cache

POLICY = "policy main version 1\nrequire node.ready\nrequire node.redy\n"
"""With a mistake, so that what is said can be told from silence."""


def lint(home: Path, text: str = POLICY) -> tuple[int, str]:
    file = home / "my.policy"
    file.write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "policysched", "lint", str(file)],
        env={"HOME": str(home), "PATH": os.environ["PATH"], "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def tables(home: Path) -> Path:
    return home / ".cache" / "policysched" / "grammar"


def test_the_second_command_reads_the_tables_of_the_first(tmp_path: Path) -> None:
    first = lint(tmp_path)
    kept, written_ns = tables(tmp_path).read_bytes(), tables(tmp_path).stat().st_mtime_ns

    second = lint(tmp_path)

    assert first == second
    assert (tables(tmp_path).read_bytes(), tables(tmp_path).stat().st_mtime_ns) == (kept, written_ns)


@pytest.mark.parametrize("broken", [b"", b"what is this", b"0" * 64 + b"\n"], ids=["empty", "foreign", "old"])
def test_a_broken_cache_file_is_silently_replaced(tmp_path: Path, broken: bytes) -> None:
    original = lint(tmp_path)
    tables(tmp_path).write_bytes(broken)

    output = lint(tmp_path)

    assert output == original
    assert len(tables(tmp_path).read_bytes()) > len(broken) + 1000


def test_truncated_tables_are_replaced(tmp_path: Path) -> None:
    original = lint(tmp_path)
    whole = tables(tmp_path).read_bytes()
    tables(tmp_path).write_bytes(whole[: len(whole) // 2])

    output = lint(tmp_path)

    assert output == original
    # Not to the byte: sets are written in another order each time.
    assert len(tables(tmp_path).read_bytes()) > 0.9 * len(whole)


def test_without_a_writable_cache_folder_the_command_works(tmp_path: Path) -> None:
    original = lint(tmp_path)
    shut = tmp_path / "shut"
    shut.mkdir()
    (shut / ".cache").write_text("not a folder")

    output = lint(shut)

    assert output[0] == original[0]


def test_a_folder_where_others_may_write_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = cache_folder()
    (tmp_path / "policysched").chmod(0o777)

    assert folder == tmp_path / "policysched"
    assert cache_folder() is None


def test_a_relative_cache_home_is_as_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    monkeypatch.setenv("HOME", str(tmp_path))

    assert cache_folder() == tmp_path / ".cache" / "policysched"


def test_a_command_that_parses_nothing_makes_no_folder(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "policysched", "--help"],
        env={"HOME": str(tmp_path), "PATH": os.environ["PATH"]},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        check=True,
    )

    assert list(tmp_path.iterdir()) == []


def test_on_a_file_system_without_locks_nothing_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kept() -> Path | None:
        enable_file_cache()
        with cached_file("grammar") as path:
            return path

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    locked = contextvars.copy_context().run(kept)
    monkeypatch.setattr(fcntl, "flock", _no_locks)

    assert locked == tmp_path / "policysched" / "grammar"
    assert contextvars.copy_context().run(kept) is None


def _no_locks(*_: object) -> None:
    raise OSError(37, "No locks available")

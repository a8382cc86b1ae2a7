"""`policysched fmt` from end to end."""

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from policysched.cli import CommandError, fmt
from policysched.cli.fmt import rewrite_in_place
from tests.cli.builders import BAD, GOOD, config_map, run, write

MESSY = GOOD.replace(" require", "   require")


def test_a_file_is_rewritten_in_place_and_named(tmp_path: Path) -> None:
    messy, good = write(tmp_path, messy_policy=MESSY, good_policy=GOOD)

    done = run("fmt", messy, good)

    assert (done.code, done.out) == (0, f"reformatted {messy}\n")
    assert Path(messy).read_text() == Path(good).read_text() == GOOD


def test_the_shipped_policies_are_formatted() -> None:
    root = Path(__file__).parents[2]

    done = run("fmt", "--check", *[str(root / name) for name in ("deploy", "policies", "docs/examples")])

    assert (done.code, done.out) == (0, "")


def test_check_writes_nothing_and_fails(tmp_path: Path) -> None:
    (path,) = write(tmp_path, a_policy=MESSY)

    done = run("fmt", "--check", path)

    assert (done.code, done.out) == (1, f"would reformat {path}\n")
    assert Path(path).read_text() == MESSY
    assert run("fmt", path).code == 0
    assert run("fmt", "--check", path).code == 0


def test_diff_prints_what_would_change(tmp_path: Path) -> None:
    (path,) = write(tmp_path, a_policy=MESSY)

    done = run("fmt", "--diff", path)

    assert done.code == 1
    assert "-filter ready   require node.ready\n+filter ready require node.ready\n" in done.out
    assert Path(path).read_text() == MESSY


def test_a_diff_on_a_terminal_has_no_control_characters_of_the_file(tmp_path: Path) -> None:
    (path,) = write(tmp_path, a_policy=MESSY + "\t# \x1b[2J\n")
    arguments = [sys.executable, "-m", "policysched", "fmt", "--diff", path]
    ours, terminal = os.openpty()

    subprocess.run(arguments, stdout=terminal, check=False)
    os.close(terminal)
    shown = os.read(ours, 65536)
    os.close(ours)

    assert b"\x1b[2J" not in shown
    assert b"\\x1b[2J" in shown
    assert b"\x1b[2J" in subprocess.run(arguments, stdout=subprocess.PIPE, check=False).stdout


def test_standard_input_is_formatted_to_standard_output() -> None:
    done = run("fmt", "-", stdin=MESSY)

    assert (done.code, done.out) == (0, GOOD)


def test_a_file_with_a_syntax_error_is_reported_and_not_changed(tmp_path: Path) -> None:
    bad, messy = write(tmp_path, bad_policy=BAD, messy_policy=MESSY)

    done = run("fmt", bad, messy)

    assert done.code == 1
    assert Path(bad).read_text() == BAD
    assert Path(messy).read_text() == GOOD
    assert "error[PS106]" in done.err


def test_of_a_config_map_only_the_block_scalars_are_rewritten(tmp_path: Path) -> None:
    frame = "# kept   as it is\n{first}  other: 'a   b'\n  last.policy: |-\n      {last}\n---\nkind:   Service # kept\n"
    first = config_map(first=MESSY)
    last = MESSY.rstrip("\n").replace("\n", "\n      ")
    (path,) = write(tmp_path, a_yaml=frame.format(first=first, last=last))

    done = run("fmt", path)

    assert done.code == 0
    tidy = GOOD.rstrip("\n").replace("\n", "\n      ")
    assert Path(path).read_text() == frame.format(first=config_map(first=GOOD), last=tidy)
    assert run("fmt", "--check", path).code == 0


def test_a_quoted_scalar_is_left_alone_and_named(tmp_path: Path) -> None:
    text = 'kind: ConfigMap\ndata:\n  a.policy: "policy a   version 1"\n'
    (path,) = write(tmp_path, a_yaml=text)

    done = run("fmt", path)

    assert done.code == 0
    assert Path(path).read_text() == text
    assert "a.policy is a quoted string and is not formatted" in done.err


def test_carriage_returns_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "a.policy"
    path.write_bytes(GOOD.replace("\n", "\r\n").encode())

    assert run("fmt", "--check", str(path)).code == 1
    assert run("fmt", str(path)).code == 0
    assert path.read_bytes() == GOOD.encode()


def test_a_missing_file_is_reported_in_one_line() -> None:
    done = run("fmt", "nowhere.policy")

    assert (done.code, done.err) == (2, "policysched: nowhere.policy: no such file\n")


def test_a_file_that_cannot_be_written_whole_is_as_it_was(tmp_path: Path) -> None:
    (path,) = write(tmp_path, a_policy=MESSY)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    resource.setrlimit(resource.RLIMIT_FSIZE, (len(MESSY), before[1]))
    try:
        with pytest.raises(CommandError, match="the file is unchanged"):
            rewrite_in_place(path, GOOD * 3)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    assert Path(path).read_text() == MESSY


def test_a_file_that_cannot_be_restored_is_not_reported_as_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path,) = write(tmp_path, a_policy=MESSY)

    def fails(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fmt, "_write_content", fails)

    with pytest.raises(CommandError, match="Input/output error; the old content could not be restored"):
        rewrite_in_place(path, GOOD)


def test_a_text_that_became_shorter_leaves_nothing_behind_it(tmp_path: Path) -> None:
    (path,) = write(tmp_path, a_policy=MESSY)

    rewrite_in_place(path, GOOD)

    assert Path(path).read_text() == GOOD

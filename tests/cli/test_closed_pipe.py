"""Output that nobody reads any more, as behind `| head`: every command ends quietly, and what is another matter stays loud."""

import json
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from policysched.cli import closed_output, main
from tests.builders import node_manifest, pod_manifest
from tests.cli.builders import BAD, GOOD

READ_BY_NOBODY = 141


def play(folder: Path, args: list[str], *, closed: str) -> subprocess.CompletedProcess[str]:
    """Python in a process of its own, with this of its streams a pipe whose other end is closed already."""
    reader, writer = os.pipe()
    os.close(reader)
    streams: dict[str, int] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, closed: writer}
    try:
        return subprocess.run(
            [sys.executable, *args],
            cwd=folder,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            **streams,  # type: ignore[call-overload]
        )
    finally:
        os.close(writer)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "good.policy").write_text(GOOD)
    (tmp_path / "bad.policy").write_text(BAD)
    (tmp_path / "loose.policy").write_text(GOOD.replace("\n", "\n\n\n"))
    objects = [node_manifest("a"), pod_manifest("web", cpu="500m", scheduler="example")]
    (tmp_path / "cluster.json").write_text(json.dumps({"kind": "List", "items": objects}))
    return tmp_path


CLUSTER = ["--policy", "good.policy", "--cluster", "cluster.json"]


@pytest.mark.parametrize(
    "args",
    [
        ["--help"],
        ["run", "--help"],
        ["--version"],
        ["rule", "--all"],
        ["lint", "bad.policy"],
        ["lint", "bad.policy", "--output-format", "json"],
        ["fmt", "--diff", "loose.policy"],
        ["show", "good.policy"],
        ["show", "good.policy", "--output-format", "json"],
        ["explain", "web", *CLUSTER],
        ["explain", "web", *CLUSTER, "--output-format", "json"],
        ["simulate", *CLUSTER],
        ["test", "."],
    ],
    ids=" ".join,
)
def test_a_closed_stdout_ends_a_command_silently(args: list[str], files: Path) -> None:
    done = play(files, ["-m", "policysched", *args], closed="stdout")

    assert (done.returncode, done.stderr) == (READ_BY_NOBODY, "")


@pytest.mark.parametrize("args", [["lint", "nowhere.policy"], ["rule"], ["run", "--nonsense"]], ids=" ".join)
def test_a_closed_stderr_ends_a_command_in_the_same_way(args: list[str], files: Path) -> None:
    done = play(files, ["-m", "policysched", *args], closed="stderr")

    assert (done.returncode, done.stdout) == (READ_BY_NOBODY, "")


def test_a_stream_that_the_shell_closed_is_written_to_nowhere(files: Path) -> None:
    command = f'"{sys.executable}" -m policysched show good.policy --output-format json >&-'

    done = subprocess.run(["sh", "-c", command], cwd=files, stderr=subprocess.PIPE, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")


def test_a_broken_connection_is_not_treated_as_a_closed_pipe() -> None:
    def broken(_commands: object, _context: object, _name: str) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    with (
        patch.object(type(main), "get_command", broken),
        pytest.raises(AssertionError, match="a connection broke"),
    ):
        main(["lint", "-"])


def test_a_command_line_that_leaves_closed_pipes_to_click_is_caught(files: Path) -> None:
    """The planted bug: nobody tells a closed pipe apart."""
    without = "from policysched.cli import closed_pipe; closed_pipe.told_apart = __import__('contextlib').nullcontext"
    command = f"{without}; from policysched.cli import main; main(['show', 'good.policy'])"

    done = play(files, ["-c", command], closed="stdout")

    assert done.returncode != closed_output.EXIT_CODE

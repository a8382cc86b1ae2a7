"""The demo as a new user runs it: a process, to its end."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from policysched.data_files import data_file
from policysched.lang.check import check_text
from policysched.sandbox.demo import EDITED_POLICY, EDITED_RULE, POLICIES, without_rule
from tests.cli.builders import run

PATIENCE_S = 600.0
COMMAND = (sys.executable, "-m", "policysched", "demo")


def test_the_demo_runs_to_its_end_and_exits_with_0() -> None:
    ended = subprocess.run(COMMAND, capture_output=True, text=True, timeout=PATIENCE_S, check=False)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    words = " ".join(ended.stdout.split())
    assert re.search(r"2 of 6 share a busy link", words)
    assert re.search(r"gang ml/trainer-xl: \d of 8 members fit now: 0/6 nodes are available", words)
    assert f"+{EDITED_RULE} weight 5" in ended.stdout
    assert "Of the six new web pods 0 share a busy link, 6 do not." in words
    assert re.search(r"shop/web-\S+ would go to node-\d", words)


def test_a_kept_demo_answers_kubectl_and_says_why_a_pod_is_pending_until_it_is_interrupted() -> None:
    kubectl = Path(sys.executable).parent / "kubectl"
    process = subprocess.Popen(
        (*COMMAND, "--keep"),
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ.copy(),
        preexec_fn=_hear_interrupts,
    )
    try:
        assert process.stdout is not None
        line = next(text for text in process.stdout if "export KUBECONFIG=" in text)
        path = Path(line.split("=", 1)[1].strip())
        pods = subprocess.run(
            (kubectl, "--kubeconfig", str(path), "get", "pods", "-n", "shop", "--no-headers"),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=True,
        )
        assert len(pods.stdout.splitlines()) == 12
        printed = next(text for text in process.stdout if text.startswith("  policysched explain ml/"))
        ends_s = time.monotonic() + PATIENCE_S
        while "still computing" in (reason := run(*printed.split()[1:])).err and time.monotonic() < ends_s:
            time.sleep(0.2)  # a busy machine has no proposals yet
        assert reason.code == 0, reason.err
        assert "gang ml/trainer-xl: " in reason.out and "Insufficient cpu" in reason.out
        assert "The gang would start after any one of these:" in reason.out or "is not known" in reason.err
    finally:
        process.send_signal(signal.SIGINT)
        ended_with = process.wait(timeout=PATIENCE_S)

    assert ended_with == 0
    assert not path.exists()
    assert _scheduler_is_gone(path)


@pytest.mark.parametrize("key", POLICIES)
def test_the_policies_of_the_demo_check_before_and_after_the_edit(key: str) -> None:
    text = data_file("policies", key).read_text()

    assert check_text(text).program is not None
    if key == EDITED_POLICY:
        before = without_rule(text)
        assert before != text
        assert check_text(before).program is not None


def _hear_interrupts() -> None:
    """What a shell starts behind `&` ignores them, and so would all that it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _scheduler_is_gone(kubeconfig: Path) -> bool:
    """Whether no process is left that was started with this kubeconfig."""
    ends_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < ends_s:
        if not any(str(kubeconfig).encode() in line for line in _command_lines()):
            return True
        time.sleep(0.2)
    return False


def _command_lines() -> Iterator[bytes]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            yield path.read_bytes()


def test_without_a_folder_for_temporary_files_one_line_says_so() -> None:
    """As in the image, whose file system is read-only."""
    program = (
        "import tempfile, sys\n"
        "tempfile._get_default_tempdir = lambda *_: (_ for _ in ()).throw(FileNotFoundError(2, 'No usable temporary directory found'))\n"
        "from policysched.cli import main\n"
        "sys.argv = ['policysched', 'demo']\n"
        "main()\n"
    )
    ended = subprocess.run(
        (sys.executable, "-c", program), capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )

    assert ended.returncode == 2
    assert ended.stderr == (
        "policysched: the demo needs a folder for temporary files: No usable temporary directory found\n"
    )

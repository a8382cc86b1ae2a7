"""Generates the command output in `docs/offline.md` and `docs/testing-policies.md` from `docs/examples`."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
_FILES = "--policy quiet.policy --cluster cluster.yaml --metrics samples.yaml"


def explain() -> str:
    return "\n\n".join(_run(f"explain {pod} {_FILES}") for pod in ("shop/train-1", "shop/web-1"))


def simulate() -> str:
    return _run(f"simulate {_FILES}")


def diff() -> str:
    return _run(
        f"diff quiet.policy stricter.policy {_FILES.partition(' ')[2].partition(' ')[2]} --fail-on 'newly_pending > 5'"
    )


def show() -> str:
    return _run("show quiet.policy")


def test_file() -> str:
    text = (EXAMPLES / "quiet_test.yaml").read_text(encoding="utf-8").rstrip()
    return f"```yaml\n# quiet_test.yaml\n{text}\n```"


def test_run() -> str:
    return _run("test quiet_test.yaml --coverage")


def _run(arguments: str) -> str:
    environment = {**os.environ, "COLUMNS": "80", "TTY_COMPATIBLE": "1", "TERM": "dumb"}
    done = subprocess.run(
        [sys.executable, "-m", "policysched", *shlex.split(arguments)],
        cwd=EXAMPLES,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    lines = [line.rstrip() for line in done.stdout.rstrip().splitlines()]
    return "\n".join(["```text", f"$ policysched {arguments}", *lines, "```"])

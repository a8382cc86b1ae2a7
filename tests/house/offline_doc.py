"""Generates the command output in `docs/offline.md` and `docs/testing-policies.md` from `docs/examples`."""

import contextlib
import io
import re
import shlex
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

from tests.cli.builders import run

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
_FILES = "--policy quiet.policy --cluster cluster.yaml --metrics samples.yaml"


def explain() -> str:
    of_pods = [_run(f"explain {pod} {_FILES}") for pod in ("shop/train-1", "shop/web-1")]
    of_gang = _run("explain lab/mpi-0 --policy gang.policy --cluster gang.yaml")
    return "\n\n".join((*of_pods, of_gang))


def simulate() -> str:
    return _run(f"simulate {_FILES}")


def diff() -> str:
    return _run(
        f"diff quiet.policy stricter/quiet.policy {_FILES.partition(' ')[2].partition(' ')[2]} --at 2026-06-01T09:00:00Z --fail-on 'newly_pending > 5'"
    )


def show() -> str:
    return _run("show quiet.policy")


def test_file() -> str:
    text = (EXAMPLES / "quiet_test.yaml").read_text(encoding="utf-8").rstrip()
    return f"```yaml\n# quiet_test.yaml\n{text}\n```"


def test_run() -> str:
    return _run("test quiet_test.yaml --coverage")


def picture() -> str:
    """An SVG of the terminal in which `explain` ran, for the README."""
    arguments = f"explain shop/web-1 {_FILES}"
    console = Console(record=True, width=84, file=io.StringIO())
    console.print(
        Text.from_ansi(f"$ policysched {arguments.replace('--cluster', chr(92) + chr(10) + '    --cluster')}")
    )
    console.print(Text.from_ansi(_output(arguments, term="xterm-256color").rstrip()))
    no_web_fonts = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    return console.export_svg(title="", code_format=no_web_fonts, unique_id="explain") + "\n"


def _run(arguments: str) -> str:
    lines = [line.rstrip() for line in _output(arguments, term="dumb").rstrip().splitlines()]
    return "\n".join(["```text", f"$ policysched {arguments}", *lines, "```"])


def _output(arguments: str, *, term: str) -> str:
    environment = {"COLUMNS": "80", "TTY_COMPATIBLE": "1", "TERM": term}
    with contextlib.chdir(EXAMPLES):
        done = run(*shlex.split(arguments), env=environment)
    assert done.code == 0, done.err
    return done.out

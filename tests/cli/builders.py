"""Running the command line in this process, on files in a folder of the test."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from click.testing import CliRunner

from policysched.cli import main

GOOD = "policy example version 1\ninclude kube_default\nfilter ready require node.ready\n"
BAD = "policy example version 1\ninclude kube_default\nfilter ready requires node.ready\n"
WARNED = "policy default-scheduler version 1\ninclude kube_default\n"


@dataclass(frozen=True)
class Run:
    code: int
    out: str
    err: str


def run(*args: str, stdin: str | None = None, env: dict[str, str] | None = None) -> Run:
    result = CliRunner(env={"NO_COLOR": None, "FORCE_COLOR": None, **(env or {})}).invoke(
        main, list(args), input=stdin, prog_name="policysched"
    )
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return Run(result.exit_code, result.stdout, result.stderr)


def on_a_terminal(*args: str, columns: int = 80) -> str:
    """The standard output on a terminal without colours."""
    env = {"TTY_COMPATIBLE": "1", "TERM": "xterm", "NO_COLOR": "1", "COLUMNS": str(columns)}
    result = run(*args, env=env)
    assert result.code == 0, result.err
    return re.sub(r"\x1b\[[0-9;]*m", "", result.out)


def config_map(**policies: str) -> str:
    """A ConfigMap with each text as a block scalar under its key with `.policy` behind."""
    lines = [
        "apiVersion: v1",
        "kind: ConfigMap",
        "metadata:",
        "  name: policies",
        "  namespace: kube-system",
        "data:",
    ]
    for key, text in policies.items():
        lines.append(f"  {key}.policy: |")
        lines.extend(f"    {line}" if line else "" for line in text.rstrip("\n").split("\n"))
    return "\n".join(lines) + "\n"


def write(folder: Path, **files: str) -> list[str]:
    """`a_policy="..."` becomes `a.policy`. The paths, in order."""
    paths = []
    for name, text in files.items():
        path = folder / name.replace("_", ".")
        path.write_text(text, encoding="utf-8")
        paths.append(os.fspath(path))
    return paths

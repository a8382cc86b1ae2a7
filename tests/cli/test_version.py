"""`policysched version` and `policysched completion`."""

import json
import os
import subprocess
import sys

import pytest

from policysched import __version__
from tests.cli.builders import run


def test_version_names_the_program_the_language_and_the_releases() -> None:
    text, record = run("version").out, json.loads(run("version", "--output-format", "json").out)

    assert text.splitlines()[0].split() == ["policysched", __version__]
    assert record["version"] == __version__
    assert record["language"] == 1
    assert record["kube_default"] in record["kube_scheduler_releases"]
    assert all(release in text for release in record["kube_scheduler_releases"])


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_the_shell(shell: str) -> None:
    done = run("completion", shell)

    assert done.code == 0
    assert "_POLICYSCHED_COMPLETE" in done.out


@pytest.mark.parametrize(
    ("words", "completed"), [("policysched li", "lint"), ("policysched lint --out", "--output-format")]
)
def test_the_bash_script_completes_commands_and_options(words: str, completed: str) -> None:
    """bash calls the program with these variables, as the script does."""
    environment = {
        **os.environ,
        "_POLICYSCHED_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-m", "policysched"], env=environment, capture_output=True, text=True, check=True
    )

    assert f"plain,{completed}" in done.stdout.splitlines()

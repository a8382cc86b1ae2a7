"""actionlint and zizmor find nothing in the workflows: what nobody can run before it is pushed is checked by the linters of its language."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.go_program import GoProgram
from tests.missing_programs import leave_out, required

ROOT = Path(__file__).parents[2]
SOURCES = Path(__file__).parent / "src"
TIMEOUT_S = 120.0

UNSAFE = """\
name: greet
on: pull_request_target
permissions: {}
jobs:
  greet:
    runs-on: ubuntu-latest
    steps:
      - run: echo "${{ github.event.pull_request.title }}"
      - run: echo "${{ matrix.python }}"
"""


@pytest.fixture(scope="session")
def actionlint(request: pytest.FixtureRequest) -> Path:
    program = GoProgram.of_module("actionlint", "github.com/rhysd/actionlint/cmd/actionlint", SOURCES)
    return required(request, "workflow-linters", lambda: program.binary(os.environ))


@pytest.fixture(scope="session")
def zizmor() -> Path:
    path = Path(sys.executable).with_name("zizmor")
    if not path.exists():
        leave_out("workflow-linters", "zizmor is not installed: `make setup` installs it")
    return path


@pytest.fixture
def unsafe(tmp_path: Path) -> Path:
    """A repository with a workflow that runs what a stranger writes, and reads a matrix that it does not have."""
    workflows = tmp_path / ".github" / "workflows"
    workflows.mkdir(parents=True)
    (workflows / "greet.yml").write_text(UNSAFE)
    return tmp_path


def lint(*command: object, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env={**os.environ, "NO_COLOR": "1"},
        check=False,
    )


def test_actionlint_finds_nothing(actionlint: Path) -> None:
    paths = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    shellcheck = ("-shellcheck", shutil.which("shellcheck") or "")

    done = lint(actionlint, *shellcheck, *paths, folder=ROOT)

    assert paths
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_zizmor_finds_nothing(zizmor: Path) -> None:
    done = lint(zizmor, "--offline", "--quiet", ".github", folder=ROOT)

    assert done.returncode == 0, done.stdout + done.stderr


def test_a_workflow_that_reads_what_is_not_there_is_detected(actionlint: Path, unsafe: Path) -> None:
    done = lint(actionlint, "-shellcheck", "", unsafe / ".github/workflows/greet.yml", folder=unsafe)

    assert done.returncode == 1
    assert 'property "python" is not defined' in done.stdout


def test_a_workflow_that_runs_what_a_stranger_writes_is_detected(zizmor: Path, unsafe: Path) -> None:
    done = lint(zizmor, "--offline", "--quiet", ".github", folder=unsafe)

    assert done.returncode not in (0, 1), "1: it could not run"
    assert "template-injection" in done.stdout and "dangerous-triggers" in done.stdout
